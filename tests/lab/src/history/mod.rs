//! The observed history of a partition, and the rules that every history must keep.
//!
//! A history takes accepted writes, starts and calls of handlers, and changes of the hub, in the order in which they
//! happened. It never asks an instance for its state. The simulation, the chaos runs and the process tests check their
//! histories with this one implementation:
//!
//! | [`Rule`] | holds when |
//! |---|---|
//! | `Fenced` | once a checkpoint of an ownership is accepted, none of an earlier ownership is |
//! | `CheckpointMonotonic` | no owner of this crate moves a checkpoint back, except to replace an unusable one |
//! | `NothingSkipped` | no checkpoint passes an event that was not processed since the last reset |
//! | `NothingLost` | every event that the hub still has is processed |
//! | `NoSpuriousLoss` | an owner detects the loss of a partition only if the record named another owner, or none, meanwhile, or has a later epoch |
//! | `Continuous` | from one start of a handler to its stop each event comes once and in order |
//! | `EpochGrows` | of two ownerships that processed events, the later one has the greater epoch |

mod delivery;
mod epochs;
mod progress;

use std::collections::BTreeMap;

pub use delivery::Delivery;
pub use epochs::Epochs;
use progress::Progress;

/// What must hold of every history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the table of the module")]
pub enum Rule {
    Fenced,
    CheckpointMonotonic,
    NothingSkipped,
    NothingLost,
    NoSpuriousLoss,
    Continuous,
    EpochGrows,
}

/// The result of a check of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule.
    pub rule: Rule,
    /// How it was broken: the predicate of a sentence whose subject is the instance.
    pub breach: Option<String>,
}

impl Verdict {
    fn new(rule: Rule, holds: bool, breach: impl FnOnce() -> String) -> Self {
        Self { rule, breach: (!holds).then(breach) }
    }
}

/// A moment of one partition's history.
pub type Moment = u64;

/// Why a checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// By an owner of another SDK: without a condition, so it may undo anything.
    Foreign,
    /// To adopt the partition in the writer's current ownership, or to write the initial checkpoint of a partition.
    Adoption,
    /// Events were processed, by a handler that started in this ownership.
    Progress {
        /// `None` if the writer never adopted the partition.
        ownership: Option<u64>,
    },
    /// The owner resets the checkpoint.
    Reset {
        /// The writer is an operator, which may choose any position.
        by_operator: bool,
        /// The events up to the position are skipped intentionally.
        may_skip: bool,
    },
}

/// What a write changed about the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerChange<L> {
    /// The owner that the record named before.
    pub before: Option<L>,
    /// Whether it names another owner now.
    pub changed: bool,
    /// Whether a new ownership began.
    pub begins: bool,
}

/// One partition. `L` identifies an instance: a process, from its start to its end.
#[derive(Clone, Debug)]
pub struct Partition<L> {
    moment: Moment,
    owner: Option<L>,
    owner_since: Moment,
    latest_owner: Option<L>,
    ownership_count: u64,
    ownership_of: BTreeMap<L, u64>,
    adoption_of: BTreeMap<L, u64>,
    /// The latest ownership in which a checkpoint was accepted.
    adopted: u64,
    stored: Option<i64>,
    reset_at: Moment,
    /// The checkpoint is of a hub that was deleted.
    stale: bool,
    /// An owner of another SDK wrote it, in a way in which its events need not be found again.
    excused: bool,
    oldest: i64,
    end: i64,
    since_reset: Progress,
    ever: Progress,
}

impl<L> Default for Partition<L> {
    fn default() -> Self {
        Self {
            moment: 0,
            owner: None,
            owner_since: 0,
            latest_owner: None,
            ownership_count: 0,
            ownership_of: BTreeMap::new(),
            adoption_of: BTreeMap::new(),
            adopted: 0,
            stored: None,
            reset_at: 0,
            stale: false,
            excused: false,
            oldest: 0,
            end: 0,
            since_reset: Progress::up_to(-1),
            ever: Progress::up_to(-1),
        }
    }
}

/// The hub.
impl<L> Partition<L> {
    /// Returns the sequence number of the oldest event of the hub.
    pub fn oldest(&self) -> i64 {
        self.oldest
    }

    /// Returns the sequence number that the next event gets.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Returns whether the checkpoint is of a deleted hub.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// The checkpoint shows another hub than the one that holds the events. Its owner may replace it, even if it
    /// happens to be right.
    pub fn shows_another_hub(&mut self) {
        self.stale = true;
    }

    /// Events were published, up to this one exclusively.
    pub fn published(&mut self, end: i64) {
        self.end = end;
    }

