//! Heartbeats of instances, and owners that are declared dead: for authors of balancing loops.
//!
//! The calls are methods of [`GroupStore`]: [`send_heartbeat`](super::GroupStore::send_heartbeat),
//! [`list_heartbeats`](super::GroupStore::list_heartbeats), [`declare_dead`](super::GroupStore::declare_dead).
//!
//! If a heartbeat keeps the leases of an owner alive, an instance declares that owner dead before it claims one of its
//! partitions. The version of an ownership record does not protect such a lease, because its owner renews it without
//! writing the record. The version of the heartbeat does: once another instance has changed it, the owner's next
//! heartbeat fails, and the owner must [rewrite](super::Lease::forcing_rewrite) its leases. If the owner sends its
//! heartbeat first, the declaration fails.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::future::ready;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::{sleep, timeout};

pub use super::rules::DeclareDeadOutcome;
use super::rules::{
    FoundHeartbeat, HeartbeatLoss, HeartbeatState, WriteCondition, decide_declaration, decide_heartbeat,
    decide_heartbeat_end,
};
use super::settle::{ConditionalWrite, is_ambiguous};
use super::{GroupStore, Ownership};
use crate::blob::ETag;
use crate::codec;
use crate::error::{ErrorKind, Result};
pub use crate::model::{Heartbeat, HeartbeatRecord};
use crate::model::{Incarnation, LeaseDurations, LeaseScope, Moment, OwnerId, OwnershipRecord, Relation};
use crate::telemetry::{BillingType, StorageOperation};

/// A heartbeat that is this many times older than its lease duration is stale, and any instance may delete it.
const DELETED_AFTER: u32 = 10;

/// A request about the heartbeat of this instance that has no response after this time is sent once more, and so on:
/// one request that hangs must not cost the time of all leases that the heartbeat keeps alive. A backend that works
/// responds within a tenth of it.
const RESEND_AFTER: Duration = Duration::from_millis(500);

/// How many requests are sent until one has a response. Of a blob service that leaves every third request without a
/// response, one in eighty heartbeats has none then.
const MOST_SENT: u32 = 4;

const OWN_HEARTBEAT: &str = "the heartbeat of this instance";

/// The outcome of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "this instance may have been declared dead"]
pub enum HeartbeatOutcome {
    /// The heartbeat was written.
    Written,
    /// Another instance has changed or deleted the heartbeat since it was last written: it considers this owner dead.
    /// Send a heartbeat again, which shows that this owner is alive, and *then*
    /// [rewrite](super::Lease::forcing_rewrite) all leases that the heartbeat keeps alive, before you rely on them. A
    /// lease that is rewritten before the heartbeat could be taken over again.
    DeclaredDead {
        /// The instance that declared this owner dead, if the record still names it.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is running: two instances use the same owner ID. Shut down.
    Replaced {
        /// The later incarnation.
        by: Incarnation,
    },
}

impl GroupStore {
    /// Sends a heartbeat: writes that this owner is alive. An owner needs it while it owns nothing, and always if it
    /// claims with [`LeaseScope::Instance`]. Repeat it every quarter of the lease duration, and at once when the last
    /// partition is released or lost.
    ///
    /// It is written only under the version of the last heartbeat, so that a declaration of another instance is never
    /// overwritten unnoticed. A write without a response is sent again after half a second, up to three times, under
    /// the same version; the first success counts.
    ///
    /// # Errors
    ///
    /// The error of the storage, [`ErrorKind::Contended`] if other writers kept changing the heartbeat, or
    /// [`ErrorKind::Indeterminate`] if the outcome is unknown. Send it again.
    pub async fn send_heartbeat(&self) -> Result<HeartbeatOutcome> {
        let mut known = self.inner.heartbeat.lock().await;
        self.settle_write(Some(known.clone().into()), &mut HeartbeatWrite { store: self, known: &mut known }).await
    }

