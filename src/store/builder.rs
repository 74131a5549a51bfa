//! Describes a store, checks the settings, and makes the first request.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, sleep};

use super::listing::ListingDeadlines;
use super::outage::Outages;
use super::partitions::Partitions;
use super::probe::{Finding, Trial};
use super::{GroupStore, Inner, Split, within};
use crate::blob::{Blob, BlobContainer};
use crate::clock::{LeaseClock, SystemLeaseClock, SystemWallClock, WallClock};
use crate::codec::{self, BlobNames, KeyCase, RecordKind};
use crate::error::{Error, Result};
use crate::model::{ConsumerGroup, Identity, Incarnation, LeaseScope, LeaseTerms, OwnerId};
use crate::random::seeded;
use crate::telemetry::{self, Operation, Telemetry};

/// No owner of any SDK lives longer without a sign, and sums of such times cannot overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How often the first requests are sent: throttling or a restart of the storage must not end an instance that begins.
const CONNECT_ATTEMPTS: u32 = 4;

/// The wait before the second attempt; it doubles with each further one.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);

/// Describes a [`GroupStore`]. Setters cannot fail; [`connect`](Self::connect) can.
#[derive(Debug)]
#[must_use = "nothing happens until `connect` is called"]
pub struct GroupStoreBuilder {
    container: Arc<dyn BlobContainer>,
    group: ConsumerGroup,
    owner: OwnerId,
    key_case: KeyCase,
    split: Split,
    expiry: Duration,
    peer_expiry: Duration,
    request_deadline: Option<Duration>,
    concurrency: NonZeroUsize,
    create_container: bool,
    probe: bool,
    pub(crate) wall_clock: Arc<dyn WallClock>,
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
            key_case: KeyCase::default(),
            split: Split::default(),
            expiry: Duration::from_secs(60),
            peer_expiry: Duration::from_secs(180),
            request_deadline: None,
            concurrency: NonZeroUsize::MIN.saturating_add(31),
            create_container: false,
            probe: false,
            wall_clock: Arc::new(SystemWallClock),
            lease_clock: None,
            operator: false,
            seed: None,
        }
    }

    /// The age at which an ownership counts as abandoned. All instances of the group should agree on it. Default 60 s,
    /// the shortest default among the other SDKs. At least 4 s, for server times come in whole seconds.
    pub fn expiry(mut self, expiry: Duration) -> Self {
        self.expiry = expiry;
        self
    }

    /// The same for owners of other SDKs, which know nothing of [`expiry`](Self::expiry). Default 180 s, the longest
    /// default among them. At least the expiry.
    pub fn peer_expiry(mut self, peer_expiry: Duration) -> Self {
        self.peer_expiry = peer_expiry;
        self
    }

    /// How long one request may take. Default: 5 s, or a quarter of the expiry if that is less, so that a hung renewal
    /// leaves time for another. Less than half the expiry. A backend may have a deadline of its own, as
    /// `AzureContainer` has, of 5 s: the shorter one counts.
    pub fn request_deadline(mut self, deadline: Duration) -> Self {
        self.request_deadline = Some(deadline);
        self
    }

    /// How the blob names are spelled. Default [`KeyCase::Lower`].
    pub fn key_case(mut self, key_case: KeyCase) -> Self {
        self.key_case = key_case;
        self
    }

    /// For an operator, which is no member of the group: the owner id is one that no other run has.
    pub(crate) fn for_operator(mut self) -> Result<Self> {
        let random = seeded(self.seed)?.next_u64();
        self.owner = OwnerId::new(format!("operator-{random:016x}"))?;
        self.operator = true;
        Ok(self)
    }

    /// What to do about records under names of another case. Default [`Split::Wait`].
    pub fn split(mut self, split: Split) -> Self {
        self.split = split;
        self
    }

    /// How many operations may be under way at once, on ownerships and on checkpoints each. Default 32.
    pub fn concurrency(mut self, concurrency: NonZeroUsize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Makes the container if it does not exist. Off by default: the permission for it is often not given.
    pub fn create_container(mut self, create: bool) -> Self {
        self.create_container = create;
        self
    }

    /// Tries out, before anything starts, whether the storage does what ownership needs: refuses conditional writes
    /// when it must, shows metadata in listings, allows to list, read and write. What works but not well is logged as a
    /// warning and kept in [`GroupStore::findings`]. Off by default: it costs nine requests.
    pub fn probe(mut self, probe: bool) -> Self {
        self.probe = probe;
        self
    }

    /// The local clock that the [`probe`](Self::probe) compares with the server's, for tests. Nothing else reads it.
    #[cfg(feature = "testing")]
    pub fn wall_clock(mut self, clock: Arc<dyn WallClock>) -> Self {
        self.wall_clock = clock;
        self
    }

    /// The clock by which leases count, for tests. Default [`SystemLeaseClock`](crate::testing::SystemLeaseClock).
    #[cfg(feature = "testing")]
    pub fn lease_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = Some(clock);
        self
    }

    /// Seeds the random part of the incarnation, for tests that must be repeatable. By default the operating system
    /// gives it.
    #[cfg(feature = "testing")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks the settings and lists the ownerships, so that a wrong key, host or container is known before anything
    /// starts. The server's time of that answer begins this owner's [`Incarnation`], or a second after the latest one
    /// of this owner that is recorded, so that a restart within one second is the later one. A second listing shows
    /// what its presence has recorded. A storage that is throttling or away for a moment is asked up to four times,
    /// with growing waits in between; each failure is logged as a warning. One that does not answer within the deadline
    /// is not asked again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) names the setting and the rule; otherwise the last answer of the
    /// storage.
    pub async fn connect(self) -> Result<GroupStore> {
        let request_deadline = self.check()?;
        let telemetry = Telemetry::new(&self.group, self.expiry / 2);
        let names = BlobNames::new(&self.group, self.key_case);
        if self.create_container {
            let create = || within(request_deadline, "create container", self.container.create_container());
            patiently(request_deadline, create).await?;
        }
        let prefix = names.prefix(RecordKind::Ownership);
        let list = || within(request_deadline, Operation::List.name(), self.container.list(prefix));
        let listing = patiently(request_deadline, list).await?;
        let earlier = self.latest_incarnation(&names, &listing.blobs, request_deadline).await?;
        let mut rng = seeded(self.seed)?;
        let incarnation = Incarnation::after(earlier.as_ref(), listing.answer.server_time, rng.next_u32());
        let findings = if self.probe {
            self.findings(&names.probe(&self.owner, rng.next_u64()), request_deadline).await?
        } else {
            Vec::new()
        };
        let twin = BlobNames::new(&self.group, self.key_case.other());
        let twin = (self.split != Split::Ignore && twin != names).then_some(twin);
        let inner = Inner {
            names,
            twin,
            group: self.group,
            me: Identity { owner: self.owner, incarnation },
            terms: LeaseTerms { expiry: self.expiry, peer_expiry: self.peer_expiry },
            request_deadline,
            listing_deadlines: ListingDeadlines::new(request_deadline, self.expiry / 2),
            presence: AsyncMutex::default(),
            permits: std::array::from_fn(|_| Semaphore::new(self.concurrency.get())),
            told: Default::default(),
            last_answer: Mutex::new(listing.answer),
            latest_server_time: Mutex::new(listing.answer.server_time),
            partitions: Partitions::default(),
            lease_clock: self.lease_clock.unwrap_or_else(|| Arc::new(SystemLeaseClock::default())),
            rng: Mutex::new(rng),
            telemetry,
            findings,
            balanced: AtomicBool::new(false),
        };
        let outages = Outages::new(inner.terms, request_deadline, inner.lease_clock.now());
        let (container, inner) = (self.container, Arc::new(inner));
        let store = GroupStore {
            container,
            inner,
            outages,
            cooperative: false,
            scope: LeaseScope::default(),
            operator: self.operator,
        };
        if self.split == Split::Refuse {
            patiently(request_deadline, || store.refuse_other_tree()).await?;
        }
        Ok(store)
    }

    /// The latest incarnation of this owner in its ownerships and in its presence. An instance that owned nothing, or
    /// whose leases live by its presence, may be recorded there alone. The presence is listed, not read: metadata in
    /// listings are what this owner needs to be permitted to see anyway.
    async fn latest_incarnation(
        &self,
        names: &BlobNames,
        ownerships: &[Blob],
        deadline: Duration,
    ) -> Result<Option<Incarnation>> {
        let presence = names.presence(&self.owner);
        let list = || within(deadline, Operation::List.name(), self.container.list(&presence));
        let present = patiently(deadline, list).await?.blobs;
        let present = present.iter().filter(|blob| blob.name == presence).filter_map(|blob| {
            let (record, _) = codec::decode_presence(&blob.name, self.owner.clone(), &blob.metadata);
            record.incarnation
        });
        let owned = ownerships.iter().filter_map(|blob| {
            let (record, _) = codec::decode_ownership(&blob.name, &blob.metadata);
            record.incarnation.filter(|_| record.owner.as_ref() == Some(&self.owner))
        });
        Ok(owned.chain(present).filter(|recorded| recorded.began().is_some()).max())
    }

    async fn findings(&self, name: &str, deadline: Duration) -> Result<Vec<Finding>> {
        let trial = Trial { container: &*self.container, name, deadline };
        let findings = patiently(deadline, || trial.run(&*self.wall_clock)).await?;
        for finding in &findings {
            telemetry::storage_finding(&finding.advice());
        }
        Ok(findings)
    }

    fn check(&self) -> Result<Duration> {
        let (expiry, peer_expiry) = (self.expiry, self.peer_expiry);
        if expiry < Duration::from_secs(4) {
            return Err(Error::config(format!(
                "the expiry is {expiry:?}, but must be at least 4s: server times come in whole seconds"
            )));
        }
        if let Some(long) = [expiry, peer_expiry].into_iter().find(|time| *time > LONGEST) {
            return Err(Error::config(format!("the expiry or peer expiry is {long:?}, but must be at most a day")));
        }
        if peer_expiry < expiry {
            return Err(Error::config(format!(
                "the peer expiry is {peer_expiry:?}, but must be at least the expiry, {expiry:?}"
            )));
        }
        let deadline = self.request_deadline.unwrap_or(Duration::from_secs(5).min(expiry / 4));
        if deadline.is_zero() || deadline >= expiry / 2 {
            return Err(Error::config(format!(
                "the request deadline is {deadline:?}, but must be more than zero and less than half the expiry, {expiry:?}"
            )));
        }
        Ok(deadline)
    }
}

/// Tries until it succeeds, fails for good, or was tried often enough. The server is waited for as long as it asks to,
/// up to a deadline. What took that long has had its time.
async fn patiently<T, F>(deadline: Duration, attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = CONNECT_PAUSE;
    for _ in 1..CONNECT_ATTEMPTS {
        let began = Instant::now();
        let error = match attempt().await {
            Err(error) if error.is_transient() && began.elapsed() < deadline => error,
            settled => return settled,
        };
        let wait = error.retry_after().unwrap_or_default().min(deadline).max(pause);
        telemetry::connect_failed(&error, wait);
        sleep(wait).await;
        pause *= 2;
    }
    attempt().await
}
