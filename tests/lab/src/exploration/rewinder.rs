//! Whoever rewinds, once: the steps of `store::rewind`.

use super::notes::{Event, Notes};
use super::scenario::Rule;
use super::state::{Checkpoint, Content, Imported, Keys, Owner, Rewinder, State, Version, Write, Writer};
use super::storage::{Answer, attempts};
use super::system::{Label, Model, REWINDER, Steps};

impl Model {
    pub(super) fn rewinder_steps(&self, state: &State, steps: &mut Steps<'_>) {
        let Some(to) = self.scenario.rewinds_to else { return };
        match state.rewinder {
            Rewinder::Away | Rewinder::ReadingCheckpoint => {
                let next = match state.checkpoint {
                    Some(checkpoint) if checkpoint.rewound => Rewinder::ReadingOwnership,
                    found => Rewinder::Writing(found.map(|_| Version::Current)),
                };
                steps.add(REWINDER, "reads the checkpoint", State { rewinder: next, ..*state });
            }
            Rewinder::Writing(under) => {
                let last = state.checkpoint.unwrap_or_default();
                let content = Content::Checkpoint {
                    record: Checkpoint { rewound: true, imported: Imported::Never, ..last.moved_to(to) },
                    adopts: false,
                    authority: 0,
                    resumed: true,
                };
                let next = (Rewinder::ReadingOwnership, Rewinder::ReadingCheckpoint);
                Self::rewinder_writes(state, "puts the checkpoint back", under, content, next, steps);
            }
            Rewinder::ReadingOwnership => self.rewinder_reads_ownership(state, steps),
            Rewinder::Telling { version, owner, keys } => {
                let next = (Rewinder::Done, Rewinder::ReadingOwnership);
                let what = if keys.rewound { "marks the ownership" } else { "releases the ownership" };
                Self::rewinder_writes(state, what, Some(version), Content::Ownership { owner, keys }, next, steps);
            }
            Rewinder::Done => {}
        }
    }

    /// A young record is marked, an old one is waited for, an expired one released. Without an owner of ours there is
    /// nobody to be told.
    fn rewinder_reads_ownership(&self, state: &State, steps: &mut Steps<'_>) {
        let go = |rewinder| State { rewinder, ..*state };
        let telling = |owner, keys| Rewinder::Telling { version: Version::Current, owner, keys };
        match state.ownership {
            Some(record) if record.keys.rewound => {
                steps.add(REWINDER, "reads who owns: marked already", go(Rewinder::Done));
            }
            Some(record) if matches!(record.owner, Owner::Ours(_)) => {
                let marked = Keys { rewound: true, ..record.keys };
                steps.add(REWINDER, "reads who owns, and will be told", go(telling(record.owner, marked)));
                let Some(cost) = self.expired(state) else { return };
                let mut to = go(if self.leaves_out(Rule::RewindFreesExpired) {
                    Rewinder::Done
                } else {
                    telling(Owner::Nobody, record.keys.released())
                });
                to.left.steals -= cost;
                let label = Label { who: REWINDER, what: "reads who owns: expired", position: None, answer: None };
                steps.push(label, to, cost > 0, Notes::default().with(Event::RewindFoundExpired));
            }
            _ => {
                let notes = Notes::default().with(Event::RewindToldNobody);
                steps.noted(REWINDER, "reads who owns: nobody to be told", go(Rewinder::Done), notes);
            }
        }
    }

    fn rewinder_writes(
        state: &State,
        what: &'static str,
        under: Option<Version>,
        content: Content,
        (done, doubtful): (Rewinder, Rewinder),
        steps: &mut Steps<'_>,
    ) {
        for attempt in attempts(state, Write { by: Writer::Rewinder, under, content }) {
            let rewinder = if attempt.answer == Answer::Done { done } else { doubtful };
            let label = Label { who: REWINDER, what, position: None, answer: Some(attempt.answer) };
            let to = State { rewinder, ..attempt.state };
            steps.push(label, to, attempt.answer.is_fault(), attempt.notes);
        }
    }
}
