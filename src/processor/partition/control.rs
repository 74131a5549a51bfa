//! Requests to the task of one partition, and the registry of these tasks. The task, the supervisor, contexts and
//! handles share them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use super::handler_call::CallLimit;
use super::handler_failures::HandlerFailures;
use super::orders::{Orders, StopView};
use crate::balancer::ReleaseReason;
use crate::model::PartitionId;
use crate::processor::monitoring::progress::PartitionProgress;
use crate::processor::shutdown::StopReason;
use crate::source::properties::PartitionProperties;
use crate::telemetry::PartitionMetrics;
use crate::util::lock;

/// One partition in one epoch of its ownership.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: i64,
    pub(crate) failures: HandlerFailures,
    pub(crate) call_limit: CallLimit,
    pub(crate) progress: PartitionProgress,
    pub(crate) metrics: PartitionMetrics,
    pub(crate) span: Span,
    /// When this instance won the partition.
    pub(crate) won_at: Instant,
    orders: watch::Sender<Orders>,
    /// When the event hub was created, and the last event to process there. Set once, so that a restart has the same
    /// end.
    pub(super) end: OnceLock<(Option<OffsetDateTime>, i64)>,
    /// The last properties that the event hub reported for the partition.
    pub(super) properties: watch::Sender<Option<PartitionProperties>>,
}

impl Control {
    pub(crate) fn new(
        partition: PartitionId,
        epoch: i64,
        call_limit: CallLimit,
        metrics: PartitionMetrics,
        span: Span,
    ) -> Self {
        Self {
            partition,
            epoch,
            failures: HandlerFailures::default(),
            call_limit,
            progress: PartitionProgress::new(),
            metrics,
            span,
            won_at: Instant::now(),
            orders: watch::Sender::default(),
            end: OnceLock::new(),
            properties: watch::Sender::default(),
        }
    }

    /// Requests the task to stop. The first reason counts.
    pub(crate) fn request_stop(&self, reason: StopReason) {
        self.orders.send_if_modified(|orders| orders.request_stop(reason));
    }

    /// Sets the reason for the stop and replaces an earlier one: a rejected checkpoint is a fact.
    pub(crate) fn set_stop_reason(&self, reason: StopReason) {
        self.orders.send_modify(|orders| orders.stop = Some(reason));
    }

    /// Requests the task to release the partition. Returns false if the partition is already stopping for another
    /// reason.
    pub(crate) fn request_release(&self, cooldown: Duration) -> bool {
        self.orders.send_if_modified(|orders| {
            let first = orders.request_stop(StopReason::Released { reason: ReleaseReason::Requested });
            if first {
                orders.cooldown = cooldown;
            }
            first
        })
    }

    /// Requests the task to stop and start the partition again. Returns false if the partition is already stopping.
    pub(crate) fn request_restart(&self) -> bool {
        self.orders.send_if_modified(|orders| orders.stop.is_none() && orders.request_stop(StopReason::Restarting))
    }

    /// Records that the partition has stopped to start again.
    pub(crate) fn end_restart(&self) {
        self.orders
            .send_if_modified(|orders| orders.stop.take_if(|stop| matches!(stop, StopReason::Restarting)).is_some());
    }

    pub(crate) fn release_cooldown(&self) -> Duration {
        self.orders.borrow().cooldown
    }

    /// Returns the reason and the time of the stop request, if there is one.
    pub(crate) fn stop_request(&self) -> Option<(StopReason, Instant)> {
        let orders = self.orders.borrow();
        orders.stop.clone().zip(orders.requested_at)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.orders.borrow().stop.is_some()
    }

    /// Returns a view of the stop request for users that must not keep the task's state.
    pub(crate) fn watch_stopping(&self) -> StopView {
        StopView::new(self.orders.subscribe())
    }

    pub(crate) async fn wait_for_stop(&self) -> StopReason {
        let mut orders = self.orders.subscribe();
        match orders.wait_for(|orders| orders.stop.is_some()).await.as_deref() {
            Ok(Orders { stop: Some(reason), .. }) => reason.clone(),
            // The sender belongs to `self`, so it is not dropped.
            _ => StopReason::Shutdown,
        }
    }

    /// Waits until the partition is requested to stop for good. It does not restart meanwhile.
    pub(crate) async fn wait_for_final_stop(&self) -> StopReason {
        loop {
            match self.wait_for_stop().await {
                StopReason::Restarting => self.end_restart(),
                reason => return reason,
            }
        }
    }

    pub(crate) fn pause(&self) {
        self.orders.send_modify(|orders| {
            orders.paused = true;
            orders.resumed = false;
        });
    }

    pub(crate) fn resume(&self) {
        self.orders.send_modify(|orders| {
            orders.paused = false;
            orders.resumed = true;
        });
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.orders.borrow().paused
    }

    pub(crate) async fn wait_for_pause(&self, paused: bool) {
        let mut orders = self.orders.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = orders.wait_for(|orders| orders.paused == paused).await;
    }

    /// Records that the handler failed: only a later [`resume`](Self::resume) counts.
    pub(crate) fn expect_resume(&self) {
        self.orders.send_modify(|orders| orders.resumed = false);
    }

    /// Returns whether the application has called [`resume`](Self::resume) since that counts.
    pub(crate) fn is_resumed(&self) -> bool {
        self.orders.borrow().resumed
    }

    pub(crate) async fn wait_for_resume(&self) {
        let mut orders = self.orders.subscribe();
        let _ = orders.wait_for(|orders| orders.resumed).await;
    }

    pub(crate) fn publish_properties(&self, properties: PartitionProperties) {
        self.progress.record_lag_check(properties.clone());
        self.properties.send_replace(Some(properties));
    }
}

/// The controls of the partitions that have a task. Only the supervisor and the end of the processor change it. Cheap
/// to clone; all clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Mutex<BTreeMap<PartitionId, Arc<Control>>>>);

impl Registry {
    pub(crate) fn insert(&self, control: Arc<Control>) {
        lock(&self.0).insert(control.partition.clone(), control);
    }

    /// Removes the entry, unless it belongs to another epoch.
    pub(crate) fn remove(&self, control: &Arc<Control>) {
        let mut entries = lock(&self.0);
        if entries.get(&control.partition).is_some_and(|entry| Arc::ptr_eq(entry, control)) {
            entries.remove(&control.partition);
        }
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }

    pub(crate) fn get(&self, partition: &PartitionId) -> Option<Arc<Control>> {
        lock(&self.0).get(partition).cloned()
    }

    pub(crate) fn controls(&self) -> Vec<Arc<Control>> {
        lock(&self.0).values().cloned().collect()
    }
}
