//! Handoff: requesting a partition from a cooperative owner, so that it moves without an event being processed twice.
//!
//! The requesting instance [writes a request](GroupStore::request_handoff) into the ownership record, and
//! [polls](GroupStore::poll_handoff) the record until the owner releases the partition. It claims the partition if the
//! owner does not acknowledge the request in time. An owner that has may drain for as long as it renews its lease. The
//! owner detects the request in its [lease](super::Lease::handoff_requested_by),
//! [acknowledges](super::Lease::acknowledging_handoff) it, writes its last checkpoint, and releases the partition. The
//! release is reserved for the requesting instance.

use std::ops::ControlFlow;

pub use super::rules::{Handoff, HandoffRequestOutcome, HandoffStatus};
use super::rules::{HandoffView, WriteCondition, decide_handoff_request};
use super::settle::ConditionalWrite;
use super::{Claim, GroupStore, Ownership};
use crate::blob::{ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::telemetry::StorageOperation;

impl GroupStore {
    /// Requests the handoff of a partition, as a listing showed it. All other keys of its record stay as they are.
    ///
    /// Only a young record of a [cooperative](super::Claim::with_cooperative) owner is eligible: the request renews the
    /// record, and must not keep the lease of a dead owner alive. A record contains one request at a time. Any number
    /// of partitions can be requested at once, also from one owner: each of them is drained and released on its own. A
    /// request cannot be withdrawn. If it is not polled, it ends when the partition is released and the reservation
    /// ends.
    ///
    /// # Errors
    ///
    /// The error of the storage, or [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if the outcome is
    /// unknown. The request may have been written: then the partition will be reserved for this owner for a while when
    /// it is released. Plan again in the next cycle.
    pub async fn request_handoff(&self, seen: &Ownership) -> Result<HandoffRequestOutcome<Handoff>> {
        let Some(mut handoff) =
            Handoff::requested(seen.partition.clone(), &seen.record, self.lease_durations(), self.lease_clock_now())
        else {
            return Ok(HandoffRequestOutcome::Lost);
        };
        let _guard = self.acquire_record(RecordKind::Ownership, &seen.partition).await;
        Ok(self.ensure_requested(&mut handoff).await?.map(|()| handoff))
    }

    /// Polls a requested handoff once, and returns what to do about it. If the request was erased, it is written again,
    /// a few times, and the owner has the whole time to acknowledge it again.
    ///
    /// # Errors
    ///
    /// The error of the storage, or [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if a request had to
    /// be written again and the outcome is unknown. Nothing is decided: poll again.
    pub async fn poll_handoff(&self, handoff: &mut Handoff) -> Result<HandoffStatus<Claim>> {
        let _guard = self.acquire_record(RecordKind::Ownership, handoff.partition()).await;
        let Some((seen, _, view)) = self.view_of(handoff).await? else { return Ok(HandoffStatus::Canceled) };
        Ok(match handoff.poll(Some((seen, view)), self.lease_clock_now(), self.request_timeout()) {
            HandoffStatus::Pending if handoff.is_erased(view) => match self.ensure_requested(handoff).await? {
                HandoffRequestOutcome::Requested(()) => HandoffStatus::Pending,
                _ => HandoffStatus::Canceled,
            },
            status => status.map(|seen| Claim::over(&seen)),
        })
    }

    /// Writes the request until it is known whether the record contains it.
    async fn ensure_requested(&self, handoff: &mut Handoff) -> Result<HandoffRequestOutcome<()>> {
        let outcome = self
            .settle_write(None, &mut HandoffRequestWrite { store: self, handoff, metadata: Metadata::new() })
            .await?;
        if outcome == HandoffRequestOutcome::Requested(()) {
            handoff.renewed(self.lease_clock_now());
        }
        Ok(outcome)
    }

    async fn view_of(&self, handoff: &Handoff) -> Result<Option<(Ownership, Metadata, HandoffView)>> {
        let name = self.inner.names.record_name(RecordKind::Ownership, handoff.partition());
        let Some(blob) = self.read_blob(&name).await? else { return Ok(None) };
        let seen = self.ownership_in(handoff.partition(), &blob);
        let mut view = HandoffView::from_record(&seen.record, seen.age, handoff, &self.identity().owner);
        if let HandoffView::NotRequested { age, .. } = &mut view {
            *age = self.lease_age_of(&seen.record, seen.age).await?;
        }
        Ok(Some((seen, blob.metadata, view)))
    }
}

struct HandoffRequestWrite<'a> {
    store: &'a GroupStore,
    handoff: &'a Handoff,
    /// The metadata of the record, as it was read.
    metadata: Metadata,
}

impl ConditionalWrite for HandoffRequestWrite<'_> {
    type Outcome = HandoffRequestOutcome<()>;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::RequestHandoff
    }

    fn record_label(&self) -> String {
        format!("the ownership record of partition {}", self.handoff.partition())
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<HandoffRequestOutcome<()>>> {
        let name = self.store.inner.names.record_name(RecordKind::Ownership, self.handoff.partition());
        let metadata = codec::with_handoff_request(self.metadata.clone(), &self.store.identity().owner);
        self.store.write_blob(StorageOperation::RequestHandoff, &name, &metadata, &under).await?;
        Ok(ControlFlow::Break(HandoffRequestOutcome::Requested(())))
    }

    async fn next_write(&mut self) -> Result<ControlFlow<HandoffRequestOutcome<()>, WriteCondition<ETag>>> {
        let view = self.store.view_of(self.handoff).await?.map(|(seen, metadata, view)| {
            self.metadata = metadata;
            (seen.etag, view)
        });
        Ok(decide_handoff_request(view, self.handoff.lease_duration()))
    }
}
