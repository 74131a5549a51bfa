//! Drives a [`BalancerState`]: feeds it what happens, and carries out what it decides, also requests of the storage.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use super::events::Events;
use super::handle::{LoopMessage, StorageHealth};
use super::liveness::{LivenessTracker, Stalled};
use super::loads::LoadTracker;
use super::snapshot::Snapshot;
use super::state::BalancerState;
use super::step::{Action, Done, Happened, LeftOwned, StorageRequest};
use crate::clock::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Moment, PartitionId};
use crate::store::{ClaimOutcome, GroupStore, Lease, LoopPermit, ReleaseOutcome};
use crate::telemetry::{OwnedMetrics, StorageOperation};

/// Connects a loop with the storage and the application.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) store: GroupStore,
    pub(super) permit: LoopPermit,
    /// The partitions of the event hub.
    pub(super) hub: watch::Receiver<Arc<[PartitionId]>>,
    pub(super) messages: mpsc::UnboundedReceiver<LoopMessage>,
    pub(super) snapshot: watch::Sender<Arc<Snapshot>>,
    pub(super) liveness: LivenessTracker,
    pub(super) loads: LoadTracker,
    pub(super) events: Events,
    pub(super) storage_health: StorageHealth,
    pub(super) metrics: OwnedMetrics,
}

/// A running loop.
pub(super) struct Driver {
    ports: Ports,
    /// Whether renewals write the load.
    writes_loads: bool,
    state: BalancerState,
    requests: JoinSet<Done>,
    /// The stalls that the state knows.
    stalled: Stalled,
    /// Callers that wait until the loop has ended.
    waiting: Vec<oneshot::Sender<LeftOwned>>,
    /// The loop has ended in order, and published that.
    ended: bool,
}

/// `Break` ends the loop.
type Step = ControlFlow<Result<()>>;

impl Driver {
    pub(super) fn new(ports: Ports, state: BalancerState, writes_loads: bool) -> Self {
        Self {
            ports,
            writes_loads,
            state,
            requests: JoinSet::new(),
            stalled: Stalled::default(),
            waiting: Vec::new(),
            ended: false,
        }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let hub = Arc::clone(&self.ports.hub.borrow_and_update());
        let mut step = self.feed_input(Happened::Began(hub));
        loop {
            if let ControlFlow::Break(end) = step {
                return end;
            }
            // The state checks its leases at least every sixteenth of the lease duration: while the machine was
            // suspended the leases have aged, but the timers of tokio have not.
            let store = &self.ports.store;
            let longest = store.lease_durations().own / 16;
            let wait = self.state.next_wake().map(|wake| wake.saturating_sub(store.lease_clock_now()).min(longest));
            step = tokio::select! {
                biased;
                message = self.ports.messages.recv() => match message {
                    Some(LoopMessage::Command(command)) => self.feed_input(Happened::Commanded(command)),
                    Some(LoopMessage::End(command, done)) => {
                        self.waiting.push(done);
                        self.feed_input(Happened::Commanded(command))
                    }
                    None => ControlFlow::Break(Ok(())),
                },
                Some(done) = self.requests.join_next() => match done {
                    Ok(done) => self.feed_input(Happened::Done(done)),
                    Err(error) => {
                        let panicked = "internal error: an operation of the load-balancing loop panicked";
                        ControlFlow::Break(Err(Error::new(ErrorKind::Internal, panicked).with_source(error)))
                    }
                },
                () = wait_until(wait.map(|wait| Instant::now() + wait)) => self.feed_input(Happened::Woke),
                Ok(()) = self.ports.hub.changed() => {
                    let hub = Arc::clone(&self.ports.hub.borrow_and_update());
                    self.feed_input(Happened::Hub(hub))
                }
            };
        }
    }

    /// Feeds the state an input, after what the state cannot observe itself: stalls of the application and outages of
    /// the storage.
    fn feed_input(&mut self, happened: Happened) -> Step {
        let stalled = self.ports.liveness.current_stalls();
        if stalled != self.stalled {
            self.stalled.clone_from(&stalled);
            self.step_state(Happened::Liveness(stalled))?;
        }
        if let Some(outage) = self.ports.store.outages().take_ended_outage() {
            self.step_state(Happened::OutageEnded { at: outage.at, silence: outage.silence })?;
        }
        self.step_state(happened)
    }

    fn step_state(&mut self, happened: Happened) -> Step {
        let now = self.ports.store.lease_clock_now();
        for action in self.state.step(happened, now) {
            self.execute_action(action)?;
        }
        self.ports.metrics.0.set_oldest_lease_age(|| self.state.oldest_lease_age(now));
        self.ports.storage_health.set_failures(self.state.storage_failures());
        ControlFlow::Continue(())
    }

    fn execute_action(&mut self, action: Action) -> Step {
        let ports = &mut self.ports;
        match action {
            Action::Request(request) => {
                let request = if self.writes_loads { ports.with_load(request) } else { request };
                self.requests.spawn(perform_request(ports.store.clone(), request).in_current_span());
            }
            Action::Measure { partition, recorded } => ports.loads.start_measuring(&partition, recorded),
            Action::Publish(snapshot) => {
                ports.metrics.0.set_owned(snapshot.owned.len());
                ports.snapshot.send_replace(snapshot);
            }
            Action::Emit(event) => ports.events.emit_event(event),
            Action::Note(note) => note.log_and_count(ports.store.telemetry()),
            Action::Replaced(by) => {
                let message = format!(
                    "owner ID {:?} is in use by a newer instance (incarnation {by}); give every instance a unique owner ID",
                    ports.store.identity().owner
                );
                return ControlFlow::Break(Err(Error::new(ErrorKind::Replaced, message)));
            }
            Action::Ended(left) => return self.end_loop(left, Ok(())),
            Action::Refused(left, conflict) => return self.end_loop(left, Err(conflict.into())),
        }
        ControlFlow::Continue(())
    }

