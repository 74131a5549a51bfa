//! Epochs: the server's time, and scenarios in which it matters.
//!
//! Time is counted in seconds. `Date` and `Last-Modified` come from two machines, each of which shows the second or the
//! one before. Between two seconds there is room for some epochs, where the real number is a thousand.

use std::time::Duration;

use eventhubs_checkpoint::internal::rules::{next_epoch, too_young_by};

use super::clean::is_clean;
use super::needed::falls;
use super::notes::{Event, Invariant, Notes};
use super::scenario::{AB, ABC, BASE, Clock, NOTHING, Rule, Scenario};
use super::search::Aim;
use super::state::{Content, Left, State, Task};
use super::system::{Label, Model, Steps};

/// Epochs per second.
const ROOM: u8 = 8;

impl Model {
    pub(super) fn second_passes(&self, state: &State, steps: &mut Steps<'_>) {
        let Some(clock) = self.scenario.clock else { return };
        if let Some(now) = state.now.filter(|now| *now < clock.end) {
            let label = Label { actor: "the server", what: "shows the next second", position: None, response: None };
            steps.push(label, State { now: Some(now + 1), ..*state }, false, Notes::default());
        }
    }

    /// Returns the seconds that a machine may show at this time.
    fn shown(&self, second: u8) -> impl Iterator<Item = u8> + use<> {
        let skew = self.scenario.clock.is_some_and(|clock| clock.skew);
        std::iter::once(second).chain(skew.then_some(second.saturating_sub(1)))
    }

    /// Returns the epochs that a claim over the current record may have. `None` if the record is too fresh: the claim
    /// is then written without an epoch. `own` is the epoch of a renewal's lease that became a claim, or of the
    /// previous attempt.
    pub(super) fn epochs(&self, state: &State, own: Option<u8>) -> Vec<Option<u8>> {
        let Some(now) = state.now else { return vec![Some(state.fresh_epoch())] };
        let before = state.ownership.map_or(own, |record| record.keys.epoch);
        let before = before.filter(|_| !self.leaves_out(Rule::EpochChain));
        let mut epochs = Vec::new();
        for date in self.shown(now) {
            let ages = self.old_enough(state, date);
            epochs.extend(ages.contains(&false).then_some(None));
            if ages.contains(&true) && self.leaves_out(Rule::EpochOneResponse) {
                epochs.extend(self.shown(now).map(|other| Some(self.epoch_at(before, other))));
            } else if ages.contains(&true) {
                epochs.push(Some(self.epoch_at(before, date)));
            }
        }
        epochs.sort_unstable();
        epochs.dedup();
        epochs
    }

    fn epoch_at(&self, before: Option<u8>, date: u8) -> u8 {
        let time = match self.scenario.without {
            Some(Rule::EpochTime) => 0,
            Some(Rule::EpochRoom) => date,
            _ => date * ROOM,
        };
        u8::try_from(next_epoch(before.map(i64::from), i64::from(time))).expect("epochs are bounded")
    }

    /// Returns whether a claim over the record gets an epoch, for each age that may come with this date.
    fn old_enough(&self, state: &State, date: u8) -> Vec<bool> {
        let Some(record) = state.ownership else { return vec![true] };
        let sooner = match self.scenario.without {
            Some(Rule::EpochWaits) => 2,
            Some(Rule::EpochWaitsLong) => 1,
            _ => 0,
        };
        let age = |modified| Duration::from_secs(u64::from(date.saturating_sub(modified) + sooner));
        let epoch = record.keys.epoch.map(i64::from);
        self.shown(record.written).map(|modified| too_young_by(epoch, age(modified)).is_none()).collect()
    }

    pub(super) fn may_be_deleted(&self, state: &State) -> bool {
        let (Some(after), Some(now)) = (self.scenario.deletes_after, state.now) else { return true };
        let creates =
            state.instances.iter().filter_map(|instance| instance.operation).any(|operation| operation.creates());
        let late = state
            .late
            .iter()
            .flatten()
            .any(|write| write.under.is_none() && matches!(write.content, Content::Ownership { .. }));
        now >= state.claimed + after && !creates && !late
    }

    /// The application gets its epoch, and processes from now on.
    pub(super) fn is_given_its_epoch(&self, state: &mut State, number: usize) -> Notes {
        let work = state.instances[number].work;
        let (Some(_), Some(epoch)) = (self.scenario.clock, work.epoch) else { return Notes::default() };
        let claim_number = work.authority;
        let others = || state.given.iter().flatten().filter(|(other, _)| *other != claim_number);
        let grows = others().all(|(other, theirs)| *theirs == epoch || (*other < claim_number) == (*theirs < epoch));
        let is_unique = others().all(|(_, theirs)| *theirs != epoch);
        let notes =
            Notes::default().breaking(Invariant::EpochGrows, !grows).breaking(Invariant::EpochIsUnique, !is_unique);
        remember(state, (claim_number, epoch));
        notes
    }
}

