//! What a partition's task tells of itself.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::checkpointing::CheckpointWriter;
use super::dropped::HeldCheckpoint;
use super::lag::Lag;
use super::properties::PartitionProperties;
use crate::balancer::LivenessTracker;
use crate::error::Error;
use crate::lock::lock;
use crate::model::PartitionId;
use crate::telemetry::Causes;

/// What a partition is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum PartitionState {
    /// Its checkpoint is being taken over.
    Adopting,
    /// The handler's `started` is at work.
    Starting,
    /// Its link is being opened.
    Opening,
    /// It waits for events, and there are none that it should have got.
    Idle,
    /// It waits for events, although the hub has newer ones. Its link will be opened again.
    LinkStalled,
    /// The handler has a batch.
    Handling,
    /// The handler has had its batch for longer than [`stall_timeout`](crate::balancer::BalancerConfig::stall_timeout).
    HandlerStalled,
    /// As many events are in flight as may be, and none was finished for longer than `stall_timeout`.
    InFlightFull,
    /// It was paused.
    Paused,
    /// It failed, and waits before the next attempt.
    Failing,
    /// Its handler failed, and it is to stay stopped until it is resumed.
    Parked,
    /// It comes to an end.
    Stopping,
}

impl PartitionState {
    /// All of them, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::Adopting,
        Self::Starting,
        Self::Opening,
        Self::Idle,
        Self::LinkStalled,
        Self::Handling,
        Self::HandlerStalled,
        Self::InFlightFull,
        Self::Paused,
        Self::Failing,
        Self::Parked,
        Self::Stopping,
    ];

    /// The name in metrics and when serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adopting => "adopting",
            Self::Starting => "starting",
            Self::Opening => "opening",
            Self::Idle => "idle",
            Self::LinkStalled => "link_stalled",
            Self::Handling => "handling",
            Self::HandlerStalled => "handler_stalled",
            Self::InFlightFull => "in_flight_full",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Parked => "parked",
            Self::Stopping => "stopping",
        }
    }
}

impl From<PartitionState> for &'static str {
    fn from(state: PartitionState) -> Self {
        state.as_str()
    }
}

/// One partition that this instance holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// The partition.
    pub partition: PartitionId,
    /// What it is doing.
    pub state: PartitionState,
    /// For how long.
    pub state_for: Duration,
    /// The sequence number of the last event that the handler was given and returned from.
    pub handled: Option<i64>,
    /// The sequence number of the last durable checkpoint.
    pub checkpoint: Option<i64>,
    /// The sequence number of the last event in the hub, when it was last asked.
    pub last_enqueued: Option<i64>,
    /// How far the checkpoint is behind the hub.
    pub lag: Lag,
    /// How many events are tracked and not finished.
    pub in_flight: usize,
    /// How often it failed in this tenure: the handler, the link, or taking over the checkpoint.
    pub failures: u64,
    /// What went wrong last, with its causes; nothing, once a batch was handled since.
    pub last_error: Option<String>,
}

/// Where the task is, as far as others are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Adopting,
    Starting,
    Opening,
    Idle,
    Handling,
    Full,
    Paused,
    Failing,
    Parked,
    Stopping,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    since: Instant,
    handled: Option<i64>,
    silent: bool,
    failures: u64,
    last_error: Option<Arc<Error>>,
    properties: Option<(PartitionProperties, Instant)>,
    writer: Option<CheckpointWriter>,
    end: End,
}

/// How the partition stopped last.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each can be by itself")]
pub(super) struct End {
    /// The handler, or something in flight, did not finish in time.
    pub(super) cut_short: bool,
    /// The last marked position is not durable.
    pub(super) unwritten: bool,
    /// A token that was dropped holds the checkpoint back.
    pub(super) held_back: bool,
    /// The handler failed at its last batch, of which a part may have been processed.
    failed: bool,
}

impl End {
    /// Whether nothing that was processed is processed again.
    pub(super) fn is_settled(self) -> bool {
        !(self.cut_short || self.unwritten || self.held_back || self.failed)
    }
}

/// Written by the task, read by handles.
#[derive(Debug)]
pub(super) struct Progress(Mutex<Inner>);

