//! Runs one task for each owned partition, and none for any other.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::handler::Handler;
use super::monitoring::progress::End;
use super::partition::control::{Control, Registry};
use super::partition::handler_call::CallLimit;
use super::partition::{PartitionTask, TaskEnd};
use super::shared::SharedResources;
use super::shutdown::{PhaseReport, ShutdownReport, StopReason, stop_limit};
use crate::balancer::{BalancerHandle, OnLeaseExpiry, PartitionOwner, ProcessingEnd, Snapshot};
use crate::clock::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::source::{CLOSE_LIMIT, EventSource};
use crate::telemetry::{self, PartitionMetrics};
use crate::util::panic_message;

/// How many load-balancing intervals longer than a lease an instance at its end waits for partitions of others. The
/// lease of an instance that has crashed expires meanwhile, and a new instance requests its first partitions.
const SETTLED_INTERVALS: u32 = 3;

/// A partition's task, from its start until the balancer no longer owns the partition in the task's epoch.
#[derive(Debug)]
struct Entry {
    control: Arc<Control>,
    ended: bool,
    /// It has ended because all events up to the end position are processed.
    at_end: bool,
}

/// How a partition's task ended. An error is a panic, which is a bug.
type Outcome = std::thread::Result<TaskEnd>;

#[derive(Debug)]
pub(super) struct Supervisor<S, H> {
    shared: Arc<SharedResources<S, H>>,
    balancer: BalancerHandle,
    registry: Registry,
    tasks: JoinSet<(Arc<Control>, Outcome)>,
    entries: BTreeMap<PartitionId, Entry>,
    /// The partitions that stop at shutdown are kept for the restart of this owner.
    keep: bool,
    /// Since when this instance has nothing to do until the end positions.
    idle_since: Option<Instant>,
}

impl<S: EventSource, H: Handler<S::Event>> Supervisor<S, H> {
    pub(super) fn new(shared: Arc<SharedResources<S, H>>, balancer: BalancerHandle, registry: Registry) -> Self {
        Self {
            shared,
            balancer,
            registry,
            tasks: JoinSet::new(),
            entries: BTreeMap::new(),
            keep: false,
            idle_since: None,
        }
    }

