//! The other instances: they take over a record that is old, after they have declared its owner dead if its heartbeat
//! keeps it alive.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::internal::rules::{DeclareDeadOutcome, Goal, HeartbeatState, Settled, decide_declaration};

use super::super::notes::{Event, Invariant, Notes};
use super::super::state::Version;
use super::super::storage::Response;
use super::state::{A, Claimer, Content, Life, NOBODY, Record, Scope, Standing, State, Write};
use super::system::{Edges, LIFETIME, Model, Rule, add, is_sure, next_after_read, send};

const NAMES: [&str; 2] = ["B", "C"];

impl Model {
    pub(super) fn claimer_steps(&self, from: &State, number: usize, edges: &mut Edges) {
        let actor = NAMES[number];
        let set = |claimer: Claimer| {
            let mut to = *from;
            to.claimers[number] = claimer;
            to
        };
        match from.claimers[number] {
            Claimer::Idle => {
                let (what, claimer) = match from.record {
                    Record { owner: NOBODY, .. } => {
                        ("lists a released record", Claimer::Stealing { under: Version::Current })
                    }
                    Record { owner: A, young: false, scope: Scope::Instance } => {
                        ("lists an old record", Claimer::Listed { record: Version::Current })
                    }
                    Record { owner: A, young: false, scope: Scope::Partition } => (
                        "lists an old record that no heartbeat keeps alive",
                        Claimer::Stealing { under: Version::Current },
                    ),
                    _ => return,
                };
                add(edges, actor, what, set(claimer), Notes::default());
            }
            Claimer::Listed { record } => {
                let (what, claimer) = self.judged(from, record);
                add(edges, actor, what, set(claimer), Notes::default());
            }
            Claimer::DeclaringDead { record, stale, under } => {
                let write = Write { under, content: Content::DeclaredDead };
                send(edges, (actor, "declares A dead"), (from, write), |to, response| {
                    let done = response == Response::Done;
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
                let (what, claimer, alive) = match decide_declaration(stale.as_ref(), remains) {
                    ControlFlow::Break(DeclareDeadOutcome::Declared) => {
                        ("reads the heartbeat: declared dead", Claimer::Stealing { under: record }, false)
                    }
                    ControlFlow::Continue(under) => {
                        let under = under.version();
                        ("reads the heartbeat: again", Claimer::DeclaringDead { record, stale, under }, false)
                    }
                    ControlFlow::Break(_) => ("reads the heartbeat: still alive", Claimer::Idle, true),
                };
                add(edges, actor, what, set(claimer), Notes::default().with_if(Event::DeclaredTooLate, alive));
            }
            Claimer::Stealing { under } => {
                let write = Write { under: Some(under), content: Content::OwnedBy(short(number), Scope::Instance) };
                send(edges, (actor, "claims the partition"), (from, write), |to, response| {
                    let done = response == Response::Done;
                    to.claimers[number] =
                        if done { Claimer::Owns } else { Claimer::ReadingRecord { attempted: under } };
                    Notes::default().breaking(Invariant::KeptAlive, to.record.owner == short(number) && is_sure(from))
                });
            }
            Claimer::ReadingRecord { attempted } => {
                let this = short(number);
                let (what, claimer) = match next_after_read(from, this, Goal::Claim, attempted) {
                    ControlFlow::Continue(Some(under)) => ("reads the record: again", Claimer::Stealing { under }),
                    ControlFlow::Break(Settled::Applied) => ("reads the record: its own", Claimer::Owns),
                    ControlFlow::Break(_) | ControlFlow::Continue(None) => ("reads the record: lost", Claimer::Idle),
                };
                add(edges, actor, what, set(claimer), Notes::default());
            }
            Claimer::Owns => {}
        }
    }

    /// Returns the reaction of a claimer to the heartbeat, after it has listed an old record.
    fn judged(&self, from: &State, record: Version) -> (&'static str, Claimer) {
        let live = from.heartbeat.is_some_and(Standing::is_live);
        if live {
            return ("lists a recent heartbeat", Claimer::Idle);
        }
        if self.leaves_out(Rule::DeclareFirst) {
            return ("lists an old heartbeat, and declares nothing", Claimer::Stealing { under: record });
        }
        let stale = from.heartbeat.map(|_| Version::Current);
        match decide_declaration(stale.as_ref(), from.heartbeat.map(remains)) {
            ControlFlow::Continue(under) => {
                ("lists an old heartbeat, or none", Claimer::DeclaringDead { record, stale, under: under.version() })
            }
            ControlFlow::Break(DeclareDeadOutcome::Declared) => {
                ("lists a heartbeat declared dead", Claimer::Stealing { under: record })
            }
            ControlFlow::Break(_) => ("lists a recent heartbeat", Claimer::Idle),
        }
    }
}

fn remains(standing: Standing) -> HeartbeatState<Version> {
    let age = if standing.young { Duration::ZERO } else { LIFETIME };
    HeartbeatState {
        incarnation: Ordering::Equal,
        version: Version::Current,
        age,
        lifetime: LIFETIME,
        declared_dead: standing.life != Life::Valid,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are two")]
fn short(claimer: usize) -> u8 {
    claimer as u8 + 1
}
