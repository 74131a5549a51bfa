//! The participants, the results of their writes, and what nobody decides: time, and writes that land late.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::{
    FoundOwnership, Goal, OwnershipOperation, OwnershipStep, Settled, WriteCondition,
};

use super::super::notes::{Event, Invariant, Notes};
use super::super::search::{Edge, System};
use super::super::state::Version;
use super::super::storage::Response;
use super::state::{
    A, CLAIMERS, Claimer, Content, HeartbeatWrite, Held, Life, MOST_LATE, NOBODY, Owner, Record, Rewriting, Scope,
    Standing, State, Write,
};

pub(super) const EXPIRY: Duration = Duration::from_secs(60);
pub(super) const LIFETIME: Duration = Duration::from_secs(62);

/// A rule that can be disabled, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The heartbeat is written only under its own version.
    UnderItsVersion,
    /// A takeover declares the owner dead first.
    DeclareFirst,
    /// An owner that was declared dead rewrites its records; reading them is not enough.
    Rewrite,
    /// It rewrites after its next heartbeat, not before.
    HeartbeatFirst,
    /// A missing heartbeat of this instance means that it was declared dead.
    MissingIsDead,
    /// A heartbeat that was sent again and is refused is read: its first copy need not be what changed it.
    ConflictIsRead,
    /// A claim that is under way when the heartbeat is ended does not count on it.
    EndIsDoubt,
    /// A heartbeat that was ended is deleted only under its version.
    DeletedUnderItsVersion,
    /// No heartbeat counts for a lease once a write was sent that renews it individually.
    NoneCountsAfterRewrite,
    /// A heartbeat counts again only after the record says so.
    BackAfterRewrite,
}

/// Describes a step for a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    actor: &'static str,
    what: &'static str,
    response: Option<Response>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.actor, self.what)?;
        self.response.map_or(Ok(()), |response| write!(f, ": {}", response.text()))
    }
}

/// The participants, and the disabled rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) without: Option<Rule>,
    /// Whether A owns the partition at the start. Otherwise it was released.
    pub(super) owns: bool,
    pub(super) claimers: usize,
    pub(super) faults: u8,
    /// How many times A may end its heartbeat.
    pub(super) ends: u8,
    /// How many times A may be late with it.
    pub(super) fallbacks: u8,
}

pub(super) type Edges = Vec<Edge<State, Label>>;

pub(super) fn add(edges: &mut Edges, actor: &'static str, what: &'static str, to: State, notes: Notes) {
    edges.push(Edge { label: Label { actor, what, response: None }, to: to.canonical(), fault: false, notes });
}

/// Adds all possible results of a write that is sent now, each with the reaction of the writer.
pub(super) fn send(
    edges: &mut Edges,
    (actor, what): (&'static str, &'static str),
    (from, write): (&State, Write),
    to: impl Fn(&mut State, Response) -> Notes,
) {
    let mut push = |response: Response, mut state: State| {
        let notes = to(&mut state, response);
        let label = Label { actor, what, response: Some(response) };
        edges.push(Edge { label, to: state.canonical(), fault: response.is_fault(), notes });
    };
    let applied = from.applied(write);
    match applied {
        Some(next) => push(Response::Done, next),
        None => push(Response::Refused, *from),
    }
    if from.faults == 0 {
        return;
    }
    let spent = State { faults: from.faults - 1, ..*from };
    push(Response::Lost, spent);
    if let Some(next) = applied {
        push(Response::Unseen, State { faults: from.faults - 1, ..next });
        let mut late = spent;
        if let Some(free) = late.late.iter_mut().find(|late| late.is_none()) {
            *free = Some(write);
            push(Response::Late, late);
        }
    }
}

