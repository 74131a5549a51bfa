//! Drives a [`State`]: feeds it what happens, and executes what it decides.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::action::{Action, Request};
use super::events::Events;
use super::handle::{LeftOwned, Order};
use super::happened::{Done, Happened};
use super::liveness::{LivenessTracker, Stalled};
use super::loads::LoadTracker;
use super::note::Note;
use super::requests::perform;
use super::snapshot::Snapshot;
use super::state::State;
use super::storage_health::StorageHealth;
use crate::clock::at;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, PartitionId};
use crate::store::{GroupStore, LoopPermit};
use crate::telemetry::OwnedMetrics;

/// Connects a loop with the storage and the application.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) store: GroupStore,
    pub(super) permit: LoopPermit,
    /// The partitions of the event hub.
    pub(super) hub: watch::Receiver<Arc<[PartitionId]>>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
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
    state: State,
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
    pub(super) fn new(ports: Ports, state: State, writes_loads: bool) -> Self {
        let (requests, stalled, waiting) = (JoinSet::new(), Stalled::default(), Vec::new());
        Self { ports, writes_loads, state, requests, stalled, waiting, ended: false }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let hub = Arc::clone(&self.ports.hub.borrow_and_update());
        let mut step = self.feed(Happened::Began(hub));
        loop {
            if let ControlFlow::Break(end) = step {
                return end;
            }
            let wake = self.wake_at();
            step = tokio::select! {
                biased;
                order = self.ports.orders.recv() => match order {
                    Some(Order::Command(command)) => self.feed(Happened::Commanded(command)),
                    Some(Order::End(command, done)) => {
                        self.waiting.push(done);
                        self.feed(Happened::Commanded(command))
                    }
                    None => ControlFlow::Break(Ok(())),
                },
                Some(done) = self.requests.join_next() => self.done(done),
                () = at(wake) => self.feed(Happened::Woke),
                Ok(()) = self.ports.hub.changed() => {
                    let hub = Arc::clone(&self.ports.hub.borrow_and_update());
                    self.feed(Happened::Hub(hub))
                }
            };
        }
    }

    /// Returns when to wake the state. It checks its leases at least every sixteenth of the lease duration: while the
    /// machine was suspended the leases have aged, but the timers of tokio have not.
    fn wake_at(&self) -> Option<Instant> {
        let store = &self.ports.store;
        let wait = self.state.next_wake()?.saturating_sub(store.lease_clock_now());
        Some(Instant::now() + wait.min(store.lease_durations().own / 16))
    }

    fn done(&mut self, done: Result<Done, JoinError>) -> Step {
        match done {
            Ok(done) => self.feed(Happened::Done(done)),
            Err(error) => {
                let panicked =
                    Error::new(ErrorKind::Internal, "internal error: an operation of the load-balancing loop panicked");
                ControlFlow::Break(Err(panicked.with_source(error)))
            }
        }
    }

    /// Feeds the state an input, after what the state cannot observe itself: stalls of the application and outages of
    /// the storage.
    fn feed(&mut self, happened: Happened) -> Step {
        let stalled = self.ports.liveness.stalled();
        if stalled != self.stalled {
            self.stalled.clone_from(&stalled);
            self.step(Happened::Liveness(stalled))?;
        }
        let (outages, now) = (self.ports.store.outages(), self.ports.store.lease_clock_now());
        if let Some(silence) = outages.take_ended() {
            let at = outages.ended().unwrap_or(now);
            self.step(Happened::OutageEnded { at, silence })?;
        }
        self.step(happened)
    }

    fn step(&mut self, happened: Happened) -> Step {
        let now = self.ports.store.lease_clock_now();
        for action in self.state.step(happened, now) {
            self.execute(action)?;
        }
        self.ports.metrics.0.oldest_lease_age(|| self.state.renewal_age(now));
        self.ports.storage_health.set_failures(self.state.storage_failures());
        ControlFlow::Continue(())
    }

    fn execute(&mut self, action: Action) -> Step {
        let ports = &mut self.ports;
        match action {
            Action::Request(request) => {
                let request = if self.writes_loads { ports.with_load(request) } else { request };
                self.requests.spawn(perform(ports.store.clone(), request).in_current_span());
            }
            Action::Measure { partition, recorded } => ports.loads.begin(&partition, recorded),
            Action::Publish(snapshot) => {
                ports.metrics.0.owned(snapshot.owned.len());
                ports.snapshot.send_replace(snapshot);
            }
            Action::Emit(event) => ports.events.emit(event),
            Action::Note(note) => {
                if let Note::CycleTook(_) = note {
                    ports.storage_health.cycle_succeeded();
                }
                note.report(ports.store.telemetry());
            }
            Action::Replaced(by) => {
                return ControlFlow::Break(Err(replaced(&ports.store.identity().owner, &by)));
            }
            Action::Ended(left) => return self.end(left, Ok(())),
            Action::Refused(left, conflict) => return self.end(left, Err(conflict.into())),
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, left: LeftOwned, result: Result<()>) -> Step {
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
            let unknown = Snapshot::unknown(self.ports.store.identity().owner.clone(), scope);
            self.ports.snapshot.send_replace(Arc::new(unknown));
        }
    }
}

impl Ports {
    fn with_load(&self, request: Request) -> Request {
        match request {
            Request::Renew(lease) => {
                let load = self.loads.of(lease.partition());
                Request::Renew(lease.with_load(load))
            }
            request => request,
        }
    }
}

fn replaced(owner: &OwnerId, by: &Incarnation) -> Error {
    let message = format!(
        "owner id {owner:?} is in use by a newer instance (incarnation {by}); give every instance a unique owner id"
    );
    Error::new(ErrorKind::Replaced, message)
}
