//! Rules about ETags and conditions.

use std::fmt::Debug;

use super::{Container, assert_holds, assert_refused, with_value};
use crate::blob::{Condition, ETag};
use crate::error::{ErrorKind, Result};

/// `Create` creates a blob that can be read back.
pub async fn create_makes_a_blob(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_holds(&container, "a", &with_value("1"), &written.etag).await
}

/// `Create` over a blob is a conflict and changes nothing.
pub async fn create_over_a_blob_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_refused(container.write("a", &with_value("2"), &Condition::Create).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &with_value("1"), &first.etag).await
}

/// `IfMatch` with the current ETag replaces a blob, and returns an ETag for the next replacement.
pub async fn match_replaces_a_blob(container: Container) -> Result<()> {
    let mut written = container.write("a", &with_value("0"), &Condition::Create).await?;
    for value in ["1", "2"] {
        written = container.write("a", &with_value(value), &Condition::IfMatch(written.etag)).await?;
        assert_holds(&container, "a", &with_value(value), &written.etag).await?;
    }
    Ok(())
}

/// `IfMatch` with an old ETag is a conflict and changes nothing.
pub async fn a_stale_match_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.write("a", &with_value("2"), &Condition::IfMatch(first.etag.clone())).await?;
    let outcome = container.write("a", &with_value("3"), &Condition::IfMatch(first.etag)).await;
    assert_refused(outcome, ErrorKind::Conflict);
    assert_holds(&container, "a", &with_value("2"), &second.etag).await
}

/// `IfMatch` never creates a blob. The service reports a missing blob or a conflict.
pub async fn a_match_never_makes_a_blob(container: Container) -> Result<()> {
    let deleted = container.write("a", &with_value("1"), &Condition::Create).await?;
    container.delete("a", &deleted.etag).await?;
    let outcome = container.write("a", &with_value("2"), &Condition::IfMatch(deleted.etag)).await;
    assert_refused_as_missing_or_changed(outcome);
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// A deletion with the current ETag removes the blob.
pub async fn a_blob_is_deleted_under_its_etag(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    container.delete("a", &written.etag).await?;
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// A deletion with an old ETag is a conflict and removes nothing.
pub async fn a_deletion_with_a_stale_etag_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.write("a", &with_value("2"), &Condition::IfMatch(first.etag.clone())).await?;
    assert_refused(container.delete("a", &first.etag).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &with_value("2"), &second.etag).await
}

/// A blob that does not exist cannot be deleted.
pub async fn a_missing_blob_cannot_be_deleted(container: Container) -> Result<()> {
    let deleted = container.write("a", &with_value("1"), &Condition::Create).await?;
    container.delete("a", &deleted.etag).await?;
    assert_refused_as_missing_or_changed(container.delete("a", &deleted.etag).await);
    Ok(())
}

/// The name of a deleted blob can be used again, and its old ETag matches nothing.
pub async fn a_deleted_blob_can_be_created_again(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    container.delete("a", &first.etag).await?;
    let second = container.write("a", &with_value("2"), &Condition::Create).await?;
    assert_ne!(first.etag, second.etag);
    assert_refused(container.write("a", &with_value("3"), &Condition::IfMatch(first.etag)).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &with_value("2"), &second.etag).await
}

/// Azure reports `NotFound`, Azurite reports `Conflict`: see [`Condition::IfMatch`].
fn assert_refused_as_missing_or_changed<T: Debug>(outcome: Result<T>) {
    let kind = outcome.map_err(|error| error.kind());
    assert!(matches!(kind, Err(ErrorKind::NotFound | ErrorKind::Conflict)), "{kind:?}");
}

/// The ETag has no quotes and is the same in the response to a write, a read and a listing.
pub async fn the_etag_is_the_same_everywhere_and_unquoted(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert!(!written.etag.as_str().is_empty() && !written.etag.as_str().contains('"'), "{:?}", written.etag);
    assert_eq!(container.get("a").await?.etag, written.etag);
    assert_eq!(container.list("").await?.blobs[0].etag, written.etag);
    Ok(())
}

/// An ETag from a listing matches, like one from a write.
pub async fn the_etag_of_a_listing_matches(container: Container) -> Result<()> {
    container.write("a", &with_value("1"), &Condition::Create).await?;
    let listed = container.list("").await?.blobs.remove(0);
    container.write("a", &with_value("2"), &Condition::IfMatch(listed.etag)).await?;
    Ok(())
}

/// Every write returns a new ETag, even if it does not change the metadata.
pub async fn every_write_gives_a_new_etag(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.write("a", &with_value("1"), &Condition::IfMatch(first.etag.clone())).await?;
    let third = container.write("a", &with_value("1"), &Condition::IfMatch(second.etag.clone())).await?;
    assert!(first.etag != second.etag && second.etag != third.etag && first.etag != third.etag);
    Ok(())
}

/// Reads and listings do not change the ETag.
pub async fn reading_leaves_the_etag_alone(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    container.get("a").await?;
    container.list("").await?;
    container.write("a", &with_value("2"), &Condition::IfMatch(written.etag)).await?;
    Ok(())
}

/// An ETag with quotes is equal to the one without: it matches in a write and in a deletion.
pub async fn a_quoted_etag_matches_as_well(container: Container) -> Result<()> {
    let quoted = |etag: &ETag| ETag::new(&etag.quoted());
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.write("a", &with_value("2"), &Condition::IfMatch(quoted(&first.etag))).await?;
    container.delete("a", &quoted(&second.etag)).await.map(drop)
}
