//! Describes a store, checks the settings, and makes the first request.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, sleep};
use tracing::Instrument;

#[cfg(feature = "eventhubs")]
use super::attempts::Attempts;
use super::config::StoreConfig;
use super::listing::ListingTimeouts;
use super::outage::Outages;
use super::partitions::Partitions;
use super::verify::{StorageCheck, StorageWarning};
use super::{GroupStore, Inner, OnCaseMismatch, within};
use crate::blob::{Blob, BlobContainer};
use crate::clock::{LeaseClock, SystemLeaseClock, SystemWallClock, WallClock, is_paused};
use crate::codec::{self, BlobNames, RecordKind};
use crate::error::Result;
use crate::model::{ConsumerGroup, Identity, Incarnation, OwnerId};
use crate::random::seeded;
use crate::telemetry::{self, StorageOperation, Telemetry};

/// How often the first requests are sent: throttling or a restart of the storage must not end an instance that begins.
const CONNECT_ATTEMPTS: u32 = 4;

/// The wait before the second attempt; it doubles with each further one.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);

/// Describes a [`GroupStore`]: its settings are a [`StoreConfig`]. Setters cannot fail; [`connect`](Self::connect) can.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `connect` is called"]
pub struct GroupStoreBuilder {
    container: Arc<dyn BlobContainer>,
    group: ConsumerGroup,
    owner: OwnerId,
    config: StoreConfig,
    pub(crate) wall_clock: Option<Arc<dyn WallClock>>,
    lease_clock: Option<Arc<dyn LeaseClock>>,
    operator: bool,
    seed: Option<u64>,
}

impl GroupStoreBuilder {
    pub(super) fn new(container: Arc<dyn BlobContainer>, group: ConsumerGroup, owner: OwnerId) -> Self {
        Self {
            container,
            group,
            owner,
            config: StoreConfig::default(),
            wall_clock: None,
            lease_clock: None,
            operator: false,
            seed: None,
        }
    }

    /// Sets how the store works. Default: [`StoreConfig::default`]. A second call replaces the settings of the first one.
    pub fn with_config(mut self, config: StoreConfig) -> Self {
        self.config = config;
        self
    }

    /// Describes the store of an operator, which is not an instance of the group: no other run has its owner id. It does
    /// not verify the storage, because it writes only what the operator requests.
    pub(crate) fn for_operator(mut self) -> Result<Self> {
        let random = seeded(self.seed)?.next_u64();
        self.owner = OwnerId::new(format!("operator-{random:016x}"))?;
        self.operator = true;
        self.config.verify_storage = false;
        Ok(self)
    }

