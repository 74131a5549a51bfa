//! Handoff: asking a cooperative owner for a partition, so that it moves without an event being processed twice.
//!
//! Whoever wants a partition [marks](GroupStore::request_handoff) its record, and then [pursues](GroupStore::poll_handoff) it: looks at
//! it until it is released, or for as long as it has patience. The owner learns of it from its
//! [lease](super::Lease::handoff_requested_by), [acknowledges](super::Lease::acknowledging_handoff), settles its last checkpoint, and
//! releases; the release is reserved for the one that asked.

use super::rules::{
    Handoff, HandoffRequestOutcome, HandoffStatus, HandoffTimeouts, HandoffView, Next, WriteCondition,
    requesting_handoff,
};
use super::settle::ConditionalWrite;
use super::{Claim, GroupStore, Ownership};
use crate::blob::{ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::Result;
use crate::telemetry::StorageOperation;

impl GroupStore {
    /// The time that this crate's owners have for a handoff by default: half the expiry and a request deadline to
    /// answer, three quarters of the expiry to release.
    #[must_use]
    pub fn handoff_timeouts(&self) -> HandoffTimeouts {
        let expiry = self.lease_durations().own;
        HandoffTimeouts { acknowledgement: expiry / 2 + self.request_timeout(), release: expiry * 3 / 4 }
    }

    /// Asks the owner of a partition, as a listing showed it, to hand it over. Every other key of its record stays as
    /// it is.
    ///
    /// Only the young record of a [cooperative](super::GroupStore::cooperative) owner is marked: a mark renews it, and
    /// must not keep a dead owner alive. A record has one mark at a time, but any number of partitions can be asked for
    /// at once, also of one owner: each is drained and released by itself. A mark cannot be taken back; one that is not
    /// pursued ends when the partition is released and the reservation lapses.
    ///
    /// # Errors
    ///
    /// The outcome is not known, or [not in time](crate::ErrorKind::Indeterminate). If the mark stands, the partition will be
    /// reserved for this owner when it is released, for a while.
    pub async fn request_handoff(&self, seen: &Ownership) -> Result<HandoffRequestOutcome<Handoff>> {
        let handoff = Handoff::requested(seen.partition.clone(), &seen.record, self.lease_clock_now());
        let Some(mut handoff) = handoff else { return Ok(HandoffRequestOutcome::Lost) };
        let _turn = self.acquire(RecordKind::Ownership, &seen.partition).await;
        Ok(self.request_stands(&mut handoff).await?.map(|()| handoff))
    }

    /// Looks once at a partition that was asked for, and says what to do about it. A mark that was erased is added
    /// again, a few times, and the owner has its time anew.
    ///
    /// # Errors
    ///
    /// The error of the storage; [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if a mark that had to be written again
    /// was not settled in time. Nothing is decided; look again.
    pub async fn poll_handoff(
        &self,
        handoff: &mut Handoff,
        patience: &HandoffTimeouts,
    ) -> Result<HandoffStatus<Claim>> {
        let _turn = self.acquire(RecordKind::Ownership, &handoff.partition().clone()).await;
        let Some((seen, _, looked)) = self.look_at(handoff).await? else { return Ok(HandoffStatus::Canceled) };
        Ok(match handoff.poll(Some((seen, looked)), self.lease_clock_now(), patience) {
            HandoffStatus::Pending if handoff.is_erased(looked, self.lease_durations().own) => {
                match self.request_stands(handoff).await? {
                    HandoffRequestOutcome::Requested(()) => HandoffStatus::Pending,
                    _ => HandoffStatus::Canceled,
                }
            }
            pursuit => pursuit.map(|seen| Claim::over(&seen)),
        })
    }

    /// Marks until it is known whether the mark stands.
    async fn request_stands(&self, handoff: &mut Handoff) -> Result<HandoffRequestOutcome<()>> {
        let outcome = self.settle(&mut HandoffRequestWrite { store: self, handoff, metadata: Metadata::new() }).await?;
        if outcome == HandoffRequestOutcome::Requested(()) {
            handoff.renewed(self.lease_clock_now());
        }
        Ok(outcome)
    }

    async fn look_at(&self, handoff: &Handoff) -> Result<Option<(Ownership, Metadata, HandoffView)>> {
        let name = self.inner.names.of(RecordKind::Ownership, handoff.partition());
        let Some(blob) = self.read(&name).await? else { return Ok(None) };
        let seen = self.ownership(handoff.partition().clone(), &blob).0;
        let at = |age| HandoffView::at(&seen.record, age, handoff, &self.identity().owner);
        let looked = match at(seen.age) {
            HandoffView::NotRequested { .. } => at(self.lease_age_of(&seen.record, seen.age).await?),
            looked => looked,
        };
        Ok(Some((seen, blob.metadata, looked)))
    }
}

struct HandoffRequestWrite<'a> {
    store: &'a GroupStore,
    handoff: &'a Handoff,
    /// Of the record that is to be marked, as it was read.
    metadata: Metadata,
}

impl ConditionalWrite for HandoffRequestWrite<'_> {
    type Outcome = HandoffRequestOutcome<()>;

    fn operation(&self) -> StorageOperation {
        StorageOperation::RequestHandoff
    }

    fn subject(&self) -> String {
        format!("the ownership record of partition {}", self.handoff.partition())
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<HandoffRequestOutcome<()>> {
        let name = self.store.inner.names.of(RecordKind::Ownership, self.handoff.partition());
        let marked = codec::with_handoff_request(self.metadata.clone(), &self.store.identity().owner);
        self.store.write(StorageOperation::RequestHandoff, &name, &marked, under).await?;
        Ok(HandoffRequestOutcome::Requested(()))
    }

    async fn look(&mut self) -> Result<Next<ETag, HandoffRequestOutcome<()>>> {
        let found = self.store.look_at(self.handoff).await?;
        let looked = found.map(|(seen, metadata, looked)| {
            self.metadata = metadata;
            (seen.etag, looked)
        });
        Ok(requesting_handoff(looked, self.store.lease_durations().own))
    }
}
