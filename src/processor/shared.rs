//! What all partitions of a processor have in common.

use std::sync::Arc;
use std::time::Duration;

use super::added::NewPartitions;
use super::config::ProcessorConfig;
use crate::balancer::{LivenessTracker, LoadTracker};
use crate::model::ConsumerGroup;
use crate::store::GroupStore;

/// What all partitions of a processor have in common.
#[derive(Debug)]
pub(super) struct Shared<S, H> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) store: GroupStore,
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) config: ProcessorConfig,
    pub(super) drain: Duration,
    pub(super) vitals: LivenessTracker,
    pub(super) loads: LoadTracker,
    pub(super) added: NewPartitions,
}