impl Model {
    pub(super) fn leaves_out(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    fn time_passes(from: &State, edges: &mut Edges) {
        if from.record.young {
            let mut to = *from;
            to.record.young = false;
            add(edges, "time", "passes: the record is old", to, Notes::default());
        }
        if let Some(standing) = from.heartbeat {
            let mut to = *from;
            if standing.young {
                to.heartbeat = Some(Standing { young: false, ..standing });
                add(edges, "time", "passes: the heartbeat is old", to, Notes::default());
            } else {
                to.heartbeat_changed(None);
                add(edges, "an instance", "deletes the old heartbeat", to, Notes::default());
            }
        }
    }

    fn late_writes(&self, from: &State, edges: &mut Edges) {
        for number in 0..MOST_LATE {
            let Some(write) = from.late[number] else { continue };
            let mut arrived = *from;
            arrived.late[number] = None;
            let Some(mut to) = arrived.applied(write) else { continue };
            let harms = match write.content {
                Content::OwnedBy(owner, _) => owner != A,
                Content::Deleted { .. } => from.heartbeat.is_some_and(Standing::is_live),
                Content::KeptAlive | Content::DeclaredDead | Content::Ended => false,
            };
            let notes = Notes::default().breaking(Invariant::KeptAlive, harms && is_sure(from));
            add(edges, "a write", "lands at last", to, notes.with(Event::LateWriteLanded));
            // The first response counts, of whichever copy.
            let is_awaited = matches!(
                from.owner.heartbeat_write,
                HeartbeatWrite::Waiting { .. } | HeartbeatWrite::Write { repeated: true, .. }
            );
            if is_awaited && write.content == Content::KeptAlive {
                let notes = self.is_registered(&mut to);
                add(
                    edges,
                    "a write",
                    "lands at last, and its response arrives",
                    to,
                    notes.with(Event::FirstCopyAnswered),
                );
            }
        }
    }
}

/// Returns whether A relies on its lease, rightly: on its heartbeat, which it knows to be valid, or on the age of its
/// record alone.
pub(super) fn is_sure(state: &State) -> bool {
    let owner = &state.owner;
    let Some(held) = owner.lease else { return false };
    let knows = owner.heartbeat_write == HeartbeatWrite::Idle && owner.known == Some(Version::Current);
    let is_kept_alive = state.heartbeat.is_some_and(Standing::is_live) && knows && held.counts_on_the_heartbeat();
    let is_young = held.scope == Scope::Partition && held.version == Version::Current && state.record.young;
    is_kept_alive || is_young
}

/// No instance reclaims here, so epochs are irrelevant.
fn found(state: &State, this: u8) -> FoundOwnership<Version> {
    let relation = match state.record.owner {
        NOBODY => Relation::Unowned,
        owner if owner == this => Relation::This,
        _ => Relation::Other,
    };
    let age = if state.record.young { Duration::ZERO } else { LIFETIME };
    FoundOwnership { relation, version: Version::Current, age, lifetime: LIFETIME, epoch: None, draining: false }
}

/// Returns the version to write over after a read, or how the operation ends.
pub(super) fn next_after_read(
    state: &State,
    this: u8,
    goal: Goal,
    attempted: Version,
) -> ControlFlow<Settled, Option<Version>> {
    let attempted = WriteCondition::IfMatch(attempted);
    let next = OwnershipOperation::after_read(goal, &attempted, None, Some(found(state, this)), EXPIRY);
    next.map_continue(|next| match next.step {
        OwnershipStep::Write { under } => under.version(),
        step => unreachable!("{step:?} after a read"),
    })
}

impl System for Model {
    type State = State;
    type Label = Label;

    fn start(&self) -> State {
        let held = Held { version: Version::Current, scope: Scope::Instance, doubted: false, frozen: false };
        State {
            record: Record { owner: if self.owns { A } else { NOBODY }, young: true, scope: Scope::Instance },
            heartbeat: Some(Standing { young: true, life: Life::Valid }),
            owner: Owner {
                known: Some(Version::Current),
                heartbeat_write: HeartbeatWrite::Idle,
                present: true,
                scope: Scope::Instance,
                lease: self.owns.then_some(held),
                rewriting: Rewriting::No,
            },
            claimers: [Claimer::Idle; CLAIMERS],
            late: [None; MOST_LATE],
            faults: self.faults,
            ends: self.ends,
            fallbacks: self.fallbacks,
        }
    }

    fn steps(&self, from: &State, edges: &mut Edges) {
        self.heartbeat_steps(from, edges);
        self.record_steps(from, edges);
        (0..self.claimers).for_each(|number| self.claimer_steps(from, number, edges));
        self.late_writes(from, edges);
        Self::time_passes(from, edges);
    }

    fn is_goal(&self, state: &State) -> bool {
        !matches!(state.record.owner, A | NOBODY) || is_sure(state)
    }

    fn is_hopeless(&self, _: &State) -> bool {
        false
    }
}
