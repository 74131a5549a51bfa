//! Requests to the task of one partition. The task, the supervisor, contexts and handles share them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use super::attempts::Attempts;
use super::handler_call::CallLimit;
use super::orders::{Orders, Stopping};
use crate::balancer::ReleaseReason;
use crate::model::PartitionId;
use crate::processor::monitoring::status::Progress;
use crate::processor::shutdown::stop::StopReason;
use crate::source::properties::PartitionProperties;
use crate::telemetry::PartitionMetrics;

/// One partition in one epoch of its ownership.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: i64,
    pub(crate) attempts: Attempts,
    pub(crate) call_limit: CallLimit,
    pub(crate) progress: Progress,
    pub(crate) metrics: PartitionMetrics,
    pub(crate) span: Span,
    began: Instant,
    orders: watch::Sender<Orders>,
    /// The last properties that the event hub reported for the partition.
    properties: watch::Sender<Option<PartitionProperties>>,
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
            attempts: Attempts::default(),
            call_limit,
            progress: Progress::new(),
            metrics,
            span,
            began: Instant::now(),
            orders: watch::Sender::default(),
            properties: watch::Sender::default(),
        }
    }

    /// Returns the time since this instance won the partition.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Requests the task to stop. The first reason counts.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.orders.send_if_modified(|orders| orders.request_stop(reason));
    }

    /// Sets the reason for the stop and replaces an earlier one: a rejected checkpoint is a fact.
    pub(crate) fn set_stop_reason(&self, reason: StopReason) {
        self.orders.send_modify(|orders| orders.stop = Some(reason));
    }

    /// Requests the task to release the partition. Returns false if the partition is already stopping for another
    /// reason.
    pub(crate) fn release(&self, cooldown: Duration) -> bool {
        self.orders.send_if_modified(|orders| {
            let first = orders.request_stop(StopReason::Released { reason: ReleaseReason::Requested });
            if first {
                orders.cooldown = cooldown;
            }
            first
        })
    }

    pub(crate) fn cooldown(&self) -> Duration {
        self.orders.borrow().cooldown
    }

    /// Returns the reason and the time of the stop request, if there is one.
    pub(crate) fn stop_requested(&self) -> Option<(StopReason, Instant)> {
        let orders = self.orders.borrow();
        orders.stop.clone().zip(orders.requested_at)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.orders.borrow().stop.is_some()
    }

    /// Returns a view of the stop request for users that must not keep the task's state.
    pub(crate) fn watch_stopping(&self) -> Stopping {
        Stopping::new(self.orders.subscribe())
    }

    pub(crate) async fn stopping(&self) -> StopReason {
        let mut orders = self.orders.subscribe();
        match orders.wait_for(|orders| orders.stop.is_some()).await.as_deref() {
            Ok(Orders { stop: Some(reason), .. }) => reason.clone(),
            // The sender belongs to `self`, so it is not dropped.
            _ => StopReason::Shutdown,
        }
    }

    pub(crate) fn pause(&self) {
        self.orders.send_modify(|orders| orders.paused = true);
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

    pub(crate) async fn until_paused(&self, paused: bool) {
        let mut orders = self.orders.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = orders.wait_for(|orders| orders.paused == paused).await;
    }

    /// Records that the handler failed: only a later [`resume`](Self::resume) counts.
    pub(crate) fn expects_resume(&self) {
        self.orders.send_modify(|orders| orders.resumed = false);
    }

    pub(crate) async fn resumed(&self) {
        let mut orders = self.orders.subscribe();
        let _ = orders.wait_for(|orders| orders.resumed).await;
    }

    pub(crate) fn properties_read(&self, properties: PartitionProperties) {
        self.progress.lag_checked(properties.clone());
        self.properties.send_replace(Some(properties));
    }

    /// Returns a receiver of the properties that the event hub reports from now on.
    pub(crate) fn properties(&self) -> watch::Receiver<Option<PartitionProperties>> {
        self.properties.subscribe()
    }
}