/// An ownership is forgotten once every one that may still start is later than its successor.
fn remember(state: &mut State, given: (u8, u8)) {
    let mut known: Vec<_> = state.given.iter().flatten().copied().filter(|other| *other != given).collect();
    known.push(given);
    known.sort_unstable();
    let starts = state.instances.iter().filter_map(|instance| match instance.work.task {
        Task::Adopting(_) => Some(instance.work.authority),
        Task::Stopped => instance.lease.map(|lease| lease.claim_number),
        Task::Running | Task::Checkpointing(_) => None,
    });
    let first = starts.min().unwrap_or(u8::MAX);
    let known: Vec<_> = known
        .iter()
        .enumerate()
        .filter(|(index, _)| known.get(index + 1).is_none_or(|(successor, _)| *successor > first))
        .map(|(_, given)| *given)
        .collect();
    state.given = std::array::from_fn(|index| known.get(index).copied());
    assert!(known.len() <= state.given.len(), "more ownerships are remembered than there is room for");
}

/// E1, E2, and the other invariants.
const EPOCHS: &[Invariant] = &[
    Invariant::EpochGrows,
    Invariant::EpochIsUnique,
    Invariant::Fenced,
    Invariant::Monotonic,
    Invariant::Kept,
    Invariant::Released,
];

/// Without events, so that checkpoints are only adopted.
const BASIS: Scenario = Scenario {
    last_event: 0,
    clock: Some(Clock { end: 3, skew: true }),
    aim: Aim { invariants: EPOCHS, live: false },
    ..BASE
};
const R_EPOCH: Scenario = Scenario {
    name: "r-epoch",
    left: Left { steals: 2, faults: 1, releases: 1, ..NOTHING },
    reaches: &[
        Event::ClaimFoundOwn,
        Event::ClaimLost,
        Event::RenewalLost,
        Event::AdoptRepeated,
        Event::LateWriteLanded,
    ],
    ..BASIS
};
const R_EPOCH_3: Scenario = Scenario {
    name: "r-epoch-3",
    members: ABC,
    clock: Some(Clock { end: 2, skew: true }),
    left: Left { steals: 2, releases: 1, ..NOTHING },
    reaches: &[Event::ClaimLost, Event::RenewalLost],
    ..BASIS
};
/// The epoch is known from the win, so nothing depends on the write of an adoption.
const R_EPOCH_NOWRITE: Scenario = Scenario {
    name: "r-epoch-nowrite",
    checkpoint: None,
    pins: false,
    reaches: &[Event::AdoptedWithoutWrite, Event::LateWriteLanded],
    ..R_EPOCH
};
const R_EPOCH_PINNED: Scenario =
    Scenario { name: "r-epoch-pinned", checkpoint: None, reaches: &[Event::LateWriteLanded], ..R_EPOCH };
const R_EPOCH_FOREIGN: Scenario = Scenario {
    name: "r-epoch-foreign",
    members: AB.split_at(1).0,
    foreign: true,
    clock: Some(Clock { end: 5, skew: true }),
    left: Left { steals: 3, faults: 1, releases: 1, ..NOTHING },
    reaches: &[Event::ClaimOverUnchanged, Event::RenewalLost],
    ..BASIS
};
const R_EPOCH_FOREIGN_3: Scenario = Scenario {
    name: "r-epoch-foreign-3",
    foreign: true,
    clock: Some(Clock { end: 4, skew: true }),
    left: Left { steals: 2, releases: 1, ..NOTHING },
    reaches: &[Event::ClaimLost, Event::RenewalLost],
    ..BASIS
};
const R_EPOCH_FOREIGN_JS: Scenario = Scenario {
    name: "r-epoch-foreign-js",
    members: AB.split_at(1).0,
    foreign: true,
    foreign_creates_over: true,
    clock: Some(Clock { end: 4, skew: true }),
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reads_fail: true,
    reaches: &[Event::RenewalLost, Event::ReadFailed],
    ..BASIS
};
/// Its release, too, leaves a record without an epoch.
const R_EPOCH_FOREIGN_RELEASES: Scenario = Scenario {
    name: "r-epoch-foreign-releases",
    foreign_releases: true,
    clock: Some(Clock { end: 4, skew: true }),
    left: Left { steals: 2, faults: 1, ..NOTHING },
    reaches: &[Event::RenewalLost],
    ..R_EPOCH_FOREIGN
};
/// Two seconds after the last claim a deletion does no harm, unless a claim that found no record is in progress.
const R_EPOCH_DELETED: Scenario = Scenario {
    name: "r-epoch-deleted",
    clock: Some(Clock { end: 5, skew: true }),
    deletes_after: Some(2),
    left: Left { deletes: 1, steals: 1, ..NOTHING },
    ..BASIS
};

#[test]
fn two_instances_r_epoch() {
    is_clean(R_EPOCH);
}

#[test]
fn three_instances_r_epoch_3() {
    is_clean(R_EPOCH_3);
}

