//! What a partition's task is asked to do. Shared by the task, the supervisor, contexts and handles.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use super::orders::{Orders, Stopping};
use super::properties::PartitionProperties;
use super::status::Progress;
use super::stop::StopReason;
use crate::model::PartitionId;
use crate::telemetry::PartitionMetrics;

/// One partition under one tenure.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) partition: PartitionId,
    pub(super) epoch: i64,
    pub(super) progress: Progress,
    pub(super) metrics: PartitionMetrics,
    pub(super) span: Span,
    began: Instant,
    orders: watch::Sender<Orders>,
    /// What the hub last said of the partition.
    properties: watch::Sender<Option<PartitionProperties>>,
}

impl Control {
    pub(super) fn new(partition: PartitionId, epoch: i64, metrics: PartitionMetrics, span: Span) -> Self {
        Self {
            partition,
            epoch,
            progress: Progress::new(),
            metrics,
            span,
            began: Instant::now(),
            orders: watch::Sender::default(),
            properties: watch::Sender::default(),
        }
    }

    /// Time since the tenure began here.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Asks the task to stop. The first reason counts.
    pub(super) fn stop(&self, reason: StopReason) {
        self.orders.send_if_modified(|orders| orders.request_stop(reason));
    }

    /// Says why it stops, whatever was asked before: a refused checkpoint is a fact.
    pub(super) fn found(&self, reason: StopReason) {
        self.orders.send_modify(|orders| orders.stop = Some(reason));
    }

    /// Asks for the partition to be given back. False if it stops already, for another reason.
    pub(super) fn release(&self, cooldown: Duration) -> bool {
        self.orders.send_if_modified(|orders| {
            let first = orders.request_stop(StopReason::Released);
            if first {
                orders.cooldown = cooldown;
            }
            first
        })
    }

    pub(super) fn cooldown(&self) -> Duration {
        self.orders.borrow().cooldown
    }

    /// Why, and since when, if it was.
    pub(super) fn stop_requested(&self) -> Option<(StopReason, Instant)> {
        let orders = self.orders.borrow();
        orders.stop.clone().zip(orders.requested_at)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.orders.borrow().stop.is_some()
    }

    /// The same for those that must not keep the task's state.
    pub(super) fn watch_stopping(&self) -> Stopping {
        Stopping::new(self.orders.subscribe())
    }

    pub(super) async fn stopping(&self) -> StopReason {
        let mut orders = self.orders.subscribe();
        match orders.wait_for(|orders| orders.stop.is_some()).await.as_deref() {
            Ok(Orders { stop: Some(reason), .. }) => reason.clone(),
            // The sender is `self`.
            _ => StopReason::Shutdown,
        }
    }

    pub(super) fn pause(&self) {
        self.orders.send_modify(|orders| orders.paused = true);
    }

    pub(super) fn resume(&self) {
        self.orders.send_modify(|orders| {
            orders.paused = false;
            orders.resumed = true;
        });
    }

    pub(super) fn is_paused(&self) -> bool {
        self.orders.borrow().paused
    }

    pub(super) async fn until_paused(&self, paused: bool) {
        let mut orders = self.orders.subscribe();
        // The sender is `self`: it does not go away.
        let _ = orders.wait_for(|orders| orders.paused == paused).await;
    }

    /// The handler failed: from now on a call of [`resume`](Self::resume) counts.
    pub(super) fn expects_resume(&self) {
        self.orders.send_modify(|orders| orders.resumed = false);
    }

    pub(super) async fn resumed(&self) {
        let mut orders = self.orders.subscribe();
        let _ = orders.wait_for(|orders| orders.resumed).await;
    }

    pub(super) fn properties_read(&self, properties: PartitionProperties) {
        self.progress.probed(properties.clone());
        self.properties.send_replace(Some(properties));
    }

    /// What the hub says from now on.
    pub(super) fn properties(&self) -> watch::Receiver<Option<PartitionProperties>> {
        self.properties.subscribe()
    }
}
