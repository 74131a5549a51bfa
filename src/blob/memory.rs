//! A container in memory with Azure's semantics, for tests and simulations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::Instant;

use super::validation::{validate_blob_name, validate_metadata};
use super::{Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult};
use crate::clock::{SystemWallClock, WallClock, is_paused};
use crate::error::{Error, ErrorKind, Result};
use crate::util::lock;

/// The server time of a new container under paused time, so that tests are repeatable.
const EPOCH: OffsetDateTime = datetime!(2026-01-01 00:00:00 UTC);

/// A blob container in memory. Clones share their blobs.
///
/// It behaves like Azure wherever the difference is visible through [`BlobContainer`]: times in whole seconds, a new
/// ETag on every write, the same errors. Its server clock is tokio's clock, so a paused runtime stops it and
/// `tokio::time::advance` advances it. It starts at the local time, or on 2026-01-01 under paused time.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> eventhubs_checkpoint::Result<()> {
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
///
/// let container = MemoryContainer::new();
/// let written = container.write("a", &Metadata::new(), &Condition::Create).await?;
/// assert_eq!(container.get("a").await?.etag, written.etag);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryContainer {
    server: Arc<Server>,
}

struct Server {
    started: Instant,
    started_at: OffsetDateTime,
    state: Mutex<ContainerState>,
}

#[derive(Default)]
struct ContainerState {
    container_exists: bool,
    writes: u64,
    blobs: BTreeMap<String, StoredBlob>,
}

struct StoredBlob {
    metadata: Metadata,
    etag: ETag,
    last_modified: OffsetDateTime,
}

fn default_start() -> OffsetDateTime {
    if is_paused() { EPOCH } else { SystemWallClock.now() }
}

impl MemoryContainer {
    /// Creates an empty container.
    #[must_use]
    pub fn new() -> Self {
        Self::with_state(ContainerState { container_exists: true, ..ContainerState::default() }, default_start())
    }

    /// Creates an empty container whose server clock starts at this time, to test a local clock that is wrong.
    #[must_use]
    pub fn starting_at(server_time: OffsetDateTime) -> Self {
        Self::with_state(ContainerState { container_exists: true, ..ContainerState::default() }, server_time)
    }

    /// Creates a container that does not exist until [`BlobContainer::create_container`] is called.
    #[must_use]
    pub fn missing() -> Self {
        Self::with_state(ContainerState::default(), default_start())
    }

    /// Deletes the container with all its blobs, as an administrator may at any time. All requests fail with
    /// [`ErrorKind::ContainerNotFound`] until [`BlobContainer::create_container`] creates it again.
    pub fn delete_container(&self) {
        let mut state = self.server.lock_state();
        state.container_exists = false;
        state.blobs.clear();
    }

    fn with_state(state: ContainerState, started_at: OffsetDateTime) -> Self {
        Self { server: Arc::new(Server { started: Instant::now(), started_at, state: Mutex::new(state) }) }
    }

    /// Runs one request. It yields to the scheduler before and after the request takes effect, as real I/O does.
    async fn run_request<T>(&self, apply: impl FnOnce(&mut ContainerState, ResponseInfo) -> Result<T>) -> Result<T> {
        tokio::task::yield_now().await;
        let outcome = {
            let received_at = Instant::now();
            let now = self.server.started_at + received_at.saturating_duration_since(self.server.started);
            let response = ResponseInfo { server_time: now.replace_nanosecond(0).unwrap_or(now), received_at };
            let mut state = self.server.lock_state();
            apply(&mut state, response).map_err(|error| error.with_server_time(Some(response.server_time)))
        };
        tokio::task::yield_now().await;
        outcome
    }
}

impl Default for MemoryContainer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryContainer").field("blobs", &self.server.lock_state().blobs.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// The state is consistent after every statement, so a panic of another thread that held the lock does no harm.
    fn lock_state(&self) -> MutexGuard<'_, ContainerState> {
        lock(&self.state)
    }
}