    /// Follows the balancer until a shutdown is requested, all end positions are reached, the balancer ends, or a
    /// partition fails permanently.
    pub(super) async fn run(
        &mut self,
        balancing: &mut JoinSet<Result<()>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Arc<Error>> {
        let mut snapshots = self.balancer.snapshots();
        tokio::pin!(shutdown);
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            self.reconcile_tasks(&snapshot);
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                () = wait_until(self.find_end_of_work(&snapshot)) => return Ok(()),
                Some(ended) = balancing.join_next() => return match ended {
                    Ok(outcome) => outcome.map_err(Arc::new),
                    Err(panic) => {
                        let error = Error::new(ErrorKind::Internal, "internal error: the load-balancing loop panicked");
                        Err(Arc::new(error.with_source(panic)))
                    }
                },
                Some(Ok((control, outcome))) = self.tasks.join_next() => self.handle_task_end(&control, outcome)?,
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    /// Returns when the processor ends by itself, if it has nothing more to do until the end positions. Another
    /// instance may hand partitions over or have crashed, so it waits unless this instance owns all that it may own.
    fn find_end_of_work(&mut self, snapshot: &Snapshot) -> Option<Instant> {
        let SharedResources { config, store, .. } = &*self.shared;
        let is_at_end = config.has_end_position()
            && snapshot.cycles > 0
            && !snapshot.partitions.is_empty()
            && self.entries.values().all(|entry| entry.at_end)
            && snapshot.releasing.is_empty()
            && snapshot.requested_handoffs.is_empty()
            && !snapshot.has_unowned(&config.balancer.load_balancing_strategy);
        if !is_at_end {
            self.idle_since = None;
            return None;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if snapshot.owns_all(&config.balancer.load_balancing_strategy) {
            return Some(since);
        }
        Some(since + store.lease_durations().own + SETTLED_INTERVALS * config.balancer.load_balancing_interval)
    }

    fn reconcile_tasks(&mut self, snapshot: &Snapshot) {
        // The loop has failed, which ends the processor with another reason than the loss of all partitions.
        if snapshot.cycles == 0 {
            return;
        }
        self.entries.retain(|partition, Entry { control, ended, .. }| {
            let held = snapshot.owned.get(partition) == Some(&control.epoch);
            if !held {
                control.request_stop(loss_reason(snapshot, partition, self.shared.config.balancer.on_lease_expiry));
            }
            if !*ended {
                return true;
            }
            if !snapshot.owned.contains_key(partition) {
                self.balancer.report_unprocessed(partition.clone());
            }
            held
        });
        for (partition, epoch) in &snapshot.owned {
            if !self.entries.contains_key(partition) {
                self.start_task(partition.clone(), *epoch);
            }
        }
    }

    fn start_task(&mut self, partition: PartitionId, epoch: i64) {
        let telemetry = self.shared.store.telemetry();
        let span = telemetry::partition_span(telemetry.span(), &partition);
        let SharedResources { liveness, config, .. } = &*self.shared;
        let control = Arc::new(Control::new(
            partition.clone(),
            epoch,
            CallLimit::new(partition.clone(), liveness.clone(), config.handler_timeout),
            PartitionMetrics::new(telemetry.metrics(), &partition),
            span.clone(),
        ));
        self.registry.insert(Arc::clone(&control));
        self.balancer.report_started(partition.clone(), epoch);
        self.entries.insert(partition, Entry { control: Arc::clone(&control), ended: false, at_end: false });
        let task = PartitionTask { shared: Arc::clone(&self.shared), control: Arc::clone(&control) };
        let running = async move { (control, AssertUnwindSafe(task.run()).catch_unwind().await) };
        self.tasks.spawn(running.instrument(span));
    }

    /// Reports to the balancer how the processing of the partition ended. An error ends the processor.
    fn handle_task_end(&mut self, control: &Arc<Control>, outcome: Outcome) -> Result<(), Arc<Error>> {
        self.registry.remove(control);
        // What `stopped` did not finish, or could not checkpoint, is processed again.
        let End { aborted, uncheckpointed, .. } = control.progress.last_end();
        let has_reached_end =
            matches!(outcome, Ok(TaskEnd::Stopped(StopReason::EndReached))) && !aborted && !uncheckpointed;
        if let Some(entry) = self.entries.get_mut(&control.partition) {
            entry.ended = true;
            entry.at_end = has_reached_end;
        }
        let unsettled = |cooldown| ProcessingEnd::Stopped { settled: false, cooldown };
        let mut result = Ok(());
        let end = match outcome {
            Ok(TaskEnd::Stopped(StopReason::OwnershipLost { by })) => ProcessingEnd::Lost { by },
            Ok(TaskEnd::Stopped(StopReason::Replaced)) => ProcessingEnd::Lost { by: None },
            Ok(TaskEnd::Stopped(StopReason::Shutdown)) if self.keep => return Ok(()),
            Ok(TaskEnd::Stopped(StopReason::Released { .. } | StopReason::Shutdown)) => ProcessingEnd::Stopped {
                settled: control.progress.last_end().is_settled(),
                cooldown: control.release_cooldown(),
            },
            Ok(TaskEnd::Stopped(StopReason::EndReached)) if !has_reached_end => unsettled(Duration::ZERO),
            Ok(TaskEnd::Stopped(_)) => return Ok(()),
            // The failed batch may have been processed in part.
            Ok(TaskEnd::Release { cooldown }) => unsettled(cooldown),
            Ok(TaskEnd::Failed(error)) if error.kind() == ErrorKind::Contended => {
                telemetry::adoption_contended(&control.partition, &error);
                unsettled(Duration::ZERO)
            }
            Ok(TaskEnd::Failed(error)) => {
                result = Err(error);
                unsettled(Duration::ZERO)
            }
            Err(panic) => {
                telemetry::partition_task_panicked(&control.partition, panic_message(&*panic));
                unsettled(Duration::ZERO)
            }
        };
        self.balancer.report_ended(control.partition.clone(), control.epoch, end);
        result
    }

    /// Stops every partition within the drain timeout and the time for the last checkpoints. Each partition is released
    /// as soon as it has stopped, while others still drain. If this instance keeps its partitions, the balancer keeps
    /// them afterwards. Returns the first part of the report.
    pub(super) async fn stop_all(&mut self, reason: StopReason, keep: bool) -> ShutdownReport {
        self.keep = keep;
        for entry in self.entries.values() {
            entry.control.request_stop(reason.clone());
            if entry.at_end && !keep {
                let end = ProcessingEnd::Stopped { settled: true, cooldown: Duration::ZERO };
                self.balancer.report_ended(entry.control.partition.clone(), entry.control.epoch, end);
            }
        }
        let mut report = ShutdownReport::default();
        let mut drain = PhaseReport::default();
        let limit = stop_limit(self.shared.drain_timeout, &self.shared.store);
        let draining = async {
            while let Some(ended) = self.tasks.join_next().await {
                let Ok((control, outcome)) = ended else { continue };
                report.record_stop(&control);
                // The processor is already ending.
                let _ = self.handle_task_end(&control, outcome);
            }
        };
        drain.run_phase(limit, draining).await;
        report.drain = drain;
        if !drain.complete {
            telemetry::partitions_aborted(limit);
            self.registry.controls().iter().for_each(|control| report.record_abort(control));
            // A handler that blocks its thread cannot be aborted, so it is not awaited without a limit.
            let _ = timeout(CLOSE_LIMIT, self.tasks.shutdown()).await;
        }
        report
    }
}

impl ShutdownReport {
    fn record_stop(&mut self, Control { partition, progress, .. }: &Control) {
        let end = progress.last_end();
        self.aborted.extend(end.aborted.then(|| partition.clone()));
        self.uncheckpointed.extend(end.uncheckpointed.then(|| partition.clone()));
        self.held_back.extend(end.held_back.then(|| partition.clone()));
    }

    fn record_abort(&mut self, Control { partition, progress, .. }: &Control) {
        self.aborted.insert(partition.clone());
        self.uncheckpointed.extend(progress.is_behind().then(|| partition.clone()));
    }
}

/// Returns why the balancer no longer owns a partition in the epoch that its task was started for. While the runtime
/// was blocked, a lease that the balancer gave up may have expired for all others, too, or the balancer may have won
/// the partition again: with strict leases, after it gave the partition up.
fn loss_reason(snapshot: &Snapshot, partition: &PartitionId, on_lease_expiry: OnLeaseExpiry) -> StopReason {
    let names_this_instance = match snapshot.owner(partition) {
        Some(PartitionOwner::Reclaimable) => true,
        Some(PartitionOwner::Expired(owner)) => *owner == snapshot.owner,
        _ => false,
    };
    match (snapshot.owned.get(partition), snapshot.releasing.get(partition)) {
        (None, Some(reason)) => StopReason::Released { reason: *reason },
        (None, None) if names_this_instance => StopReason::LeaseExpired,
        (Some(_), _) if on_lease_expiry == OnLeaseExpiry::Stop => StopReason::LeaseExpired,
        _ => StopReason::OwnershipLost { by: snapshot.other_owner(partition).cloned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::PartitionView;
    use crate::model::{LeaseScope, OwnerId};

    #[test]
    fn a_partition_that_nobody_took_had_expired() {
        let reason = |owner| {
            let mut snapshot = Snapshot::with_nothing_known(OwnerId::new("a").unwrap(), LeaseScope::Partition);
            snapshot.partitions = vec![PartitionView::new(0.into(), owner)];
            loss_reason(&snapshot, &0.into(), OnLeaseExpiry::Stop)
        };
        let [this, other] = ["a", "b"].map(|owner| OwnerId::new(owner).unwrap());
        for owner in [PartitionOwner::Reclaimable, PartitionOwner::Expired(this)] {
            assert!(matches!(reason(owner), StopReason::LeaseExpired));
        }
        for (owner, by) in
            [(PartitionOwner::Other(other.clone()), Some(&other)), (PartitionOwner::Expired(other.clone()), None)]
        {
            assert!(matches!(reason(owner), StopReason::OwnershipLost { by: found } if found.as_ref() == by));
        }
    }

    #[test]
    fn a_partition_won_again_had_expired_if_strict() {
        let mut snapshot = Snapshot::with_nothing_known(OwnerId::new("a").unwrap(), LeaseScope::Partition);
        snapshot.owned.insert(0.into(), 8);
        let strict = loss_reason(&snapshot, &0.into(), OnLeaseExpiry::Stop);
        assert!(matches!(strict, StopReason::LeaseExpired), "{strict:?}");
        let lenient = loss_reason(&snapshot, &0.into(), OnLeaseExpiry::Continue);
        assert!(matches!(lenient, StopReason::OwnershipLost { by: None }), "{lenient:?}");
    }
}
