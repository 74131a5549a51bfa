//! A, whose heartbeat keeps its lease alive: how it writes and ends the heartbeat, and what it then does with its
//! record.

use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::{
    FoundHeartbeat, Goal, HeartbeatLoss, Settled, WriteCondition, decide_heartbeat, decide_heartbeat_end,
};

use super::super::notes::{Event, Invariant, Notes};
use super::super::state::Version;
use super::super::storage::Response;
use super::state::{A, Content, HeartbeatWrite, Held, Life, NOBODY, Rewriting, Scope, Standing, State, Write};
use super::system::{Edges, LIFETIME, Model, Rule, add, next_after_read, send};

/// The heartbeat.
impl Model {
    pub(super) fn heartbeat_steps(&self, from: &State, edges: &mut Edges) {
        let owner = &from.owner;
        match owner.heartbeat_write {
            HeartbeatWrite::Idle => self.heartbeat_begins(from, edges),
            HeartbeatWrite::Write { under, repeated } => {
                let unconditional = self.leaves_out(Rule::UnderItsVersion) && from.heartbeat.is_some();
                let under = if unconditional { Some(Version::Current) } else { under };
                self.sends_heartbeat(from, (Write { under, content: Content::KeptAlive }, repeated), edges);
            }
            HeartbeatWrite::Waiting { under } => {
                for (what, next) in [
                    ("sends its heartbeat again", HeartbeatWrite::Write { under, repeated: true }),
                    ("has waited long enough", HeartbeatWrite::Read),
                ] {
                    let mut to = *from;
                    to.owner.heartbeat_write = next;
                    add(edges, "A", what, to, Notes::default());
                }
            }
            HeartbeatWrite::Read => self.reads_heartbeat(from, edges),
            HeartbeatWrite::End(under) => {
                let write = Write { under: Some(under), content: Content::Ended };
                send(edges, ("A", "ends its heartbeat"), (from, write), |to, response| {
                    let done = response == Response::Done;
                    to.owner.heartbeat_write =
                        if done { HeartbeatWrite::Delete(Version::Current) } else { HeartbeatWrite::ReadEnd };
                    if done {
                        to.owner.known = None;
                    }
                    Notes::default().with_if(Event::Ended, done)
                });
            }
            HeartbeatWrite::ReadEnd => Self::reads_end(from, edges),
            HeartbeatWrite::Delete(under) => {
                let always = self.leaves_out(Rule::DeletedUnderItsVersion);
                let write = Write { under: Some(under), content: Content::Deleted { always } };
                send(edges, ("A", "deletes its heartbeat"), (from, write), |to, _| {
                    to.owner.heartbeat_write = HeartbeatWrite::Idle;
                    Notes::default()
                });
                let mut kept = *from;
                kept.owner.heartbeat_write = HeartbeatWrite::Idle;
                add(edges, "A", "may not delete its heartbeat", kept, Notes::default());
            }
        }
    }

    /// A heartbeat is ended only if it keeps no lease alive. A write that needs it may be under way.
    fn heartbeat_begins(&self, from: &State, edges: &mut Edges) {
        let mut to = *from;
        to.owner.heartbeat_write = HeartbeatWrite::Write { under: from.owner.known, repeated: false };
        add(edges, "A", "is to send a heartbeat", to, Notes::default());
        let is_needed = from.owner.lease.is_some_and(|held| held.scope == Scope::Instance);
        let Some(under) = from.owner.known.filter(|_| !is_needed && from.ends > 0) else { return };
        let mut to = *from;
        to.ends -= 1;
        to.owner.heartbeat_write = HeartbeatWrite::End(under);
        if !self.leaves_out(Rule::EndIsDoubt) {
            self.is_invalid(&mut to);
        }
        add(edges, "A", "is to end its heartbeat", to, Notes::default());
    }

    /// A request without a response may be sent again, under the same version.
    fn sends_heartbeat(&self, from: &State, (write, repeated): (Write, bool), edges: &mut Edges) {
        send(edges, ("A", "sends a heartbeat"), (from, write), |to, response| match response {
            Response::Done => self.is_registered(to),
            Response::Refused if repeated && self.leaves_out(Rule::ConflictIsRead) => self.is_registered(to),
            Response::Refused => {
                to.owner.heartbeat_write = HeartbeatWrite::Read;
                Notes::default().with_if(Event::RepeatRefused, repeated)
            }
            Response::Lost | Response::Unseen | Response::Late => {
                if let HeartbeatWrite::Write { under, .. } = to.owner.heartbeat_write {
                    to.owner.heartbeat_write = HeartbeatWrite::Waiting { under };
                }
                Notes::default()
            }
        });
    }