    /// Ends the heartbeat of this owner: writes that this owner declares itself dead, from which moment on no instance
    /// counts it, and then deletes it, if the storage permits that. Does nothing if it never sent one. The heartbeat of
    /// a later incarnation of this owner stays.
    ///
    /// # Errors
    ///
    /// The error of the storage, or [`ErrorKind::Indeterminate`] if the outcome is unknown. The heartbeat then expires
    /// by its age. A deletion that fails is not an error.
    pub async fn end_heartbeat(&self) -> Result<()> {
        let mut known = self.inner.heartbeat.lock().await;
        let Some(last) = known.clone() else { return Ok(()) };
        let mut write = HeartbeatEnd { store: self, known: &mut known };
        self.settle_write(Some(WriteCondition::IfMatch(last)), &mut write).await?;
        let Some(ended) = known.take() else { return Ok(()) };
        if let Err(error) = self.delete_heartbeat(&self.identity().owner, &ended).await {
            self.telemetry().ended_heartbeat_stays(&error);
        }
        Ok(())
    }

    /// Deletes each heartbeat that is older than ten times its lease duration, except this owner's own, and returns the
    /// owners. A heartbeat that was written in the meantime stays. So does one that the storage refuses to delete,
    /// which is logged.
    ///
    /// # Errors
    ///
    /// The error of the storage, if it concerns all deletions: it is unavailable, or does not permit deletions. Some
    /// heartbeats may be deleted; a later listing finds the others.
    pub async fn delete_stale_heartbeats(&self, seen: &[Heartbeat]) -> Result<Vec<OwnerId>> {
        let mut deleted = Vec::new();
        let others = seen.iter().filter(|seen| seen.record.owner != self.identity().owner);
        for old in others.filter(|seen| is_stale(seen, self.lease_durations(), self.lease_clock_now())) {
            let owner = &old.record.owner;
            match self.delete_heartbeat(owner, &old.etag).await {
                Ok(()) => deleted.push(owner.clone()),
                Err(error) if is_ambiguous(&error) => {}
                Err(error) if error.kind() == ErrorKind::Rejected => {
                    self.telemetry().stale_heartbeats_stay(&error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    /// Declares the owner of a partition dead, as far as its heartbeat keeps its leases alive. `listed` is the
    /// heartbeat as it was listed, if there was one. Call this before you claim partitions of an expired owner. Do not
    /// call it before you steal from a live owner, because all partitions of the owner count as expired from then on.
    ///
    /// Sends nothing if the record has no owner, or if the listed heartbeat shows that the owner was declared dead
    /// already.
    ///
    /// # Errors
    ///
    /// The error of the storage, [`ErrorKind::Contended`] if other writers kept changing the heartbeat, or
    /// [`ErrorKind::Indeterminate`] if the outcome is unknown. Do not claim; list again in the next cycle.
    pub async fn declare_dead(&self, of: &Ownership, listed: Option<&Heartbeat>) -> Result<DeclareDeadOutcome> {
        let Some(owner) = &of.record.owner else { return Ok(DeclareDeadOutcome::Declared) };
        let declaration = HeartbeatRecord {
            owner: owner.clone(),
            incarnation: of.record.incarnation.clone(),
            declared_dead_by: Some(self.identity().owner.clone()),
            lease_duration: of.record.lease_duration,
            other: BTreeMap::new(),
        };
        let mut write = DeclareDeadWrite { store: self, declaration, listed };
        let state = listed
            .map(|seen| write.heartbeat_state(&seen.record, seen.etag.clone(), seen.age_at(self.lease_clock_now())));
        match write.decide_declaration(state) {
            ControlFlow::Continue(under) => self.settle_write(Some(under), &mut write).await,
            ControlFlow::Break(outcome) => Ok(outcome),
        }
    }

    /// Returns the age of what keeps an ownership alive: its record, or, with [`LeaseScope::Instance`], the heartbeat
    /// of its owner if that is younger. The heartbeat is read only if the record is old.
    pub(super) async fn lease_age_of(&self, record: &OwnershipRecord, age: Duration) -> Result<Duration> {
        let owner = record.owner.as_ref().filter(|_| record.scope == LeaseScope::Instance);
        let Some(owner) = owner.filter(|_| age >= self.lease_durations().of(record) / 2) else { return Ok(age) };
        let Some(blob) = self.read_blob(&self.inner.names.heartbeat_name(owner)).await? else { return Ok(age) };
        let (heartbeat, _) = codec::decode_heartbeat(&blob.name, owner.clone(), &blob.metadata);
        let counts = heartbeat.incarnation == record.incarnation && heartbeat.declared_dead_by.is_none();
        Ok(if counts { blob.age().min(age) } else { age })
    }

    async fn delete_heartbeat(&self, owner: &OwnerId, etag: &ETag) -> Result<()> {
        let name = self.inner.names.heartbeat_name(owner);
        let response =
            self.send(StorageOperation::Heartbeat, BillingType::Free, self.container.delete(&name, etag)).await?;
        self.record_response(response);
        Ok(())
    }

    fn heartbeat_record(&self) -> HeartbeatRecord {
        let this = self.identity();
        HeartbeatRecord::new(this.owner.clone(), this.incarnation.clone(), self.lease_durations().recorded())
    }

    /// Writes the heartbeat of this owner, and returns its new version.
    async fn write_heartbeat(&self, record: &HeartbeatRecord, under: &WriteCondition<ETag>) -> Result<ETag> {
        let name = self.inner.names.heartbeat_name(&record.owner);
        let metadata = codec::encode_heartbeat(record);
        Ok(first_response(|| self.write_blob(StorageOperation::Heartbeat, &name, &metadata, under)).await?.etag)
    }

    /// Reads the blob under this owner's name, if there is one.
    async fn read_own_heartbeat(&self) -> Result<Option<(HeartbeatRecord, FoundHeartbeat<ETag>)>> {
        let this = self.identity();
        let name = self.inner.names.heartbeat_name(&this.owner);
        let Some(blob) = first_response(|| self.read_blob(&name)).await? else { return Ok(None) };
        let (record, _) = codec::decode_heartbeat(&blob.name, this.owner.clone(), &blob.metadata);
        let by = record.declared_dead_by.as_ref();
        let found = FoundHeartbeat {
            relation: record.relation_to(this),
            age: blob.age(),
            version: blob.etag,
            lifetime: self.lease_durations().of_heartbeat(&record) + LeaseDurations::GRACE,
            declared_dead: by.is_some_and(|by| *by != this.owner),
            ended: by.is_some_and(|by| *by == this.owner),
        };
        Ok(Some((record, found)))
    }
}

/// Returns whether a heartbeat is so old that any instance may delete it.
pub(crate) fn is_stale(seen: &Heartbeat, lease_durations: LeaseDurations, now: Moment) -> bool {
    seen.age_at(now) > lease_durations.of_heartbeat(&seen.record) * DELETED_AFTER
}

/// Sends a request up to [`MOST_SENT`] times, until the first response arrives. Returns the first success; after an
/// error it waits for one of the other requests that are under way for at most [`RESEND_AFTER`]. If a conditional write
/// took effect without a response, the next one gets a conflict, which the rule of the write settles.
async fn first_response<T, F: Future<Output = Result<T>>>(send: impl Fn() -> F) -> Result<T> {
    let mut under_way = FuturesUnordered::from_iter([send()]);
    let mut requests = 1;
    let first = loop {
        tokio::select! {
            biased;
            Some(response) = under_way.next() => break response,
            () = sleep(RESEND_AFTER), if requests < MOST_SENT => {
                under_way.push(send());
                requests += 1;
            }
        }
    };
    let Err(error) = first else { return first };
    let mut others = under_way.filter_map(|response| ready(response.ok()));
    timeout(RESEND_AFTER, others.next()).await.ok().flatten().ok_or(error)
}

struct HeartbeatWrite<'a> {
    store: &'a GroupStore,
    /// The version of the last heartbeat.
    known: &'a mut Option<ETag>,
}

impl ConditionalWrite for HeartbeatWrite<'_> {
    type Outcome = HeartbeatOutcome;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn record_label(&self) -> String {
        OWN_HEARTBEAT.to_owned()
    }

    async fn next_write(&mut self) -> Result<ControlFlow<HeartbeatOutcome, WriteCondition<ETag>>> {
        let (record, found) = self.store.read_own_heartbeat().await?.unzip();
        let known = found
            .as_ref()
            .filter(|found| found.relation == Relation::This && !found.declared_dead)
            .map(|found| found.version.clone());
        let loss = match decide_heartbeat(self.known.as_ref(), found) {
            ControlFlow::Continue(under) => {
                // If the time limit aborts this heartbeat, the next one must not begin with the old version again.
                *self.known = known.or(self.known.take());
                return Ok(ControlFlow::Continue(under));
            }
            ControlFlow::Break(loss) => loss,
        };
        Ok(ControlFlow::Break(match (loss, record) {
            (HeartbeatLoss::Replaced, Some(HeartbeatRecord { incarnation: Some(by), .. })) => {
                HeartbeatOutcome::Replaced { by }
            }
            (HeartbeatLoss::Replaced, _) => return Err(self.contention_error()),
            (HeartbeatLoss::DeclaredDead(version), record) => {
                *self.known = version;
                HeartbeatOutcome::DeclaredDead { by: record.and_then(|record| record.declared_dead_by) }
            }
        }))
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<HeartbeatOutcome>> {
        *self.known = Some(self.store.write_heartbeat(&self.store.heartbeat_record(), &under).await?);
        Ok(ControlFlow::Break(HeartbeatOutcome::Written))
    }
}

struct HeartbeatEnd<'a> {
    store: &'a GroupStore,
    known: &'a mut Option<ETag>,
}

impl ConditionalWrite for HeartbeatEnd<'_> {
    type Outcome = ();

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn record_label(&self) -> String {
        OWN_HEARTBEAT.to_owned()
    }

    async fn next_write(&mut self) -> Result<ControlFlow<(), WriteCondition<ETag>>> {
        let found = self.store.read_own_heartbeat().await?;
        let next = decide_heartbeat_end(found.map(|(_, found)| found));
        *self.known = match &next {
            ControlFlow::Continue(under) => under.clone().version(),
            ControlFlow::Break(ended) => ended.clone(),
        };
        Ok(next.map_break(|_| ()))
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<()>> {
        let record = HeartbeatRecord {
            declared_dead_by: Some(self.store.identity().owner.clone()),
            ..self.store.heartbeat_record()
        };
        *self.known = Some(self.store.write_heartbeat(&record, &under).await?);
        Ok(ControlFlow::Break(()))
    }
}

struct DeclareDeadWrite<'a> {
    store: &'a GroupStore,
    /// The record that declares the owner dead.
    declaration: HeartbeatRecord,
    listed: Option<&'a Heartbeat>,
}

impl DeclareDeadWrite<'_> {
    fn decide_declaration(
        &self,
        state: Option<HeartbeatState<ETag>>,
    ) -> ControlFlow<DeclareDeadOutcome, WriteCondition<ETag>> {
        decide_declaration(self.listed.map(|seen| &seen.etag), state)
    }

    fn heartbeat_state(&self, record: &HeartbeatRecord, version: ETag, age: Duration) -> HeartbeatState<ETag> {
        HeartbeatState {
            incarnation: record.incarnation.cmp(&self.declaration.incarnation),
            version,
            age,
            lifetime: self.store.lease_durations().of_heartbeat(record) + LeaseDurations::GRACE,
            declared_dead: record.declared_dead_by.is_some(),
        }
    }
}

impl ConditionalWrite for DeclareDeadWrite<'_> {
    type Outcome = DeclareDeadOutcome;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn record_label(&self) -> String {
        format!("the heartbeat of {}", self.declaration.owner)
    }

    async fn next_write(&mut self) -> Result<ControlFlow<DeclareDeadOutcome, WriteCondition<ETag>>> {
        let found = self.store.read_blob(&self.store.inner.names.heartbeat_name(&self.declaration.owner)).await?;
        Ok(self.decide_declaration(found.map(|blob| {
            let (record, _) = codec::decode_heartbeat(&blob.name, self.declaration.owner.clone(), &blob.metadata);
            self.heartbeat_state(&record, blob.etag.clone(), blob.age())
        })))
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<DeclareDeadOutcome>> {
        let name = self.store.inner.names.heartbeat_name(&self.declaration.owner);
        self.store
            .write_blob(StorageOperation::Heartbeat, &name, &codec::encode_heartbeat(&self.declaration), &under)
            .await?;
        Ok(ControlFlow::Break(DeclareDeadOutcome::Declared))
    }
}
