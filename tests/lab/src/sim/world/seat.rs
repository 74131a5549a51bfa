//! Where the lives of a member come and go.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::sim::gate::Gate;
use crate::sim::host::{Desk, Ended};

/// Where the lives of one member come and go.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) born: u32,
    pub(super) lives: Vec<Running>,
    /// Their gates, which nobody else may hold any more.
    pub(super) gone: Vec<(usize, Gate)>,
}

/// A life that has not been seen to end yet.
pub(super) struct Running {
    pub(super) life: usize,
    pub(super) owner: OwnerId,
    pub(super) gate: Gate,
    pub(super) faulty: FaultyContainer,
    pub(super) shutdown: watch::Sender<bool>,
    pub(super) extra_work: watch::Sender<Duration>,
    pub(super) desk: Desk,
    pub(super) task: JoinHandle<Ended>,
}
