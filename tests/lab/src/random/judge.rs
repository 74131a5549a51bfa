//! Sees every write that the container accepts and every outcome that an owner gets, and checks the invariants.
//!
//! - The rules of [`history`], for accepted writes and for losses that owners detect. A foreign owner adopts nothing.
//! - Truth: every outcome was true at some moment of the operation. So two owners never hold a win of the current
//!   record.
//!
//! The driver checks I5, progress.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use eventhubs_checkpoint::blob::{ETag, Metadata};
use eventhubs_checkpoint::store::{AdoptOutcome, CheckpointOutcome, ClaimOutcome, GroupStore, Lease, ReleaseOutcome};
use eventhubs_checkpoint::{ErrorKind, Identity, Incarnation, OwnerId, Result};
use tokio::time::Instant;

use crate::history::{self, Epochs, Moment, Partition, Verdict};

/// How many lines of the history are shown with a violation.
const SHOWN: usize = 80;

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Own,
    Adopt,
    Checkpoint,
}

/// The operation of a request, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    pub operation: u64,
    pub purpose: Purpose,
    /// Of a checkpoint: its adoption.
    pub adopted: Adopted,
}

/// When a partition was adopted, in the terms of the judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Counts the ownerships one after another.
    pub ownership: u64,
    /// When the write of the adoption was accepted.
    pub since: Moment,
}

/// One incarnation of an owner, or a foreign owner.
#[derive(Debug)]
struct OwnerIncarnation {
    name: String,
    is_crate_owner: bool,
    identity: Option<Identity>,
    /// When the version that it won last was written.
    won: Moment,
}

/// A version of the ownership.
#[derive(Debug)]
struct Ownership {
    holder: Option<usize>,
    written: Instant,
    since: Moment,
    replaced: Option<Moment>,
}

/// A version of the checkpoint.
#[derive(Debug)]
struct Stored {
    position: i64,
    replaced: Option<Moment>,
}

#[derive(Clone)]
pub struct Judge(Arc<Mutex<State>>);