    /// The checkpoint is unrelated to the events that the hub has, and nobody can see that: the events up to it may
    /// stay unprocessed.
    pub fn set_stale(&mut self) {
        (self.stale, self.excused) = (true, true);
    }

    /// Retention removed the events before this one.
    pub fn expired(&mut self, oldest: i64) {
        self.oldest = self.oldest.max(oldest);
        self.leave_out(oldest - 1);
    }

    /// The events up to this one need not be processed: the group starts after them.
    pub fn leave_out(&mut self, last: i64) {
        self.since_reset.raise(last);
        self.ever.raise(last);
    }

    /// The hub was recreated, without events. An owner of this crate must find that the checkpoint is of
    /// the deleted hub, whatever the new one holds.
    pub fn recreated(&mut self) {
        (self.stale, self.excused) = (self.stale || self.end > 0, false);
        (self.oldest, self.end) = (0, 0);
        (self.ever, self.since_reset) = (Progress::up_to(-1), Progress::up_to(-1));
    }
}

/// The ownership.
impl<L: Clone + Ord> Partition<L> {
    /// Returns the owner that the record names.
    pub fn owner(&self) -> Option<&L> {
        self.owner.as_ref()
    }

    /// Returns how often the partition got a different owner.
    pub fn ownership_count(&self) -> u64 {
        self.ownership_count
    }

    /// Returns the latest ownership of this instance.
    pub fn ownership_of(&self, instance: &L) -> Option<u64> {
        self.ownership_of.get(instance).copied()
    }

    /// Returns the ownership in which this instance last adopted the partition.
    pub fn adoption_of(&self, instance: &L) -> Option<u64> {
        self.adoption_of.get(instance).copied()
    }

    /// A write was accepted, or the record was deleted; it names this owner from now on.
    pub fn owned_by(&mut self, owner: Option<L>) -> OwnerChange<L> {
        self.moment += 1;
        let before = self.owner.clone();
        let changed = owner != before;
        if changed {
            (self.owner, self.owner_since) = (owner.clone(), self.moment);
        }
        let begins = owner.is_some() && owner != self.latest_owner;
        if let Some(owner) = owner.filter(|_| begins) {
            self.ownership_count += 1;
            self.ownership_of.insert(owner.clone(), self.ownership_count);
            self.latest_owner = Some(owner);
        }
        OwnerChange { before, changed, begins }
    }

    /// The instance detected that it lost the partition, which it owned at this moment.
    pub fn lost_by(&self, instance: &L, since: Moment) -> Verdict {
        let kept = self.owner.as_ref() == Some(instance) && self.owner_since <= since;
        Verdict::new(Rule::NoSpuriousLoss, !kept, || "lost a partition that was its own all the time".to_owned())
    }
}

/// The processed events.
impl<L> Partition<L> {
    /// Returns the current moment.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// A handler starts.
    pub fn started(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    /// A handler that started at `since` has processed these events. `None` if the start is irrelevant: the events then
    /// do not count for a checkpoint. Returns how many of them had been processed before.
    pub fn processed(&mut self, since: Option<Moment>, first: i64, last: i64) -> u64 {
        let before = self.ever.count(first, last);
        self.ever.add(first, last);
        if since.is_some_and(|since| since >= self.reset_at) {
            self.since_reset.add(first, last);
        }
        before
    }

    /// Returns the last event up to which all events have been processed since the last reset.
    pub fn processed_up_to(&self) -> i64 {
        self.since_reset.prefix().max(self.oldest - 1)
    }

    /// Returns the last event up to which all events were processed at any time, regardless of resets.
    pub fn ever_processed_up_to(&self) -> i64 {
        self.ever.prefix()
    }

    /// Returns the events of the hub that no handler processed, as pairs of first and last.
    pub fn unprocessed(&self) -> Vec<(i64, i64)> {
        self.since_reset.gaps(self.oldest, self.end - 1)
    }

    /// Checks at the end that no event was lost.
    pub fn lost(&self) -> Verdict {
        let lost = if self.stale && self.excused { Vec::new() } else { self.unprocessed() };
        Verdict::new(Rule::NothingLost, lost.is_empty(), || {
            let lost: Vec<_> = lost.iter().map(|(first, last)| format!("{first} to {last}")).collect();
            format!("never processed {}", lost.join(", "))
        })
    }
}

/// The checkpoint.
impl<L: Clone + Ord> Partition<L> {
    /// Returns the stored position.
    pub fn stored(&self) -> Option<i64> {
        self.stored
    }

