//! What all partitions of a processor have in common.

use std::sync::Arc;
use std::time::Duration;

use super::added::Added;
use super::config::ProcessorConfig;
use crate::balancer::{Loads, Vitals};
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
    pub(super) vitals: Vitals,
    pub(super) loads: Loads,
    pub(super) added: Added,
}
