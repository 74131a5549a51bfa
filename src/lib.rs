//! Partition ownership and checkpoints for Azure Event Hubs consumers, kept in Azure Blob Storage.
//!
//! # Non-guarantees, first
//!
//! Delivery is *at least* once: after a crash, a failure or a move, events behind the last checkpoint come again. Between
//! a crash and the expiry of its ownerships a partition is not read. Two instances may both read a partition for a moment,
//! while the broker's epoch decides. Processors of other SDKs in the same group are not fenced.
//!
//! # Where to start
//!
//! | you want | see |
//! |---|---|
//! | a consumer that shares a hub with others | [`processor`] with [`eventhubs`] |
//! | the official `EventProcessor` on these records | `eventhubs::BlobCheckpointStore` |
//! | only the records | [`store`] |
//! | only the sharing, over partitions of your own | [`balancer`] |
//! | another storage | [`blob::BlobContainer`] and the conformance suite in `testing` |
//! | tests without a cloud | `testing` (feature `testing`), [`blob::memory`] |
//!
//! # Quick start
//!
#![cfg_attr(
    all(feature = "azure", feature = "eventhubs"),
    doc = r#"```no_run
# #[tokio::main]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
use std::sync::Arc;

use azure_messaging_eventhubs::{ConsumerClient, models::ReceivedEventData};
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{PartitionContext, Processor, handler_fn};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, store::GroupStore};

# let (storage, hub) = ("", "");
let container = AzureContainer::from_connection_string(storage, "checkpoints")?;
let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
let store = GroupStore::builder(Arc::new(container), group, OwnerId::new("worker-1")?).connect().await?;
let client = ConsumerClient::builder().open_with_connection_string(hub, Some("orders")).await?;

let handler = handler_fn(|events: Vec<ReceivedEventData>, partition: PartitionContext| async move {
    for event in &events {
        partition.checkpoint(event);
    }
    Ok(())
});
let processor = Processor::builder(EventHubSource::new(client), store, handler).build()?;
processor.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?;
# Ok(())
# }
```"#
)]
//!
//! # Features
//!
//! `azure` and `eventhubs` are on by default; `testing` and `testing-hub` are for tests.

// The library's own rules, which tests and examples need not keep.
#![warn(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod balance;
pub mod balancer;
pub mod blob;
pub mod clock;
pub mod codec;
mod error;
#[cfg(feature = "eventhubs")]
pub mod eventhubs;
mod model;
pub mod processor;
mod protocol;
mod random;
pub mod store;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, ErrorKind, Result};
pub use model::{
    CheckpointRecord, ConsumerGroup, Identity, Incarnation, InvalidName, LeaseTerms, OwnerId, OwnershipRecord,
    PartitionId, Position, Relation, RewindId,
};
pub use telemetry::{Operation, Outcome, RequestCounts};

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "azure", feature = "eventhubs"))]
#[doc = include_str!("../README.md")]
mod readme {}
