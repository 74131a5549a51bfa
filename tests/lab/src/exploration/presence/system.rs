//! The steps of everybody who takes part.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::Relation;
use eventhubs_checkpoint::internal::rules::{
    Found, Goal, Lapse, Next, Present, Remains, Settled, Under, Verdict, after_doubt, announcing, breaking,
};

use super::super::notes::{Event, Invariant, Notes};
use super::super::search::{Edge, System};
use super::super::state::Version;
use super::super::storage::Answer;
use super::state::{A, Announce, Content, MOST_LATE, Owner, Record, Rewriting, Standing, State, THIEVES, Thief, Write};

const EXPIRY: Duration = Duration::from_secs(60);
const OLD: Duration = Duration::from_secs(62);
const NAMES: [&str; 3] = ["A", "B", "C"];

/// A rule that can be left out, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The presence is written under its own version alone.
    UnderItsVersion,
    /// Who takes over breaks first.
    BreakFirst,
    /// Who was declared dead writes its records anew; reading them is not enough.
    Rewrite,
    /// It does so after it has announced itself again, not before.
    AnnounceFirst,
    /// A presence of mine that is gone was declared dead.
    GoneIsDead,
}

/// What happens on a step, for a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    who: &'static str,
    what: &'static str,
    answer: Option<Answer>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.who, self.what)?;
        self.answer.map_or(Ok(()), |answer| write!(f, ": {}", answer.text()))
    }
}

/// Who takes part, and which rule is left out.
pub(super) struct Model {
    pub(super) without: Option<Rule>,
    pub(super) thieves: usize,
    pub(super) faults: u8,
}

type Edges = Vec<Edge<State, Label>>;

fn add(edges: &mut Edges, who: &'static str, what: &'static str, to: State, notes: Notes) {
    edges.push(Edge { label: Label { who, what, answer: None }, to: to.canonical(), fault: false, notes });
}

