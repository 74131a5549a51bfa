//! The beacon of a group: one blob that says that something has changed which other instances should look at. To read
//! it costs a twelfth of a listing. An instance *lights* it: it writes the number of a new change.
//!
//! No decision rests on the beacon. If it is missing, wrong or not readable, instances list as often as without it.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::GroupStore;
use super::records::arrival_moment;
use super::rules::WriteCondition;
use super::settle::ConditionalWrite;
use crate::blob::ETag;
use crate::codec;
use crate::error::{ErrorKind, Result};
use crate::model::{LeaseScope, Moment, Ownership};
use crate::telemetry::StorageOperation;
use crate::util::lock;

/// The beacon, as it was read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// The number of the last change. A later change has a greater number.
    pub change: i64,
    /// The version of the blob.
    pub version: ETag,
    /// Time since the last write, by the server's clock, at the time of the response.
    pub age: Duration,
    /// When the response arrived, on the lease clock.
    pub received: Moment,
}

impl Beacon {
    /// Returns the time since the last write, at `now`.
    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }
}

/// A change that was written to the beacon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lit {
    /// The beacon with the change.
    pub beacon: Beacon,
    /// The number of the change before it, if there was one.
    pub replaced: Option<i64>,
}

impl GroupStore {
    /// Reads the beacon; `None` if it is missing.
    ///
    /// # Errors
    ///
    /// The error of the storage. Read it again later.
    pub(crate) async fn read_beacon(&self) -> Result<Option<Beacon>> {
        let blob = self.look_at_blob(StorageOperation::Beacon, self.inner.names.beacon_name()).await?;
        Ok(blob.map(|blob| Beacon {
            change: codec::decode_beacon(&blob.metadata),
            age: blob.age(),
            received: arrival_moment(&blob, &*self.inner.lease_clock),
            version: blob.etag,
        }))
    }

    /// Lights the beacon, whose last known state is `known`: every instance that reads it from now on finds a change.
    /// Returns `None` if another instance has lit it since this call began, which is as good.
    ///
    /// # Errors
    ///
    /// The error of the storage. Other instances then find the change later, when they list.
    pub(crate) async fn light_beacon(&self, known: Option<&Beacon>) -> Result<Option<Lit>> {
        let mut write = BeaconWrite { store: self, replaced: known.map(|known| known.change), written: 0, found: None };
        self.settle_write(known.map(|known| WriteCondition::IfMatch(known.version.clone())), &mut write).await
    }

    /// Lights the beacon for an operator, which may change many partitions at the same time: calls that wait for
    /// another one share the next light. Takes at most the time of one request: a light only saves time.
    pub(crate) async fn call_instances(&self) {
        let begun = self.inner.lights.load(Ordering::Relaxed);
        let _turn = self.inner.lighting.lock().await;
        if self.inner.lights.load(Ordering::Relaxed) > begun {
            return;
        }
        self.inner.lights.fetch_add(1, Ordering::Relaxed);
        if let Ok(Err(error)) = timeout(self.request_timeout(), self.light_beacon(None)).await {
            self.telemetry().beacon_failed(&error);
        }
    }

    /// Writes the beacon without a new change, so that it stays young. Returns `None` if another instance was first.
    ///
    /// # Errors
    ///
    /// The error of the storage. The beacon grows older.
    pub(crate) async fn refresh_beacon(&self, known: &Beacon) -> Result<Option<Beacon>> {
        match self.write_beacon(known.change, &WriteCondition::IfMatch(known.version.clone())).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the time since the owner of this record last renewed a lease, by what keeps the lease alive: the record
    /// or the heartbeat. `None` if that is missing, or belongs to another owner or incarnation.
    ///
    /// # Errors
    ///
    /// The error of the storage: it is not known whether the owner is alive.
    pub(crate) async fn time_since_renewal(&self, seen: &Ownership) -> Result<Option<Duration>> {
        let Some(owner) = &seen.record.owner else { return Ok(None) };
        if seen.record.scope == LeaseScope::Instance {
            let name = self.inner.names.heartbeat_name(owner);
            let Some(blob) = self.look_at_blob(StorageOperation::Beacon, &name).await? else { return Ok(None) };
            let (heartbeat, _) = codec::decode_heartbeat(&blob.name, owner.clone(), &blob.metadata);
            return Ok((heartbeat.incarnation == seen.record.incarnation && heartbeat.declared_dead_by.is_none())
                .then(|| blob.age()));
        }
        let name = self.inner.names.record_name(codec::RecordKind::Ownership, &seen.partition);
        let Some(blob) = self.look_at_blob(StorageOperation::Beacon, &name).await? else { return Ok(None) };
        let (record, _) = codec::decode_ownership(&blob.name, &blob.metadata);
        Ok((record.owner == seen.record.owner && record.incarnation == seen.record.incarnation).then(|| blob.age()))
    }

    async fn write_beacon(&self, change: i64, under: &WriteCondition<ETag>) -> Result<Beacon> {
        let metadata = codec::encode_beacon(change, &self.identity().owner);
        let name = self.inner.names.beacon_name();
        let version = self.write_blob(StorageOperation::Beacon, name, &metadata, under).await?.etag;
        Ok(Beacon { change, version, age: Duration::ZERO, received: self.lease_clock_now() })
    }
}

struct BeaconWrite<'a> {
    store: &'a GroupStore,
    /// The number of the last change that this instance knows.
    replaced: Option<i64>,
    /// The number that it last tried to write.
    written: i64,
    /// The number of the last change that this operation has read.
    found: Option<i64>,
}

