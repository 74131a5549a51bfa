//! Rules about ETags.

use super::{Container, marked};
use crate::blob::{Condition, ETag};
use crate::error::Result;

/// The ETag has no quotes and is the same in the answer to a write, a read and a listing.
pub async fn the_etag_is_the_same_everywhere_and_unquoted(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    assert!(!written.etag.as_str().is_empty() && !written.etag.as_str().contains('"'), "{:?}", written.etag);
    assert_eq!(container.get("a").await?.etag, written.etag);
    assert_eq!(container.list("").await?.blobs[0].etag, written.etag);
    Ok(())
}

/// An ETag from a listing opens a blob as well as one from a write.
pub async fn the_etag_of_a_listing_matches(container: Container) -> Result<()> {
    container.write("a", &marked("1"), &Condition::Create).await?;
    let listed = container.list("").await?.blobs.remove(0);
    container.write("a", &marked("2"), &Condition::IfMatch(listed.etag)).await?;
    Ok(())
}

/// Every write gives a new ETag, even if it writes what is there.
pub async fn every_write_gives_a_new_etag(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("1"), &Condition::IfMatch(first.etag.clone())).await?;
    let third = container.write("a", &marked("1"), &Condition::Unconditional).await?;
    assert!(first.etag != second.etag && second.etag != third.etag && first.etag != third.etag);
    Ok(())
}

/// Reading and listing leave the ETag as it is.
pub async fn reading_leaves_the_etag_alone(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    container.get("a").await?;
    container.list("").await?;
    container.write("a", &marked("2"), &Condition::IfMatch(written.etag)).await?;
    Ok(())
}

/// An ETag with quotes is the same ETag: it opens a blob, and deletes it.
pub async fn a_quoted_etag_matches_as_well(container: Container) -> Result<()> {
    let quoted = |etag: &ETag| Condition::IfMatch(ETag::new(&etag.quoted()));
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &quoted(&first.etag)).await?;
    container.delete("a", &quoted(&second.etag)).await.map(drop)
}