pub struct State {
    started: Instant,
    incarnations: Vec<OwnerIncarnation>,
    partition: Partition<usize>,
    epochs: Epochs,
    ownerships: BTreeMap<String, Ownership>,
    current: Option<String>,
    deleted: Moment,
    stored: Vec<Stored>,
    adoptions: BTreeMap<u64, Adopted>,
    history: VecDeque<String>,
    forgotten: usize,
    violation: Option<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Judge {
    pub fn new() -> Self {
        // The run tracks what is published; here no checkpoint is beyond the end.
        let mut partition = Partition::default();
        partition.published(i64::MAX);
        Self(Arc::new(Mutex::new(State {
            started: Instant::now(),
            incarnations: Vec::new(),
            partition,
            epochs: Epochs::default(),
            ownerships: BTreeMap::new(),
            current: None,
            deleted: 0,
            stored: Vec::new(),
            adoptions: BTreeMap::new(),
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
    pub fn enter(&mut self, name: String, is_crate_owner: bool) -> usize {
        self.incarnations.push(OwnerIncarnation { name, is_crate_owner, identity: None, won: 0 });
        self.incarnations.len() - 1
    }

    pub fn connected(&mut self, incarnation: usize, identity: Identity) {
        self.note(incarnation, format_args!("is incarnation {}", identity.incarnation));
        self.incarnations[incarnation].identity = Some(identity);
    }

    pub fn note(&mut self, incarnation: usize, what: impl std::fmt::Display) {
        let (at, name) = (self.started.elapsed().as_secs_f64(), &self.incarnations[incarnation].name);
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

    /// Returns the beginning of an operation: its outcome must have been true at some moment since.
    pub fn moment(&self) -> Moment {
        self.partition.moment()
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn history(&self) -> String {
        let shown: Vec<_> = self.history.iter().map(String::as_str).collect();
        format!("({} earlier)\n{}", self.forgotten, shown.join("\n"))
    }

    /// Returns the stored position.
    pub fn position(&self) -> Option<i64> {
        self.partition.stored()
    }

    pub fn holder(&self) -> Option<usize> {
        self.partition.owner().copied()
    }

    /// An incarnation of this crate that adopted then, in the ownership with this epoch, or a foreign owner, processes
    /// these events.
    pub fn processes(&mut self, incarnation: usize, adopted: Option<(Adopted, i64)>, from: i64, to: i64) {
        self.note(incarnation, format_args!("processes {from} to {to}"));
        if let Some((_, epoch)) = adopted {
            let verdict = self.epochs.processes(epoch);
            self.judged(incarnation, verdict);
        }
        self.partition.processed(adopted.map(|(adopted, _)| adopted.since), from, to);
    }

    pub fn adoption(&self, operation: u64) -> Option<Adopted> {
        self.adoptions.get(&operation).copied()
    }

    fn violated(&mut self, incarnation: usize, what: impl std::fmt::Display) {
        self.note(incarnation, format_args!("VIOLATES {what}"));
        self.violation.get_or_insert_with(|| format!("{} violates {what}", self.incarnations[incarnation].name));
    }

    fn check(&mut self, holds: bool, incarnation: usize, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(incarnation, what());
        }
    }

    fn judged(&mut self, incarnation: usize, verdict: Verdict) {
        if let Some(breach) = verdict.breach {
            self.violated(incarnation, format_args!("{:?}: it {breach}", verdict.rule));
        }
    }

    /// The container accepted this write of the ownership.
    pub fn ownership_written(&mut self, incarnation: usize, etag: &ETag, metadata: &Metadata) {
        let holder = self.owner_in_record(metadata);
        let now = format!("-> ownership {} is {}", etag.as_str(), self.name(holder));
        self.note(incarnation, now);
        let epoch = metadata.get("ehcepoch").map(|epoch| epoch.parse().unwrap());
        self.epochs.written(epoch);
        let change = self.partition.owned_by(holder);
        let since = self.moment();
        let version = Ownership { holder, written: Instant::now(), since, replaced: None };
        self.replace_current(Some(etag.as_str().to_owned()));
        self.ownerships.insert(etag.as_str().to_owned(), version);
        let of_another = change.before.is_some_and(|owner| owner != incarnation);
        let gives_away = self.incarnations[incarnation].is_crate_owner && holder.is_none() && of_another;
        self.check(!gives_away, incarnation, || "truth: it released a partition that it did not own".to_owned());
    }

    /// The ownership was deleted.
    pub fn ownership_deleted(&mut self) {
        self.partition.owned_by(None);
        self.epochs.deleted();
        self.deleted = self.moment();
        self.replace_current(None);
        self.count("ownership deleted");
    }

    fn replace_current(&mut self, by: Option<String>) {
        let now = self.moment();
        if let Some(last) = std::mem::replace(&mut self.current, by) {
            self.ownerships.entry(last).and_modify(|last| last.replaced = Some(now));
        }
    }

    fn owner_in_record(&self, metadata: &Metadata) -> Option<usize> {
        let owner = metadata.get("ownerid").filter(|owner| !owner.is_empty())?;
        let id = metadata.get("ehcincarnation");
        self.incarnations.iter().rposition(|incarnation| match (&incarnation.identity, id) {
            (Some(known), Some(id)) => known.owner.as_str() == owner && known.incarnation.as_str() == id,
            (None, None) => !incarnation.is_crate_owner && incarnation.name == *owner,
            _ => false,
        })
    }

    fn name(&self, incarnation: Option<usize>) -> &str {
        incarnation.map_or("no owner's", |incarnation| &self.incarnations[incarnation].name)
    }

    /// The container accepted this write of the checkpoint.
    pub fn checkpoint_written(&mut self, incarnation: usize, intent: Option<Intent>, etag: &ETag, metadata: &Metadata) {
        let position: i64 = metadata["sequencenumber"].parse().unwrap();
        self.note(incarnation, format_args!("-> checkpoint {} is {position}", etag.as_str()));
        let purpose = match intent.filter(|_| self.incarnations[incarnation].is_crate_owner) {
            None => self.foreign_checkpoint(incarnation, position),
            Some(Intent { purpose: Purpose::Adopt, .. }) => self.adoption_written(incarnation),
            Some(Intent { adopted, .. }) => history::Purpose::Progress { ownership: Some(adopted.ownership) },
        };
        for verdict in self.partition.checkpointed(&incarnation, purpose, position) {
            self.judged(incarnation, verdict);
        }
        let since = self.moment();
        if let (history::Purpose::Adoption, Some(intent)) = (purpose, intent) {
            let ownership = self.partition.ownership_of(&incarnation).unwrap_or_default();
            self.adoptions.insert(intent.operation, Adopted { ownership, since });
        }
        if let Some(last) = self.stored.last_mut() {
            last.replaced = Some(since);
        }
        self.stored.push(Stored { position, replaced: None });
    }

    fn must_be_processed(&mut self, incarnation: usize, position: i64) {
        let ever = self.partition.ever_processed_up_to();
        self.check(position <= ever, incarnation, || {
            format!("I3: {position} is stored, but only {ever} was processed")
        });
    }

    /// No initial checkpoint is written here: the writer of an adoption has owned the partition.
    fn adoption_written(&mut self, incarnation: usize) -> history::Purpose {
        let has_owned = self.partition.ownership_of(&incarnation).is_some();
        self.check(has_owned, incarnation, || "truth: it adopted a partition that it never owned".to_owned());
        history::Purpose::Adoption
    }

    /// A foreign owner starts at the checkpoint, so every event up to the position that it stores is processed.
    fn foreign_checkpoint(&mut self, incarnation: usize, position: i64) -> history::Purpose {
        self.must_be_processed(incarnation, position);
        history::Purpose::Foreign
    }

    fn gave_up(&mut self, incarnation: usize, since: Moment, what: &str) {
        self.note(incarnation, format_args!("gives up: {what}"));
        self.judged(incarnation, self.partition.lost_by(&incarnation, since));
    }

    /// `claim`: whether it was a claim, not a renewal.
    pub fn claimed(
        &mut self,
        incarnation: usize,
        since: Moment,
        claim: bool,
        outcome: &ClaimOutcome,
        store: &GroupStore,
    ) {
        match outcome {
            ClaimOutcome::Won(lease) => self.won(incarnation, since, claim, lease, store.lease_age(lease)),
            ClaimOutcome::Lost { by } => {
                self.note(incarnation, format_args!("lost to {by:?}"));
                self.count("lost");
                self.gave_up(incarnation, since, "lost");
            }
            ClaimOutcome::Replaced { by } => {
                self.note(incarnation, format_args!("replaced by {by}"));
                self.count("replaced");
                self.gave_up(incarnation, since, "replaced");
                let later = self.is_later_incarnation(incarnation, by);
                self.check(later, incarnation, || format!("truth: {by} is not a later incarnation of its own"));
            }
            ClaimOutcome::Indeterminate(error) => self.undecided(incarnation, error.kind()),
            other => self.violated(incarnation, format_args!("an unexpected outcome: {other:?}")),
        }
    }

    fn undecided(&mut self, incarnation: usize, kind: ErrorKind) {
        self.note(incarnation, format_args!("indeterminate: {kind:?}"));
        self.count(if kind == ErrorKind::Contended { "contended ownership" } else { "indeterminate" });
    }

    fn won(&mut self, incarnation: usize, since: Moment, claim: bool, lease: &Lease, age: Duration) {
        self.note(incarnation, format_args!("won {} with epoch {}", lease.etag().as_str(), lease.epoch()));
        self.count("won");
        let Some(version) = self.ownerships.get(lease.etag().as_str()) else {
            return self.violated(incarnation, "truth: it won a version that never existed");
        };
        let its_own = version.holder == Some(incarnation);
        let current = version.replaced.is_none_or(|replaced| replaced > since);
        let (fresh, written) = (!claim || version.since > since, version.since);
        // If only a read revealed the outcome, the age came from the server in whole seconds.
        let in_time = Instant::now() - age <= version.written + Duration::from_secs(1);
        let holder = self.name(version.holder).to_owned();
        self.incarnations[incarnation].won = written;
        self.check(its_own, incarnation, || format!("truth: it won a version that is {holder}"));
        self.check(current, incarnation, || "truth: it won a version that had been replaced before".to_owned());
        self.check(fresh, incarnation, || "truth: its claim was won by an earlier record".to_owned());
        self.check(in_time, incarnation, || "truth: its lease counts from after the write".to_owned());
    }

    pub fn released(&mut self, incarnation: usize, since: Moment, outcome: &ReleaseOutcome) {
        match outcome {
            ReleaseOutcome::Released | ReleaseOutcome::Lost { .. } => {
                self.note(incarnation, "released");
                self.count("released");
                let still_owns = self.partition.lost_by(&incarnation, since).breach.is_some();
                self.check(!still_owns, incarnation, || {
                    "truth: its release is confirmed, but it is the owner".to_owned()
                });
            }
            ReleaseOutcome::Indeterminate(error) => self.undecided(incarnation, error.kind()),
            other => self.violated(incarnation, format_args!("an unexpected outcome: {other:?}")),
        }
    }

    /// `again`: this store may have won the partition again since the ownership that adopts.
    pub fn adopted(
        &mut self,
        incarnation: usize,
        since: Moment,
        (operation, again): (u64, bool),
        outcome: &Result<AdoptOutcome>,
    ) {
        match outcome {
            Ok(AdoptOutcome::Adopted(adoption)) => {
                let position = adoption.record().sequence_number;
                self.note(incarnation, format_args!("adopted at {position:?}"));
                self.count("adopted");
                let done = self.adoptions.contains_key(&operation);
                let stored = self.was_stored(since, |stored| Some(stored) == position);
                self.check(done && stored, incarnation, || {
                    "truth: it adopted a position that is not stored".to_owned()
                });
            }
            Ok(AdoptOutcome::Lost { by }) => {
                self.note(incarnation, format_args!("adoption lost to {by:?}"));
                self.count("adoption lost");
                self.gave_up_to(incarnation, since, by.as_ref(), again);
            }
            Ok(other) => self.violated(incarnation, format_args!("an unexpected outcome: {other:?}")),
            Err(error) => self.failed(incarnation, "adoption", error.kind()),
        }
    }

    fn failed(&mut self, incarnation: usize, what: &str, kind: ErrorKind) {
        self.note(incarnation, format_args!("{what} failed: {kind:?}"));
        self.count(if kind == ErrorKind::Contended { "contended checkpoint" } else { "failed" });
    }

    /// `again`: this store won the partition again since the adoption.
    pub fn checkpointed(
        &mut self,
        incarnation: usize,
        since: Moment,
        (position, again): (i64, bool),
        outcome: &Result<CheckpointOutcome>,
    ) {
        match outcome {
            Ok(CheckpointOutcome::Written) => {
                self.note(incarnation, "written");
                self.count("written");
                let stored = self.was_stored(since, |stored| stored == position);
                self.check(stored, incarnation, || format!("truth: the outcome was that {position} is written"));
            }
            Ok(CheckpointOutcome::Superseded) => {
                self.note(incarnation, "superseded");
                self.count("superseded");
                let stored = self.was_stored(since, |stored| stored >= position);
                self.check(stored, incarnation, || format!("truth: the outcome was that {position} is superseded"));
            }
            Ok(CheckpointOutcome::Fenced { by }) => self.fenced(incarnation, since, by.as_ref(), again),
            Ok(other) => self.violated(incarnation, format_args!("an unexpected outcome: {other:?}")),
            Err(error) => self.failed(incarnation, "checkpoint", error.kind()),
        }
    }

    fn fenced(&mut self, incarnation: usize, since: Moment, by: Option<&OwnerId>, again: bool) {
        self.note(incarnation, format_args!("fenced by {by:?}"));
        self.count("fenced");
        self.gave_up_to(incarnation, since, by, again);
    }

    /// Unless the owner is the same, in another ownership.
    fn gave_up_to(&mut self, incarnation: usize, since: Moment, by: Option<&OwnerId>, again: bool) {
        if !(self.is(incarnation, by) && (again || self.recently_deleted(incarnation))) {
            self.gave_up(incarnation, since, "lost");
        }
    }

    fn is(&self, incarnation: usize, owner: Option<&OwnerId>) -> bool {
        self.incarnations[incarnation].identity.as_ref().map(|identity| &identity.owner) == owner
    }

    fn is_later_incarnation(&self, incarnation: usize, by: &Incarnation) -> bool {
        let Some(this) = &self.incarnations[incarnation].identity else { return false };
        let others = self.incarnations.iter().filter_map(|other| other.identity.as_ref());
        others.filter(|other| other.owner == this.owner).any(|other| other.incarnation == *by) && *by > this.incarnation
    }

    /// In that case it may have written the record again unknowingly, as another ownership.
    fn recently_deleted(&self, incarnation: usize) -> bool {
        self.deleted > self.incarnations[incarnation].won
    }

    fn was_stored(&self, since: Moment, position: impl Fn(i64) -> bool) -> bool {
        let lately = self.stored.iter().rev().take_while(|stored| stored.replaced.is_none_or(|end| end > since));
        lately.into_iter().any(|stored| position(stored.position))
    }
}
