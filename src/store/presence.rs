//! Presence: an owner says that it is there, though it may own nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::MutexGuard;

use super::{GroupStore, Listing, MAX_ATTEMPTS, back_off, condition, is_doubtful};
use crate::blob::{Blob, Condition, ETag};
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, LeaseScope, OwnerId, OwnershipRecord, Presence, PresenceRecord, Relation};
use crate::protocol::{Announcing, Present, announcing};
use crate::telemetry::Operation;

/// A presence that is as many times older than the expiry says nothing any more, and anybody may delete it.
const CLEARED_AFTER: u32 = 10;

/// What became of an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announced {
    /// It says that this owner is there.
    Present,
    /// Somebody broke or deleted the presence since it was last written: to that one, this owner is dead. Announce
    /// again, which says that it is there again; and *then* [rewrite](super::Lease::rewritten) whatever this owner
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
    /// What the storage answered; [`ErrorKind::Contended`] if nothing could be told for long. Announce again.
    pub async fn announce(&self) -> Result<Announced> {
        let mut known = self.inner.presence.lock().await;
        let me = self.identity();
        let (owner, incarnation) = (me.owner.clone(), Some(me.incarnation.clone()));
        let record = PresenceRecord { owner, incarnation, broken_by: None, other: BTreeMap::new() };
        let (name, metadata) = (self.inner.names.presence(&record.owner), codec::encode_presence(&record));
        let mut under = known.clone();
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            match self.write(Operation::Presence, &name, &metadata, &condition(under.clone())).await {
                Ok(written) => {
                    *known = Some(written.etag);
                    return Ok(Announced::Present);
                }
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
            let found = self.read(&name).await?.map(|blob| self.present(&blob));
            let present = found.as_ref().map(|(_, present)| present.clone());
            match announcing(known.as_ref(), present, self.terms().expiry) {
                Announcing::Write(next) => under = next,
                Announcing::DeclaredDead(etag) => {
                    *known = etag;
                    return Ok(Announced::DeclaredDead { by: found.and_then(|(record, _)| record.broken_by) });
                }
                Announcing::Replaced => {
                    let by = found.and_then(|(record, _)| record.incarnation);
                    return by.map(|by| Announced::Replaced { by }).ok_or_else(changing);
                }
            }
        }
        Err(changing())
    }

    /// Says no longer that this owner is there; nothing to do if it never did. What a later life of this owner wrote
    /// stays.
    ///
    /// # Errors
    ///
    /// What the storage answered. The presence ends by its age.
    pub async fn withdraw(&self) -> Result<()> {
        let mut known = self.inner.presence.lock().await;
        let name = self.inner.names.presence(&self.identity().owner);
        for attempt in 0..MAX_ATTEMPTS {
            let Some(etag) = known.clone() else { return Ok(()) };
            back_off(attempt).await;
            if self.deleted(&name, etag).await? {
                *known = None;
                return Ok(());
            }
            self.find_own(&name, &mut known).await?;
        }
        Err(changing())
    }

    /// Reads who is there, this owner too.
    ///
    /// # Errors
    ///
    /// If the storage does not answer as it should; see [`BlobContainer`](crate::blob::BlobContainer). A blob that
    /// cannot be read is no error.
    pub async fn list_presences(&self) -> Result<Listing<Presence>> {
        /// Beside the two kinds of record.
        const PRESENCES: usize = 2;
        let names = &self.inner.names;
        let (listing, versions) = self
            .list_below(names.presences(), |blob| {
                let owner = names.present(&blob.name)?;
                let (record, problem) = codec::decode_presence(&blob.name, owner, &blob.metadata);
                Ok((Presence::new(record, blob.etag.clone(), blob.age(), self.moment_of(blob)), problem))
            })
            .await?;
        self.tell_malformed(PRESENCES, &listing.malformed, versions);
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
    pub async fn clear_presences(&self, seen: &[Presence]) -> Result<Vec<OwnerId>> {
        let (limit, now) = (self.terms().expiry * CLEARED_AFTER, self.lease_time());
        let me = &self.identity().owner;
        let mut cleared = Vec::new();
        for old in seen.iter().filter(|seen| seen.record.owner != *me && seen.age_at(now) > limit) {
            let owner = &old.record.owner;
            match self.deleted(&self.inner.names.presence(owner), old.etag.clone()).await {
                Ok(true) => cleared.push(owner.clone()),
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::Rejected => {
                    self.telemetry().presence_failed(&error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(cleared)
    }

    /// How long ago this life of an owner last said that it is there, if nobody has declared it dead since.
    pub(super) async fn sign_of_life(&self, owner: &OwnerId, life: Option<&Incarnation>) -> Result<Option<Duration>> {
        let Some(blob) = self.read(&self.inner.names.presence(owner)).await? else { return Ok(None) };
        let (record, _) = codec::decode_presence(&blob.name, owner.clone(), &blob.metadata);
        let counts = record.incarnation.as_ref() == life && record.broken_by.is_none();
        Ok(counts.then(|| blob.age()))
    }

    /// How old what keeps an ownership alive is: its record, or the presence of an owner that lives by that, of whose
    /// life an old record says nothing.
    pub(super) async fn age_of_life(&self, record: &OwnershipRecord, age: Duration) -> Result<Duration> {
        let owner = record.owner.as_ref().filter(|_| record.scope == LeaseScope::Instance);
        let Some(owner) = owner.filter(|_| age >= self.terms().expiry / 2) else { return Ok(age) };
        let presence = self.sign_of_life(owner, record.incarnation.as_ref()).await?;
        Ok(presence.map_or(age, |presence| presence.min(age)))
    }

    /// Whether it was deleted; not if only a read can tell.
    async fn deleted(&self, name: &str, etag: ETag) -> Result<bool> {
        match self.send(Operation::Presence, self.container.delete(name, &Condition::Match(etag))).await {
            Ok(answer) => {
                self.note(answer);
                Ok(true)
            }
            Err(error) if is_doubtful(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets the presence, unless it is there and this life's.
    async fn find_own(&self, name: &str, known: &mut MutexGuard<'_, Option<ETag>>) -> Result<()> {
        let found = self.read(name).await?;
        let mine = found.filter(|blob| self.present(blob).1.relation == Relation::Mine);
        **known = mine.map(|blob| blob.etag);
        Ok(())
    }

    /// The blob under this owner's name.
    fn present(&self, blob: &Blob) -> (PresenceRecord, Present<ETag>) {
        let me = self.identity();
        let (record, _) = codec::decode_presence(&blob.name, me.owner.clone(), &blob.metadata);
        let (relation, etag, age) = (record.relation_to(me), blob.etag.clone(), blob.age());
        let broken = record.broken_by.is_some();
        (record, Present { relation, etag, age, broken })
    }
}

fn changing() -> Error {
    Error::new(ErrorKind::Contended, "the presence of this owner changes all the time")
}
