//! Where the lives of a member come and go.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::sim::freeze::Gate;
use crate::sim::host::{ExitStatus, HandleSlot};

/// Where the lives of one member come and go.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) ordinal: u32,
    pub(super) incarnations: Vec<Running>,
    /// Their gates, which nobody else may hold any more.
    pub(super) gone: Vec<(usize, Gate)>,
}

/// A life that has not been seen to end yet.
pub(super) struct Running {
    pub(super) incarnation: usize,
    pub(super) owner: OwnerId,
    pub(super) gate: Gate,
    pub(super) faulty: FaultyContainer,
    pub(super) shutdown: watch::Sender<bool>,
    pub(super) extra_work: watch::Sender<Duration>,
    pub(super) handle_slot: HandleSlot,
    pub(super) task: JoinHandle<ExitStatus>,
}