    fn reads_heartbeat(&self, from: &State, edges: &mut Edges) {
        let mut to = *from;
        let attempted = from.owner.known.as_ref().filter(|_| !self.leaves_out(Rule::MissingIsDead));
        match decide_heartbeat(attempted, from.heartbeat.map(own)) {
            ControlFlow::Continue(under) => {
                to.owner.heartbeat_write = HeartbeatWrite::Write { under: under.version(), repeated: false };
                add(edges, "A", "reads its heartbeat: again", to, Notes::default());
            }
            ControlFlow::Break(HeartbeatLoss::DeclaredDead(known)) => {
                (to.owner.heartbeat_write, to.owner.known) = (HeartbeatWrite::Idle, known);
                self.is_invalid(&mut to);
                let notes = Notes::default().with(Event::DeclaredDead);
                add(edges, "A", "reads its heartbeat: declared dead", to, notes);
            }
            ControlFlow::Break(HeartbeatLoss::Replaced) => {}
        }
    }

    fn reads_end(from: &State, edges: &mut Edges) {
        let mut to = *from;
        let (what, next) = match decide_heartbeat_end(from.heartbeat.map(own)) {
            ControlFlow::Continue(WriteCondition::IfMatch(under)) => {
                ("reads its heartbeat: to end", HeartbeatWrite::End(under))
            }
            ControlFlow::Break(Some(ended)) => ("reads its heartbeat: ended", HeartbeatWrite::Delete(ended)),
            ControlFlow::Break(None) | ControlFlow::Continue(WriteCondition::Create) => {
                ("reads its heartbeat: gone", HeartbeatWrite::Idle)
            }
        };
        to.owner.heartbeat_write = next;
        to.owner.known = from.heartbeat.map(|_| Version::Current).filter(|_| matches!(next, HeartbeatWrite::End(_)));
        add(edges, "A", what, to, Notes::default());
        let mut given_up = *from;
        given_up.owner.heartbeat_write = HeartbeatWrite::Idle;
        add(edges, "A", "does not know if its heartbeat has ended", given_up, Notes::default());
    }

    /// A knows that its heartbeat is valid, and relies on the leases that it keeps alive and that it does not doubt.
    /// Those that it had begun to renew individually get their scope back.
    pub(super) fn is_registered(&self, to: &mut State) -> Notes {
        let owner = &mut to.owner;
        (owner.heartbeat_write, owner.known, owner.present) = (HeartbeatWrite::Idle, Some(Version::Current), true);
        let came_back = owner.scope == Scope::Partition;
        owner.scope = Scope::Instance;
        if let Some(held) = owner.lease.as_mut().filter(|_| self.leaves_out(Rule::BackAfterRewrite)) {
            held.scope = Scope::Instance;
        }
        let is_owed =
            |held: Held| held.scope != Scope::Instance || held.doubted && !self.leaves_out(Rule::HeartbeatFirst);
        // A rewrite in progress ends first.
        if owner.rewriting == Rewriting::No && owner.lease.is_some_and(is_owed) {
            owner.rewriting = Rewriting::Owed;
        }
        let counts_on = owner.lease.is_some_and(Held::counts_on_the_heartbeat);
        Notes::default()
            .with_if(Event::CameBack, came_back)
            .breaking(Invariant::KeptAlive, counts_on && to.record.owner != A)
    }

    /// From now on A knows that its heartbeat keeps nothing alive.
    fn is_invalid(&self, to: &mut State) {
        let owner = &mut to.owner;
        owner.present = false;
        if let Some(held) = owner.lease.as_mut().filter(|held| held.scope == Scope::Instance) {
            held.doubted = true;
            if self.leaves_out(Rule::HeartbeatFirst) {
                owner.rewriting = Rewriting::Owed;
            }
        }
        if let Rewriting::Write { counts, .. } | Rewriting::Read { counts, .. } = &mut owner.rewriting {
            *counts = false;
        }
    }
}

/// The record.
impl Model {
    pub(super) fn record_steps(&self, from: &State, edges: &mut Edges) {
        Self::falls_back(from, edges);
        match from.owner.rewriting {
            Rewriting::No => Self::record_begins(from, edges),
            Rewriting::Owed => {
                let mut to = *from;
                let counts = from.owner.present || self.leaves_out(Rule::HeartbeatFirst);
                let scope = from.owner.scope;
                to.owner.rewriting = match &mut to.owner.lease {
                    Some(held) => {
                        let ends = held.scope == Scope::Instance && scope == Scope::Partition;
                        held.frozen |= ends && !self.leaves_out(Rule::NoneCountsAfterRewrite);
                        Rewriting::Write { under: held.version, to: scope, counts }
                    }
                    None => Rewriting::No,
                };
                add(edges, "A", "is to rewrite its record", to, Notes::default());
            }
            Rewriting::Write { under, to: scope, counts } => {
                if self.leaves_out(Rule::Rewrite) {
                    return Self::read_instead(from, (scope, counts), edges);
                }
                let write = Write { under: Some(under), content: Content::OwnedBy(A, scope) };
                send(edges, ("A", "writes its record"), (from, write), |to, response| {
                    if response == Response::Done {
                        return Self::rewritten(to, scope, counts);
                    }
                    to.owner.rewriting = Rewriting::Read { attempted: under, to: scope, counts };
                    Notes::default()
                });
            }
            Rewriting::Read { attempted, to: scope, counts } => {
                Self::reads_record(from, attempted, (scope, counts), edges);
            }
        }
    }

