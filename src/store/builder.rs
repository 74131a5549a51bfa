//! Describes a store, checks the settings, and makes the first request.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::sleep;
use tracing::Instrument;

use super::config::StoreConfig;
use super::outage::Outages;
use super::records::{ListingTimeouts, MalformedLogs, Records};
#[cfg(feature = "eventhubs")]
use super::retry_schedule::RetrySchedule;
use super::rules::{CaseFacts, Choice, choose_case};
use super::verify::{StorageCheck, StorageWarning};
use super::{GroupStore, StoreInner};
use crate::backoff::Backoff;
use crate::blob::{BlobContainer, ListResult, ResponseInfo, limit_request};
use crate::clock::{LeaseClock, SystemLeaseClock, SystemWallClock, WallClock, is_paused};
use crate::codec::{BlobNames, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, Identity, Incarnation, NameCase, OwnerId};
use crate::telemetry::{self, BillingType, RequestCounters, StorageOperation, Telemetry};
use crate::util::rng_from_seed;

/// How often the first requests are sent: throttling or a restart of the storage must not end an instance that begins.
const CONNECT_ATTEMPTS: u32 = 4;

/// The waits between these attempts.
const CONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(1));

/// Describes a [`GroupStore`]: its settings are a [`StoreConfig`]. Setters cannot fail; [`connect`](Self::connect) can.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::{ConsumerGroup, GroupStore, OwnerId, Result, StoreConfig};
///
/// async fn connect() -> Result<GroupStore> {
///     let group = ConsumerGroup::new("name.servicebus.windows.net", "orders", "$Default")?;
///     let config = StoreConfig::default().with_lease_duration(Duration::from_secs(30));
///     GroupStore::builder(MemoryContainer::new(), group, OwnerId::new("pod-1")?).with_config(config).connect().await
/// }
/// ```
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
    read_only: bool,
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
            read_only: false,
            seed: None,
        }
    }

    /// Sets how the store works. Default: [`StoreConfig::default`]. A second call replaces all settings.
    pub fn with_config(mut self, config: StoreConfig) -> Self {
        self.config = config;
        self
    }

    /// Describes the store of an operator, which is not an instance of the group. It does not verify the storage,
    /// because it writes only what the operator requests.
    pub(crate) fn for_operator(mut self, seed: Option<u64>) -> Self {
        self.operator = true;
        self.config.verify_storage = false;
        self.seed = seed;
        self
    }

    /// Describes a store that only looks at the group: it connects with an explicit blob-name casing although the other
    /// one has live owners.
    pub(crate) fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Sets the local clock that the verification of the storage compares with the server's, for tests. Default: the
    /// clock of the operating system, or no comparison under paused time.
    #[cfg(feature = "testing")]
    pub fn with_wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.wall_clock = Some(clock);
        self
    }

    /// Sets the clock that measures lease ages, for tests. Default
    /// [`SystemLeaseClock`](crate::testing::SystemLeaseClock).
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

    /// Creates the schedule of the attempts to connect; see [`RetrySchedule::new`].
    #[cfg(feature = "eventhubs")]
    pub(crate) fn retry_schedule(&self, until: Option<tokio::time::Instant>) -> Result<RetrySchedule> {
        let rng = Arc::new(Mutex::new(rng_from_seed(self.seed)?));
        Ok(RetrySchedule::new(self.config.lease_duration, until, rng))
    }

    /// Checks the settings, lists the records of this owner's group and verifies the storage, so that a wrong key, host
    /// or container is reported before anything starts. If the names of the group contain capitals, it looks at both
    /// casings of the blob names, and chooses one as [`BlobNameCase`](super::BlobNameCase) says. If the other one has
    /// records that may matter, it logs a warning.
    ///
    /// The server time of the listing becomes the start of this owner's [`Incarnation`]. It is later than every
    /// incarnation of this owner that is recorded in an ownership or in its heartbeat, also after a restart within one
    /// second. If the storage is throttled or unavailable, or does not respond, `connect` repeats the request up to
    /// three times with growing waits and logs a warning for each failure. A listing gets twice the time with each
    /// repetition, up to half the lease duration: with the default settings, a blob service that never responds is
    /// reported after 67 s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) names the setter and the rule: correct the setting. Or it names
    /// the live owner in the other blob-name casing, or the owners in both: stop one of the applications. Otherwise the
    /// last error of the storage.
    pub async fn connect(self) -> Result<GroupStore> {
        self.config.check_settings()?;
        let telemetry = Telemetry::new(&self.group, &self.owner, self.config.lease_duration / 2);
        let span = telemetry.span().clone();
        self.connect_with(telemetry).instrument(span).await
    }

    async fn connect_with(self, telemetry: Telemetry) -> Result<GroupStore> {
        let request_timeout = self.config.effective_request_timeout();
        let lease_clock = self.lease_clock.clone().unwrap_or_else(|| Arc::new(SystemLeaseClock::default()));
        let listing_timeouts = ListingTimeouts::new(request_timeout, self.config.lease_duration / 2);
        let first = self.first_look(&*lease_clock, &listing_timeouts, telemetry.requests()).await?;
        let mut rng = rng_from_seed(self.seed)?;
        let incarnation = Incarnation::new_after(first.earlier.as_ref(), first.response.server_time, rng.next_u32());
        let names = BlobNames::new(&self.group, first.name_case);
        let other_names = Some(BlobNames::new(&self.group, first.name_case.other())).filter(|other| *other != names);
        let warnings = if self.config.verify_storage {
            self.verify_storage(&names, &mut rng, request_timeout, telemetry.requests()).await?
        } else {
            Vec::new()
        };
        let inner = StoreInner {
            name_case: first.name_case,
            other_case_is_used: first.other_case_is_used,
            names,
            other_names,
            group: self.group,
            identity: Identity { owner: self.owner, incarnation },
            lease_durations: self.config.lease_durations(),
            request_timeout,
            listing_timeouts,
            heartbeat: AsyncMutex::default(),
            permits: std::array::from_fn(|_| {
                Semaphore::new(self.config.max_concurrent_requests.min(Semaphore::MAX_PERMITS))
            }),
            malformed: MalformedLogs::default(),
            last_response: Mutex::new(first.response),
            latest_server_time: Mutex::new(first.response.server_time),
            partitions: Mutex::default(),
            lease_clock,
            rng: Arc::new(Mutex::new(rng)),
            telemetry,
            warnings,
            lighting: AsyncMutex::default(),
            lights: AtomicU64::default(),
            balanced: Arc::default(),
        };
        Ok(GroupStore {
            container: self.container,
            outages: Outages::new(inner.lease_durations, request_timeout, inner.lease_clock.now()),
            inner: Arc::new(inner),
            operator: self.operator,
            hub_created_at: None,
        })
    }

    /// Reads what the group has recorded so far. Without capitals in the names, that is the ownerships and the
    /// heartbeat of this owner; otherwise all records in both blob-name casings.
    async fn first_look(
        &self,
        lease_clock: &dyn LeaseClock,
        timeouts: &ListingTimeouts,
        requests: &RequestCounters,
    ) -> Result<FirstLook> {
        let lower_names = BlobNames::new(&self.group, NameCase::Lower);
        let verbatim_names = BlobNames::new(&self.group, NameCase::Verbatim);
        if lower_names == verbatim_names {
            let mut listing =
                self.first_listing(lower_names.record_prefix(RecordKind::Ownership), timeouts, requests).await?;
            // The heartbeat is listed, not read, because this owner needs the permission to list in any case.
            let heartbeat = lower_names.heartbeat_name(&self.owner);
            listing.blobs.extend(self.list_blobs(&heartbeat, timeouts, requests).await?.blobs);
            let records = Records::from_blobs(&lower_names, &listing.blobs, lease_clock);
            return Ok(FirstLook {
                name_case: self.config.blob_name_case.explicit().unwrap_or(NameCase::Lower),
                other_case_is_used: false,
                earlier: self.latest_incarnation(&records),
                response: listing.response,
            });
        }
        let in_lower = self.first_listing(lower_names.group_prefix(), timeouts, requests).await?;
        let in_verbatim = self.list_blobs(verbatim_names.group_prefix(), timeouts, requests).await?;
        let lower = Records::from_blobs(&lower_names, &in_lower.blobs, lease_clock);
        let verbatim = Records::from_blobs(&verbatim_names, &in_verbatim.blobs, lease_clock);
        let now = lease_clock.now();
        let durations = self.config.lease_durations();
        let name_case =
            self.choose_case_or_warn(&lower.case_facts(durations, now), &verbatim.case_facts(durations, now))?;
        let (used, other) = match name_case {
            NameCase::Lower => (lower, verbatim),
            NameCase::Verbatim => (verbatim, lower),
        };
        Ok(FirstLook {
            name_case,
            other_case_is_used: !other.is_empty(),
            earlier: self.latest_incarnation(&used),
            response: in_verbatim.response,
        })
    }

    /// Chooses the blob-name casing by the records, and logs what may be wrong with it.
    fn choose_case_or_warn(&self, lower: &CaseFacts, verbatim: &CaseFacts) -> Result<NameCase> {
        match (choose_case(self.config.blob_name_case, lower, verbatim), self.config.blob_name_case.explicit()) {
            (Ok(Choice { case, warning }), _) => {
                if let Some(warning) = warning {
                    telemetry::other_name_case(case, &warning);
                }
                Ok(case)
            }
            (Err(_), Some(case)) if self.read_only => Ok(case),
            (Err(conflict), None) if self.read_only => Err(Error::config(format!(
                "{conflict}: choose the casing to read with `StoreConfig::with_blob_name_case`, or with \
                 `--blob-name-case` in `ehcp`"
            ))),
            (Err(conflict), _) => Err(conflict.into()),
        }
    }

    /// Lists the ownerships, and before that creates the container if it is missing and the settings ask for it. If it
    /// exists, the credentials need no permission to create it.
    async fn first_listing(
        &self,
        prefix: &str,
        timeouts: &ListingTimeouts,
        requests: &RequestCounters,
    ) -> Result<ListResult> {
        match self.list_blobs(prefix, timeouts, requests).await {
            Err(error) if self.config.create_container && error.kind() == ErrorKind::ContainerNotFound => {}
            listed => return listed,
        }
        let timeout = self.config.effective_request_timeout();
        with_retries(timeout, || {
            requests.count(
                StorageOperation::Connect,
                BillingType::List,
                limit_request(timeout, "create container", self.container.create_container()),
            )
        })
        .await?;
        self.list_blobs(prefix, timeouts, requests).await
    }

    /// Lists blobs. A listing that times out gets more time when it is repeated, as in a running store.
    async fn list_blobs(
        &self,
        prefix: &str,
        timeouts: &ListingTimeouts,
        requests: &RequestCounters,
    ) -> Result<ListResult> {
        with_retries(self.config.effective_request_timeout(), || {
            timeouts.limit_listing(prefix, |limit| {
                requests.count(
                    StorageOperation::List,
                    BillingType::List,
                    limit_request(limit, StorageOperation::List.as_str(), self.container.list(prefix)),
                )
            })
        })
        .await
    }

    /// Returns the latest incarnation of this owner in its ownerships and in its heartbeat. An instance that owned
    /// nothing, or whose leases its heartbeat keeps alive, may be recorded only there.
    fn latest_incarnation(&self, records: &Records) -> Option<Incarnation> {
        let ownerships =
            records.ownerships.records.iter().filter(|seen| seen.record.owner.as_ref() == Some(&self.owner));
        let heartbeats = records.heartbeats.records.iter().filter(|seen| seen.record.owner == self.owner);
        ownerships
            .filter_map(|seen| seen.record.incarnation.as_ref())
            .chain(heartbeats.filter_map(|seen| seen.record.incarnation.as_ref()))
            .filter(|incarnation| incarnation.start_time().is_some())
            .max()
            .cloned()
    }

    async fn verify_storage(
        &self,
        names: &BlobNames,
        rng: &mut StdRng,
        timeout: Duration,
        requests: &RequestCounters,
    ) -> Result<Vec<StorageWarning>> {
        let wall_clock = self.wall_clock.clone().or_else(|| (!is_paused()).then(|| Arc::new(SystemWallClock) as _));
        let warnings = with_retries(timeout, || {
            let name = names.verification_name(&self.owner, rng.next_u64());
            let wall_clock = wall_clock.as_deref();
            async move {
                let container = &*self.container;
                StorageCheck { container, prefix: names.verification_prefix(), name: &name, timeout, requests }
                    .run(wall_clock)
                    .await
            }
        })
        .await?;
        for warning in &warnings {
            telemetry::storage_warning(&warning.advice());
        }
        Ok(warnings)
    }
}

/// What `connect` has found.
struct FirstLook {
    name_case: NameCase,
    /// Whether there are records in the other casing.
    other_case_is_used: bool,
    /// The latest incarnation of this owner, if there was one.
    earlier: Option<Incarnation>,
    response: ResponseInfo,
}

/// Repeats a request until it succeeds, fails for good, or has failed too often. Waits as long as the server requests,
/// up to the longest wait.
async fn with_retries<T, F>(longest_wait: Duration, mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for failures in 0..CONNECT_ATTEMPTS - 1 {
        let error = match attempt().await {
            Err(error) if error.may_pass() => error,
            settled => return settled,
        };
        let wait = error.retry_after().unwrap_or_default().min(longest_wait).max(CONNECT_BACKOFF.wait_after(failures));
        telemetry::connect_failed(&error, wait);
        sleep(wait).await;
    }
    attempt().await
}
