//! A run: steps drawn from a seed. The next operation is chosen while other operations are in progress.

mod foreign_owner;
mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use eventhubs_checkpoint::store::{AdoptOutcome, CheckpointOutcome, ClaimOutcome, Lease};
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::{ErrorKind, OwnerId};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use crate::random::foreign::{self, Foreign};
use crate::random::incarnation::{self, Done, FreezeGate, OwnerIncarnation, OwnershipEpoch, Running, UnderWay};
use crate::random::judge::{Adopted, Intent, Judge, Purpose};
use crate::random::server::{INTENT, Server};

/// Owner ids of this crate's owners. Incarnations of one owner follow each other, or overlap by mistake.
const OWNERS: [&str; 3] = ["a", "b", "c"];

/// Steps between two recoveries.
const STEPS_WITH_FAULTS: u32 = 400;

const OWN: usize = 0;
const CHECKPOINT: usize = 1;

/// The kind of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Owners of this crate, some faults.
    CrateOnly,
    /// An owner of another SDK among them.
    Mixed,
    /// Frequent faults.
    Stormy,
}

pub struct Outcome {
    pub counts: BTreeMap<&'static str, u64>,
    pub history: String,
}

pub struct Run {
    profile: Profile,
    rng: StdRng,
    judge: Judge,
    server: Server,
    incarnations: Vec<OwnerIncarnation>,
    foreign: Option<Foreign>,
    operations: JoinSet<(usize, u64, Done)>,
    begun: u64,
    /// The last event that was published.
    published: i64,
    recovery: bool,
}

/// Runs this many steps. Returns the violation, with the history.
pub async fn run(profile: Profile, seed: u64, steps: u32) -> Result<Outcome, String> {
    let judge = Judge::new();
    let mut run = Run {
        profile,
        rng: StdRng::seed_from_u64(seed),
        server: Server::new(judge.clone()),
        judge,
        incarnations: Vec::new(),
        foreign: None,
        operations: JoinSet::new(),
        begun: 0,
        published: -1,
        recovery: false,
    };
    if profile == Profile::Mixed {
        let id = run.judge.lock().enter(foreign::NAME.to_owned(), false);
        let (container, faulty) = run.server.line(id, run.rng.next_u64(), Arc::default());
        faulty.set_plan(run.plan());
        run.foreign = Some(Foreign { id, container, faulty, belief: None, under_way: None });
    }
    let outcome = run.all(steps).await;
    let judge = run.judge.lock();
    outcome.map_err(|what| format!("{what}\n{}", judge.history()))?;
    Ok(Outcome { counts: judge.counts().clone(), history: judge.history() })
}

