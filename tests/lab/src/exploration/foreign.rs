//! An instance of another SDK: it claims and renews with conditions, checkpoints without conditions, and adopts
//! nothing.

use eventhubs_checkpoint::internal::admin::ResetReport;

use super::notes::{Invariant, Notes};
use super::state::{Checkpoint, Foreign, Keys, Owner, State, Version};
use super::storage::{put_ownership, put_position, up_to};
use super::system::{FOREIGN, Label, Model, Steps};

impl Model {
    pub(super) fn foreign_steps(&self, state: &State, steps: &mut Steps<'_>) {
        if !self.scenario.foreign {
            return;
        }
        match state.foreign {
            Foreign::Idle => self.foreign_lists(state, steps),
            Foreign::Claiming(under) => self.foreign_claims(state, under, steps),
            Foreign::Starting(version) => {
                let at = state.checkpoint.and_then(|checkpoint| checkpoint.position).unwrap_or_default();
                let foreign = Foreign::Running { version, at, written: at };
                // It treats a pinned start like any checkpoint.
                let passed = state.passed | up_to(at);
                let to = State { foreign, passed, due: None, foreign_from_before: false, ..*state };
                let other_case = state.due.is_some_and(|due| due.position != at);
                let notes = Notes::default().breaking(Invariant::ForeignSilent, other_case);
                steps.noted(FOREIGN, "reads the checkpoint and starts", to, notes);
            }
            Foreign::Running { version, at, written } => self.foreign_runs(state, version, at, written, steps),
            Foreign::Ending { at } => {
                let put = put_position(state, Checkpoint { position: Some(at), ..Checkpoint::default() });
                let what = "ends its last handler, checkpoints without condition";
                let label = Label { actor: FOREIGN, what, position: Some(at), response: None };
                steps.push(label, State { foreign: Foreign::Idle, ..vouched(put, at) }, false, writes_late(state));
            }
        }
    }

    fn foreign_lists(&self, state: &State, steps: &mut Steps<'_>) {
        let (what, cost) = match state.ownership.map(|record| record.owner) {
            None => ("lists: no record, wants to claim", Some(0)),
            Some(Owner::Unowned) => ("lists: released, wants to claim", Some(0)),
            Some(Owner::Member(_)) => ("lists: expired, wants to claim", self.expired(state)),
            Some(Owner::Foreign) => return,
        };
        let Some(cost) = cost else { return };
        let claiming = Foreign::Claiming(state.ownership.map(|_| Version::Current));
        let mut to = State { foreign: claiming, ..*state };
        to.left.steals -= cost;
        steps.push(Label { actor: FOREIGN, what, position: None, response: None }, to, cost > 0, Notes::default());
    }

    fn foreign_claims(&self, state: &State, under: Option<Version>, steps: &mut Steps<'_>) {
        let holds = match under {
            Some(version) => version == Version::Current,
            None => state.ownership.is_none() || self.scenario.foreign_creates_over,
        };
        if holds {
            let claimed = State { foreign: Foreign::Idle, ..put_ownership(state, Owner::Foreign, Keys::default()) };
            steps.add(FOREIGN, "claims: done", State { foreign: Foreign::Starting(Version::Current), ..claimed });
        } else {
            steps.add(FOREIGN, "claims: refused", State { foreign: Foreign::Idle, ..*state });
        }
    }

    fn foreign_runs(&self, state: &State, version: Version, at: u8, written: u8, steps: &mut Steps<'_>) {
        let own = state.is_owned_by(Owner::Foreign);
        if at < self.scenario.last_event {
            let foreign = Foreign::Running { version, at: at + 1, written };
            let to = State { foreign, processed: state.processed | 1 << (at + 1), ..*state };
            let label = Label { actor: FOREIGN, what: "processes event", position: Some(at + 1), response: None };
            steps.push(label, to, false, Notes::default());
        }
        if at > written {
            let put = put_position(state, Checkpoint { position: Some(at), ..Checkpoint::default() });
            let to = State { foreign: Foreign::Running { version, at, written: at }, ..vouched(put, at) };
            let label =
                Label { actor: FOREIGN, what: "checkpoints without condition", position: Some(at), response: None };
            steps.push(label, to, false, writes_late(state));
        }
        if own && version == Version::Current {
            let put = put_ownership(state, Owner::Foreign, Keys::default());
            let foreign = Foreign::Running { version: Version::Current, at, written };
            steps.add(FOREIGN, "renews", State { foreign, ..put });
            if self.scenario.foreign_releases {
                let put = put_ownership(state, Owner::Unowned, Keys::default());
                steps.add(FOREIGN, "releases", State { foreign: Foreign::Idle, ..put });
            }
        }
        if !own && !self.scenario.foreign_never_notices {
            let ends = self.has_operators() && at > written;
            let foreign = if ends { Foreign::Ending { at } } else { Foreign::Idle };
            steps.add(FOREIGN, "detects its loss", State { foreign, ..*state });
        }
        // Its listing shows no loss: it already runs what it claims.
        if self.has_operators() && state.is_owned_by(Owner::Unowned) {
            let put = put_ownership(state, Owner::Foreign, Keys::default());
            let foreign = Foreign::Running { version: Version::Current, at, written };
            steps.add(FOREIGN, "finds it released, claims it and reads on", State { foreign, ..put });
        }
    }
}

/// It writes a checkpoint from before a reset that was reported as done.
fn writes_late(state: &State) -> Notes {
    let is_late = state.foreign_from_before && state.has_reported(ResetReport::Done);
    Notes::default().breaking(Invariant::ForeignSilent, is_late)
}

/// It has processed every event up to its checkpoint, although perhaps before a reset to an earlier position. Its
/// checkpoint has no condition, so it undoes a reset that no operator has reported as done.
fn vouched(state: State, at: u8) -> State {
    if state.foreign_from_before { State { passed: state.passed | up_to(at), due: None, ..state } } else { state }
}
