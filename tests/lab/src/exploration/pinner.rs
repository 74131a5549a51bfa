//! The instance that begins a group and pins its start: the steps of `GroupStore::init_checkpoint`.

use super::notes::{Event, Notes};
use super::state::{Checkpoint, Content, Kind, Pinner, State, Write, Writer};
use super::storage::{Response, attempts};
use super::system::{Label, Model, PINNER, Steps};

impl Model {
    pub(super) fn pinner_steps(&self, state: &State, steps: &mut Steps<'_>) {
        match state.pinner {
            Pinner::Away => {
                steps.add(PINNER, "wants to pin the start", State { pinner: Pinner::Writing, ..*state });
            }
            Pinner::Writing => self.pin(state, steps),
            Pinner::Reading => {
                let pinner = if state.checkpoint.is_some() { Pinner::Done } else { Pinner::Writing };
                let notes = Notes::default().with(Event::PinAmbiguous);
                steps.noted(PINNER, "reads the checkpoint", State { pinner, ..*state }, notes);
            }
            Pinner::Done => {}
        }
    }

    fn pin(&self, state: &State, steps: &mut Steps<'_>) {
        let position = Some(self.scenario.starts_at);
        let record = Checkpoint { pinned: true, ..Checkpoint::at(self.scenario.starts_at) };
        let content = Content::Checkpoint { record, kind: Kind::Position, authority: 0 };
        let owned = state.ownership.is_some();
        for attempt in attempts(state, Write { by: Writer::Pinner, under: None, content }) {
            let done = attempt.response == Response::Done;
            let pinner = if done { Pinner::Done } else { Pinner::Reading };
            let label = Label { actor: PINNER, what: "pins the start", position, response: Some(attempt.response) };
            let notes = attempt.notes.with_if(Event::StartPinnedAhead, done && owned);
            steps.push(label, State { pinner, ..attempt.state }, attempt.response.is_fault(), notes);
        }
    }
}
