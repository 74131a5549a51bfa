//! Partition ownership and checkpoints for Azure Event Hubs consumers, stored in Azure Blob Storage.
//!
//! Applications that consume an event hub usually run as several instances. This crate shares the partitions among
//! them, takes over when one crashes, and remembers how far each partition was processed. It needs only a blob
//! container.
//!
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    all(feature = "azure", feature = "eventhubs"),
    doc = concat!("```no_run\n", include_str!("../examples/hello.rs"), "```")
)]
//!
//! Run as many instances as you need. They share the partitions, and take over when one crashes.
//!
//! # Where to start
//!
//! | you want | see |
//! |---|---|
//! | to process the events of an event hub | [`processor`] with [`eventhubs`] |
//! | to use the official `EventProcessor` with this crate's records | `eventhubs::BlobCheckpointStore` |
//! | what a handler can do: checkpoint, track, pause, release | [`PartitionContext`] |
//! | lag, health, pause and shutdown from outside | [`processor::ProcessorHandle`] |
//! | settings | [`processor::ProcessorConfig`], [`store::StoreConfig`] |
//! | to share partitions for a reader of your own | [`balancer`] |
//! | to read and write the records | [`store`] |
//! | to see a group, or to reset its checkpoints | [`admin`], or the tool `ehcp` |
//! | another storage | [`blob::BlobContainer`] and the conformance suite in `testing` |
//! | a client of `azure_storage_blobs` 0.21 | `blob::legacy` (feature `legacy-sdk`) |
//! | metrics | [`metrics`] |
//! | what the requests to the storage cost | [`cost`], or `ehcp cost` |
//! | tests without a cloud | `testing` (feature `testing`), [`blob::memory`] |
//!
//! # Limits
//!
//! Delivery is *at least once*: after a crash, a failure or a steal, the events after the last checkpoint are
//! redelivered. A handoff between live instances redelivers none. After a crash a partition is not read until its lease
//! expires. Two instances may read a partition at the same time for a moment, until the broker disconnects one.
//! Checkpoints of processors of other SDKs are not fenced.
//!
//! # Features
//!
//! - `azure`, `eventhubs` (default): Azure Blob Storage, and the official client of Event Hubs.
//! - `metrics`: metrics through the `metrics` facade, see [`metrics`].
//! - `legacy-sdk`: containers through a client of `azure_storage_blobs` 0.21.
//! - `testing`: an event hub in memory, faults on request and the conformance suite, for tests.

// The library's own rules, which tests and examples need not keep.
#![warn(clippy::unwrap_used, clippy::expect_used)]
// What `internal` shows is public with the testing features alone.
#![cfg_attr(feature = "testing", warn(unreachable_pub))]

pub mod admin;
mod backoff;
pub mod balancer;
pub mod blob;
mod clock;
mod codec;
pub mod cost;
mod error;
#[cfg(feature = "eventhubs")]
pub mod eventhubs;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod internal;
mod model;
mod planner;
pub mod processor;
pub mod source;
pub mod store;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests {
    pub(crate) mod hostile;
}
mod util;

pub use error::{Error, ErrorKind, Result};
pub use model::{ConsumerGroup, Identity, Incarnation, InvalidName, LeaseScope, OwnerId, PartitionId, Pause, Position};
pub use processor::{
    CheckpointPolicy, EventContext, EventHandler, Handler, HandlerError, LoadBalancingStrategy, OnFailure,
    PartitionContext, Processor, ProcessorConfig, ProcessorHandle, StopReason, each_event, event_handler_fn,
    handler_fn,
};
pub use source::StartPosition;
pub use store::{GroupStore, StoreConfig};
pub use telemetry::metrics;

#[cfg(feature = "azure")]
pub use blob::azure::AzureContainer;
#[cfg(feature = "eventhubs")]
pub use eventhubs::{EventHubDeadLetterSink, EventHubSource};

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

/// Compiles the examples of the page about effects.
#[cfg(all(doctest, feature = "azure", feature = "eventhubs"))]
#[doc = include_str!("../docs/effects.md")]
mod effects {}

/// Compiles the examples of the page about handlers.
#[cfg(all(doctest, feature = "azure", feature = "eventhubs", feature = "testing"))]
#[doc = include_str!("../docs/handlers.md")]
mod handlers {}
