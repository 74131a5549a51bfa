//! Rules about ETags.

use super::{Container, with_value};
use crate::blob::{Condition, ETag};
use crate::error::Result;

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
