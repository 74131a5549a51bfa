//! One incarnation of an owner, and its operations in progress. Each operation reports its outcome to the judge.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, Lease, StoreConfig,
};
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Position, Result};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::random::judge::{Adopted, Judge};

pub const EXPIRY: Duration = Duration::from_secs(20);
pub const FOREIGN_LEASE_DURATION: Duration = Duration::from_secs(60);

pub fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "group").unwrap()
}

pub fn zero() -> PartitionId {
    0.into()
}

fn at(sequence_number: i64) -> Position {
    Position::new(sequence_number, sequence_number.to_string())
}

/// Suspends everything that runs in it, like a stopped process.
#[derive(Debug, Default)]
pub struct FreezeGate {
    frozen: AtomicBool,
    armed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl FreezeGate {
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// Freezes when the next response is on its way: the worst moment is between two requests of one operation.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    pub fn answer_on_its_way(&self) {
        if self.armed.swap(false, Ordering::Relaxed) {
            self.freeze();
        }
    }

    pub fn thaw(&self) {
        self.armed.store(false, Ordering::Relaxed);
        self.frozen.store(false, Ordering::Relaxed);
        self.waiting.lock().unwrap().drain(..).for_each(Waker::wake);
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    pub async fn around<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            if self.is_frozen() {
                self.waiting.lock().unwrap().push(context.waker().clone());
                return Poll::Pending;
            }
            future.as_mut().poll(context)
        })
        .await
    }
}

/// An operation in progress.
#[derive(Debug)]
pub struct UnderWay {
    pub operation: u64,
    pub abort: AbortHandle,
}

/// A partition that is being processed.
#[derive(Clone, Debug)]
pub struct Running {
    pub adoption: Arc<AsyncMutex<Adoption>>,
    /// The event that was processed last.
    pub at: i64,
    pub adopted: Adopted,
    pub ownership: OwnershipEpoch,
}

/// An ownership, and how many may have begun when it was adopted.
#[derive(Clone, Copy, Debug)]
pub struct OwnershipEpoch {
    pub epoch: i64,
    pub begun: u64,
}

/// One incarnation of an owner of this crate.
#[derive(Debug)]
pub struct OwnerIncarnation {
    pub id: usize,
    pub owner: OwnerId,
    pub faulty: FaultyContainer,
    pub freeze_gate: Arc<FreezeGate>,
    pub thaws_at: Option<Instant>,
    pub store: Option<GroupStore>,
    /// How many ownerships may have begun: claims, and renewals that found the record deleted.
    pub begun: Arc<AtomicU64>,
    pub lease: Option<Lease>,
    pub running: Option<Running>,
    /// On the ownership and on the checkpoint, one at a time each.
    pub under_way: [Option<UnderWay>; 2],
}

/// The outcome of an operation.
#[derive(Debug)]
pub enum Done {
    Connected(Result<GroupStore>),
    NothingToClaim,
    /// A listing shows a later incarnation.
    SeenReplaced,
    Claimed(ClaimOutcome),
    Renewed(ClaimOutcome),
    Released,
    Adopted(Result<AdoptOutcome>, Option<Adopted>, OwnershipEpoch),
    Checkpointed(Result<CheckpointOutcome>, OwnershipEpoch),
    Foreign(Option<crate::random::foreign::Belief>),
}

/// What an operation needs to know of its incarnation.
#[derive(Clone)]
pub struct Acting {
    pub judge: Judge,
    pub incarnation: usize,
    pub operation: u64,
    pub store: GroupStore,
    pub begun: Arc<AtomicU64>,
}

pub async fn connect(
    incarnation: usize,
    judge: Judge,
    owner: OwnerId,
    container: Arc<dyn BlobContainer>,
    seed: u64,
) -> Done {
    let config = StoreConfig::default()
        .with_verify_storage(false)
        .with_lease_duration(EXPIRY)
        .with_foreign_lease_duration(FOREIGN_LEASE_DURATION);
    let builder = GroupStore::builder(container, group(), owner).with_config(config);
    let connected = builder.with_seed(seed).connect().await;
    if let Ok(store) = &connected {
        judge.lock().connected(incarnation, store.identity().clone());
    }
    Done::Connected(connected)
}