impl Model {
    fn leaves_out(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// All that may become of a write that is sent now. Without an answer the writer reads next, which `to` says.
    fn send(
        edges: &mut Edges,
        (who, what): (&'static str, &'static str),
        (from, write): (&State, Write),
        to: impl Fn(&mut State, bool) -> Notes,
    ) {
        let mut push = |answer: Answer, mut state: State| {
            let notes = to(&mut state, answer == Answer::Done);
            let label = Label { who, what, answer: Some(answer) };
            edges.push(Edge { label, to: state.canonical(), fault: answer.is_fault(), notes });
        };
        let applied = from.applied(write);
        match applied {
            Some(next) => push(Answer::Done, next),
            None => push(Answer::Refused, *from),
        }
        if from.faults == 0 {
            return;
        }
        let spent = State { faults: from.faults - 1, ..*from };
        push(Answer::Lost, spent);
        if let Some(next) = applied {
            push(Answer::Unseen, State { faults: from.faults - 1, ..next });
            let mut late = spent;
            if let Some(free) = late.late.iter_mut().find(|late| late.is_none()) {
                *free = Some(write);
                push(Answer::Late, late);
            }
        }
    }

    fn announce_steps(&self, from: &State, edges: &mut Edges) {
        let owner = &from.owner;
        match owner.announce {
            Announce::Idle => {
                let mut to = *from;
                to.owner.announce = Announce::Write(owner.known);
                add(edges, "A", "is to announce itself", to, Notes::default());
            }
            Announce::Write(under) => {
                let unconditional = self.leaves_out(Rule::UnderItsVersion) && from.presence.is_some();
                let under = if unconditional { Some(Version::Current) } else { under };
                let write = Write { under, content: Content::Present };
                Self::send(edges, ("A", "announces itself"), (from, write), |to, done| {
                    if done { self.is_present(to) } else { Self::reads_presence(to) }
                });
            }
            Announce::Read => {
                let (mut to, found) = (*from, from.presence);
                let present = found.map(|standing| Present {
                    relation: Relation::Mine,
                    etag: Version::Current,
                    age: Duration::ZERO,
                    broken: standing.broken,
                });
                let attempted = owner.known.as_ref().filter(|_| !self.leaves_out(Rule::GoneIsDead));
                match announcing(attempted, present, EXPIRY) {
                    Next::Write(under) => {
                        to.owner.announce = Announce::Write(under.version());
                        add(edges, "A", "reads its presence: again", to, Notes::default());
                    }
                    Next::Done(Lapse::DeclaredDead(known)) => {
                        self.is_declared_dead(&mut to, known);
                        let notes = Notes::default().with(Event::DeclaredDead);
                        add(edges, "A", "reads its presence: declared dead", to, notes);
                    }
                    Next::Done(Lapse::Replaced) => {}
                }
            }
        }
    }

    fn reads_presence(to: &mut State) -> Notes {
        to.owner.announce = Announce::Read;
        Notes::default()
    }

    /// A was told that it is there, and counts on what it does not doubt.
    fn is_present(&self, to: &mut State) -> Notes {
        let owner = &mut to.owner;
        (owner.announce, owner.known, owner.present) = (Announce::Idle, Some(Version::Current), true);
        let counts_on = owner.lease.is_some() && !owner.doubted;
        // One that is under way ends first.
        let idle = owner.rewriting == Rewriting::No;
        if idle && owner.lease.is_some() && owner.doubted && !self.leaves_out(Rule::AnnounceFirst) {
            owner.rewriting = Rewriting::Owed;
        }
        Notes::default().breaking(Invariant::Present, counts_on && to.record.owner != A)
    }

    fn is_declared_dead(&self, to: &mut State, known: Option<Version>) {
        let owner = &mut to.owner;
        (owner.announce, owner.known, owner.present) = (Announce::Idle, known, false);
        if owner.lease.is_some() {
            owner.doubted = true;
            if self.leaves_out(Rule::AnnounceFirst) {
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
                let counts = from.owner.present || self.leaves_out(Rule::AnnounceFirst);
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
                match after_doubt(Goal::Rewrite, Some(&attempted), None, Some(found(from, A)), EXPIRY) {
                    Next::Write(Under::Over(under)) => {
                        to.owner.rewriting = Rewriting::Write { under, counts };
                        add(edges, "A", "reads its record: again", to, Notes::default());
                    }
                    Next::Done(Settled::Stands) => {
                        let notes = Self::rewritten(&mut to, counts);
                        add(edges, "A", "reads its record: it stands", to, notes);
                    }
                    Next::Done(Settled::Lost | Settled::Replaced) | Next::Write(Under::Create) => {
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

    fn thief_steps(&self, from: &State, number: usize, edges: &mut Edges) {
        let who = NAMES[number + 1];
        let set = |thief: Thief| {
            let mut to = *from;
            to.thieves[number] = thief;
            to
        };
        match from.thieves[number] {
            Thief::Idle => {
                if from.record.owner == A && !from.record.young {
                    let to = set(Thief::Listed { record: Version::Current });
                    add(edges, who, "lists an old record", to, Notes::default());
                }
            }
            Thief::Listed { record } => {
                let (what, thief) = self.judged(from, record);
                add(edges, who, what, set(thief), Notes::default());
            }
            Thief::Breaking { record, stale, under } => {
                let write = Write { under, content: Content::Broken };
                Self::send(edges, (who, "breaks the presence"), (from, write), |to, done| {
                    let next =
                        if done { Thief::Stealing { under: record } } else { Thief::ReadingPresence { record, stale } };
                    to.thieves[number] = next;
                    Notes::default().with_if(Event::PresenceBroken, done)
                });
            }
            Thief::ReadingPresence { record, stale } => {
                let remains = from.presence.map(remains);
                let (what, thief, alive) = match breaking(stale.as_ref(), remains, EXPIRY) {
                    Next::Done(Verdict::Dead) => {
                        ("reads the presence: broken", Thief::Stealing { under: record }, false)
                    }
                    Next::Write(under) => {
                        let under = under.version();
                        ("reads the presence: again", Thief::Breaking { record, stale, under }, false)
                    }
                    Next::Done(_) => ("reads the presence: it lives", Thief::Idle, true),
                };
                add(edges, who, what, set(thief), Notes::default().with_if(Event::BrokenTooLate, alive));
            }
            Thief::Stealing { under } => {
                let write = Write { under: Some(under), content: Content::OwnedBy(short(number)) };
                Self::send(edges, (who, "claims the partition"), (from, write), |to, done| {
                    to.thieves[number] = if done { Thief::Owns } else { Thief::ReadingRecord { attempted: under } };
                    Notes::default().breaking(Invariant::Present, to.record.owner == short(number) && is_sure(from))
                });
            }
            Thief::ReadingRecord { attempted } => {
                let me = short(number);
                let next = after_doubt(Goal::Claim, Some(&attempted), None, Some(found(from, me)), EXPIRY);
                let (what, thief) = match next {
                    Next::Write(Under::Over(under)) => ("reads the record: again", Thief::Stealing { under }),
                    Next::Done(Settled::Stands) => ("reads the record: its own", Thief::Owns),
                    Next::Done(_) | Next::Write(Under::Create) => ("reads the record: lost", Thief::Idle),
                };
                add(edges, who, what, set(thief), Notes::default());
            }
            Thief::Owns => {}
        }
    }

    /// What a thief makes of the presence, after it has seen an old record.
    fn judged(&self, from: &State, record: Version) -> (&'static str, Thief) {
        let live = from.presence.is_some_and(|standing| standing.young && !standing.broken);
        if live {
            return ("lists a young presence", Thief::Idle);
        }
        if self.leaves_out(Rule::BreakFirst) {
            return ("lists an old presence, and breaks nothing", Thief::Stealing { under: record });
        }
        let stale = from.presence.map(|_| Version::Current);
        match breaking(stale.as_ref(), from.presence.map(remains), EXPIRY) {
            Next::Write(under) => {
                ("lists an old presence, or none", Thief::Breaking { record, stale, under: under.version() })
            }
            Next::Done(Verdict::Dead) => ("lists a broken presence", Thief::Stealing { under: record }),
            Next::Done(_) => ("lists a young presence", Thief::Idle),
        }
    }

    fn time_passes(from: &State, edges: &mut Edges) {
        if from.record.young {
            let mut to = *from;
            to.record.young = false;
            add(edges, "time", "passes: the record is old", to, Notes::default());
        }
        if let Some(standing) = from.presence {
            let mut to = *from;
            if standing.young {
                to.presence = Some(Standing { young: false, ..standing });
                add(edges, "time", "passes: the presence is old", to, Notes::default());
            } else {
                to.presence_changed(None);
                add(edges, "somebody", "clears the old presence", to, Notes::default());
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
                let notes = Notes::default().breaking(Invariant::Present, stolen && is_sure(from));
                add(edges, "a write", "lands at last", to, notes.with(Event::LateWriteLanded));
            }
        }
    }
}

/// Whether A was told that it is there, rightly, and does not doubt its lease.
fn is_sure(state: &State) -> bool {
    let present = state.presence.is_some_and(|standing| standing.young && !standing.broken);
    let knows = state.owner.announce == Announce::Idle && state.owner.known == Some(Version::Current);
    present && knows && state.owner.lease.is_some() && !state.owner.doubted
}

/// No instance reclaims a partition here, so epochs do not matter.
fn found(state: &State, me: u8) -> Found<Version> {
    let relation = if state.record.owner == me { Relation::Mine } else { Relation::Other };
    let age = if state.record.young { Duration::ZERO } else { OLD };
    Found { relation, etag: Version::Current, age, epoch: None, draining: false }
}

fn remains(standing: Standing) -> Remains<Version> {
    let age = if standing.young { Duration::ZERO } else { OLD };
    Remains { life: Ordering::Equal, etag: Version::Current, age, broken: standing.broken }
}

#[expect(clippy::cast_possible_truncation, reason = "there are two")]
fn short(thief: usize) -> u8 {
    thief as u8 + 1
}

impl System for Model {
    type State = State;
    type Label = Label;

    fn start(&self) -> State {
        State {
            record: Record { owner: A, young: true },
            presence: Some(Standing { young: true, broken: false }),
            owner: Owner {
                known: Some(Version::Current),
                announce: Announce::Idle,
                present: true,
                lease: Some(Version::Current),
                doubted: false,
                rewriting: Rewriting::No,
            },
            thieves: [Thief::Idle; THIEVES],
            late: [None; MOST_LATE],
            faults: self.faults,
        }
    }

    fn steps(&self, from: &State, edges: &mut Edges) {
        self.announce_steps(from, edges);
        self.rewrite_steps(from, edges);
        (0..self.thieves).for_each(|number| self.thief_steps(from, number, edges));
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
