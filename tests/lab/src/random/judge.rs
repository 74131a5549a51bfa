//! Sees every write that the container accepts and every outcome that an owner is given, and knows what must never be.
//!
//! - I1: after an accepted adoption no checkpoint of an earlier tenure is accepted. A foreign owner adopts nothing.
//! - I2: the stored position never moves back by our writes, except by a rewind.
//! - I3: the stored position never passes an event that nobody processed; by our writes, that nobody processed since the
//!   last rewind. What a foreign owner writes unconditionally undoes a rewind, and that cannot be helped.
//! - I4: nobody is told that a partition is lost while it was continuously theirs.
//! - Truth: what an outcome says was so at some moment of the operation. So no two owners hold a win of the current
//!   record.
//!
//! (I5, progress, is for the driver to see.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use eventhubs_checkpoint::blob::{ETag, Metadata};
use eventhubs_checkpoint::store::{AdoptOutcome, CheckpointOutcome, ClaimOutcome, GroupStore, Lease, ReleaseOutcome};
use eventhubs_checkpoint::{ErrorKind, Identity, Incarnation, OwnerId, Result};
use tokio::time::Instant;

use crate::random::life::EXPIRY;

/// How much of the history is shown when something goes wrong.
const SHOWN: usize = 80;

/// What is being done by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Own,
    Adopt,
    Checkpoint,
    Rewind,
}

/// Whose operation a request belongs to, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    pub operation: u64,
    pub purpose: Purpose,
    /// Of a checkpoint: by which adoption.
    pub adopted: Adopted,
}

/// When a partition was adopted, in the terms of the judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Counts the owners one after another.
    pub tenure: u64,
    /// Counts the rewinds.
    pub rewinds: u64,
}

/// One life of an owner, or a foreign owner.
#[derive(Debug)]
struct Life {
    name: String,
    ours: bool,
    identity: Option<Identity>,
    tenure: u64,
    /// When the version that it won last was written.
    won: u64,
}

/// A version of the ownership.
#[derive(Debug)]
struct Ownership {
    holder: Option<usize>,
    written: Instant,
    since: u64,
    replaced: Option<u64>,
}

/// A version of the checkpoint.
#[derive(Debug)]
struct Stored {
    position: i64,
    replaced: Option<u64>,
}

#[derive(Clone)]
pub struct Judge(Arc<Mutex<State>>);

