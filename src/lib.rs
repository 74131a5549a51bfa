//! A **checkpoint store** for the official `EventProcessor` of Azure Event Hubs, and a complete **event processor**:
//! both keep partition ownership and checkpoints in Azure Blob Storage, in the record format of all Azure SDKs.
//!
//! An application that consumes an event hub usually runs as several instances. This crate shares the partitions among
//! them, moves the partitions of a crashed instance to the others, and remembers how far each partition was processed.
//! It needs only a blob container. The [guide](crate::guide) explains [how it works](crate::guide::how_it_works).
//!
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    all(feature = "azure", feature = "eventhubs"),
    doc = concat!("```no_run\n", include_str!("../examples/hello.rs"), "```")
)]
//!
//! Run as many instances as you need. They share the partitions, and take over when one crashes. `Cargo.toml` also
//! needs `azure_messaging_eventhubs`, `tokio` and `tracing-subscriber`, in the versions of the README.
//!
//! # Where to start
//!
//! | you want | see |
//! |---|---|
//! | to process the events of an event hub | [`processor`] with [`eventhubs`] |
//! | to use the official `EventProcessor` with this crate's records | [`eventhubs::BlobCheckpointStore`] |
//! | events in parallel, in batches, or with state per partition | [handlers](crate::guide::handlers) |
//! | each effect exactly once, dead letters | [effects](crate::guide::effects) |
//! | what a handler can do: checkpoint, track, pause, release | [`PartitionContext`] |
//! | lag, health, pause and shutdown from outside | [`processor::ProcessorHandle`] |
//! | settings | [`processor::ProcessorConfig`], [`store::StoreConfig`] |
//! | to share partitions for a reader of your own | [`balancer`] |
//! | to read and write the records | [`store`] |
//! | to see a group, or to reset its checkpoints | [`admin`], or the tool `ehcp` |
//! | another storage backend | [`blob::BlobContainer`] and the conformance suite in [`testing`] |
//! | a client of `azure_storage_blobs` 0.21 | [`blob::legacy`] (feature `legacy-sdk`) |
//! | what the words mean | [glossary](crate::guide::glossary) |
//! | metrics, logs, traces | [`metrics`], [observability](crate::guide::observability) |
//! | to deploy it | [Kubernetes](crate::guide::kubernetes), [storage](crate::guide::storage), [sizing](crate::guide::sizing) |
//! | what the requests to the storage cost | [`cost`], or `ehcp cost` |
//! | tests without a cloud | [`testing`] (feature `testing`), [`blob::memory`] |
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
    BalancerConfig, BoxHandler, CheckpointPolicy, EventContext, EventHandler, Handler, HandlerError,
    LoadBalancingStrategy, OnFailure, OwnPosition, PartitionContext, PartitionHandler, PartitionStart, Processor,
    ProcessorConfig, ProcessorHandle, StopReason, each_event, event_handler_fn, handler_fn, per_partition,
};
pub use source::StartPosition;
pub use store::{GroupStore, StoreConfig};
pub use telemetry::metrics;

#[cfg(feature = "azure")]
pub use blob::azure::AzureContainer;
#[cfg(feature = "eventhubs")]
pub use eventhubs::{BlobCheckpointStore, EventHubDeadLetterSink, EventHubSource, LOG_FILTER};

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

/// The guide: the pages in the folder `docs` of the package. Start with [how it works](guide::how_it_works), the
/// [tutorial](guide::tutorial), or [handlers](guide::handlers).
#[cfg(any(doc, all(doctest, feature = "azure", feature = "eventhubs", feature = "testing", feature = "metrics")))]
pub mod guide {
    #[doc = include_str!("../docs/tutorial.md")]
    pub mod tutorial {}
    #[doc = include_str!("../docs/how-it-works.md")]
    pub mod how_it_works {}
    #[doc = include_str!("../docs/handlers.md")]
    pub mod handlers {}
    #[doc = include_str!("../docs/effects.md")]
    pub mod effects {}
    #[doc = include_str!("../docs/comparison.md")]
    pub mod comparison {}
    #[doc = include_str!("../docs/migration.md")]
    pub mod migration {}
    #[doc = include_str!("../docs/moving-a-group.md")]
    pub mod moving_a_group {}
    #[doc = include_str!("../docs/legacy-records.md")]
    pub mod legacy_records {}
    #[doc = include_str!("../docs/faq.md")]
    pub mod faq {}
    #[doc = include_str!("../docs/storage.md")]
    pub mod storage {}
    #[doc = include_str!("../docs/regions.md")]
    pub mod regions {}
    #[doc = include_str!("../docs/kubernetes.md")]
    pub mod kubernetes {}
    #[doc = include_str!("../docs/observability.md")]
    pub mod observability {}
    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}
    #[doc = include_str!("../docs/logs.md")]
    pub mod logs {}
    #[doc = include_str!("../docs/traces.md")]
    pub mod traces {}
    #[doc = include_str!("../docs/runbook.md")]
    pub mod runbook {}
    #[doc = include_str!("../docs/ehcp.md")]
    pub mod ehcp {}
    #[doc = include_str!("../docs/sizing.md")]
    pub mod sizing {}
    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}
    #[doc = include_str!("../docs/verification.md")]
    pub mod verification {}
    #[doc = include_str!("../docs/protocol.md")]
    pub mod protocol {}
    #[doc = include_str!("../docs/life-of-a-partition.md")]
    pub mod life_of_a_partition {}
    #[doc = include_str!("../docs/stability.md")]
    pub mod stability {}
    #[doc = include_str!("../docs/design-notes.md")]
    pub mod design_notes {}
    #[doc = include_str!("../docs/glossary.md")]
    pub mod glossary {}
}
