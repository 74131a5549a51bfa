//! The steps of all participants.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::{
    DeclareDeadOutcome, Found, Goal, HeartbeatLoss, HeartbeatState, Next, OwnHeartbeat, Settled, WriteCondition,
    declaring_dead, resolve_ambiguous_write, sending_heartbeat,
};

use super::super::notes::{Event, Invariant, Notes};
use super::super::search::{Edge, System};
use super::super::state::Version;
use super::super::storage::Response;
use super::state::{
    A, CLAIMERS, Claimer, Content, HeartbeatWrite, MOST_LATE, Owner, Record, Rewriting, Standing, State, Write,
};

const EXPIRY: Duration = Duration::from_secs(60);
const LIFETIME: Duration = Duration::from_secs(62);
const NAMES: [&str; 3] = ["A", "B", "C"];

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
pub(super) struct Model {
    pub(super) without: Option<Rule>,
    pub(super) claimers: usize,
    pub(super) faults: u8,
}

type Edges = Vec<Edge<State, Label>>;

fn add(edges: &mut Edges, actor: &'static str, what: &'static str, to: State, notes: Notes) {
    edges.push(Edge { label: Label { actor, what, response: None }, to: to.canonical(), fault: false, notes });
}

impl Model {
    fn leaves_out(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// Adds all possible results of a write that is sent now. Without a response the writer reads next, as `to` states.
    fn send(
        edges: &mut Edges,
        (actor, what): (&'static str, &'static str),
        (from, write): (&State, Write),
        to: impl Fn(&mut State, bool) -> Notes,
    ) {
        let mut push = |response: Response, mut state: State| {
            let notes = to(&mut state, response == Response::Done);
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

    fn heartbeat_steps(&self, from: &State, edges: &mut Edges) {
        let owner = &from.owner;
        match owner.heartbeat_write {
            HeartbeatWrite::Idle => {
                let mut to = *from;
                to.owner.heartbeat_write = HeartbeatWrite::Write(owner.known);
                add(edges, "A", "is to send a heartbeat", to, Notes::default());
            }
            HeartbeatWrite::Write(under) => {
                let unconditional = self.leaves_out(Rule::UnderItsVersion) && from.heartbeat.is_some();
                let under = if unconditional { Some(Version::Current) } else { under };
                let write = Write { under, content: Content::KeptAlive };
                Self::send(edges, ("A", "sends a heartbeat"), (from, write), |to, done| {
                    if done { self.is_registered(to) } else { Self::reads_heartbeat(to) }
                });
            }
            HeartbeatWrite::Read => {
                let (mut to, found) = (*from, from.heartbeat);
                let present = found.map(|standing| OwnHeartbeat {
                    relation: Relation::This,
                    etag: Version::Current,
                    age: Duration::ZERO,
                    lifetime: LIFETIME,
                    declared_dead: standing.broken,
                });
                let attempted = owner.known.as_ref().filter(|_| !self.leaves_out(Rule::MissingIsDead));
                match sending_heartbeat(attempted, present) {
                    Next::Write(under) => {
                        to.owner.heartbeat_write = HeartbeatWrite::Write(under.version());
                        add(edges, "A", "reads its heartbeat: again", to, Notes::default());
                    }
                    Next::Done(HeartbeatLoss::DeclaredDead(known)) => {
                        self.is_declared_dead(&mut to, known);
                        let notes = Notes::default().with(Event::DeclaredDead);
                        add(edges, "A", "reads its heartbeat: declared dead", to, notes);
                    }
                    Next::Done(HeartbeatLoss::Replaced) => {}
                }
            }
        }
    }

    fn reads_heartbeat(to: &mut State) -> Notes {
        to.owner.heartbeat_write = HeartbeatWrite::Read;
        Notes::default()
    }

    /// A knows that its heartbeat is valid, and relies on the leases that it does not doubt.
    fn is_registered(&self, to: &mut State) -> Notes {
        let owner = &mut to.owner;
        (owner.heartbeat_write, owner.known, owner.present) = (HeartbeatWrite::Idle, Some(Version::Current), true);
        let counts_on = owner.lease.is_some() && !owner.doubted;
        // A rewrite in progress ends first.
        let idle = owner.rewriting == Rewriting::No;
        if idle && owner.lease.is_some() && owner.doubted && !self.leaves_out(Rule::HeartbeatFirst) {
            owner.rewriting = Rewriting::Owed;
        }
        Notes::default().breaking(Invariant::KeptAlive, counts_on && to.record.owner != A)
    }

    fn is_declared_dead(&self, to: &mut State, known: Option<Version>) {
        let owner = &mut to.owner;
        (owner.heartbeat_write, owner.known, owner.present) = (HeartbeatWrite::Idle, known, false);
        if owner.lease.is_some() {
            owner.doubted = true;
            if self.leaves_out(Rule::HeartbeatFirst) {
                owner.rewriting = Rewriting::Owed;
            }
        }
        if let Rewriting::Write { counts, .. } | Rewriting::Read { counts, .. } = &mut owner.rewriting {
            *counts = false;
        }
    }

    fn rewrite_steps(&self, from: &State, edges: &mut Edges) {
        match from.owner.rewriting {
            Rewriting::No => {}
            Rewriting::Owed => {
                let mut to = *from;
                let counts = from.owner.present || self.leaves_out(Rule::HeartbeatFirst);
                to.owner.rewriting = match from.owner.lease {
                    Some(under) => Rewriting::Write { under, counts },
                    None => Rewriting::No,
                };
                add(edges, "A", "is to rewrite its record", to, Notes::default());
            }
            Rewriting::Write { under, counts } => {
                if self.leaves_out(Rule::Rewrite) {
                    return Self::read_instead(from, counts, edges);
                }
                let write = Write { under: Some(under), content: Content::OwnedBy(A) };
                Self::send(edges, ("A", "rewrites its record"), (from, write), |to, done| {
                    if done {
                        return Self::rewritten(to, counts);
                    }
                    to.owner.rewriting = Rewriting::Read { attempted: under, counts };
                    Notes::default()
                });
            }
            Rewriting::Read { attempted, counts } => {
                let mut to = *from;
                match resolve_ambiguous_write(Goal::Rewrite, Some(&attempted), None, Some(found(from, A)), EXPIRY) {
                    Next::Write(WriteCondition::IfMatch(under)) => {
                        to.owner.rewriting = Rewriting::Write { under, counts };
                        add(edges, "A", "reads its record: again", to, Notes::default());
                    }
                    Next::Done(Settled::Applied) => {
                        let notes = Self::rewritten(&mut to, counts);
                        add(edges, "A", "reads its record: it stands", to, notes);
                    }
                    Next::Done(Settled::Lost | Settled::Replaced) | Next::Write(WriteCondition::Create) => {
                        let owner = &mut to.owner;
                        (owner.lease, owner.doubted, owner.rewriting) = (None, false, Rewriting::No);
                        let notes = Notes::default().with(Event::RewriteLost);
                        add(edges, "A", "reads its record: lost", to, notes);
                    }
                }
            }
        }
    }

    fn read_instead(from: &State, counts: bool, edges: &mut Edges) {
        let mut to = *from;
        if from.record.owner == A {
            Self::rewritten(&mut to, counts);
        } else {
            (to.owner.lease, to.owner.doubted, to.owner.rewriting) = (None, false, Rewriting::No);
        }
        add(edges, "A", "reads its record, and writes nothing", to, Notes::default());
    }

    fn rewritten(to: &mut State, counts: bool) -> Notes {
        let owner = &mut to.owner;
        owner.lease = Some(Version::Current);
        if counts {
            (owner.doubted, owner.rewriting) = (false, Rewriting::No);
        } else {
            owner.rewriting = if owner.present { Rewriting::Owed } else { Rewriting::No };
        }
        Notes::default().with(Event::Rewritten)
    }

    fn claimer_steps(&self, from: &State, number: usize, edges: &mut Edges) {
        let actor = NAMES[number + 1];
        let set = |claimer: Claimer| {
            let mut to = *from;
            to.claimers[number] = claimer;
            to
        };
        match from.claimers[number] {
            Claimer::Idle => {
                if from.record.owner == A && !from.record.young {
                    let to = set(Claimer::Listed { record: Version::Current });
                    add(edges, actor, "lists an old record", to, Notes::default());
                }
            }
            Claimer::Listed { record } => {
                let (what, claimer) = self.judged(from, record);
                add(edges, actor, what, set(claimer), Notes::default());
            }
            Claimer::DeclaringDead { record, stale, under } => {
                let write = Write { under, content: Content::DeclaredDead };
                Self::send(edges, (actor, "declares A dead"), (from, write), |to, done| {
                    let next = if done {
                        Claimer::Stealing { under: record }
                    } else {
                        Claimer::ReadingHeartbeat { record, stale }
                    };
                    to.claimers[number] = next;
                    Notes::default().with_if(Event::HeartbeatInvalidated, done)
                });
            }
            Claimer::ReadingHeartbeat { record, stale } => {
                let remains = from.heartbeat.map(remains);
                let (what, claimer, alive) = match declaring_dead(stale.as_ref(), remains) {
                    Next::Done(DeclareDeadOutcome::Declared) => {
                        ("reads the heartbeat: declared dead", Claimer::Stealing { under: record }, false)
                    }
                    Next::Write(under) => {
                        let under = under.version();
                        ("reads the heartbeat: again", Claimer::DeclaringDead { record, stale, under }, false)
                    }
                    Next::Done(_) => ("reads the heartbeat: still alive", Claimer::Idle, true),
                };
                add(edges, actor, what, set(claimer), Notes::default().with_if(Event::DeclaredTooLate, alive));
            }
            Claimer::Stealing { under } => {
                let write = Write { under: Some(under), content: Content::OwnedBy(short(number)) };
                Self::send(edges, (actor, "claims the partition"), (from, write), |to, done| {
                    to.claimers[number] =
                        if done { Claimer::Owns } else { Claimer::ReadingRecord { attempted: under } };
                    Notes::default().breaking(Invariant::KeptAlive, to.record.owner == short(number) && is_sure(from))
                });
            }
            Claimer::ReadingRecord { attempted } => {
                let this = short(number);
                let next =
                    resolve_ambiguous_write(Goal::Claim, Some(&attempted), None, Some(found(from, this)), EXPIRY);
                let (what, claimer) = match next {
                    Next::Write(WriteCondition::IfMatch(under)) => {
                        ("reads the record: again", Claimer::Stealing { under })
                    }
                    Next::Done(Settled::Applied) => ("reads the record: its own", Claimer::Owns),
                    Next::Done(_) | Next::Write(WriteCondition::Create) => ("reads the record: lost", Claimer::Idle),
                };
                add(edges, actor, what, set(claimer), Notes::default());
            }
            Claimer::Owns => {}
        }
    }

    /// Returns the reaction of a claimer to the heartbeat, after it has listed an old record.
    fn judged(&self, from: &State, record: Version) -> (&'static str, Claimer) {
        let live = from.heartbeat.is_some_and(|standing| standing.young && !standing.broken);
        if live {
            return ("lists a recent heartbeat", Claimer::Idle);
        }
        if self.leaves_out(Rule::DeclareFirst) {
            return ("lists an old heartbeat, and declares nothing", Claimer::Stealing { under: record });
        }
        let stale = from.heartbeat.map(|_| Version::Current);
        match declaring_dead(stale.as_ref(), from.heartbeat.map(remains)) {
            Next::Write(under) => {
                ("lists an old heartbeat, or none", Claimer::DeclaringDead { record, stale, under: under.version() })
            }
            Next::Done(DeclareDeadOutcome::Declared) => {
                ("lists a heartbeat declared dead", Claimer::Stealing { under: record })
            }
            Next::Done(_) => ("lists a recent heartbeat", Claimer::Idle),
        }
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

    fn late_writes(from: &State, edges: &mut Edges) {
        for number in 0..MOST_LATE {
            let Some(write) = from.late[number] else { continue };
            let mut arrived = *from;
            arrived.late[number] = None;
            if let Some(to) = arrived.applied(write) {
                let stolen = matches!(write.content, Content::OwnedBy(owner) if owner != A);
                let notes = Notes::default().breaking(Invariant::KeptAlive, stolen && is_sure(from));
                add(edges, "a write", "lands at last", to, notes.with(Event::LateWriteLanded));
            }
        }
    }
}

/// Returns whether A knows that its heartbeat is valid, rightly, and does not doubt its lease.
fn is_sure(state: &State) -> bool {
    let present = state.heartbeat.is_some_and(|standing| standing.young && !standing.broken);
    let knows = state.owner.heartbeat_write == HeartbeatWrite::Idle && state.owner.known == Some(Version::Current);
    present && knows && state.owner.lease.is_some() && !state.owner.doubted
}

/// No instance reclaims here, so epochs are irrelevant.
fn found(state: &State, this: u8) -> Found<Version> {
    let relation = if state.record.owner == this { Relation::This } else { Relation::Other };
    let age = if state.record.young { Duration::ZERO } else { LIFETIME };
    Found { relation, etag: Version::Current, age, lifetime: LIFETIME, epoch: None, draining: false }
}

fn remains(standing: Standing) -> HeartbeatState<Version> {
    let age = if standing.young { Duration::ZERO } else { LIFETIME };
    HeartbeatState {
        incarnation: Ordering::Equal,
        etag: Version::Current,
        age,
        lifetime: LIFETIME,
        declared_dead: standing.broken,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are two")]
fn short(claimer: usize) -> u8 {
    claimer as u8 + 1
}

impl System for Model {
    type State = State;
    type Label = Label;

    fn start(&self) -> State {
        State {
            record: Record { owner: A, young: true },
            heartbeat: Some(Standing { young: true, broken: false }),
            owner: Owner {
                known: Some(Version::Current),
                heartbeat_write: HeartbeatWrite::Idle,
                present: true,
                lease: Some(Version::Current),
                doubted: false,
                rewriting: Rewriting::No,
            },
            claimers: [Claimer::Idle; CLAIMERS],
            late: [None; MOST_LATE],
            faults: self.faults,
        }
    }

    fn steps(&self, from: &State, edges: &mut Edges) {
        self.heartbeat_steps(from, edges);
        self.rewrite_steps(from, edges);
        (0..self.claimers).for_each(|number| self.claimer_steps(from, number, edges));
        Self::late_writes(from, edges);
        Self::time_passes(from, edges);
    }

    fn is_goal(&self, state: &State) -> bool {
        state.record.owner != A || is_sure(state)
    }

    fn is_hopeless(&self, _: &State) -> bool {
        false
    }
}