pub struct State {
    started: Instant,
    /// Counts accepted writes.
    moment: u64,
    lives: Vec<Life>,
    ownerships: BTreeMap<String, Ownership>,
    current: Option<String>,
    holder: Option<usize>,
    holder_since: u64,
    vanished: u64,
    last_owner: Option<usize>,
    tenures: u64,
    adopted_tenure: u64,
    stored: Vec<Stored>,
    adoptions: BTreeMap<u64, Adopted>,
    rewinds: u64,
    /// Tenures that began before this rewind do not count as processing.
    counting_from: u64,
    /// Up to here somebody processed everything at some time.
    ever: i64,
    /// Up to here everything was processed since the last rewind, or lies before it.
    processed: i64,
    history: VecDeque<String>,
    forgotten: usize,
    violation: Option<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Judge {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            started: Instant::now(),
            moment: 0,
            lives: Vec::new(),
            ownerships: BTreeMap::new(),
            current: None,
            holder: None,
            holder_since: 0,
            vanished: 0,
            last_owner: None,
            tenures: 0,
            adopted_tenure: 0,
            stored: Vec::new(),
            adoptions: BTreeMap::new(),
            rewinds: 0,
            counting_from: 0,
            ever: -1,
            processed: -1,
            history: VecDeque::new(),
            forgotten: 0,
            violation: None,
            counts: BTreeMap::new(),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    pub fn enter(&mut self, name: String, ours: bool) -> usize {
        self.lives.push(Life { name, ours, identity: None, tenure: 0, won: 0 });
        self.lives.len() - 1
    }

    pub fn connected(&mut self, life: usize, identity: Identity) {
        self.note(life, format_args!("is incarnation {}", identity.incarnation));
        self.lives[life].identity = Some(identity);
    }

    pub fn note(&mut self, life: usize, what: impl std::fmt::Display) {
        let (at, name) = (self.started.elapsed().as_secs_f64(), &self.lives[life].name);
        self.history.push_back(format!("{at:>10.3} {name:<5} {what}"));
        if self.history.len() > SHOWN {
            self.history.pop_front();
            self.forgotten += 1;
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// The beginning of an operation: what an outcome says must have been so since.
    pub fn moment(&self) -> u64 {
        self.moment
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn history(&self) -> String {
        let shown: Vec<_> = self.history.iter().map(String::as_str).collect();
        format!("({} earlier)\n{}", self.forgotten, shown.join("\n"))
    }

    /// The stored position.
    pub fn position(&self) -> Option<i64> {
        self.stored.last().map(|stored| stored.position)
    }

    pub fn holder(&self) -> Option<usize> {
        self.holder
    }

    /// What a life of ours that adopted then, or a foreign one, processes.
    pub fn processes(&mut self, life: usize, adopted: Option<Adopted>, from: i64, to: i64) {
        self.note(life, format_args!("processes {from} to {to}"));
        self.ever = self.ever.max(to);
        let counts = adopted.is_some_and(|adopted| adopted.rewinds >= self.counting_from);
        if counts && from <= self.processed + 1 {
            self.processed = self.processed.max(to);
        }
    }

    pub fn adoption(&self, operation: u64) -> Option<Adopted> {
        self.adoptions.get(&operation).copied()
    }

    fn violated(&mut self, life: usize, what: impl std::fmt::Display) {
        self.note(life, format_args!("VIOLATES {what}"));
        self.violation.get_or_insert_with(|| format!("{} violates {what}", self.lives[life].name));
    }

    fn check(&mut self, holds: bool, life: usize, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(life, what());
        }
    }

    /// The container accepted this write of the ownership.
    pub fn ownership_written(&mut self, life: usize, etag: &ETag, metadata: &Metadata) {
        self.moment += 1;
        let holder = self.named_by(metadata);
        let now = format!("-> ownership {} is {}", etag.as_str(), self.name(holder));
        self.note(life, now);
        let version = Ownership { holder, written: Instant::now(), since: self.moment, replaced: None };
        let abandoned = self.is_abandoned();
        self.replace_current(Some(etag.as_str().to_owned()));
        self.ownerships.insert(etag.as_str().to_owned(), version);
        // A rewind releases what has expired.
        let of_another = !abandoned && self.holder.is_some_and(|owner| owner != life);
        let gives_away = self.lives[life].ours && holder.is_none() && of_another;
        self.check(!gives_away, life, || "truth: it released what was not its own".to_owned());
        if holder != self.holder {
            (self.holder, self.holder_since) = (holder, self.moment);
        }
        if let Some(owner) = holder.filter(|_| holder != self.last_owner) {
            self.tenures += 1;
            self.last_owner = holder;
            self.lives[owner].tenure = self.tenures;
        }
    }

    /// Somebody deleted the ownership.
    pub fn ownership_vanished(&mut self) {
        self.moment += 1;
        self.replace_current(None);
        (self.holder, self.holder_since, self.vanished) = (None, self.moment, self.moment);
        self.count("ownership deleted");
    }

    /// Whether the ownership that stands has expired, as far as whole seconds tell.
    fn is_abandoned(&self) -> bool {
        let current = self.current.as_ref().and_then(|current| self.ownerships.get(current));
        current.is_some_and(|current| current.written.elapsed() >= EXPIRY)
    }

    fn replace_current(&mut self, by: Option<String>) {
        if let Some(last) = std::mem::replace(&mut self.current, by) {
            self.ownerships.entry(last).and_modify(|last| last.replaced = Some(self.moment));
        }
    }

    fn named_by(&self, metadata: &Metadata) -> Option<usize> {
        let owner = metadata.get("ownerid").filter(|owner| !owner.is_empty())?;
        let incarnation = metadata.get("incarnation");
        self.lives.iter().rposition(|life| match (&life.identity, incarnation) {
            (Some(known), Some(incarnation)) => {
                known.owner.as_str() == owner && known.incarnation.as_str() == incarnation
            }
            (None, None) => !life.ours && life.name == *owner,
            _ => false,
        })
    }

    fn name(&self, life: Option<usize>) -> &str {
        life.map_or("nobody's", |life| &self.lives[life].name)
    }

    /// The container accepted this write of the checkpoint.
    pub fn checkpoint_written(&mut self, life: usize, intent: Option<Intent>, etag: &ETag, metadata: &Metadata) {
        self.moment += 1;
        let position: i64 = metadata["sequencenumber"].parse().unwrap();
        self.note(life, format_args!("-> checkpoint {} is {position}", etag.as_str()));
        let before = self.position().unwrap_or(-1);
        match intent.filter(|_| self.lives[life].ours) {
            None => self.foreign_checkpoint(life, position),
            Some(Intent { purpose: Purpose::Rewind, .. }) => {
                self.rewinds += 1;
                (self.counting_from, self.processed) = (self.rewinds, position);
            }
            Some(Intent { purpose: Purpose::Adopt, operation, .. }) => {
                let adopted = Adopted { tenure: self.lives[life].tenure, rewinds: self.rewinds };
                self.our_checkpoint(life, "adoption", adopted.tenure, before, position);
                self.adopted_tenure = self.adopted_tenure.max(adopted.tenure);
                self.adoptions.insert(operation, adopted);
            }
            Some(Intent { adopted, .. }) => {
                self.our_checkpoint(life, "checkpoint", adopted.tenure, before, position);
            }
        }
        if let Some(last) = self.stored.last_mut() {
            last.replaced = Some(self.moment);
        }
        self.stored.push(Stored { position, replaced: None });
    }

    fn our_checkpoint(&mut self, life: usize, what: &str, tenure: u64, before: i64, position: i64) {
        let (adopted, processed, ever) = (self.adopted_tenure, self.processed, self.ever);
        self.check(tenure >= adopted, life, || {
            format!("I1: its {what} of tenure {tenure} was accepted after the adoption of tenure {adopted}")
        });
        self.check(position >= before, life, || {
            format!("I2: its {what} moves the position from {before} to {position}")
        });
        self.check(position <= processed && position <= ever, life, || {
            format!("I3: its {what} stores {position}, but only what is up to {processed} was processed")
        });
    }

    fn foreign_checkpoint(&mut self, life: usize, position: i64) {
        let ever = self.ever;
        self.check(position <= ever, life, || format!("I3: {position} is stored, but only {ever} was processed"));
        (self.counting_from, self.processed) = (0, ever);
    }

    fn was_its_own(&self, life: usize, since: u64) -> bool {
        self.holder == Some(life) && self.holder_since <= since
    }

    fn gave_up(&mut self, life: usize, since: u64, what: &str) {
        let own = self.was_its_own(life, since);
        self.check(!own, life, || format!("I4: it was told {what:?}, but the record was its own all the time"));
    }

    /// `claim`, unless it was a renewal.
    pub fn claimed(&mut self, life: usize, since: u64, claim: bool, outcome: &ClaimOutcome, store: &GroupStore) {
        match outcome {
            ClaimOutcome::Won(lease) => self.won(life, since, claim, lease, store.age_of(lease)),
            ClaimOutcome::Lost { by } => {
                self.note(life, format_args!("lost to {by:?}"));
                self.count("lost");
                self.gave_up(life, since, "lost");
            }
            ClaimOutcome::Replaced { by } => {
                self.note(life, format_args!("replaced by {by}"));
                self.count("replaced");
                self.gave_up(life, since, "replaced");
                let later = self.is_later_life(life, by);
                self.check(later, life, || format!("truth: {by} is no later life of its own"));
            }
            ClaimOutcome::Undecided(error) => self.undecided(life, error.kind()),
            other => self.violated(life, format_args!("an unknown outcome: {other:?}")),
        }
    }

    fn undecided(&mut self, life: usize, kind: ErrorKind) {
        self.note(life, format_args!("undecided: {kind:?}"));
        self.count(if kind == ErrorKind::Contended { "contended ownership" } else { "undecided" });
    }

    fn won(&mut self, life: usize, since: u64, claim: bool, lease: &Lease, age: Duration) {
        self.note(life, format_args!("won {} as tenure {}", lease.etag().as_str(), lease.tenure()));
        self.count("won");
        let Some(version) = self.ownerships.get(lease.etag().as_str()) else {
            return self.violated(life, "truth: it won a version that never was");
        };
        let its_own = version.holder == Some(life);
        let current = version.replaced.is_none_or(|replaced| replaced > since);
        let (fresh, written) = (!claim || version.since > since, version.since);
        // Where only a read showed it, the server told the age in whole seconds.
        let in_time = Instant::now() - age <= version.written + Duration::from_secs(1);
        let holder = self.name(version.holder).to_owned();
        self.lives[life].won = written;
        self.check(its_own, life, || format!("truth: it won a version that is {holder}"));
        self.check(current, life, || "truth: it won a version that had been replaced before".to_owned());
        self.check(fresh, life, || "truth: its claim was won by a record from before".to_owned());
        self.check(in_time, life, || "truth: its lease counts from after the write".to_owned());
    }

    pub fn released(&mut self, life: usize, since: u64, outcome: &ReleaseOutcome) {
        match outcome {
            ReleaseOutcome::Released => {
                self.note(life, "released");
                self.count("released");
                let own = self.was_its_own(life, since);
                self.check(!own, life, || "truth: it was told \"released\", but it is the owner".to_owned());
            }
            ReleaseOutcome::Undecided(error) => self.undecided(life, error.kind()),
            other => self.violated(life, format_args!("an unknown outcome: {other:?}")),
        }
    }

    pub fn adopted(&mut self, life: usize, operation: u64, since: u64, outcome: &Result<AdoptOutcome>) {
        match outcome {
            Ok(AdoptOutcome::Adopted(adoption)) => {
                let position = adoption.record().sequence_number;
                self.note(life, format_args!("adopted at {position:?}"));
                self.count("adopted");
                let done = self.adoptions.contains_key(&operation);
                let stored = self.was_stored(since, |stored| Some(stored) == position);
                self.check(done && stored, life, || "truth: it adopted what is not stored".to_owned());
            }
            Ok(AdoptOutcome::Lost { by }) => {
                self.note(life, format_args!("adoption lost to {by:?}"));
                self.count("adoption lost");
                self.gave_up(life, since, "lost");
            }
            Ok(other) => self.violated(life, format_args!("an unknown outcome: {other:?}")),
            Err(error) => self.failed(life, "adoption", error.kind()),
        }
    }

    fn failed(&mut self, life: usize, what: &str, kind: ErrorKind) {
        self.note(life, format_args!("{what} failed: {kind:?}"));
        self.count(if kind == ErrorKind::Contended { "contended checkpoint" } else { "failed" });
    }

    /// `again`: this store won the partition again since the adoption.
    pub fn checkpointed(
        &mut self,
        life: usize,
        since: u64,
        (position, adopted, again): (i64, Adopted, bool),
        outcome: &Result<CheckpointOutcome>,
    ) {
        match outcome {
            Ok(CheckpointOutcome::Written) => {
                self.note(life, "written");
                self.count("written");
                let stored = self.was_stored(since, |stored| stored == position);
                self.check(stored, life, || format!("truth: it was told that {position} is written"));
            }
            Ok(CheckpointOutcome::Superseded) => {
                self.note(life, "superseded");
                self.count("superseded");
                let stored = self.was_stored(since, |stored| stored >= position);
                self.check(stored, life, || format!("truth: it was told that {position} is superseded"));
            }
            Ok(CheckpointOutcome::Rewound) => {
                self.note(life, "rewound");
                self.count("rewound");
                let rewinds = self.rewinds;
                self.check(adopted.rewinds < rewinds, life, || "truth: there was no rewind".to_owned());
            }
            Ok(CheckpointOutcome::Fenced { by }) => self.fenced(life, since, by.as_ref(), again),
            Ok(other) => self.violated(life, format_args!("an unknown outcome: {other:?}")),
            Err(error) => self.failed(life, "checkpoint", error.kind()),
        }
    }

    fn fenced(&mut self, life: usize, since: u64, by: Option<&OwnerId>, again: bool) {
        self.note(life, format_args!("fenced by {by:?}"));
        self.count("fenced");
        if !(self.is(life, by) && (again || self.vanished_lately(life))) {
            self.gave_up(life, since, "fenced");
        }
    }

    fn is(&self, life: usize, owner: Option<&OwnerId>) -> bool {
        self.lives[life].identity.as_ref().map(|me| &me.owner) == owner
    }

    fn is_later_life(&self, life: usize, incarnation: &Incarnation) -> bool {
        let Some(me) = &self.lives[life].identity else { return false };
        let others = self.lives.iter().filter_map(|other| other.identity.as_ref());
        others.filter(|other| other.owner == me.owner).any(|other| other.incarnation == *incarnation)
            && *incarnation > me.incarnation
    }

    /// Then it may have written the record again without knowing, as another tenure.
    fn vanished_lately(&self, life: usize) -> bool {
        self.vanished > self.lives[life].won
    }

    fn was_stored(&self, since: u64, position: impl Fn(i64) -> bool) -> bool {
        let lately = self.stored.iter().rev().take_while(|stored| stored.replaced.is_none_or(|end| end > since));
        lately.into_iter().any(|stored| position(stored.position))
    }
}
