//! Presence: an owner says that it is there, though it may own nothing.

use std::time::Duration;

use super::rules::{HeartbeatLoss, Next, OwnHeartbeat, WriteCondition, sending_heartbeat};
use super::settle::{ConditionalWrite, is_ambiguous};
use super::{GroupStore, Listing};
use crate::blob::{Blob, ETag};
use crate::codec;
use crate::error::{ErrorKind, Result};
use crate::model::{Heartbeat, HeartbeatRecord, Incarnation, LeaseScope, OwnerId, OwnershipRecord, Relation};
use crate::telemetry::StorageOperation;

/// A presence that is as many times older than the expiry says nothing any more, and anybody may delete it.
const DELETED_AFTER: u32 = 10;

/// What became of an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeartbeatOutcome {
    /// It says that this owner is there.
    Written,
    /// Somebody broke or deleted the presence since it was last written: to that one, this owner is dead. Announce
    /// again, which says that it is there again; and *then* [rewrite](super::Lease::forcing_rewrite) whatever this owner
    /// believes to own, if its leases live by its presence, before it counts on it. What is rewritten before that could
    /// be taken over once more.
    DeclaredDead {
        /// Who did, if the record still tells.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is there: two instances run under one owner id. Stop.
    Replaced {
        /// The later incarnation.
        by: Incarnation,
    },
}

impl GroupStore {
    /// Says that this owner is there. Needed while it owns nothing, and always by
    /// whoever claims under [`LeaseScope::Instance`]; repeat it every half expiry, and at once when the last partition
    /// goes.
    ///
    /// It is written under the version of the last announcement alone, so that nobody's verdict is overwritten unseen.
    ///
    /// # Errors
    ///
    /// The error of the storage; [`ErrorKind::Contended`] if other writers kept getting in between,
    /// [`ErrorKind::Indeterminate`] if it was not settled in time. Announce again.
    pub async fn send_heartbeat(&self) -> Result<HeartbeatOutcome> {
        let mut known = self.inner.heartbeat.lock().await;
        self.settle(&mut HeartbeatWrite { store: self, known: &mut known }).await
    }

    /// Says no longer that this owner is there; nothing to do if it never did. What a later life of this owner wrote
    /// stays.
    ///
    /// # Errors
    ///
    /// The error of the storage; [`ErrorKind::Indeterminate`] if it was not settled in time. The presence ends by its age.
    pub async fn remove_heartbeat(&self) -> Result<()> {
        let mut known = self.inner.heartbeat.lock().await;
        self.settle(&mut HeartbeatRemoval { store: self, known: &mut known }).await
    }

    /// Reads who is there, this owner too.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should; see [`BlobContainer`](crate::blob::BlobContainer). A blob that
    /// cannot be read is no error.
    pub async fn list_heartbeats(&self) -> Result<Listing<Heartbeat>> {
        /// Beside the two kinds of record.
        const PRESENCES: usize = 2;
        let names = &self.inner.names;
        let (listing, versions) = self
            .list_below(names.heartbeats(), |blob| {
                let owner = names.heartbeat_owner(&blob.name)?;
                let (record, problem) = codec::decode_heartbeat(&blob.name, owner, &blob.metadata);
                Ok((Heartbeat::new(record, blob.etag.clone(), blob.age(), self.moment_of(blob)), problem))
            })
            .await?;
        self.report_malformed(PRESENCES, &listing.malformed, versions);
        Ok(listing)
    }