    /// Sets the local clock that the verification of the storage compares with the server's, for tests. Default: the
    /// clock of the operating system, or no comparison under paused time.
    #[cfg(feature = "testing")]
    pub fn with_wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.wall_clock = Some(clock);
        self
    }

    /// Sets the clock that measures lease ages, for tests. Default [`SystemLeaseClock`](crate::testing::SystemLeaseClock).
    #[cfg(feature = "testing")]
    pub fn with_lease_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = Some(clock);
        self
    }

    /// Seeds the random part of the incarnation, for repeatable tests. Default: a seed of the operating system.
    #[cfg(feature = "testing")]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Creates the attempts of a connection; see [`Attempts::new`].
    #[cfg(feature = "eventhubs")]
    pub(crate) fn attempts(&self, until: Option<Instant>) -> Result<Attempts> {
        let rng = Arc::new(Mutex::new(seeded(self.seed)?));
        Ok(Attempts::new(self.config.lease_duration, until, rng))
    }

    /// Checks the settings, verifies the storage and lists the ownerships, so that a wrong key, host or container is
    /// reported before anything starts.
    ///
    /// The server time of the listing becomes the start of this owner's [`Incarnation`]. It is later than every
    /// incarnation of this owner that is recorded in an ownership or in its heartbeat, also after a restart within one
    /// second. If the storage is throttled or unavailable, `connect` repeats the request up to three times with growing
    /// waits and logs a warning for each failure. It does not repeat a request that timed out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) names the setter and the rule: correct the setting. Otherwise the
    /// last error of the storage.
    pub async fn connect(self) -> Result<GroupStore> {
        self.config.check()?;
        let request_timeout = self.config.effective_request_timeout();
        let telemetry = Telemetry::new(&self.group, &self.owner, self.config.lease_duration / 2);
        let span = telemetry.span().clone();
        self.connect_with(telemetry, request_timeout).instrument(span).await
    }

    async fn connect_with(self, telemetry: Telemetry, request_timeout: Duration) -> Result<GroupStore> {
        let names = BlobNames::new(&self.group, self.config.blob_name_case);
        if self.config.create_container {
            let create = || within(request_timeout, "create container", self.container.create_container());
            with_retries(request_timeout, create).await?;
        }
        let prefix = names.prefix(RecordKind::Ownership);
        let list = || within(request_timeout, StorageOperation::List.as_str(), self.container.list(prefix));
        let listing = with_retries(request_timeout, list).await?;
        let earlier = self.latest_incarnation(&names, &listing.blobs, request_timeout).await?;
        let mut rng = seeded(self.seed)?;
        let incarnation = Incarnation::after(earlier.as_ref(), listing.response.server_time, rng.next_u32());
        let warnings = if self.config.verify_storage {
            self.verify(&names.verify(&self.owner, rng.next_u64()), request_timeout).await?
        } else {
            Vec::new()
        };
        let other_name_case = BlobNames::new(&self.group, self.config.blob_name_case.other());
        let other_name_case = (self.config.on_case_mismatch != OnCaseMismatch::Ignore && other_name_case != names)
            .then_some(other_name_case);
        let inner = Inner {
            blob_name_case: self.config.blob_name_case,
            names,
            other_name_case,
            group: self.group,
            identity: Identity { owner: self.owner, incarnation },
            lease_durations: self.config.lease_durations(),
            request_timeout,
            listing_timeouts: ListingTimeouts::new(request_timeout, self.config.lease_duration / 2),
            heartbeat: AsyncMutex::default(),
            permits: std::array::from_fn(|_| {
                Semaphore::new(self.config.max_concurrent_requests.min(Semaphore::MAX_PERMITS))
            }),
            malformed: Default::default(),
            last_response: Mutex::new(listing.response),
            latest_server_time: Mutex::new(listing.response.server_time),
            partitions: Partitions::default(),
            lease_clock: self.lease_clock.unwrap_or_else(|| Arc::new(SystemLeaseClock::default())),
            rng: Arc::new(Mutex::new(rng)),
            telemetry,
            warnings,
            balanced: AtomicBool::new(false),
        };
        let outages = Outages::new(inner.lease_durations, request_timeout, inner.lease_clock.now());
        let (container, inner) = (self.container, Arc::new(inner));
        let store = GroupStore { container, inner, outages, operator: self.operator, hub_created_at: None };
        if self.config.on_case_mismatch == OnCaseMismatch::Fail {
            with_retries(request_timeout, || store.refuse_other_name_case()).await?;
        }
        Ok(store)
    }

    /// Returns the latest incarnation of this owner in its ownerships and in its heartbeat. An instance that owned
    /// nothing, or whose leases its heartbeat keeps alive, may be recorded only there. The heartbeat is listed, not read,
    /// because this owner needs the permission to list in any case.
    async fn latest_incarnation(
        &self,
        names: &BlobNames,
        ownerships: &[Blob],
        timeout: Duration,
    ) -> Result<Option<Incarnation>> {
        let heartbeat = names.heartbeat(&self.owner);
        let list = || within(timeout, StorageOperation::List.as_str(), self.container.list(&heartbeat));
        let heartbeats = with_retries(timeout, list).await?.blobs;
        let heartbeats = heartbeats.iter().filter(|blob| blob.name == heartbeat).filter_map(|blob| {
            let (record, _) = codec::decode_heartbeat(&blob.name, self.owner.clone(), &blob.metadata);
            record.incarnation
        });
        let owned = ownerships.iter().filter_map(|blob| {
            let (record, _) = codec::decode_ownership(&blob.name, &blob.metadata);
            record.incarnation.filter(|_| record.owner.as_ref() == Some(&self.owner))
        });
        Ok(owned.chain(heartbeats).filter(|recorded| recorded.began().is_some()).max())
    }

    async fn verify(&self, name: &str, timeout: Duration) -> Result<Vec<StorageWarning>> {
        let check = StorageCheck { container: &*self.container, name, timeout };
        let wall_clock = self.wall_clock.clone().or_else(|| (!is_paused()).then(|| Arc::new(SystemWallClock) as _));
        let warnings = with_retries(timeout, || check.run(wall_clock.as_deref())).await?;
        for warning in &warnings {
            telemetry::storage_warning(&warning.advice());
        }
        Ok(warnings)
    }
}

/// Repeats a request until it succeeds, fails for good, or has failed too often. Waits as long as the server requests, up
/// to the timeout. A request that timed out is not repeated.
async fn with_retries<T, F>(timeout: Duration, attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = CONNECT_PAUSE;
    for _ in 1..CONNECT_ATTEMPTS {
        let began = Instant::now();
        let error = match attempt().await {
            Err(error) if error.may_pass() && began.elapsed() < timeout => error,
            settled => return settled,
        };
        let wait = error.retry_after().unwrap_or_default().min(timeout).max(pause);
        telemetry::connect_failed(&error, wait);
        sleep(wait).await;
        pause *= 2;
    }
    attempt().await
}
