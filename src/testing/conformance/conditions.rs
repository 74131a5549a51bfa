//! Rules about conditions.

use super::{Container, assert_holds, assert_refused, marked};
use crate::blob::{Condition, ETag};
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
        written = container.write("a", &marked(mark), &Condition::Match(written.etag)).await?;
        assert_holds(&container, "a", &marked(mark), &written.etag).await?;
    }
    Ok(())
}

/// `Match` with an ETag of the past is a conflict and changes nothing.
pub async fn a_stale_match_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &Condition::Match(first.etag.clone())).await?;
    let outcome = container.write("a", &marked("3"), &Condition::Match(first.etag)).await;
    assert_refused(outcome, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}

/// `Match` never makes a blob.
pub async fn a_match_on_a_missing_blob_is_not_found(container: Container) -> Result<()> {
    let gone = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::Any).await?;
    for etag in [gone.etag, ETag::new("0x0")] {
        assert_refused(container.write("a", &marked("2"), &Condition::Match(etag)).await, ErrorKind::NotFound);
    }
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// `Any` makes a blob where there is none, and replaces it where there is one.
pub async fn any_creates_and_overwrites(container: Container) -> Result<()> {
    for mark in ["1", "2"] {
        let written = container.write("a", &marked(mark), &Condition::Any).await?;
        assert_holds(&container, "a", &marked(mark), &written.etag).await?;
    }
    Ok(())
}

/// A deletion under the current ETag removes the blob.
pub async fn a_blob_is_deleted_under_its_etag(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::Match(written.etag)).await?;
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// A deletion under an ETag of the past is a conflict and removes nothing.
pub async fn a_deletion_with_a_stale_etag_is_a_conflict(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &Condition::Any).await?;
    assert_refused(container.delete("a", &Condition::Match(first.etag)).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}

/// Whatever the condition, a blob that is not there is not found.
pub async fn deleting_a_missing_blob_is_not_found(container: Container) -> Result<()> {
    for condition in [Condition::Any, Condition::Match(ETag::new("0x0"))] {
        assert_refused(container.delete("a", &condition).await, ErrorKind::NotFound);
    }
    Ok(())
}

/// A deletion under `Create` makes no sense and is rejected.
pub async fn a_deletion_under_create_is_rejected(container: Container) -> Result<()> {
    container.write("a", &marked("1"), &Condition::Create).await?;
    assert_refused(container.delete("a", &Condition::Create).await, ErrorKind::Rejected);
    assert_refused(container.delete("b", &Condition::Create).await, ErrorKind::Rejected);
    container.get("a").await.map(drop)
}

/// The name of a deleted blob is free, and its old ETag opens nothing.
pub async fn a_deleted_blob_can_be_created_again(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    container.delete("a", &Condition::Any).await?;
    let second = container.write("a", &marked("2"), &Condition::Create).await?;
    assert_ne!(first.etag, second.etag);
    assert_refused(container.write("a", &marked("3"), &Condition::Match(first.etag)).await, ErrorKind::Conflict);
    assert_holds(&container, "a", &marked("2"), &second.etag).await
}
