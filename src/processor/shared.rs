//! The state that all partitions of a processor share.

use std::sync::Arc;
use std::time::Duration;

use super::config::ProcessorConfig;
use super::monitoring::spans::BatchSpans;
use super::start::hub_creation::HubCreation;
use super::start::new_partitions::NewPartitions;
use crate::balancer::{LivenessTracker, LoadTracker};
use crate::model::ConsumerGroup;
use crate::source::offset_format::OffsetFormat;
use crate::store::GroupStore;

/// The state that all partitions of a processor share.
#[derive(Debug)]
pub(super) struct Shared<S, H> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) store: GroupStore,
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) config: ProcessorConfig,
    pub(super) drain_timeout: Duration,
    pub(super) liveness: LivenessTracker,
    pub(super) loads: LoadTracker,
    pub(super) new_partitions: NewPartitions,
    pub(super) hub_creation: HubCreation,
    pub(super) offset_format: OffsetFormat,
    pub(super) spans: BatchSpans,
}