    /// A checkpoint was accepted.
    pub fn checkpointed(&mut self, by: &L, purpose: Purpose, position: i64) -> Vec<Verdict> {
        self.moment += 1;
        let verdicts = match purpose {
            Purpose::Foreign => self.overwritten(position),
            Purpose::Adoption => self.adopted(by, position),
            Purpose::Progress { ownership } => self.advanced(ownership, position),
            Purpose::Reset { by_operator, may_skip } => self.reset(by, by_operator, may_skip, position),
        };
        self.stored = Some(position);
        verdicts
    }

    /// Checks that every event up to this position was processed.
    pub fn skipped(&self, position: i64) -> Verdict {
        let done = self.processed_up_to();
        Verdict::new(Rule::NothingSkipped, position <= done, || {
            format!("wrote checkpoint {position}, but only {done} is processed")
        })
    }

    fn overwritten(&mut self, position: i64) -> Vec<Verdict> {
        (self.since_reset, self.reset_at) = (self.ever.clone(), 0);
        let beyond_end = position >= self.end;
        (self.stale, self.excused) = (self.stale || beyond_end, self.excused || beyond_end);
        Vec::new()
    }

    /// An instance that never owned the partition writes the initial checkpoint for others.
    fn adopted(&mut self, by: &L, position: i64) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        if let Some(ownership) = self.ownership_of(by) {
            verdicts.push(self.fenced(Some(ownership), position));
            self.adopted = self.adopted.max(ownership);
            self.adoption_of.insert(by.clone(), ownership);
        }
        verdicts.push(self.went_back(position));
        verdicts.extend(self.passed(position));
        verdicts
    }

    fn advanced(&mut self, ownership: Option<u64>, position: i64) -> Vec<Verdict> {
        let mut verdicts = vec![self.fenced(ownership, position), self.went_back(position)];
        verdicts.extend(self.passed(position));
        self.adopted = self.adopted.max(ownership.unwrap_or_default());
        verdicts
    }

    fn reset(&mut self, by: &L, by_operator: bool, may_skip: bool, position: i64) -> Vec<Verdict> {
        let ownership = self.ownership_of(by);
        let mut verdicts = vec![self.fenced(ownership, position)];
        self.adopted = self.adopted.max(ownership.unwrap_or_default());
        let is_back = self.stored.is_some_and(|stored| position < stored);
        if is_back {
            let unusable = self.stale || self.stored.is_some_and(|stored| stored >= self.end);
            verdicts.push(Verdict::new(Rule::CheckpointMonotonic, by_operator || unusable, || {
                format!("moved the checkpoint back from {:?} to {position}, although it was usable", self.stored)
            }));
        } else if !by_operator && !may_skip {
            verdicts.extend(self.proved(position));
        }
        if by_operator || may_skip {
            self.ever.raise(position);
        }
        (self.stale, self.reset_at) = (position >= self.end, self.moment);
        self.since_reset = Progress::up_to(position.max(self.oldest - 1));
        verdicts
    }

    fn fenced(&self, ownership: Option<u64>, position: i64) -> Verdict {
        let latest = self.adopted;
        Verdict::new(Rule::Fenced, ownership.is_some_and(|ownership| ownership >= latest), || match ownership {
            Some(ownership) => format!(
                "wrote checkpoint {position} in ownership {ownership}, after ownership \
                {latest} had"
            ),
            None => format!("wrote checkpoint {position} without an ownership"),
        })
    }

    fn went_back(&self, position: i64) -> Verdict {
        let before = self.stored.unwrap_or(-1);
        Verdict::new(Rule::CheckpointMonotonic, position >= before, || {
            format!("moved the checkpoint from {before} back to {position}")
        })
    }

    /// A position that is already stored was checked when it was first written.
    fn passed(&mut self, position: i64) -> Option<Verdict> {
        if self.stored == Some(position) { None } else { self.proved(position) }
    }

    /// The first checkpoint that passes events of the new hub ends the exemption of the deleted one.
    fn proved(&mut self, position: i64) -> Option<Verdict> {
        self.stale &= position > self.processed_up_to();
        (!self.stale).then(|| self.skipped(position))
    }
}

/// Positions by partition, as a listing shows them.
pub type Positions = BTreeMap<String, i64>;

/// Compares a listing with an earlier one: checkpoints neither move back nor disappear.
#[must_use]
pub fn listed(before: &Positions, now: &Positions) -> Vec<Verdict> {
    let verdicts = before.iter().map(|(partition, before)| {
        let now = now.get(partition);
        Verdict::new(Rule::CheckpointMonotonic, now >= Some(before), || {
            format!("moved the checkpoint of partition {partition} from {before} to {now:?}")
        })
    });
    verdicts.collect()
}

#[cfg(test)]
mod tests;
