//! Rules about the container itself.

use super::{Container, assert_refused, marked};
use crate::blob::{Condition, ContainerCreation, ETag, Metadata};
use crate::error::{ErrorKind, Result};

/// The first call makes the container, the second finds it and leaves its blobs alone.
pub async fn a_container_is_created_once(container: Container) -> Result<()> {
    assert_eq!(container.create_container().await?, ContainerCreation::Created);
    container.write("a", &marked("1"), &Condition::Create).await?;
    assert_eq!(container.create_container().await?, ContainerCreation::Existed);
    container.get("a").await.map(drop)
}

/// Every request to a missing container says so, and tells it from a missing blob.
pub async fn a_missing_container_is_no_missing_blob(container: Container) -> Result<()> {
    let kind = ErrorKind::ContainerNotFound;
    assert_refused(container.list("").await, kind);
    assert_refused(container.get("a").await, kind);
    for condition in [Condition::Create, Condition::Unconditional, Condition::IfMatch(ETag::new("0x0"))] {
        assert_refused(container.write("a", &Metadata::new(), &condition).await, kind);
    }
    for condition in [Condition::Unconditional, Condition::IfMatch(ETag::new("0x0"))] {
        assert_refused(container.delete("a", &condition).await, kind);
    }
    Ok(())
}

/// An isolated container is the same container, in both directions.
pub async fn an_isolated_container_is_the_same_container(container: Container) -> Result<()> {
    let isolated = container.with_new_connections()?;
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    assert_eq!(isolated.get("a").await?.etag, written.etag);
    isolated.delete("a", &Condition::IfMatch(written.etag)).await?;
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}

/// An isolated container works on a runtime of its own and stays usable when the first runtime is gone.
pub async fn an_isolated_container_works_on_another_runtime(container: Container) -> Result<()> {
    container.write("a", &marked("1"), &Condition::Create).await?;
    let isolated = container.with_new_connections()?;
    let on_another_runtime = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| runtime.block_on(isolated.get("a")))
    };
    let Ok(Ok(blob)) = tokio::task::spawn_blocking(on_another_runtime).await else {
        panic!("the other runtime did not start or panicked");
    };
    assert_eq!(blob?.metadata, marked("1"));
    assert_eq!(container.get("a").await?.metadata, marked("1"));
    Ok(())
}
