//! Partition ownership and checkpoints for Azure Event Hubs consumers, kept in Azure Blob Storage.
//!
//! # Non-guarantees, first
//!
//! Delivery is *at least* once: after a crash, a failure or a move, events behind the last checkpoint come again.
//! Between a crash and the expiry of its ownerships a partition is not read. Two instances may both read a partition
//! for a moment, while the broker's epoch decides. Processors of other SDKs in the same group are not fenced.
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
//! | a client of `azure_storage_blobs` 0.21 kept | `blob::legacy` (feature `legacy-sdk`) |
//! | numbers for a monitoring system | [`metrics`] |
//! | tests without a cloud | `testing` (feature `testing`), [`blob::memory`] |
//!
//! # From nothing to a running consumer
//!
//! 1. *A place for the records*: a blob container, reached by connection string, key, shared access signature or Entra
//!    ID. [`blob::memory`] does for a try.
//! 2. *Who shares what*: a [`ConsumerGroup`], and an [`OwnerId`] that no other instance has; best one that stays the
//!    same after a restart, such as the name of a pod, for then it has its partitions back at once.
//! 3. *A [`store::GroupStore`]* over both. It looks at once whether the container can be used.
//! 4. *An event source*: `eventhubs::EventHubSource` over the official client, for the same consumer group.
//! 5. *A handler*: it gets batches, and marks what is done. Everything else has defaults that hold together:
//!    [`processor::ProcessorConfig`], [`balancer::BalancerConfig`].
//!
#![cfg_attr(
    all(feature = "azure", feature = "eventhubs"),
    doc = r#"```no_run
use std::env;
use std::sync::Arc;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{PartitionContext, Processor, handler_fn};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, store::GroupStore};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let container = AzureContainer::from_connection_string(env::var("STORAGE_CONNECTION_STRING")?, "checkpoints")?;
    let hub = env::var("EVENTHUBS_CONNECTION_STRING")?;
    let group = ConsumerGroup::from_connection_string(&hub, "$Default")?;
    let me = OwnerId::new(env::var("HOSTNAME")?)?;
    let source = EventHubSource::from_connection_string(&group, hub).connect().await?;
    let store = GroupStore::builder(Arc::new(container), group, me).connect().await?;

    let handler = handler_fn(|events: Vec<ReceivedEventData>, partition: PartitionContext| async move {
        for event in &events {
            partition.checkpoint(event);
        }
        Ok(())
    });
    let ended = Processor::builder(source, store, handler).build()?.run_until_signalled().await?;
    println!("ended in good order: {}", ended.is_clean());
    Ok(())
}
```"#
)]
//!
//! Run it as often as there is work for; the instances share the partitions, and go on where one has died. Then see
//! [`processor::PartitionContext`] for what a handler can do, [`processor::ProcessorHandle`] for lag, health and
//! steering, and the log: [`tracing`] events, inside a span that names the group and the instance.
//!
//! # Features
//!
//! `azure` and `eventhubs` are on by default; `legacy-sdk` is for applications that hold a client of
//! `azure_storage_blobs` 0.21; `metrics` counts for a monitoring system, see [`metrics`]; `testing` and `testing-amqp`
//! are for tests.

// The library's own rules, which tests and examples need not keep.
#![warn(clippy::unwrap_used, clippy::expect_used)]
// What `internal` shows is public with the testing features alone.
#![cfg_attr(feature = "testing", warn(unreachable_pub))]

pub mod admin;
pub mod balancer;
pub mod blob;
mod clock;
mod codec;
mod error;
#[cfg(feature = "eventhubs")]
pub mod eventhubs;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod internal;
mod lock;
mod model;
mod planner;
pub mod processor;
mod random;
mod seconds;
mod setters;
pub mod store;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, ErrorKind, Result};
pub use model::{ConsumerGroup, Identity, Incarnation, InvalidName, LeaseScope, OwnerId, PartitionId, Position};
pub use processor::{Handler, PartitionContext, Processor, handler_fn};
pub use store::GroupStore;
pub use telemetry::metrics;

#[cfg(feature = "azure")]
pub use blob::azure::AzureContainer;
#[cfg(feature = "eventhubs")]
pub use eventhubs::EventHubSource;

#[cfg(any(feature = "azure", feature = "eventhubs"))]
pub use azure_core;
#[cfg(feature = "eventhubs")]
pub use azure_messaging_eventhubs;
/// The crate whose types are in signatures of this one.
pub use time;

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "azure", feature = "eventhubs"))]
#[doc = include_str!("../README.md")]
mod readme {}
