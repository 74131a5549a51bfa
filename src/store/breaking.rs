//! Breaking: declaring an owner dead whose ownerships live by its presence, before one of them is taken over.
//!
//! The version of an ownership record does not cover such a lease, for its owner renews it without touching the record.
//! The version of the presence does: once it is broken, the owner's next announcement fails, and tells it to
//! [rewrite](super::Lease::rewritten) what it believes to own. If the owner was faster, breaking fails.

use std::collections::BTreeMap;
use std::time::Duration;

use super::rules::{Next, Remains, Under, Verdict, breaking};
use super::settle::ConditionalWrite;
use super::{GroupStore, Ownership, Presence};
use crate::blob::ETag;
use crate::codec;
use crate::error::Result;
use crate::model::PresenceRecord;
use crate::telemetry::Operation;

impl GroupStore {
    /// Declares the owner of a partition dead, as far as its leases live by its presence, which was listed as given, or
    /// was not there. To be done before its partitions are claimed because it has not renewed them in time; not before
    /// they are stolen from a live owner, for all its partitions count as abandoned from here on.
    ///
    /// Asked for an owner that has been declared dead already it sends nothing.
    ///
    /// # Errors
    ///
    /// The error of the storage; [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept getting in
    /// between, [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if it was not settled in time. Do not claim; look again
    /// in the next cycle.
    pub async fn declare_dead(&self, of: &Ownership, listed: Option<&Presence>) -> Result<Verdict> {
        let (Some(owner), life) = (&of.record.owner, of.record.incarnation.as_ref()) else { return Ok(Verdict::Dead) };
        let broken = PresenceRecord {
            owner: owner.clone(),
            incarnation: life.cloned(),
            broken_by: Some(self.identity().owner.clone()),
            other: BTreeMap::new(),
        };
        self.settle(&mut BreakingWrite { store: self, broken, listed }).await
    }
}

struct BreakingWrite<'a> {
    store: &'a GroupStore,
    /// What is written about the owner that did not renew in time.
    broken: PresenceRecord,
    listed: Option<&'a Presence>,
}

impl BreakingWrite<'_> {
    fn by(&self, remains: Option<Remains<ETag>>) -> Next<ETag, Verdict> {
        breaking(self.listed.map(|seen| &seen.etag), remains, self.store.terms().expiry)
    }

    fn remains(&self, record: &PresenceRecord, etag: ETag, age: Duration) -> Remains<ETag> {
        let life = record.incarnation.cmp(&self.broken.incarnation);
        Remains { life, etag, age, broken: record.broken_by.is_some() }
    }
}

impl ConditionalWrite for BreakingWrite<'_> {
    type Outcome = Verdict;

    fn operation(&self) -> Operation {
        Operation::Presence
    }

    fn subject(&self) -> String {
        format!("the heartbeat of {}", self.broken.owner)
    }

    async fn begin(&mut self) -> Result<Next<ETag, Verdict>> {
        Ok(self.by(self
            .listed
            .map(|seen| self.remains(&seen.record, seen.etag.clone(), seen.age_at(self.store.lease_time())))))
    }

    async fn write(&mut self, under: &Under<ETag>) -> Result<Verdict> {
        let name = self.store.inner.names.presence(&self.broken.owner);
        self.store.write(Operation::Presence, &name, &codec::encode_presence(&self.broken), under).await?;
        Ok(Verdict::Dead)
    }

    async fn look(&mut self) -> Result<Next<ETag, Verdict>> {
        let found = self.store.read(&self.store.inner.names.presence(&self.broken.owner)).await?;
        Ok(self.by(found.map(|blob| {
            let (record, _) = codec::decode_presence(&blob.name, self.broken.owner.clone(), &blob.metadata);
            self.remains(&record, blob.etag.clone(), blob.age())
        })))
    }
}
