//! Observes what the container accepts and what handlers do, and nothing else.

mod checkpoints;
mod handlers;
mod hub;
mod incarnations;
mod ownerships;
mod reporter;
mod resets;
mod restraint;
#[cfg(test)]
mod tests;
mod timeline;
mod unowned_time;
mod unread_time;
mod verdicts;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use self::incarnations::IncarnationState;
pub(super) use self::incarnations::NewIncarnation;
pub use self::reporter::{BatchInProgress, Reporter};
pub(super) use self::resets::Wanted;
pub use self::timeline::{TimelineEntry, TimelineEvent};
use self::unowned_time::Watch;
pub(super) use self::unread_time::Slowdown;
use super::bounds::Bounds;
use super::invariant::{Invariant, Violation};
use super::plan::{Plan, Role, StartAt};
use crate::explored::{Actor, PartitionRecords, Step, is_known};
use crate::history::{self, Verdict};
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::lock::lock;

/// How many lines of the history are kept.
const KEPT: usize = 120;

/// The body of the events of the first hub.
const FIRST_GENERATION: &str = "0";

/// Observes everything. Clones share the same state.
#[derive(Clone)]
pub(super) struct Observer(Arc<Mutex<State>>);

/// A kind of storage request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    List,
    Get,
    Write,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct State {
    started: Instant,
    /// Of the slowest instance.
    bounds: Bounds,
    longest_expiry: Duration,
    /// Instances request handoffs from live owners.
    handoff: bool,
    strict: bool,
    latest: bool,
    /// Events up to this one are skipped in a partition without a checkpoint.
    starts_after: i64,
    invalid_to_latest: bool,
    /// Partitions are shared by load, and not by number.
    by_load: bool,
    founders: u32,
    /// Owners of other SDKs take part.
    mixed: bool,
    /// A handler of this crate has started.
    has_begun: bool,
    /// The body of the events of the current hub.
    generation: String,
    /// When that hub was created, if it was recreated.
    recreated_at: Option<OffsetDateTime>,
    /// Counts the observations.
    moment: u64,
    hash: Fnv,
    incarnations: Vec<IncarnationState>,
    partitions: Vec<Partition>,
    watches: Vec<Watch>,
    /// When the last fault or the last planned change occurred.
    disturbed_at: Instant,
    /// A storage fault or a freeze is in progress.
    disrupted: bool,
    /// By how much the current faults slow the group down; `None`: nothing is promised while they last.
    slowdown: Option<Slowdown>,
    /// The clock of the storage, as an operator last saw it.
    clock: (Instant, OffsetDateTime),
    /// Since when no handler reads these partitions.
    unread_since: BTreeMap<usize, Instant>,
    /// The owners of all partitions when an operator began in a settled group: each partition must go back to its
    /// owner.
    owners_before_reset: Option<Vec<Option<usize>>>,
    verbose: bool,
    history: VecDeque<String>,
    pub(super) checked: BTreeMap<Invariant, u64>,
    pub(super) violations: Vec<Violation>,
    pub(super) timeline: Vec<TimelineEntry>,
    pub(super) totals: Totals,
}

/// Counters in addition to the invariants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) published: u64,
    pub(super) handled: u64,
    pub(super) repeated: u64,
    pub(super) moves: u64,
    pub(super) unowned_time: Duration,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

/// The observed state of a partition.
struct Partition {
    /// By the index of an incarnation.
    history: history::Partition<usize>,
    epochs: history::Epochs,
    records: PartitionRecords<usize>,
    written: Instant,
    /// The last accepted metadata of the ownership record.
    record: Metadata,
    /// It was added to the hub while the group ran, so that the instances have to find it.
    added: bool,
    /// The stored checkpoint was written by an owner of another SDK, over a later one.
    set_back: bool,
    /// When the stored position was written, if the record does not show in which hub it was read.
    undated: Option<Instant>,
    /// The creation of the hub that the stored checkpoint shows.
    shown_creation: Option<OffsetDateTime>,
    /// The body and the number of the last event that an application with its own positions has counted.
    counted: Option<(Arc<[u8]>, i64)>,
    /// The last event at the time when the group began: a start at the latest event skips nothing after it.
    begun_at: Option<i64>,
    /// An operator has reset the checkpoint to this position, and it has not moved since.
    put_to: Option<i64>,
    /// The incarnation that adopted the partition last and whose handler has not started since. Until then it may
    /// replace an unusable checkpoint.
    adopted_by: Option<usize>,
    /// Who has requested a handoff from the current owner last.
    asked_by: Option<usize>,
    unowned_since: Option<Instant>,
    /// Until when the stored checkpoint says that the partition is paused.
    paused_until: Option<OffsetDateTime>,
}

impl Partition {
    fn is_paused(&self, now: OffsetDateTime) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    fn new() -> Self {
        Self {
            history: history::Partition::default(),
            epochs: history::Epochs::default(),
            records: PartitionRecords::default(),
            written: Instant::now(),
            record: Metadata::new(),
            added: false,
            set_back: false,
            undated: None,
            shown_creation: None,
            counted: None,
            begun_at: None,
            put_to: None,
            adopted_by: None,
            asked_by: None,
            unowned_since: Some(Instant::now()),
            paused_until: None,
        }
    }

    /// Returns the incarnation that the ownership record names.
    fn holder(&self) -> Option<usize> {
        self.history.owner().copied()
    }
}

