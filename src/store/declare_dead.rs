//! Breaking: declaring an owner dead whose ownerships live by its presence, before one of them is taken over.
//!
//! The version of an ownership record does not cover such a lease, for its owner renews it without touching the record.
//! The version of the presence does: once it is broken, the owner's next announcement fails, and tells it to
//! [rewrite](super::Lease::forcing_rewrite) what it believes to own. If the owner was faster, breaking fails.

use std::collections::BTreeMap;
use std::time::Duration;

use super::rules::{DeclareDeadOutcome, HeartbeatState, Next, WriteCondition, declaring_dead};
use super::settle::ConditionalWrite;
use super::{GroupStore, Heartbeat, Ownership};
use crate::blob::ETag;
use crate::codec;
use crate::error::Result;
use crate::model::HeartbeatRecord;
use crate::telemetry::StorageOperation;

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
    /// between, [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if it was not settled in time. Do not claim; look again
    /// in the next cycle.
    pub async fn declare_dead(&self, of: &Ownership, listed: Option<&Heartbeat>) -> Result<DeclareDeadOutcome> {
        let (Some(owner), life) = (&of.record.owner, of.record.incarnation.as_ref()) else {
            return Ok(DeclareDeadOutcome::Declared);
        };
        let broken = HeartbeatRecord {
            owner: owner.clone(),
            incarnation: life.cloned(),
            declared_dead_by: Some(self.identity().owner.clone()),
            other: BTreeMap::new(),
        };
        self.settle(&mut DeclareDeadWrite { store: self, broken, listed }).await
    }
}

struct DeclareDeadWrite<'a> {
    store: &'a GroupStore,
    /// What is written about the owner that did not renew in time.
    broken: HeartbeatRecord,
    listed: Option<&'a Heartbeat>,
}

impl DeclareDeadWrite<'_> {
    fn by(&self, remains: Option<HeartbeatState<ETag>>) -> Next<ETag, DeclareDeadOutcome> {
        declaring_dead(self.listed.map(|seen| &seen.etag), remains, self.store.lease_durations().own)
    }

    fn remains(&self, record: &HeartbeatRecord, etag: ETag, age: Duration) -> HeartbeatState<ETag> {
        let life = record.incarnation.cmp(&self.broken.incarnation);
        HeartbeatState { incarnation: life, etag, age, declared_dead: record.declared_dead_by.is_some() }
    }
}

impl ConditionalWrite for DeclareDeadWrite<'_> {
    type Outcome = DeclareDeadOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn subject(&self) -> String {
        format!("the heartbeat of {}", self.broken.owner)
    }

    async fn begin(&mut self) -> Result<Next<ETag, DeclareDeadOutcome>> {
        Ok(self.by(self
            .listed
            .map(|seen| self.remains(&seen.record, seen.etag.clone(), seen.age_at(self.store.lease_clock_now())))))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<DeclareDeadOutcome> {
        let name = self.store.inner.names.heartbeat(&self.broken.owner);
        self.store.write(StorageOperation::Heartbeat, &name, &codec::encode_heartbeat(&self.broken), under).await?;
        Ok(DeclareDeadOutcome::Declared)
    }

    async fn look(&mut self) -> Result<Next<ETag, DeclareDeadOutcome>> {
        let found = self.store.read(&self.store.inner.names.heartbeat(&self.broken.owner)).await?;
        Ok(self.by(found.map(|blob| {
            let (record, _) = codec::decode_heartbeat(&blob.name, self.broken.owner.clone(), &blob.metadata);
            self.remains(&record, blob.etag.clone(), blob.age())
        })))
    }
}
