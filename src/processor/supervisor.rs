//! Keeps one task per partition held, and none for any other.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::handler::{Handler, StopReason};
use super::partition::{PartitionTask, Shared};
use super::source::EventSource;
use crate::balance::Holder;
use crate::balancer::{BalancerHandle, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::store::GroupStore;
use crate::telemetry;

/// A partition's task, from its start until the balancer no longer holds what it was started for.
#[derive(Debug)]
struct Entry {
    tenure: u64,
    stop: watch::Sender<Option<StopReason>>,
    ended: bool,
}

/// How a partition's task ended: as told or by finding the partition lost, with an error that nothing can mend, or by a
/// panic, which is a bug.
type Ended = std::thread::Result<Result<StopReason, Arc<Error>>>;

#[derive(Debug)]
pub(super) struct Supervisor<S, H> {
    shared: Arc<Shared<S, H>>,
    balancer: BalancerHandle,
    tasks: JoinSet<(PartitionId, u64, Ended)>,
    entries: BTreeMap<PartitionId, Entry>,
}

impl<S: EventSource, H: Handler<S::Event>> Supervisor<S, H> {
    pub(super) fn new(shared: Arc<Shared<S, H>>, balancer: BalancerHandle) -> Self {
        Self { shared, balancer, tasks: JoinSet::new(), entries: BTreeMap::new() }
    }

    /// Follows the balancer until shutdown, until the balancer ends, or until a partition fails for good.
    pub(super) async fn run(
        &mut self,
        balancing: &mut JoinSet<Result<()>>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Arc<Error>> {
        let mut snapshots = self.balancer.watch();
        tokio::pin!(shutdown);
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            self.reconcile(&snapshot);
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                Some(ended) = balancing.join_next() => {
                    let panicked = |error| Error::new(ErrorKind::Closed, "the balancing loop panicked").with_source(error);
                    return ended.map_err(panicked).flatten().map_err(Arc::new);
                }
                Some(Ok((partition, tenure, ended))) = self.tasks.join_next() => {
                    self.task_ended(partition, tenure, ended)?;
                }
                Ok(()) = snapshots.changed() => {}
            }
        }
    }

    fn reconcile(&mut self, snapshot: &Snapshot) {
        self.entries.retain(|partition, entry| {
            let held = snapshot.held.get(partition) == Some(&entry.tenure);
            if !held {
                let reason = lost(&self.shared.store, snapshot, partition);
                entry.stop.send_if_modified(|stop| stop.is_none() && stop.replace(reason).is_none());
            }
            held || !entry.ended
        });
        for (partition, tenure) in &snapshot.held {
            if !self.entries.contains_key(partition) {
                self.start(partition.clone(), *tenure);
            }
        }
    }

    fn start(&mut self, partition: PartitionId, tenure: u64) {
        let stop = watch::Sender::new(None);
        let task = PartitionTask { shared: Arc::clone(&self.shared), partition: partition.clone(), stop: stop.clone() };
        self.entries.insert(partition.clone(), Entry { tenure, stop, ended: false });
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(task.run()).catch_unwind().await;
            (partition, tenure, ended)
        });
    }

    fn task_ended(&mut self, partition: PartitionId, tenure: u64, ended: Ended) -> Result<(), Arc<Error>> {
        if let Some(entry) = self.entries.get_mut(&partition) {
            entry.ended = true;
        }
        match ended {
            Ok(Ok(StopReason::Lost { .. } | StopReason::Replaced)) => self.balancer.forget(partition, tenure),
            // Started again, as it is still held.
            Ok(Ok(StopReason::Rewound)) => {
                self.entries.remove(&partition);
            }
            Ok(Ok(StopReason::Released)) => self.balancer.release(partition, tenure, Duration::ZERO),
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.kind() == ErrorKind::Contended => {
                telemetry::adoption_contended(&partition, &error);
                self.balancer.release(partition, tenure, Duration::ZERO);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                telemetry::partition_task_panicked(&partition);
                self.balancer.release(partition, tenure, Duration::ZERO);
            }
        }
        Ok(())
    }

    /// Stops every partition in good order, within the drain time and what the last checkpoints may take.
    pub(super) async fn stop_all(&mut self, reason: &StopReason) {
        for entry in self.entries.values() {
            entry.stop.send_if_modified(|stop| stop.is_none() && stop.replace(reason.clone()).is_none());
        }
        // The handler's batch, its `stopped`, the link and a last checkpoint that meets a conflict.
        let limit = 3 * self.shared.drain + 4 * self.shared.store.request_deadline();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            telemetry::shutdown_cut_short(limit);
            self.tasks.shutdown().await;
        }
    }
}

/// Why a partition is not held any more under the tenure that its task was started for.
fn lost(store: &GroupStore, snapshot: &Snapshot, partition: &PartitionId) -> StopReason {
    match snapshot.held.get(partition) {
        Some(tenure) if store.began_by_rewind(partition, *tenure) => StopReason::Rewound,
        None if snapshot.releasing.contains(partition) => StopReason::Released,
        None if snapshot.holder(partition) == Some(&Holder::Orphan) => StopReason::Outlived,
        _ => StopReason::Lost { by: snapshot.other_owner(partition).cloned() },
    }
}