impl ConditionalWrite for BeaconWrite<'_> {
    type Outcome = Option<Lit>;

    fn storage_operation(&self) -> StorageOperation {
        StorageOperation::Beacon
    }

    fn record_label(&self) -> String {
        "the beacon".to_owned()
    }

    /// A conflict under the version of an earlier read proves nothing: the other instances may have looked before the
    /// change that is to be reported. If the number has changed since a read of this operation, they look after it.
    async fn next_write(&mut self) -> Result<ControlFlow<Option<Lit>, WriteCondition<ETag>>> {
        let Some(now) = self.store.read_beacon().await? else {
            return Ok(ControlFlow::Continue(WriteCondition::Create));
        };
        if self.found.replace(now.change).is_some_and(|before| before < now.change) {
            return Ok(ControlFlow::Break(None));
        }
        self.replaced = Some(now.change);
        Ok(ControlFlow::Continue(WriteCondition::IfMatch(now.version)))
    }

    async fn send_write(&mut self, under: WriteCondition<ETag>) -> Result<ControlFlow<Option<Lit>>> {
        let server_time = lock(&self.store.inner.latest_server_time).unix_timestamp().saturating_mul(1000);
        self.written = server_time.max(self.written + 1).max(self.replaced.map_or(0, |last| last.saturating_add(1)));
        Ok(ControlFlow::Break(Some(Lit {
            beacon: self.store.write_beacon(self.written, &under).await?,
            replaced: self.replaced,
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::blob::{Condition, Metadata};
    use crate::model::{ConsumerGroup, OwnerId};
    use crate::store::{Claim, ClaimOutcome, ReleaseOutcome};

    async fn stores() -> [GroupStore; 2] {
        let container = Arc::new(MemoryContainer::new());
        let connect = |owner: &str| {
            let group = ConsumerGroup::new("ns", "hub", "group").unwrap();
            GroupStore::connect(container.clone(), group, OwnerId::new(owner).unwrap())
        };
        [connect("a").await.unwrap(), connect("b").await.unwrap()]
    }

    async fn change_read_by(store: &GroupStore) -> i64 {
        store.read_beacon().await.unwrap().unwrap().change
    }

    #[tokio::test]
    async fn a_light_is_a_greater_change() {
        let [a, b] = stores().await;
        assert_eq!(b.read_beacon().await.unwrap(), None);
        let mut last = 0;
        for known in [None, b.read_beacon().await.unwrap(), None] {
            let lit = a.light_beacon(known.as_ref()).await.unwrap().unwrap();
            assert!(lit.beacon.change > last);
            assert_eq!(lit.replaced.unwrap_or_default(), last);
            last = lit.beacon.change;
            assert_eq!(change_read_by(&b).await, last);
        }
    }

    /// Another instance may have read the light that it conflicts with before this one did what it reports.
    #[tokio::test]
    async fn a_light_after_a_conflict_is_written_again() {
        let [a, b] = stores().await;
        a.light_beacon(None).await.unwrap();
        let known = a.read_beacon().await.unwrap();
        b.light_beacon(None).await.unwrap();
        let seen = change_read_by(&b).await;
        let lit = a.light_beacon(known.as_ref()).await.unwrap().unwrap();
        assert_eq!((lit.replaced, change_read_by(&b).await > seen), (Some(seen), true));
    }

    #[tokio::test]
    async fn a_refresh_is_no_change() {
        let [a, b] = stores().await;
        a.light_beacon(None).await.unwrap();
        let known = b.read_beacon().await.unwrap().unwrap();
        let refreshed = b.refresh_beacon(&known).await.unwrap().unwrap();
        assert_eq!(refreshed.change, known.change);
        assert_ne!(refreshed.version, known.version);
        assert_eq!(a.refresh_beacon(&known).await.unwrap(), None, "another instance was first");
    }

    #[tokio::test]
    async fn what_another_program_wrote_is_replaced() {
        let [a, b] = stores().await;
        let name = a.inner.names.beacon_name();
        let foreign = Metadata::from([("ehcchange", "soon")]);
        a.container.write(name, &foreign, &Condition::Create).await.unwrap();
        assert_eq!(change_read_by(&b).await, 0);
        a.light_beacon(None).await.unwrap();
        assert!(change_read_by(&b).await > 0);
    }

    #[tokio::test]
    async fn a_renewal_shows_that_the_owner_lives() {
        let [a, b] = stores().await;
        let ClaimOutcome::Won(lease) = a.claim(&Claim::unowned(0.into())).await else { panic!("not won") };
        let seen = b.list_ownerships().await.unwrap().records.remove(0);
        assert!(b.time_since_renewal(&seen).await.unwrap().is_some_and(|age| age <= Duration::from_secs(1)));
        assert!(matches!(a.release(&lease).await, ReleaseOutcome::Released));
        assert_eq!(b.time_since_renewal(&seen).await.unwrap(), None, "it has no owner");
    }
}