impl Acting {
    fn begin(&self, what: impl std::fmt::Display) -> u64 {
        let mut judge = self.judge.lock();
        judge.note(self.incarnation, format_args!("begins: {what}"));
        judge.moment()
    }

    /// Lists, and claims what may be claimed; from a live owner only if `steal`.
    pub async fn seek(self, steal: bool) -> Done {
        let since = self.begin("seek");
        let Ok(listing) = self.store.list_ownerships().await else { return Done::NothingToClaim };
        let seen = listing.records.into_iter().find(|ownership| ownership.partition == zero());
        let Some(seen) = seen else { return self.claim(since, Claim::unowned(zero()), "first claim").await };
        let live = self.store.lease_durations().counts_as_live(&seen.record, seen.age_at(self.store.lease_clock_now()));
        let why = match (eventhubs_checkpoint::internal::relation::of_record(&seen.record, self.store.identity()), live)
        {
            (Relation::Unowned, _) => "claim of a released partition",
            (Relation::This | Relation::EarlierIncarnation, _) => "reclaim",
            (Relation::LaterIncarnation, true) => {
                self.judge.lock().note(self.incarnation, "sees a later incarnation");
                return Done::SeenReplaced;
            }
            (Relation::Other | Relation::LaterIncarnation, false) => "claim of an expired partition",
            (Relation::Other, true) if steal => "steal",
            (Relation::Other, true) => return Done::NothingToClaim,
        };
        self.claim(since, Claim::over(&seen), why).await
    }

    async fn claim(self, since: u64, claim: Claim, why: &'static str) -> Done {
        self.judge.lock().note(self.incarnation, why);
        self.begun.fetch_add(1, Ordering::Relaxed);
        let outcome = self.store.claim_all(vec![claim]).await.remove(0).1;
        self.judge.lock().claimed(self.incarnation, since, true, &outcome, &self.store);
        if matches!(outcome, ClaimOutcome::Won(_)) {
            self.judge.lock().count(why);
        }
        Done::Claimed(outcome)
    }

    pub async fn renew(self, lease: Lease) -> Done {
        let since = self.begin(format_args!("renew {}", lease.etag().as_str()));
        let epoch = lease.epoch();
        let outcome = self.store.renew_all(vec![lease]).await.remove(0).1;
        self.judge.lock().claimed(self.incarnation, since, false, &outcome, &self.store);
        if matches!(&outcome, ClaimOutcome::Won(lease) if lease.epoch() != epoch) {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.judge.lock().count("renewal found the record deleted");
        }
        Done::Renewed(outcome)
    }

    pub async fn release(self, lease: Lease) -> Done {
        let since = self.begin(format_args!("release {}", lease.etag().as_str()));
        let outcome = self.store.release_all(vec![lease]).await.remove(0).1;
        self.judge.lock().released(self.incarnation, since, &outcome);
        Done::Released
    }

    pub async fn adopt(self, epoch: i64) -> Done {
        let since = self.begin("adopt");
        let ownership = OwnershipEpoch { epoch, begun: self.begun.load(Ordering::Relaxed) };
        let outcome = self.store.adopt(&zero(), epoch, Some(&at(-1))).await;
        let again = self.begun.load(Ordering::Relaxed) != ownership.begun;
        let mut judge = self.judge.lock();
        judge.adopted(self.incarnation, since, (self.operation, again), &outcome);
        Done::Adopted(outcome, judge.adoption(self.operation), ownership)
    }

    pub async fn checkpoint(self, running: Running) -> Done {
        let since = self.begin(format_args!("checkpoint {}", running.at));
        let mut adoption = running.adoption.lock().await;
        let outcome = self.store.checkpoint(&mut adoption, &at(running.at)).await;
        let again = self.begun.load(Ordering::Relaxed) != running.ownership.begun;
        self.judge.lock().checkpointed(self.incarnation, since, (running.at, again), &outcome);
        Done::Checkpointed(outcome, running.ownership)
    }
}