impl Observer {
    pub(super) fn new(plan: &Plan, verbose: bool) -> Self {
        let slowest = plan.slowest_settings();
        let starts_after = match plan.settings.tuning.start {
            Some(StartAt::After(number)) => number,
            Some(StartAt::Ago(_)) | None => -1,
        };
        Self(Arc::new(Mutex::new(State {
            started: Instant::now(),
            bounds: Bounds::of(&slowest).with_foreign_clock_lag(plan.foreign_clock_lag()),
            longest_expiry: slowest.expiry,
            handoff: plan.settings.handoff,
            strict: plan.settings.strict,
            latest: plan.settings.latest,
            starts_after,
            invalid_to_latest: plan.settings.tuning.invalid_to_latest,
            by_load: plan.settings.tuning.weighted,
            founders: plan.partitions,
            mixed: plan.members.iter().any(|member| matches!(member.role, Role::Foreign(_))),
            has_begun: false,
            generation: FIRST_GENERATION.to_owned(),
            recreated_at: None,
            moment: 0,
            hash: Fnv::default(),
            incarnations: Vec::new(),
            partitions: (0..plan.partitions).map(|_| Partition::new()).collect(),
            watches: Vec::new(),
            disturbed_at: Instant::now(),
            disrupted: false,
            slowdown: Some(Slowdown::none()),
            clock: (Instant::now(), OffsetDateTime::UNIX_EPOCH),
            unread_since: BTreeMap::new(),
            owners_before_reset: None,
            verbose,
            history: VecDeque::new(),
            checked: BTreeMap::new(),
            violations: Vec::new(),
            timeline: Vec::new(),
            totals: Totals::default(),
        })))
    }

    /// The state is consistent after every statement, so a panic elsewhere while it was locked does no harm.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.0
    }

    pub(super) fn history(&self) -> Vec<String> {
        self.history.iter().cloned().collect()
    }

    pub(super) fn count(&mut self, counter: &'static str) {
        *self.totals.counts.entry(counter).or_default() += 1;
    }

    /// Adds an observation to the hash of the trace.
    fn trace(&mut self, incarnation: usize, observation: &str, partition: usize, number: i64) {
        self.moment += 1;
        let at = u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.hash.add(&at.to_le_bytes());
        self.hash.add(&incarnation.to_le_bytes());
        self.hash.add(observation.as_bytes());
        self.hash.add(&partition.to_le_bytes());
        self.hash.add(&number.to_le_bytes());
        if self.verbose {
            let name = self.name_of(incarnation);
            self.note(format!("{name:<6} {observation} {partition}: {number}"));
        }
    }

    /// Adds a line to the history that is shown if a plan fails.
    pub(super) fn note(&mut self, line: impl Into<String>) {
        if self.verbose {
            let at = self.elapsed().as_secs_f64();
            self.history.push_back(format!("{at:>10.3} {}", line.into()));
            if self.history.len() > KEPT && self.violations.is_empty() {
                self.history.pop_front();
            }
        }
    }

    pub(super) fn check(&mut self, invariant: Invariant, holds: bool, describe: impl FnOnce() -> String) {
        *self.checked.entry(invariant).or_default() += 1;
        if !holds {
            let violation = Violation { invariant, at: self.elapsed(), description: describe() };
            self.note(format!("VIOLATES {violation}"));
            self.violations.push(violation);
        }
    }

    /// Records the verdict of a history rule on this incarnation and partition.
    fn judged(&mut self, incarnation: usize, partition: usize, verdict: Verdict) {
        let name = self.name_of(incarnation);
        let holds = verdict.breach.is_none();
        self.check(verdict.rule.into(), holds, || {
            format!("{name} {} (partition {partition})", verdict.breach.unwrap_or_default())
        });
    }

    fn actor(&self, incarnation: usize) -> Actor {
        if self.is_operator(incarnation) { Actor::Operator } else { Actor::Instance }
    }

    /// Checks that the exploration contains this step.
    fn must_be_explored(&mut self, incarnation: usize, partition: usize, step: Step) {
        let name = self.name_of(incarnation);
        self.check(Invariant::Explored, is_known(step), || {
            format!("{name} does to partition {partition} what the exploration never does: {step}")
        });
    }

    pub(super) fn requested(&mut self, incarnation: usize, kind: Request) {
        let name = match kind {
            Request::List => "listings",
            Request::Get => "reads",
            Request::Write => "writes",
        };
        self.count(name);
        self.totals.requests += 1;
        if let Some(incarnation) = self.incarnations.get_mut(incarnation) {
            incarnation.requests += 1;
        }
    }

    /// The container accepted this write.
    pub(super) fn written(&mut self, incarnation: usize, name: &str, metadata: &Metadata) {
        self.heartbeat_written(name, metadata);
        let Some((kind, partition)) = record_of(name) else { return };
        if partition >= self.partitions.len() {
            return;
        }
        match kind {
            "ownership" => self.ownership_written(incarnation, partition, name, metadata),
            "checkpoint" => self.checkpoint_written(incarnation, partition, name, metadata),
            _ => {}
        }
    }
}

/// Returns the fourth segment of a blob's name, and the partition.
fn record_of(name: &str) -> Option<(&str, usize)> {
    let (rest, partition) = name.rsplit_once('/')?;
    let (_, kind) = rest.rsplit_once('/')?;
    Some((kind, partition.parse().ok()?))
}

fn index_of(partition: &PartitionId) -> usize {
    partition.as_str().parse().unwrap_or(usize::MAX)
}

/// A hash that is the same on every platform: Fowler, Noll and Vo, 1a, 64 bits.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