#[test]
fn nothing_to_write_r_epoch_nowrite() {
    is_clean(R_EPOCH_NOWRITE);
}

#[test]
fn a_pinned_start_r_epoch_pinned() {
    is_clean(R_EPOCH_PINNED);
}

#[test]
fn another_sdk_erases_epochs_r_epoch_foreign() {
    is_clean(R_EPOCH_FOREIGN);
}

#[test]
fn another_sdk_releases_r_epoch_foreign_releases() {
    is_clean(R_EPOCH_FOREIGN_RELEASES);
}

#[test]
fn another_sdk_and_two_instances_r_epoch_foreign_3() {
    is_clean(R_EPOCH_FOREIGN_3);
}

#[test]
fn another_sdk_overwrites_claims_r_epoch_foreign_js() {
    is_clean(R_EPOCH_FOREIGN_JS);
}

#[test]
fn a_later_deletion_of_the_record_r_epoch_deleted() {
    is_clean(R_EPOCH_DELETED);
}

const EVEN: Clock = Clock { end: 2, skew: false };
const UNIQUE: Aim = Aim { invariants: &[Invariant::EpochIsUnique], live: false };
const GROWS: Aim = Aim { invariants: &[Invariant::EpochGrows, Invariant::EpochIsUnique], live: false };

/// One stealing instance, or another SDK that erases the epoch.
fn without(rule: Rule) -> Scenario {
    let left = Left { steals: 1, releases: 1, ..NOTHING };
    Scenario { without: Some(rule), clock: Some(EVEN), left, aim: UNIQUE, ..BASIS }
}

fn erased_without(rule: Rule) -> Scenario {
    let left = Left { steals: 2, releases: 1, ..NOTHING };
    Scenario { members: AB.split_at(1).0, foreign: true, left, ..without(rule) }
}

#[test]
fn x_epoch_chain() {
    falls(
        Scenario { name: "x-epoch-chain", ..without(Rule::EpochChain) },
        Invariant::EpochIsUnique,
        &["A adopts: writes 0: done", "B lists: expired, wants to claim", "B adopts: writes 0: done"],
    );
}

#[test]
fn x_epoch_time() {
    let clock = Some(Clock { end: 3, skew: false });
    let scenario = Scenario { name: "x-epoch-time", clock, ..erased_without(Rule::EpochTime) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &[
            "F claims: done",
            "the server shows the next second",
            "the server shows the next second",
            "A lists: expired, wants to claim",
            "A claims: done",
            "A adopts: writes 0: done",
        ],
    );
}

#[test]
fn x_epoch_room() {
    let clock = Some(Clock { end: 3, skew: true });
    let scenario = Scenario { name: "x-epoch-room", clock, aim: GROWS, ..erased_without(Rule::EpochRoom) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &[
            "A lists: released, wants to claim",
            "A adopts: writes 0: done",
            "F claims: done",
            "A lists: expired, wants to claim",
            "A claims: done",
            "A adopts: writes 0: done",
        ],
    );
}

#[test]
fn x_epoch_young() {
    let scenario = Scenario { name: "x-epoch-young", ..erased_without(Rule::EpochWaits) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &["F claims: done", "A lists: expired, wants to claim", "A claims: done", "A adopts: writes 0: done"],
    );
}

#[test]
fn x_epoch_younger() {
    let clock = Some(Clock { end: 2, skew: true });
    let scenario = Scenario { name: "x-epoch-younger", clock, ..erased_without(Rule::EpochWaitsLong) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &["F claims: done", "A lists: expired, wants to claim", "A claims: done", "A adopts: writes 0: done"],
    );
}

#[test]
fn x_epoch_answer() {
    let clock = Some(Clock { end: 3, skew: true });
    let scenario = Scenario { name: "x-epoch-answer", clock, ..erased_without(Rule::EpochOneResponse) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &[
            "F claims: done",
            "the server shows the next second",
            "A lists: expired, wants to claim",
            "A claims: done",
            "A adopts: writes 0: done",
        ],
    );
}

#[test]
fn x_epoch_create() {
    let left = Left { steals: 1, deletes: 1, releases: 1, ..NOTHING };
    let clock = Some(Clock { end: 4, skew: false });
    let scenario =
        Scenario { name: "x-epoch-create", clock, deletes_after: Some(2), left, ..without(Rule::EpochCreate) };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &["an operator deletes the ownership", "A renews a deleted record: done", "A adopts: writes 0: done"],
    );
}

/// Not guaranteed: a deletion within two seconds of a claim breaks the order.
#[test]
fn n_epoch_deleted_at_once() {
    let left = Left { steals: 1, deletes: 1, releases: 1, ..NOTHING };
    let scenario = Scenario { name: "n-epoch-deleted-at-once", clock: Some(EVEN), left, aim: UNIQUE, ..BASIS };
    falls(
        scenario,
        Invariant::EpochIsUnique,
        &["an operator deletes the ownership", "B lists: no record, wants to claim", "B adopts: writes 0: done"],
    );
}