impl Progress {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Inner {
            phase: Phase::Adopting,
            since: Instant::now(),
            handled: None,
            silent: false,
            failures: 0,
            last_error: None,
            properties: None,
            writer: None,
            end: End::default(),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    pub(super) fn enter(&self, phase: Phase) {
        let mut inner = self.inner();
        if inner.phase != phase {
            (inner.phase, inner.since) = (phase, Instant::now());
        }
    }

    /// A batch was handled, and the next is waited for.
    pub(super) fn handled(&self, last: Option<i64>) {
        let mut inner = self.inner();
        (inner.phase, inner.since, inner.silent) = (Phase::Idle, Instant::now(), false);
        inner.handled = last.max(inner.handled);
        inner.last_error = None;
    }

    pub(super) fn silent(&self, silent: bool) {
        self.inner().silent = silent;
    }

    pub(super) fn failed(&self, error: &Arc<Error>) {
        let mut inner = self.inner();
        inner.failures += 1;
        inner.last_error = Some(Arc::clone(error));
    }

    pub(super) fn probed(&self, properties: PartitionProperties) {
        self.inner().properties = Some((properties, Instant::now()));
    }

    pub(super) fn writes_with(&self, writer: CheckpointWriter) {
        self.inner().writer = Some(writer);
    }

    pub(super) fn cut_short(&self) {
        self.inner().end.cut_short = true;
    }

    pub(super) fn unwritten(&self, unwritten: bool) {
        self.inner().end.unwritten = unwritten;
    }

    pub(super) fn held_back(&self, held_back: bool) {
        self.inner().end.held_back = held_back;
    }

    pub(super) fn batch_failed(&self, failed: bool) {
        self.inner().end.failed = failed;
    }

    /// The checkpoint that a dropped token holds back, if one does.
    pub(super) fn held(&self) -> Option<HeldCheckpoint> {
        self.inner().writer.as_ref()?.held()
    }

    pub(super) fn end(&self) -> End {
        self.inner().end
    }

    pub(super) fn checkpoint_failure(&self) -> Option<String> {
        self.inner().writer.as_ref().and_then(CheckpointWriter::failure)
    }

    /// Whether something is marked that is not durable.
    pub(super) fn is_behind(&self) -> bool {
        self.inner().writer.as_ref().is_some_and(CheckpointWriter::is_behind)
    }

    /// `lag_checks_due`: how old numbers from the hub may be.
    pub(super) fn status(
        &self,
        partition: &PartitionId,
        vitals: &LivenessTracker,
        probes_due: Duration,
    ) -> PartitionStatus {
        let inner = self.inner();
        let state_for = inner.since.elapsed();
        let written = inner.writer.as_ref().and_then(CheckpointWriter::written);
        let known = inner.properties.as_ref().map(|(properties, at)| (properties, at.elapsed()));
        let (properties, age) = known.unzip();
        PartitionStatus {
            partition: partition.clone(),
            state: state_of(inner.phase, inner.silent, vitals.has_stalled(partition), vitals.is_too_long(state_for)),
            state_for,
            handled: inner.handled,
            checkpoint: written,
            last_enqueued: properties.and_then(PartitionProperties::last_enqueued).map(|last| last.sequence_number),
            lag: Lag::between(written, properties, age.unwrap_or_default(), probes_due),
            in_flight: inner.writer.as_ref().map_or(0, CheckpointWriter::in_flight),
            failures: inner.failures,
            last_error: inner.last_error.as_deref().map(|error| Causes(error).to_string()),
        }
    }
}

fn state_of(phase: Phase, silent: bool, stalled: bool, for_long: bool) -> PartitionState {
    match phase {
        Phase::Adopting => PartitionState::Adopting,
        Phase::Starting => PartitionState::Starting,
        Phase::Opening => PartitionState::Opening,
        Phase::Idle if silent => PartitionState::LinkStalled,
        Phase::Idle => PartitionState::Idle,
        Phase::Handling if stalled => PartitionState::HandlerStalled,
        Phase::Full if for_long => PartitionState::InFlightFull,
        Phase::Handling | Phase::Full => PartitionState::Handling,
        Phase::Paused => PartitionState::Paused,
        Phase::Failing => PartitionState::Failing,
        Phase::Parked => PartitionState::Parked,
        Phase::Stopping => PartitionState::Stopping,
    }
}