    fn end_loop(&mut self, left: LeftOwned, result: Result<()>) -> Step {
        self.ended = true;
        self.ports.permit.end();
        // An error means that the caller does not wait anymore.
        for done in self.waiting.drain(..) {
            let _ = done.send(left);
        }
        ControlFlow::Break(result)
    }
}

/// A loop that was dropped, replaced or panicked renews nothing, so what it published last is not true for long.
impl Drop for Driver {
    fn drop(&mut self) {
        if !self.ended {
            let scope = self.ports.snapshot.borrow().lease_scope;
            let unknown = Snapshot::with_nothing_known(self.ports.store.identity().owner.clone(), scope);
            self.ports.snapshot.send_replace(Arc::new(unknown));
        }
    }
}

impl Ports {
    fn with_load(&self, request: StorageRequest) -> StorageRequest {
        match request {
            StorageRequest::Renew(lease) => {
                let load = self.loads.current_load(lease.partition());
                StorageRequest::Renew(lease.with_load(load))
            }
            request => request,
        }
    }
}

/// Makes a request, and returns its outcome.
async fn perform_request(store: GroupStore, request: StorageRequest) -> Done {
    match request {
        StorageRequest::List => Done::Listed(store.list_ownerships().await.map(|listing| listing.records)),
        StorageRequest::ListWithHeartbeats => {
            let records = store.list_records_reported().await;
            Done::ListedWithHeartbeats(records.map(|listed| (listed.ownerships.records, listed.heartbeats.records)))
        }
        StorageRequest::ListHeartbeats => {
            Done::HeartbeatsListed(store.list_heartbeats().await.map(|listing| listing.records))
        }
        StorageRequest::FindCaseConflict => Done::CaseConflictFound(store.find_case_conflict().await),
        StorageRequest::DeclareDead { of, heartbeat, claims } => {
            Done::DeclaredDead { claims, outcome: store.declare_dead(&of, heartbeat.as_ref()).await }
        }
        StorageRequest::Claim(claim) => {
            Done::Claimed { partition: claim.partition().clone(), outcome: store.claim(&claim).await }
        }
        StorageRequest::Renew(lease) => {
            let outcome = store.renew(&lease).await;
            Done::Renewed { partition: lease.partition().clone(), epoch: lease.epoch(), outcome }
        }
        StorageRequest::Release { lease, until } => {
            let outcome = release_persistently(&store, &lease, until).await;
            Done::Released { partition: lease.partition().clone(), outcome }
        }
        StorageRequest::Keep(lease) => {
            Done::Kept { partition: lease.partition().clone(), outcome: renew_for_restart(&store, &lease).await }
        }
        StorageRequest::RequestHandoff(seen) => {
            Done::HandoffRequested { outcome: store.request_handoff(&seen).await, partition: seen.partition }
        }
        StorageRequest::PollHandoff(mut handoff) => {
            Done::HandoffPolled { outcome: store.poll_handoff(&mut handoff).await, handoff }
        }
        StorageRequest::SendHeartbeat => Done::HeartbeatSent(store.send_heartbeat().await),
        StorageRequest::EndHeartbeat { persistently } => {
            Done::HeartbeatEnded(end_heartbeat(&store, persistently).await)
        }
        StorageRequest::DeleteHeartbeats(heartbeats) => {
            Done::HeartbeatsDeleted(store.delete_stale_heartbeats(&heartbeats).await)
        }
        StorageRequest::ReadBeacon => Done::BeaconRead(store.read_beacon().await),
        StorageRequest::LightBeacon(known) => Done::BeaconLit(store.light_beacon(known.as_ref()).await),
        StorageRequest::RefreshBeacon(known) => Done::BeaconRefreshed(store.refresh_beacon(&known).await),
        StorageRequest::CheckOwner { owner, seen } => {
            Done::OwnerChecked { owner, since_renewal: store.time_since_renewal(&seen).await }
        }
    }
}

/// Repeats a release until its outcome is known, the time is over, or a retry cannot help.
async fn release_persistently(store: &GroupStore, lease: &Lease, until: Option<Moment>) -> ReleaseOutcome {
    let left = until.map(|until| until.saturating_sub(store.lease_clock_now()));
    let mut attempts = store.retry_schedule(left.map(|left| Instant::now() + left));
    loop {
        match store.release(lease).await {
            ReleaseOutcome::Indeterminate(error) => {
                let Some(next_attempt) = attempts.next_attempt_after(&error) else {
                    return ReleaseOutcome::Indeterminate(error);
                };
                store.telemetry().ownership_indeterminate(StorageOperation::Release, lease.partition(), &error);
                sleep_until(next_attempt).await;
            }
            settled => return settled,
        }
    }
}

/// Repeats a renewal until its outcome is known, or a retry cannot help.
async fn renew_for_restart(store: &GroupStore, lease: &Lease) -> ClaimOutcome {
    let mut attempts = store.retry_schedule(None);
    loop {
        match store.renew(lease).await {
            ClaimOutcome::Indeterminate(error) if attempts.wait_for_next_attempt(&error).await => {}
            outcome => return outcome,
        }
    }
}

async fn end_heartbeat(store: &GroupStore, persistently: bool) -> Result<()> {
    let mut attempts = store.retry_schedule((!persistently).then(Instant::now));
    loop {
        match store.end_heartbeat().await {
            Err(error) if attempts.wait_for_next_attempt(&error).await => {}
            outcome => return outcome,
        }
    }
}
