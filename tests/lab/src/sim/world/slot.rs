//! The place of a member's incarnations.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::sim::freeze::{Gate, Gates};
use crate::sim::host::{ExitStatus, HandleSlot};
use crate::sim::plan::Terms;

/// The place of the incarnations of one member.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) ordinal: u32,
    /// The settings that were rolled out to it, if any.
    pub(super) rolled_out: Option<Terms>,
    pub(super) incarnations: Vec<Running>,
    /// The gates of ended incarnations. Nothing else may hold them.
    pub(super) gone: Vec<(usize, Gate)>,
}

/// An incarnation whose end has not been collected yet.
pub(super) struct Running {
    pub(super) incarnation: usize,
    pub(super) owner: OwnerId,
    pub(super) gates: Gates,
    pub(super) faulty: FaultyContainer,
    pub(super) shutdown: watch::Sender<bool>,
    pub(super) extra_work: watch::Sender<Duration>,
    pub(super) handle_slot: HandleSlot,
    pub(super) task: JoinHandle<ExitStatus>,
}
