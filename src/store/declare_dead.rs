//! Declaring an owner dead whose heartbeat keeps its leases alive, before one of its partitions is claimed.
//!
//! The version of an ownership record does not protect such a lease, because its owner renews it without writing the
//! record. The version of the heartbeat does: once another instance has changed it, the owner's next heartbeat fails,
//! and the owner must [rewrite](super::Lease::forcing_rewrite) its leases. If the owner sends its heartbeat first, the
//! declaration fails.

use std::collections::BTreeMap;
use std::time::Duration;

use super::rules::{DeclareDeadOutcome, HeartbeatState, Next, WriteCondition, declaring_dead};
use super::settle::ConditionalWrite;
use super::{GroupStore, Ownership};
use crate::blob::ETag;
use crate::codec;
use crate::error::Result;
use crate::model::{Heartbeat, HeartbeatRecord, LeaseDurations};
use crate::telemetry::StorageOperation;

impl GroupStore {
    /// Declares the owner of a partition dead, as far as its heartbeat keeps its leases alive. `listed` is the
    /// heartbeat as it was listed, if there was one. Call this before you claim partitions of an expired owner. Do not
    /// call it before you steal from a live owner, because all partitions of the owner count as expired from then on.
    ///
    /// Sends nothing if the record has no owner, or if the listed heartbeat shows that the owner was declared dead
    /// already.
    ///
    /// # Errors
    ///
    /// The error of the storage, [`ErrorKind::Contended`](crate::ErrorKind::Contended) if other writers kept changing
    /// the heartbeat, or [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate) if the outcome is unknown. Do not claim; list again in the next cycle.
    pub async fn declare_dead(&self, of: &Ownership, listed: Option<&Heartbeat>) -> Result<DeclareDeadOutcome> {
        let (Some(owner), incarnation) = (&of.record.owner, of.record.incarnation.as_ref()) else {
            return Ok(DeclareDeadOutcome::Declared);
        };
        let declaration = HeartbeatRecord {
            owner: owner.clone(),
            incarnation: incarnation.cloned(),
            declared_dead_by: Some(self.identity().owner.clone()),
            lease_duration: of.record.lease_duration,
            other: BTreeMap::new(),
        };
        self.settle(&mut DeclareDeadWrite { store: self, declaration, listed }).await
    }
}

struct DeclareDeadWrite<'a> {
    store: &'a GroupStore,
    /// The record that declares the owner dead.
    declaration: HeartbeatRecord,
    listed: Option<&'a Heartbeat>,
}

impl DeclareDeadWrite<'_> {
    fn by(&self, state: Option<HeartbeatState<ETag>>) -> Next<ETag, DeclareDeadOutcome> {
        declaring_dead(self.listed.map(|seen| &seen.etag), state)
    }

    fn state(&self, record: &HeartbeatRecord, etag: ETag, age: Duration) -> HeartbeatState<ETag> {
        let incarnation = record.incarnation.cmp(&self.declaration.incarnation);
        let lifetime = self.store.lease_durations().of_heartbeat(record) + LeaseDurations::GRACE;
        HeartbeatState { incarnation, etag, age, lifetime, declared_dead: record.declared_dead_by.is_some() }
    }
}

impl ConditionalWrite for DeclareDeadWrite<'_> {
    type Outcome = DeclareDeadOutcome;

    fn operation(&self) -> StorageOperation {
        StorageOperation::Heartbeat
    }

    fn subject(&self) -> String {
        format!("the heartbeat of {}", self.declaration.owner)
    }

    async fn begin(&mut self) -> Result<Next<ETag, DeclareDeadOutcome>> {
        Ok(self.by(self
            .listed
            .map(|seen| self.state(&seen.record, seen.etag.clone(), seen.age_at(self.store.lease_clock_now())))))
    }

    async fn write(&mut self, under: &WriteCondition<ETag>) -> Result<DeclareDeadOutcome> {
        let name = self.store.inner.names.heartbeat(&self.declaration.owner);
        self.store
            .write(StorageOperation::Heartbeat, &name, &codec::encode_heartbeat(&self.declaration), under)
            .await?;
        Ok(DeclareDeadOutcome::Declared)
    }

    async fn look(&mut self) -> Result<Next<ETag, DeclareDeadOutcome>> {
        let found = self.store.read(&self.store.inner.names.heartbeat(&self.declaration.owner)).await?;
        Ok(self.by(found.map(|blob| {
            let (record, _) = codec::decode_heartbeat(&blob.name, self.declaration.owner.clone(), &blob.metadata);
            self.state(&record, blob.etag.clone(), blob.age())
        })))
    }
}