    /// Deletes the presences among these that are older than ten times the expiry, but for this owner's own, and
    /// answers whose they were. One that was written meanwhile stays. So does one whose deletion the storage refuses,
    /// which is logged.
    ///
    /// # Errors
    ///
    /// What the storage answered, if it concerns all of them: it is away, or does not permit deletions. Some may be
    /// deleted; the others will be found again.
    pub async fn delete_stale_heartbeats(&self, seen: &[Heartbeat]) -> Result<Vec<OwnerId>> {
        let (limit, now) = (self.lease_durations().own * DELETED_AFTER, self.lease_clock_now());
        let me = &self.identity().owner;
        let mut cleared = Vec::new();
        for old in seen.iter().filter(|seen| seen.record.owner != *me && seen.age_at(now) > limit) {
            let owner = &old.record.owner;
            match self.delete_heartbeat(owner, &WriteCondition::IfMatch(old.etag.clone())).await {
                Ok(()) => cleared.push(owner.clone()),
                Err(error) if is_ambiguous(&error) => {}
                Err(error) if error.kind() == ErrorKind::Rejected => {
                    self.telemetry().heartbeat_failed(&error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(cleared)
    }

    /// How long ago this life of an owner last said that it is there, if nobody has declared it dead since.
    pub(super) async fn heartbeat_age(&self, owner: &OwnerId, life: Option<&Incarnation>) -> Result<Option<Duration>> {
        let Some(blob) = self.read(&self.inner.names.heartbeat(owner)).await? else { return Ok(None) };
        let (record, _) = codec::decode_heartbeat(&blob.name, owner.clone(), &blob.metadata);
        let counts = record.incarnation.as_ref() == life && record.declared_dead_by.is_none();
        Ok(counts.then(|| blob.age()))
    }

    /// How old what keeps an ownership alive is: its record, or the presence of an owner that lives by that, of whose
    /// life an old record says nothing.
    pub(super) async fn lease_age_of(&self, record: &OwnershipRecord, age: Duration) -> Result<Duration> {
        let owner = record.owner.as_ref().filter(|_| record.scope == LeaseScope::Instance);
        let Some(owner) = owner.filter(|_| age >= self.lease_durations().own / 2) else { return Ok(age) };
        let presence = self.heartbeat_age(owner, record.incarnation.as_ref()).await?;
        Ok(presence.map_or(age, |presence| presence.min(age)))
    }

    async fn delete_heartbeat(&self, owner: &OwnerId, under: &WriteCondition<ETag>) -> Result<()> {
        let (name, condition) = (self.inner.names.heartbeat(owner), under.into());
        let answer = self.send(StorageOperation::Heartbeat, self.container.delete(&name, &condition)).await?;
        self.note(answer);
        Ok(())
    }

    /// The blob under this owner's name, if there is one.
    async fn read_own_heartbeat(&self) -> Result<Option<(HeartbeatRecord, OwnHeartbeat<ETag>)>> {
        let found = self.read(&self.inner.names.heartbeat(&self.identity().owner)).await?;
        Ok(found.map(|blob| self.present(&blob)))
    }

    fn present(&self, blob: &Blob) -> (HeartbeatRecord, OwnHeartbeat<ETag>) {
        let me = self.identity();
        let (record, _) = codec::decode_heartbeat(&blob.name, me.owner.clone(), &blob.metadata);
        let (relation, etag, age) = (record.relation_to(me), blob.etag.clone(), blob.age());
        let broken = record.declared_dead_by.is_some();
        (record, OwnHeartbeat { relation, etag, age, declared_dead: broken })
    }
}

struct HeartbeatWrite<'a> {
    store: &'a GroupStore,
    /// The version of the last announcement.
    known: &'a mut Option<ETag>,
}

impl ConditionalWrite for HeartbeatWrite<'_> {
    type Outcome = HeartbeatOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn subject(&self) -> String {
        OWN.to_owned()
    }

    async fn begin(&mut self) -> Result<Next<ETag, HeartbeatOutcome>> {
        Ok(Next::Write(self.known.clone().into()))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<HeartbeatOutcome> {
        let me = self.store.identity();
        let record = HeartbeatRecord::new(me.owner.clone(), me.incarnation.clone());
        let name = self.store.inner.names.heartbeat(&record.owner);
        let written =
            self.store.write(StorageOperation::Heartbeat, &name, &codec::encode_heartbeat(&record), under).await?;
        *self.known = Some(written.etag);
        Ok(HeartbeatOutcome::Written)
    }

    async fn look(&mut self) -> Result<Next<ETag, HeartbeatOutcome>> {
        let (record, present) = self.store.read_own_heartbeat().await?.unzip();
        let mine = present.as_ref().filter(|present| present.relation == Relation::This && !present.declared_dead);
        let known = mine.map(|present| present.etag.clone());
        let lapse = match sending_heartbeat(self.known.as_ref(), present, self.store.lease_durations().own) {
            Next::Write(under) => {
                // An announcement that is cut off by its deadline does not begin with the old version again.
                *self.known = known.or(self.known.take());
                return Ok(Next::Write(under));
            }
            Next::Done(lapse) => lapse,
        };
        Ok(Next::Done(match (lapse, record) {
            (HeartbeatLoss::Replaced, Some(HeartbeatRecord { incarnation: Some(by), .. })) => {
                HeartbeatOutcome::Replaced { by }
            }
            (HeartbeatLoss::Replaced, _) => return Err(self.contended()),
            (HeartbeatLoss::DeclaredDead(version), record) => {
                *self.known = version;
                HeartbeatOutcome::DeclaredDead { by: record.and_then(|record| record.declared_dead_by) }
            }
        }))
    }
}

struct HeartbeatRemoval<'a> {
    store: &'a GroupStore,
    known: &'a mut Option<ETag>,
}

impl ConditionalWrite for HeartbeatRemoval<'_> {
    type Outcome = ();

    fn operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn subject(&self) -> String {
        OWN.to_owned()
    }

    async fn begin(&mut self) -> Result<Next<ETag, ()>> {
        Ok(self.known.clone().map_or(Next::Done(()), |known| Next::Write(WriteCondition::IfMatch(known))))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<()> {
        self.store.delete_heartbeat(&self.store.identity().owner, under).await?;
        *self.known = None;
        Ok(())
    }

    /// One that is gone, or of another life, is not this store's to delete.
    async fn look(&mut self) -> Result<Next<ETag, ()>> {
        let found = self.store.read_own_heartbeat().await?;
        let mine = found.filter(|(_, present)| present.relation == Relation::This);
        *self.known = mine.map(|(_, present)| present.etag);
        self.begin().await
    }
}

const OWN: &str = "the heartbeat of this instance";
