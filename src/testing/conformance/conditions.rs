//! Rules about conditions.

use std::fmt::Debug;

use super::{Container, assert_holds, assert_refused, marked};
use crate::blob::Condition;
use crate::error::{ErrorKind, Result};

/// `Create` makes a blob that can be read back.
pub async fn create_makes_a_blob(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    assert_holds(&container, "a", &marked("1"), &written.etag).await
}

/// `Create` over a blob is a conflict and changes nothing.
pub async fn create_over_a_blob_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    assert_refused(container.write("a", &marked("2"), &Condition::Create).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("1"), &first.etag).await
}

/// `Match` with the current ETag replaces a blob, and with the ETag it gave again.
pub async fn match_replaces_a_blob(container: Container) -> Result<()> {
    let mut written = container.write("a", &marked("0"), &Condition::Create).await?;
    for mark in ["1", "2"] {
        written = container.write("a", &marked(mark), &Condition::IfMatch(written.etag)).await?;
        assert_holds(&container, "a", &marked(mark), &written.etag).await?;
    }
    Ok(())
}

/// `Match` with an ETag of the past is a conflict and changes nothing.
pub async fn a_stale_match_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &Condition::IfMatch(first.etag.clone())).await?;
    let outcome = container.write("a", &marked("3"), &Condition::IfMatch(first.etag)).await;
    assert_refused(outcome, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}

/// `Match` never makes a blob. The service says that there is none, or that it is not the one that was meant.
pub async fn a_match_never_makes_a_blob(container: Container) -> Result<()> {
    let gone = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::Unconditional).await?;
    let outcome = container.write("a", &marked("2"), &Condition::IfMatch(gone.etag)).await;
    assert_refused_as_missing_or_changed(outcome);
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// `Any` makes a blob where there is none, and replaces it where there is one.
pub async fn any_creates_and_overwrites(container: Container) -> Result<()> {
    for mark in ["1", "2"] {
        let written = container.write("a", &marked(mark), &Condition::Unconditional).await?;
        assert_holds(&container, "a", &marked(mark), &written.etag).await?;
    }
    Ok(())
}

/// A deletion under the current ETag removes the blob.
pub async fn a_blob_is_deleted_under_its_etag(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::IfMatch(written.etag)).await?;
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// A deletion under an ETag of the past is a conflict and removes nothing.
pub async fn a_deletion_with_a_stale_etag_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &Condition::Unconditional).await?;
    assert_refused(container.delete("a", &Condition::IfMatch(first.etag)).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}

/// A blob that is not there cannot be deleted, under whatever condition.
pub async fn a_missing_blob_cannot_be_deleted(container: Container) -> Result<()> {
    let gone = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::IfMatch(gone.etag.clone())).await?;
    assert_refused(container.delete("a", &Condition::Unconditional).await, ErrorKind::NotFound);
    assert_refused_as_missing_or_changed(container.delete("a", &Condition::IfMatch(gone.etag)).await);
    Ok(())
}

/// A deletion under `Create` makes no sense and is rejected.
pub async fn a_deletion_under_create_is_rejected(container: Container) -> Result<()> {
    container.write("a", &marked("1"), &Condition::Create).await?;
    assert_refused(container.delete("a", &Condition::Create).await, ErrorKind::InvalidArgument);
    assert_refused(container.delete("b", &Condition::Create).await, ErrorKind::InvalidArgument);
    container.get("a").await.map(drop)
}

/// The name of a deleted blob is free, and its old ETag opens nothing.
pub async fn a_deleted_blob_can_be_created_again(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::Unconditional).await?;
    let second = container.write("a", &marked("2"), &Condition::Create).await?;
    assert_ne!(first.etag, second.etag);
    assert_refused(container.write("a", &marked("3"), &Condition::IfMatch(first.etag)).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}

/// Azure says `NotFound`, Azurite says `Conflict`; see [`Condition::IfMatch`].
fn assert_refused_as_missing_or_changed<T: Debug>(outcome: Result<T>) {
    let kind = outcome.map_err(|error| error.kind());
    assert!(matches!(kind, Err(ErrorKind::NotFound | ErrorKind::Conflict)), "{kind:?}");
}
