//! Runs one task for each owned partition, and none for any other.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Instrument;

use super::handler::Handler;
use super::partition::control::Control;
use super::partition::handler_call::CallLimit;
use super::partition::registry::Registry;
use super::partition::{Ended, PartitionTask};
use super::shared::Shared;
use super::shutdown::limits::stop_limit;
use super::shutdown::stop::StopReason;
use super::shutdown::{PhaseReport, phase};
use crate::balancer::{BalancerHandle, OnLeaseExpiry, PartitionOwner, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::panics::message_of;
use crate::source::CLOSE_LIMIT;
use crate::source::EventSource;
use crate::telemetry;

/// A partition's task, from its start until the balancer no longer owns the partition in the task's epoch.
#[derive(Debug)]
struct Entry {
    control: Arc<Control>,
    ended: bool,
}

/// How a partition's task ended. An error is a panic, which is a bug.
type Outcome = std::thread::Result<Ended>;

#[derive(Debug)]
pub(super) struct Supervisor<S, H> {
    shared: Arc<Shared<S, H>>,
    balancer: BalancerHandle,
    registry: Registry,
    tasks: JoinSet<(Arc<Control>, Outcome)>,
    entries: BTreeMap<PartitionId, Entry>,
    /// The partitions that stop at shutdown are kept for the restart of this owner.
    keep: bool,
}

/// How the partitions stopped.
#[derive(Debug, Default)]
pub(super) struct Drained {
    pub(super) phase: PhaseReport,
    pub(super) aborted: BTreeSet<PartitionId>,
    pub(super) uncheckpointed: BTreeSet<PartitionId>,
    pub(super) held_back: BTreeSet<PartitionId>,
}

impl<S: EventSource, H: Handler<S::Event>> Supervisor<S, H> {
    pub(super) fn new(shared: Arc<Shared<S, H>>, balancer: BalancerHandle, registry: Registry) -> Self {
        Self { shared, balancer, registry, tasks: JoinSet::new(), entries: BTreeMap::new(), keep: false }
    }

    /// Follows the balancer until a shutdown is requested, the balancer ends, or a partition fails permanently.
    pub(super) async fn run(
        &mut self,
        balancing: &mut JoinSet<Result<()>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Arc<Error>> {
        let mut snapshots = self.balancer.snapshots();
        tokio::pin!(shutdown);
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            self.reconcile(&snapshot);
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                Some(ended) = balancing.join_next() => {
                    let panicked = |error| Error::new(ErrorKind::Internal, "internal error: the load-balancing loop panicked").with_source(error);
                    return ended.map_err(panicked).flatten().map_err(Arc::new);
                }
                Some(Ok((control, outcome))) = self.tasks.join_next() => self.task_ended(&control, outcome)?,
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    fn reconcile(&mut self, snapshot: &Snapshot) {
        // The loop has failed, which ends the processor with another reason than the loss of all partitions.
        if snapshot.cycles == 0 {
            return;
        }
        self.entries.retain(|partition, Entry { control, ended }| {
            let held = snapshot.owned.get(partition) == Some(&control.epoch);
            if !held {
                control.stop(lost(snapshot, partition, self.shared.config.balancer.on_lease_expiry));
            }
            if !*ended {
                return true;
            }
            if !snapshot.owned.contains_key(partition) {
                self.balancer.unprocessed(partition.clone());
            }
            held
        });
        for (partition, epoch) in &snapshot.owned {
            if !self.entries.contains_key(partition) {
                self.start(partition.clone(), *epoch);
            }
        }
    }

    fn start(&mut self, partition: PartitionId, epoch: i64) {
        let telemetry = self.shared.store.telemetry();
        let (metrics, span) = (telemetry.metrics().of_partition(&partition), telemetry.partition_span(&partition));
        let Shared { liveness, config, .. } = &*self.shared;
        let call_limit = CallLimit::new(partition.clone(), liveness.clone(), config.handler_timeout);
        let control = Arc::new(Control::new(partition.clone(), epoch, call_limit, metrics, span.clone()));
        self.registry.insert(Arc::clone(&control));
        self.balancer.started(partition.clone(), epoch);
        self.entries.insert(partition, Entry { control: Arc::clone(&control), ended: false });
        let task = PartitionTask { shared: Arc::clone(&self.shared), control: Arc::clone(&control) };
        let working = async move {
            let outcome = AssertUnwindSafe(task.run()).catch_unwind().await;
            (control, outcome)
        };
        self.tasks.spawn(working.instrument(span));
    }

    /// Reports to the balancer what happens to the partition. An error ends the processor.
    fn task_ended(&mut self, control: &Arc<Control>, outcome: Outcome) -> Result<(), Arc<Error>> {
        self.registry.remove(control);
        let (partition, epoch) = (control.partition.clone(), control.epoch);
        if let Some(entry) = self.entries.get_mut(&partition) {
            entry.ended = true;
        }
        match outcome {
            Ok(Ended::Stopped(StopReason::OwnershipLost { by })) => self.balancer.lost(partition, epoch, by),
            Ok(Ended::Stopped(StopReason::Replaced)) => self.balancer.mark_lost(partition, epoch),
            Ok(Ended::Stopped(StopReason::Shutdown)) if self.keep => {}
            Ok(Ended::Stopped(StopReason::Released { .. } | StopReason::Shutdown)) => {
                if control.progress.end().is_settled() {
                    self.balancer.release(partition, epoch, control.cooldown());
                } else {
                    self.balancer.release_unsettled(partition, epoch, control.cooldown());
                }
            }
            Ok(Ended::Stopped(_)) => {}
            // The failed batch may have been processed in part.
            Ok(Ended::Release { cooldown }) => self.balancer.release_unsettled(partition, epoch, cooldown),
            Ok(Ended::Failed(error)) => {
                let contended = error.kind() == ErrorKind::Contended;
                if contended {
                    telemetry::adoption_contended(&partition, &error);
                }
                self.balancer.release_unsettled(partition, epoch, Duration::ZERO);
                return if contended { Ok(()) } else { Err(error) };
            }
            Err(panic) => {
                telemetry::partition_task_panicked(&partition, message_of(&*panic));
                self.balancer.release_unsettled(partition, epoch, Duration::ZERO);
            }
        }
        Ok(())
    }

    /// Stops every partition within the drain timeout and the time for the last checkpoints. Each partition is released
    /// as soon as it has stopped, while others still drain. If this instance keeps its partitions, the balancer keeps
    /// them afterwards.
    pub(super) async fn stop_all(&mut self, reason: StopReason, keep: bool) -> Drained {
        self.keep = keep;
        for entry in self.entries.values() {
            entry.control.stop(reason.clone());
        }
        let mut drained = Drained::default();
        let limit = stop_limit(self.shared.drain_timeout, &self.shared.store);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                let Ok((control, outcome)) = ended else { continue };
                drained.note(&control);
                // The processor is already ending.
                let _ = self.task_ended(&control, outcome);
            }
        };
        let (phase, _) = phase(limit, all).await;
        drained.phase = phase;
        if !phase.complete {
            telemetry::partitions_aborted(limit);
            self.registry.all().iter().for_each(|control| drained.abort(control));
            // A handler that blocks its thread cannot be aborted, so it is not awaited without a limit.
            let _ = timeout(CLOSE_LIMIT, self.tasks.shutdown()).await;
        }
        drained
    }
}

impl Drained {
    fn note(&mut self, control: &Control) {
        let end = control.progress.end();
        if end.aborted {
            self.aborted.insert(control.partition.clone());
        }
        if end.uncheckpointed {
            self.uncheckpointed.insert(control.partition.clone());
        }
        if end.held_back {
            self.held_back.insert(control.partition.clone());
        }
    }

    fn abort(&mut self, control: &Control) {
        self.aborted.insert(control.partition.clone());
        if control.progress.is_behind() {
            self.uncheckpointed.insert(control.partition.clone());
        }
    }
}

/// Returns why the balancer no longer owns a partition in the epoch that its task was started for. While the runtime was
/// blocked, a lease that the balancer gave up may have expired for all others, too, or the balancer may have won the
/// partition again: with strict leases, after it gave the partition up.
fn lost(snapshot: &Snapshot, partition: &PartitionId, on_lease_expiry: OnLeaseExpiry) -> StopReason {
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
            let mut snapshot = Snapshot::unknown(OwnerId::new("a").unwrap(), LeaseScope::Partition);
            snapshot.partitions = vec![PartitionView::new(0.into(), owner)];
            lost(&snapshot, &0.into(), OnLeaseExpiry::Stop)
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
        let mut snapshot = Snapshot::unknown(OwnerId::new("a").unwrap(), LeaseScope::Partition);
        snapshot.owned.insert(0.into(), 8);
        let strict = lost(&snapshot, &0.into(), OnLeaseExpiry::Stop);
        assert!(matches!(strict, StopReason::LeaseExpired), "{strict:?}");
        let lenient = lost(&snapshot, &0.into(), OnLeaseExpiry::Continue);
        assert!(matches!(lenient, StopReason::OwnershipLost { by: None }), "{lenient:?}");
    }
}
