//! Rules about the container itself.

use super::{Container, assert_refused, with_value};
use crate::blob::{Condition, ContainerCreation, ETag, Metadata};
use crate::error::{ErrorKind, Result};

/// The first call creates the container. The second call finds it and does not change its blobs.
pub async fn a_container_is_created_once(container: Container) -> Result<()> {
    assert_eq!(container.create_container().await?, ContainerCreation::Created);
    container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_eq!(container.create_container().await?, ContainerCreation::Existed);
    container.get("a").await.map(drop)
}

/// Every request to a missing container reports that, and not a missing blob.
pub async fn a_missing_container_is_no_missing_blob(container: Container) -> Result<()> {
    let kind = ErrorKind::ContainerNotFound;
    assert_refused(container.list("").await, kind);
    assert_refused(container.get("a").await, kind);
    for condition in [Condition::Create, Condition::IfMatch(ETag::new("0x0"))] {
        assert_refused(container.write("a", &Metadata::new(), &condition).await, kind);
    }
    assert_refused(container.delete("a", &ETag::new("0x0")).await, kind);
    Ok(())
}

/// A container with new connections is the same container, in both directions.
pub async fn an_isolated_container_is_the_same_container(container: Container) -> Result<()> {
    let second = container.with_new_connections()?;
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_eq!(second.get("a").await?.etag, written.etag);
    second.delete("a", &written.etag).await?;
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// A container with new connections works on another runtime, and the original one works after that runtime has ended.
pub async fn an_isolated_container_works_on_another_runtime(container: Container) -> Result<()> {
    container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.with_new_connections()?;
    let on_another_runtime = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| runtime.block_on(second.get("a")))
    };
    let Ok(Ok(blob)) = tokio::task::spawn_blocking(on_another_runtime).await else {
        panic!("the other runtime did not start or panicked");
    };
    assert_eq!(blob?.metadata, with_value("1"));
    assert_eq!(container.get("a").await?.metadata, with_value("1"));
    Ok(())
}
