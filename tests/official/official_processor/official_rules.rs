//! The rules of the official blob checkpoint store, implemented again over [`BlobContainer`].
//!
//! The original, `azure_messaging_eventhubs_checkpointstore_blob` 0.9, cannot be linked here: no version of it resolves
//! together with the client 0.16. Each rule names the place in its `src/checkpoint_store.rs`. Names, listings and
//! metadata are those of the original; its HTTP pipeline is reproduced only where it matters: it repeats requests
//! without a response, or with 503.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::error::{Error as AzureError, ErrorKind as AzureErrorKind};
use azure_core::http::Etag;
use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::{Checkpoint, Ownership};
use eventhubs_checkpoint::blob::{Blob, BlobContainer, Condition, ETag, Metadata, WriteResult};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use tokio::time::sleep;

type AzureResult<T> = std::result::Result<T, AzureError>;

/// How often `azure_core`'s default retry policy repeats a request without a response, or with 503.
const RETRIES: u32 = 8;

/// Its first wait, which doubles with each retry: 51 s in all, without the random part.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Sends a request as the pipeline does: repeatedly, until there is a response.
async fn send<T, F: Future<Output = Result<T>>>(request: impl Fn() -> F) -> Result<T> {
    for retry in 0..RETRIES {
        match request().await {
            Err(error) if error.is_retryable() || error.is_indeterminate() => {
                let wait = FIRST_WAIT * 2u32.pow(retry);
                sleep(error.retry_after().unwrap_or_default().max(wait)).await;
            }
            settled => return settled,
        }
    }
    request().await
}

#[derive(Debug)]
pub struct OfficialRules {
    container: Arc<dyn BlobContainer>,
}

impl OfficialRules {
    pub fn new(container: impl BlobContainer + 'static) -> Arc<Self> {
        Arc::new(Self { container: Arc::new(container) })
    }

    /// Writes, always with the same condition. If only the response had been lost, the condition can no longer hold.
    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        send(|| self.container.write(name, metadata, condition)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Blob>> {
        Ok(send(|| self.container.list(prefix)).await?.blobs)
    }
}

/// `name.rfind('/')` in both listings: every blob below the prefix is a partition.
fn partition_of(blob: &Blob) -> String {
    blob.name.rsplit('/').next().unwrap_or_default().to_owned()
}

fn to_azure(error: Error) -> AzureError {
    let message = error.to_string();
    AzureError::with_error(AzureErrorKind::Other, error, message)
}

#[async_trait]
impl CheckpointStore for OfficialRules {
    /// `claim_ownership`, `set_ownership_metadata_on_blob`: one after another. With an ETag Set Metadata under
    /// If-Match, without one Upload under `If-None-Match: *`. 412 and 409 mean that the partition is skipped,
    /// regardless of the writer; any other error ends the call, and earlier wins are not reported. No owner means no
    /// metadata at all.
    async fn claim_ownership(&self, ownerships: &[Ownership]) -> AzureResult<Vec<Ownership>> {
        let mut claimed = Vec::new();
        for wish in ownerships {
            let name = Ownership::get_ownership_name(
                &wish.fully_qualified_namespace,
                &wish.event_hub_name,
                &wish.consumer_group,
                &wish.partition_id,
            )?;
            let metadata = wish.owner_id.iter().map(|owner| ("ownerid".to_owned(), owner.clone())).collect();
            let condition = match &wish.etag {
                Some(etag) => Condition::IfMatch(ETag::new(etag.as_ref())),
                None => Condition::Create,
            };
            match self.write(&name, &metadata, &condition).await {
                Ok(written) => claimed.push(Ownership {
                    etag: Some(Etag::from(written.etag.as_str())),
                    last_modified_time: Some(written.response.server_time),
                    ..wish.clone()
                }),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(to_azure(error)),
            }
        }
        Ok(claimed)
    }

    /// `list_checkpoints`: `sequence_number.parse()?` within the loop, so that one bad number fails the listing.
    async fn list_checkpoints(&self, namespace: &str, hub: &str, group: &str) -> AzureResult<Vec<Checkpoint>> {
        let prefix = Checkpoint::get_checkpoint_blob_prefix_name(namespace, hub, group)?;
        let mut checkpoints = Vec::new();
        for blob in self.list(&prefix).await.map_err(to_azure)? {
            let number = blob.metadata.get("sequencenumber").map(str::parse).transpose();
            checkpoints.push(Checkpoint {
                fully_qualified_namespace: namespace.to_owned(),
                event_hub_name: hub.to_owned(),
                consumer_group: group.to_owned(),
                partition_id: partition_of(&blob),
                offset: blob.metadata.get("offset").map(str::to_owned),
                sequence_number: number.map_err(|error| AzureError::new(AzureErrorKind::DataConversion, error))?,
            });
        }
        Ok(checkpoints)
    }

    /// `list_ownerships`: owner and `Last-Modified` unchanged. An empty owner stays a name; without the key there is
    /// none.
    async fn list_ownerships(&self, namespace: &str, hub: &str, group: &str) -> AzureResult<Vec<Ownership>> {
        let prefix = Ownership::get_ownership_prefix_name(namespace, hub, group)?;
        let blobs = self.list(&prefix).await.map_err(to_azure)?;
        let shown = blobs.iter().map(|blob| Ownership {
            fully_qualified_namespace: namespace.to_owned(),
            event_hub_name: hub.to_owned(),
            consumer_group: group.to_owned(),
            partition_id: partition_of(blob),
            owner_id: blob.metadata.get("ownerid").map(str::to_owned),
            etag: Some(Etag::from(blob.etag.as_str())),
            last_modified_time: Some(blob.last_modified),
        });
        Ok(shown.collect())
    }

    /// `update_checkpoint`, `set_checkpoint_metadata_on_blob`: Set Metadata, or Upload if there is no blob, both
    /// without any condition. Only the given values are written.
    async fn update_checkpoint(&self, checkpoint: Checkpoint) -> AzureResult<()> {
        let name = Checkpoint::get_checkpoint_blob_name(
            &checkpoint.fully_qualified_namespace,
            &checkpoint.event_hub_name,
            &checkpoint.consumer_group,
            &checkpoint.partition_id,
        )?;
        let number = checkpoint.sequence_number.map(|number| ("sequencenumber".to_owned(), number.to_string()));
        let offset = checkpoint.offset.map(|offset| ("offset".to_owned(), offset));
        let metadata = number.into_iter().chain(offset).collect();
        self.container.overwrite(&name, &metadata).await.map(drop).map_err(to_azure)
    }
}