impl ContainerState {
    fn check_container(&self) -> Result<()> {
        if self.container_exists {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ContainerNotFound, "the in-memory container does not exist; create it"))
    }

    fn find_blob(&self, name: &str) -> Result<&StoredBlob> {
        self.blobs.get(name).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the blob {name:?} does not exist")))
    }

    fn check_condition(&self, name: &str, condition: &Condition) -> Result<()> {
        match condition {
            Condition::Create if self.blobs.contains_key(name) => {
                Err(conflict_error(format!("the blob {name:?} already exists")))
            }
            Condition::IfMatch(etag) if self.find_blob(name)?.etag != *etag => {
                Err(conflict_error(format!("the blob {name:?} was written after its ETag was read")))
            }
            Condition::Create | Condition::IfMatch(_) => Ok(()),
        }
    }

    fn write_blob(&mut self, name: &str, metadata: Metadata, response: ResponseInfo) -> WriteResult {
        self.writes += 1;
        let etag = ETag::new(&format!("0x{:016X}", self.writes));
        self.blobs
            .insert(name.to_owned(), StoredBlob { metadata, etag: etag.clone(), last_modified: response.server_time });
        WriteResult { etag, versioned: false, response }
    }
}

impl StoredBlob {
    fn to_blob(&self, name: &str, response: ResponseInfo) -> Blob {
        Blob {
            name: name.to_owned(),
            metadata: self.metadata.clone(),
            etag: self.etag.clone(),
            last_modified: self.last_modified,
            response,
        }
    }
}

#[async_trait]
impl BlobContainer for MemoryContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.run_request(|state, response| {
            state.check_container()?;
            let from_prefix = state.blobs.range(prefix.to_owned()..);
            Ok(ListResult {
                blobs: from_prefix
                    .take_while(|(name, _)| name.starts_with(prefix))
                    .map(|(name, blob)| blob.to_blob(name, response))
                    .collect(),
                response,
            })
        })
        .await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        validate_blob_name(name)?;
        self.run_request(|state, response| {
            state.check_container()?;
            Ok(state.find_blob(name)?.to_blob(name, response))
        })
        .await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        validate_blob_name(name)?;
        validate_metadata(metadata)?;
        self.run_request(|state, response| {
            state.check_container()?;
            state.check_condition(name, condition)?;
            Ok(state.write_blob(name, metadata.clone(), response))
        })
        .await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        validate_blob_name(name)?;
        self.run_request(|state, response| {
            state.check_container()?;
            state.check_condition(name, &Condition::IfMatch(etag.clone()))?;
            state.blobs.remove(name);
            Ok(response)
        })
        .await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.run_request(|state, _| {
            let existed = std::mem::replace(&mut state.container_exists, true);
            Ok(if existed { ContainerCreation::Existed } else { ContainerCreation::Created })
        })
        .await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

fn conflict_error(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::Overwrite;

    #[tokio::test(start_paused = true)]
    async fn server_clock_is_tokio_clock_in_whole_seconds() {
        let container = MemoryContainer::new();
        container.overwrite("a", &Metadata::new()).await.unwrap();
        tokio::time::advance(Duration::from_millis(90_999)).await;
        let blob = container.get("a").await.unwrap();
        assert_eq!(blob.last_modified, EPOCH);
        assert_eq!(blob.response.server_time, EPOCH + Duration::from_secs(90));
        assert_eq!(blob.age(), Duration::from_secs(90));
    }

    #[tokio::test]
    async fn new_connections_share_the_blobs() {
        let container = MemoryContainer::new();
        let second = container.with_new_connections().unwrap();
        second.write("a", &Metadata::new(), &Condition::Create).await.unwrap();
        assert!(container.get("a").await.is_ok());
    }

    #[tokio::test]
    async fn request_yields_before_and_after_its_effect() {
        let container = MemoryContainer::new();
        let metadata = Metadata::new();
        let mut write = std::pin::pin!(container.write("a", &metadata, &Condition::Create));
        assert!(futures::poll!(write.as_mut()).is_pending());
        assert!(container.server.lock_state().blobs.is_empty());
        assert!(futures::poll!(write.as_mut()).is_pending());
        assert_eq!(container.server.lock_state().blobs.len(), 1);
        assert!(futures::poll!(write.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn recreated_blob_has_a_new_etag() {
        let container = MemoryContainer::new();
        let first = container.write("a", &Metadata::new(), &Condition::Create).await.unwrap();
        container.remove("a").await.unwrap();
        let second = container.write("a", &Metadata::new(), &Condition::Create).await.unwrap();
        assert_ne!(first.etag, second.etag);
    }

    #[tokio::test]
    async fn if_match_on_a_missing_blob_is_not_found() {
        let container = MemoryContainer::new();
        let etag = ETag::new("0x1");
        let condition = Condition::IfMatch(etag.clone());
        let error = container.write("a", &Metadata::new(), &condition).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(container.delete("a", &etag).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