impl Run {
    async fn all(&mut self, steps: u32) -> Result<(), String> {
        for step in 1..=steps {
            self.step().await;
            self.check()?;
            if step.is_multiple_of(STEPS_WITH_FAULTS) || step == steps {
                self.recovery().await?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.judge.lock().violation().map_or(Ok(()), |what| Err(what.to_owned()))
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn plan(&self) -> FaultPlan {
        if self.recovery {
            return FaultPlan::default();
        }
        let rate = if self.profile == Profile::Stormy { 4.0 } else { 1.0 };
        FaultPlan::default()
            .with(0.6, Fault::Latency(Duration::from_millis(1500)))
            .with(0.02 * rate, Fault::RequestLost)
            .with(0.02 * rate, Fault::ResponseLost)
            .with(0.03 * rate, Fault::AppliedLate(Duration::from_secs(20)))
            .with(0.01 * rate, Fault::Hang)
            .with(0.02 * rate, Fault::Conflict)
            .with(0.01 * rate, Fault::Unreachable)
            .with(0.01 * rate, Fault::Throttled { retry_after: None })
            .with_on(0.03 * rate, BlobOperation::Get, Fault::RequestLost)
            .with_on(0.1, BlobOperation::Get, Fault::Latency(Duration::from_secs(4)))
            .with(0.02 * rate, Fault::StaleListing(Duration::from_secs(30)))
            .with(0.01 * rate, Fault::TruncatedListing)
    }

    async fn step(&mut self) {
        self.collect();
        if self.chance(0.3) {
            self.published += self.rng.random_range(1..=3);
        }
        if self.chance(0.002) {
            self.server.delete_ownership().await;
        }
        let actors = OWNERS.len() + usize::from(self.foreign.is_some());
        match OWNERS.get(self.rng.random_range(0..actors)) {
            Some(owner) => self.owner_acts(owner),
            None => self.foreign_acts(),
        }
        self.pass_time().await;
        self.collect();
    }

    async fn pass_time(&mut self) {
        let milliseconds = match self.rng.random_range(0..100) {
            0..45 => 0,
            45..80 => self.rng.random_range(1..400),
            80..98 => self.rng.random_range(1..2000),
            _ => self.rng.random_range(5_000..30_000),
        };
        if milliseconds == 0 {
            for _ in 0..self.rng.random_range(0..12) {
                yield_now().await;
            }
        } else {
            sleep(Duration::from_millis(milliseconds)).await;
        }
        for incarnation in &mut self.incarnations {
            if incarnation.thaws_at.is_some_and(|at| at <= Instant::now()) {
                incarnation.thaws_at = None;
                incarnation.freeze_gate.thaw();
                self.judge.lock().note(incarnation.id, "wakes");
            }
        }
    }

    fn owner_acts(&mut self, owner: &'static str) {
        let incarnations: Vec<_> =
            (0..self.incarnations.len()).filter(|index| self.incarnations[*index].owner.as_str() == owner).collect();
        let none_awake = incarnations.iter().all(|index| self.incarnations[*index].freeze_gate.is_frozen());
        let starts = match incarnations.len() {
            0 => 0.6,
            1 if none_awake => 0.1,
            1 => 0.005,
            _ => 0.0,
        };
        if self.chance(starts) {
            return self.start(owner);
        }
        if incarnations.is_empty() {
            return;
        }
        let index = incarnations[self.rng.random_range(0..incarnations.len())];
        let busy =
            self.incarnations[index].under_way[CHECKPOINT].is_some() && self.incarnations[index].thaws_at.is_none();
        if busy && self.chance(0.04) {
            return self.freeze(index, false);
        }
        match self.rng.random_range(0..1000) {
            0..8 => self.crash(index),
            8..20 => self.freeze(index, false),
            20..45 => self.give_up_waiting(index),
            45..57 => self.refuse_writes(index),
            _ => self.works(index),
        }
    }

    fn start(&mut self, owner: &'static str) {
        let number = self.begun;
        let id = self.judge.lock().enter(format!("{owner}{number}"), true);
        let freeze_gate = Arc::<FreezeGate>::default();
        let (container, faulty) = self.server.line(id, self.rng.next_u64(), freeze_gate.clone());
        faulty.set_plan(self.plan());
        let owner = OwnerId::new(owner).unwrap();
        let connecting = incarnation::connect(id, self.judge.clone(), owner.clone(), container, self.rng.next_u64());
        self.incarnations.push(OwnerIncarnation {
            id,
            owner,
            faulty,
            freeze_gate,
            thaws_at: None,
            store: None,
            begun: Arc::new(AtomicU64::new(0)),
            lease: None,
            running: None,
            under_way: [const { None }; 2],
        });
        self.begin(self.incarnations.len() - 1, OWN, Purpose::Own, Adopted::default(), connecting);
    }

    fn begin(
        &mut self,
        index: usize,
        place: usize,
        purpose: Purpose,
        adopted: Adopted,
        doing: impl Future<Output = Done> + Send + 'static,
    ) {
        let operation = self.begun;
        self.begun += 1;
        let incarnation = &mut self.incarnations[index];
        let (id, freeze_gate) = (incarnation.id, incarnation.freeze_gate.clone());
        let intent = Intent { operation, purpose, adopted };
        let doing = INTENT.scope(intent, async move { (id, operation, freeze_gate.around(doing).await) });
        incarnation.under_way[place] = Some(UnderWay { operation, abort: self.operations.spawn(doing) });
    }

    fn acting(&self, index: usize) -> Option<incarnation::Acting> {
        let incarnation = &self.incarnations[index];
        let store = incarnation.store.clone()?;
        Some(incarnation::Acting {
            judge: self.judge.clone(),
            incarnation: incarnation.id,
            operation: self.begun,
            store,
            begun: incarnation.begun.clone(),
        })
    }

    fn crash(&mut self, index: usize) {
        let incarnation = self.incarnations.remove(index);
        let mut judge = self.judge.lock();
        judge.note(incarnation.id, "crashes");
        for under_way in incarnation.under_way.iter().flatten() {
            under_way.abort.abort();
            judge.count("crash in an operation");
        }
    }

    /// At once, or when the next response is on its way.
    fn freeze(&mut self, index: usize, armed: bool) {
        let incarnation = &mut self.incarnations[index];
        let time = Duration::from_millis(self.rng.random_range(500..45_000));
        if armed {
            incarnation.freeze_gate.arm();
        } else {
            incarnation.freeze_gate.freeze();
        }
        incarnation.thaws_at = Some(Instant::now() + time);
        self.judge.lock().note(incarnation.id, format_args!("freezes for {time:?}"));
        self.judge.lock().count("freeze");
    }

    /// Like a timeout of the caller's own: the known state remains valid.
    fn give_up_waiting(&mut self, index: usize) {
        let place = self.rng.random_range(0..2);
        let incarnation = &mut self.incarnations[index];
        if incarnation.store.is_none() || incarnation.freeze_gate.is_frozen() {
            return;
        }
        if let Some(under_way) = incarnation.under_way[place].take() {
            under_way.abort.abort();
            self.judge.lock().note(incarnation.id, "gives up waiting");
            self.judge.lock().count("operation abandoned");
        }
    }

    /// Injects as many conflicts in a row as an operation has attempts.
    fn refuse_writes(&mut self, index: usize) {
        if self.profile == Profile::Stormy && !self.recovery {
            let name = if self.chance(0.5) { "/ownership/" } else { "/checkpoint/" };
            for _ in 0..5 {
                self.incarnations[index]
                    .faulty
                    .inject_on(Target::from(BlobOperation::Write).named(name), Fault::Conflict);
            }
        }
    }

    fn works(&mut self, index: usize) {
        if self.incarnations[index].freeze_gate.is_frozen() || self.incarnations[index].store.is_none() {
            return;
        }
        if self.chance(0.5) {
            self.works_on_ownership(index);
        } else {
            self.works_on_checkpoint(index);
        }
    }

    fn works_on_ownership(&mut self, index: usize) {
        let Some(acting) = self.acting(index).filter(|_| self.incarnations[index].under_way[OWN].is_none()) else {
            return;
        };
        let own = |run: &mut Self, doing| run.begin(index, OWN, Purpose::Own, Adopted::default(), doing);
        let Some(lease) = self.incarnations[index].lease.clone() else {
            let steal = !self.recovery && self.chance(0.2);
            if !self.recovery && self.incarnations[index].running.is_some() && self.chance(0.4) {
                self.hides_a_claim(index);
            }
            return own(self, Box::pin(acting.seek(steal)) as futures::future::BoxFuture<'static, Done>);
        };
        if !self.recovery && self.chance(0.06) {
            return own(self, Box::pin(acting.release(lease)));
        }
        if acting.store.lease_age(&lease) > Duration::from_secs(4) || self.chance(0.2) {
            own(self, Box::pin(acting.renew(lease)));
        }
    }

    /// The next checkpoint write is rejected, although there is no other writer, and the read that follows may return
    /// an old state.
    fn makes_it_look(&mut self, index: usize) {
        let target = Target::from(BlobOperation::Write).named("/checkpoint/");
        self.incarnations[index].faulty.inject_on(target, Fault::Conflict);
        if self.chance(0.4) {
            self.freeze(index, true);
        }
    }

    /// The outcome of the next claim is indeterminate for a while.
    fn hides_a_claim(&self, index: usize) {
        let faulty = &self.incarnations[index].faulty;
        faulty.inject_on(Target::from(BlobOperation::Write).named("/ownership/"), Fault::ResponseLost);
        let slow = Fault::Latency(Duration::from_secs(4));
        faulty.inject_on(Target::from(BlobOperation::Get).named("/ownership/"), slow);
    }

    fn works_on_checkpoint(&mut self, index: usize) {
        let Some(acting) = self.acting(index).filter(|_| self.incarnations[index].under_way[CHECKPOINT].is_none())
        else {
            return;
        };
        let incarnation = &self.incarnations[index];
        let ownership = incarnation.lease.as_ref().map(Lease::epoch);
        let runs = incarnation.running.as_ref().map(|running| running.ownership.epoch);
        if let Some(ownership) = ownership.filter(|_| ownership != runs)
            && self.chance(0.8)
        {
            if !self.recovery && self.chance(0.1) {
                self.freeze(index, true);
            }
            return self.begin(index, CHECKPOINT, Purpose::Adopt, Adopted::default(), acting.adopt(ownership));
        }
        let most = if self.recovery { i64::MAX } else { self.rng.random_range(0..4) };
        let Some(running) = &mut self.incarnations[index].running else { return };
        let to = self.published.min(running.at.saturating_add(most));
        if to > running.at {
            let processing = (running.adopted, running.ownership.epoch);
            self.judge.lock().processes(acting.incarnation, Some(processing), running.at + 1, to);
            running.at = to;
        }
        let running = running.clone();
        let durable = running.adoption.try_lock().is_ok_and(|it| it.record().sequence_number >= Some(running.at));
        if !durable && (self.recovery || self.chance(0.6)) {
            if !self.recovery && self.chance(0.25) {
                self.makes_it_look(index);
            }
            self.begin(index, CHECKPOINT, Purpose::Checkpoint, running.adopted, acting.checkpoint(running));
        }
    }

    fn collect(&mut self) {
        while let Some(ended) = self.operations.try_join_next() {
            // An error means an operation that was given up.
            let Ok((incarnation, operation, done)) = ended else { continue };
            if let Done::Foreign(belief) = done {
                self.foreign_done(operation, belief);
            } else if let Some(index) = self.incarnations.iter().position(|it| it.id == incarnation) {
                self.done(index, operation, done);
            }
        }
    }

    fn done(&mut self, index: usize, operation: u64, done: Done) {
        let matches = |place: &Option<UnderWay>| place.as_ref().is_some_and(|it| it.operation == operation);
        let Some(place) = self.incarnations[index].under_way.iter().position(matches) else { return };
        self.incarnations[index].under_way[place] = None;
        let drops = self.chance(0.3);
        let incarnation = &mut self.incarnations[index];
        match done {
            Done::Connected(Ok(store)) => incarnation.store = Some(store),
            Done::Connected(Err(_)) | Done::SeenReplaced | Done::Claimed(ClaimOutcome::Replaced { .. }) => {
                self.crash(index);
            }
            Done::Renewed(ClaimOutcome::Replaced { .. }) => self.crash(index),
            Done::Claimed(ClaimOutcome::Won(lease)) | Done::Renewed(ClaimOutcome::Won(lease)) => {
                incarnation.lease = Some(lease);
            }
            Done::Renewed(ClaimOutcome::Lost { .. }) | Done::Released => {
                incarnation.lease = None;
                // The processing task may detect it later.
                if drops {
                    incarnation.running = None;
                }
            }
            Done::Adopted(outcome, adopted, ownership) => self.adoption_done(index, outcome, adopted, ownership),
            Done::Checkpointed(Ok(CheckpointOutcome::Fenced { .. }), ownership) => {
                incarnation.running = None;
                incarnation.lease.take_if(|lease| lease.epoch() == ownership.epoch);
            }
            // The earlier state remains valid.
            Done::Claimed(_) | Done::Renewed(_) | Done::Checkpointed(..) | Done::NothingToClaim | Done::Foreign(_) => {}
        }
    }

    fn adoption_done(
        &mut self,
        index: usize,
        outcome: eventhubs_checkpoint::Result<AdoptOutcome>,
        adopted: Option<Adopted>,
        ownership: OwnershipEpoch,
    ) {
        let incarnation = &mut self.incarnations[index];
        match outcome {
            Ok(AdoptOutcome::Adopted(adoption)) => {
                let at = adoption.record().sequence_number.unwrap_or(-1);
                let adoption = Arc::new(AsyncMutex::new(adoption));
                incarnation.running = adopted.map(|adopted| Running { adoption, at, adopted, ownership });
            }
            Ok(_) => {
                incarnation.lease.take_if(|lease| lease.epoch() == ownership.epoch);
            }
            Err(error) if error.kind() == ErrorKind::Contended && incarnation.under_way[OWN].is_none() => {
                let Some(lease) = incarnation.lease.clone() else { return };
                let Some(acting) = self.acting(index) else { return };
                self.begin(index, OWN, Purpose::Own, Adopted::default(), acting.release(lease));
            }
            Err(_) => {}
        }
    }
}
