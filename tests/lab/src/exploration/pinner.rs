//! Who makes a pin matter: the instance that begins a group and pins its start (the steps of `store::init_checkpoint`), and an
//! owner in the other tree of names that began before.

use super::notes::{Event, Notes};
use super::state::{Checkpoint, Content, Elsewhere, Imported, Kind, Pinner, State, Write, Writer};
use super::storage::{Answer, attempts, put_elsewhere};
use super::system::{ELSEWHERE, Label, Model, PINNER, Steps};

impl Model {
    pub(super) fn pinner_steps(&self, state: &State, steps: &mut Steps<'_>) {
        match state.pinner {
            Pinner::Away if state.checkpoint_elsewhere.is_some() => {
                steps.add(PINNER, "finds a checkpoint in the other tree", State { pinner: Pinner::Done, ..*state });
            }
            Pinner::Away => {
                let pinner = Pinner::Writing(self.start_looked_at(Imported::Never));
                steps.add(PINNER, "wants to pin the start", State { pinner, ..*state });
            }
            Pinner::Writing(imported) => self.pin(state, imported, steps),
            Pinner::Reading(imported) => {
                let pinner = if state.checkpoint.is_some() { Pinner::Done } else { Pinner::Writing(imported) };
                let notes = Notes::default().with(Event::PinDoubtful);
                steps.noted(PINNER, "reads the checkpoint", State { pinner, ..*state }, notes);
            }
            Pinner::Done => {}
        }
    }

    fn pin(&self, state: &State, imported: Imported, steps: &mut Steps<'_>) {
        let position = Some(self.scenario.starts_at);
        let record = Checkpoint { position, pinned: true, imported };
        let content = Content::Checkpoint { record, kind: Kind::Position, authority: 0 };
        let owned = state.ownership.is_some() || matches!(state.elsewhere, Elsewhere::Running { .. });
        for attempt in attempts(state, Write { by: Writer::Pinner, under: None, content }) {
            let done = attempt.answer == Answer::Done;
            let pinner = if done { Pinner::Done } else { Pinner::Reading(imported) };
            let label = Label { who: PINNER, what: "pins the start", position, answer: Some(attempt.answer) };
            let notes = attempt.notes.with_if(Event::StartPinnedAhead, done && owned);
            steps.push(label, State { pinner, ..attempt.state }, attempt.answer.is_fault(), notes);
        }
    }

    /// An instance of another SDK in the other tree: it checkpoints without a condition, and leaves or dies in the end.
    pub(super) fn elsewhere_steps(&self, state: &State, steps: &mut Steps<'_>) {
        let Elsewhere::Running { at, written } = state.elsewhere else { return };
        if at < self.scenario.last_event {
            let elsewhere = Elsewhere::Running { at: at + 1, written };
            let to = State { elsewhere, processed: state.processed | 1 << (at + 1), ..*state };
            let label = Label { who: ELSEWHERE, what: "processes event", position: Some(at + 1), answer: None };
            steps.push(label, to, false, Notes::default());
        }
        if at > written {
            let to = State { elsewhere: Elsewhere::Running { at, written: at }, ..put_elsewhere(state, at) };
            let label = Label { who: ELSEWHERE, what: "checkpoints", position: Some(at), answer: None };
            steps.push(label, to, false, Notes::default());
        }
        let gone = State { elsewhere: Elsewhere::Gone, ..*state };
        if at == written {
            steps.add(ELSEWHERE, "releases its record", gone);
        }
        if state.left.crashes > 0 {
            let mut died = gone;
            died.left.crashes -= 1;
            steps.fault(ELSEWHERE, "dies, and its record expires", died, Notes::default());
        }
    }
}