    /// While its heartbeat cannot be written, A renews its record individually.
    fn falls_back(from: &State, edges: &mut Edges) {
        let is_trying = matches!(
            from.owner.heartbeat_write,
            HeartbeatWrite::Write { .. } | HeartbeatWrite::Waiting { .. } | HeartbeatWrite::Read
        );
        if is_trying && from.owner.scope == Scope::Instance && from.fallbacks > 0 {
            let mut to = *from;
            to.fallbacks -= 1;
            to.owner.scope = Scope::Partition;
            if to.owner.lease.is_some() && to.owner.rewriting == Rewriting::No {
                to.owner.rewriting = Rewriting::Owed;
            }
            add(edges, "A", "is late with its heartbeat", to, Notes::default().with(Event::FellBack));
        }
    }

    /// A claims a record without an owner, or renews its own when that is due.
    fn record_begins(from: &State, edges: &mut Edges) {
        let mut to = *from;
        let may_claim = from.owner.present || from.owner.scope == Scope::Partition;
        if from.owner.lease.is_none() && from.record.owner == NOBODY && may_claim {
            to.owner.rewriting =
                Rewriting::Write { under: Version::Current, to: from.owner.scope, counts: from.owner.present };
            add(edges, "A", "is to claim the partition", to, Notes::default());
        }
        if from.owner.lease.is_some_and(|held| held.scope == Scope::Partition) && !from.record.young {
            to.owner.rewriting = Rewriting::Owed;
            add(edges, "A", "is to renew its record", to, Notes::default());
        }
    }

    fn reads_record(from: &State, attempted: Version, (scope, counts): (Scope, bool), edges: &mut Edges) {
        let mut to = *from;
        let goal = if from.owner.lease.is_some() { Goal::Rewrite } else { Goal::Claim };
        match next_after_read(from, A, goal, attempted) {
            ControlFlow::Continue(Some(under)) => {
                to.owner.rewriting = Rewriting::Write { under, to: scope, counts };
                add(edges, "A", "reads its record: again", to, Notes::default());
                if from.owner.lease.is_some() {
                    to.owner.rewriting = Rewriting::Owed;
                    add(edges, "A", "does not know if its record is rewritten", to, Notes::default());
                }
            }
            ControlFlow::Break(Settled::Applied) => {
                let notes = Self::rewritten(&mut to, scope, counts);
                add(edges, "A", "reads its record: it stands", to, notes);
            }
            ControlFlow::Break(Settled::Lost | Settled::Replaced) | ControlFlow::Continue(None) => {
                (to.owner.lease, to.owner.rewriting) = (None, Rewriting::No);
                add(edges, "A", "reads its record: lost", to, Notes::default().with(Event::RewriteLost));
            }
        }
    }

    fn read_instead(from: &State, (scope, counts): (Scope, bool), edges: &mut Edges) {
        let mut to = *from;
        if from.record.owner == A {
            Self::rewritten(&mut to, scope, counts);
        } else {
            (to.owner.lease, to.owner.rewriting) = (None, Rewriting::No);
        }
        add(edges, "A", "reads its record, and writes nothing", to, Notes::default());
    }

    /// The record was written in this scope. It is written once more if its heartbeat was not valid all the time, or if
    /// the scope has changed in the meantime.
    fn rewritten(to: &mut State, scope: Scope, counts: bool) -> Notes {
        let owner = &mut to.owner;
        let doubted = !counts && scope == Scope::Instance;
        owner.lease = Some(Held { version: Version::Current, scope, doubted, frozen: false });
        let is_owed = doubted && owner.present || scope != owner.scope;
        owner.rewriting = if is_owed { Rewriting::Owed } else { Rewriting::No };
        Notes::default().with(Event::Rewritten)
    }
}

fn own(standing: Standing) -> FoundHeartbeat<Version> {
    FoundHeartbeat {
        relation: Relation::This,
        version: Version::Current,
        age: Duration::ZERO,
        lifetime: LIFETIME,
        declared_dead: standing.life == Life::DeclaredDead,
        ended: standing.life == Life::Ended,
    }
}
