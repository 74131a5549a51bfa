//! The participants that make a pinned start matter: the instance that begins a group and pins its start (the steps of
//! `store::init_checkpoint`), and an owner in the other name case that began before.

use super::notes::{Event, Notes};
use super::state::{Checkpoint, Content, Imported, Kind, OtherCaseOwner, Pinner, State, Write, Writer};
use super::storage::{Response, attempts, put_other_case};
use super::system::{Label, Model, OTHER_CASE, PINNER, Steps};

impl Model {
    pub(super) fn pinner_steps(&self, state: &State, steps: &mut Steps<'_>) {
        match state.pinner {
            Pinner::Away if state.other_case_checkpoint.is_some() => {
                steps.add(
                    PINNER,
                    "finds a checkpoint in the other name case",
                    State { pinner: Pinner::Done, ..*state },
                );
            }
            Pinner::Away => {
                let pinner = Pinner::Writing(self.start_looked_at(Imported::Never));
                steps.add(PINNER, "wants to pin the start", State { pinner, ..*state });
            }
            Pinner::Writing(imported) => self.pin(state, imported, steps),
            Pinner::Reading(imported) => {
                let pinner = if state.checkpoint.is_some() { Pinner::Done } else { Pinner::Writing(imported) };
                let notes = Notes::default().with(Event::PinAmbiguous);
                steps.noted(PINNER, "reads the checkpoint", State { pinner, ..*state }, notes);
            }
            Pinner::Done => {}
        }
    }

    fn pin(&self, state: &State, imported: Imported, steps: &mut Steps<'_>) {
        let position = Some(self.scenario.starts_at);
        let record = Checkpoint { position, pinned: true, imported };
        let content = Content::Checkpoint { record, kind: Kind::Position, authority: 0 };
        let owned = state.ownership.is_some() || matches!(state.other_case, OtherCaseOwner::Running { .. });
        for attempt in attempts(state, Write { by: Writer::Pinner, under: None, content }) {
            let done = attempt.response == Response::Done;
            let pinner = if done { Pinner::Done } else { Pinner::Reading(imported) };
            let label = Label { actor: PINNER, what: "pins the start", position, response: Some(attempt.response) };
            let notes = attempt.notes.with_if(Event::StartPinnedAhead, done && owned);
            steps.push(label, State { pinner, ..attempt.state }, attempt.response.is_fault(), notes);
        }
    }

    /// An instance of another SDK in the other name case: it checkpoints without a condition, and leaves or crashes in
    /// the end.
    pub(super) fn other_case_steps(&self, state: &State, steps: &mut Steps<'_>) {
        let OtherCaseOwner::Running { at, written } = state.other_case else { return };
        if at < self.scenario.last_event {
            let other_case = OtherCaseOwner::Running { at: at + 1, written };
            let to = State { other_case, processed: state.processed | 1 << (at + 1), ..*state };
            let label = Label { actor: OTHER_CASE, what: "processes event", position: Some(at + 1), response: None };
            steps.push(label, to, false, Notes::default());
        }
        if at > written {
            let to = State { other_case: OtherCaseOwner::Running { at, written: at }, ..put_other_case(state, at) };
            let label = Label { actor: OTHER_CASE, what: "checkpoints", position: Some(at), response: None };
            steps.push(label, to, false, Notes::default());
        }
        let gone = State { other_case: OtherCaseOwner::Gone, ..*state };
        if at == written {
            steps.add(OTHER_CASE, "releases its record", gone);
        }
        if state.left.crashes > 0 {
            let mut died = gone;
            died.left.crashes -= 1;
            steps.fault(OTHER_CASE, "crashes, and its record expires", died, Notes::default());
        }
    }
}
