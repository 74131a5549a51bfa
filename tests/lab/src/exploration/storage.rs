//! The two blobs: conditional writes, and their possible results.

use eventhubs_checkpoint::internal::admin::ResetReport;

use super::notes::{Event, Invariant, Notes};
use super::state::{
    Checkpoint, Content, Due, Foreign, Keys, Kind, Owner, Ownership, Progress, State, Version, Write, Writer,
};

/// The response that the writer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    Done,
    Refused,
    /// Never applied, and no response.
    Lost,
    /// Applied, and no response.
    Unseen,
    /// No response, and it may be applied at any later time.
    Late,
}

impl Response {
    pub(super) fn is_fault(self) -> bool {
        !matches!(self, Self::Done | Self::Refused)
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Lost => "no response, not applied",
            Self::Unseen => "no response, but applied",
            Self::Late => "no response, in progress",
        }
    }
}

/// One possible result of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) response: Response,
    pub(super) state: State,
    pub(super) notes: Notes,
}

/// Returns all possible results of a write that is sent now.
pub(super) fn attempts(state: &State, write: Write) -> impl Iterator<Item = Attempt> {
    let applied = apply(state, write);
    let answered = match applied {
        Some((state, notes)) => Attempt { response: Response::Done, state, notes },
        None => Attempt { response: Response::Refused, state: *state, notes: Notes::default() },
    };
    let mut faulty = [None; 3];
    if state.left.faults > 0 {
        let mut spent = *state;
        spent.left.faults -= 1;
        faulty[0] = Some(Attempt { response: Response::Lost, state: spent, notes: Notes::default() });
        faulty[1] = applied.map(|(mut state, notes)| {
            state.left.faults -= 1;
            Attempt { response: Response::Unseen, state, notes }
        });
        faulty[2] = applied.map(|_| {
            if let Some(free) = spent.late.iter_mut().find(|late| late.is_none()) {
                *free = Some(write);
            }
            Attempt { response: Response::Late, state: spent, notes: Notes::default() }
        });
    }
    std::iter::once(answered).chain(faulty.into_iter().flatten())
}

/// Applies a write; returns `None` if its condition does not hold.
fn apply(state: &State, write: Write) -> Option<(State, Notes)> {
    let exists = match write.content {
        Content::Ownership { .. } => state.ownership.is_some(),
        Content::Checkpoint { .. } => state.checkpoint.is_some(),
    };
    let holds = match write.under {
        None => !exists,
        Some(version) => exists && version == Version::Current,
    };
    holds.then(|| {
        let (next, notes) = match write.content {
            Content::Ownership { owner, keys } => (put_ownership(state, owner, keys), Notes::default()),
            Content::Checkpoint { .. } => put_checkpoint(state, write),
        };
        (next, notes.writing(write))
    })
}

/// Writes the ownership, regardless of the current record.
pub(super) fn put_ownership(state: &State, owner: Owner, keys: Keys) -> State {
    let mut next = *state;
    let now = state.now.unwrap_or_default();
    let goes_on = |last: &Ownership| {
        owner == Owner::Unowned || owner == last.owner && (owner == Owner::Foreign || keys.epoch == last.keys.epoch)
    };
    let claim_number = if let Some(last) = state.ownership.filter(goes_on) {
        last.claim_number
    } else {
        next.claimed = if state.left.deletes > 0 { now } else { 0 };
        next.next_ownership_id()
    };
    // Its age matters only without an epoch.
    let written = if keys.epoch.is_none() { now } else { 0 };
    next.ownership = Some(Ownership { owner, keys, written, claim_number });
    next.ownership_changed();
    next
}

fn put_checkpoint(state: &State, write: Write) -> (State, Notes) {
    let Content::Checkpoint { record, kind, authority } = write.content else {
        return (*state, Notes::default());
    };
    let keeps_pause = record.paused || !state.checkpoint.is_some_and(|last| last.paused);
    match kind {
        Kind::Reset => {
            let (next, notes) = put_reset(state, write.by, record, authority);
            return (next, notes.breaking(Invariant::PauseKept, !keeps_pause));
        }
        Kind::Pause => return put_pause(state, write.by, record, authority),
        Kind::Position | Kind::Adoption => {}
    }
    let mut notes = Notes::default().breaking(Invariant::PauseKept, !keeps_pause);
    if let (Writer::Member(_), last) = (write.by, state.checkpoint) {
        let progress = last.filter(|last| !last.pinned).and_then(|last| last.position);
        let back = progress.is_some() && (record.pinned || record.position < progress);
        // A late start of a displaced owner yields to the first checkpoint.
        notes = notes
            .breaking(Invariant::Fenced, !record.pinned && authority < state.fence)
            .breaking(Invariant::Monotonic, back)
            .breaking(Invariant::Paused, last.is_some_and(|last| last.paused && last.position < record.position));
    }
    let mut next = put_position(state, record);
    let needed = record.position.map_or(0, up_to);
    notes = notes.breaking(Invariant::Processed, !record.pinned && needed & !(next.processed | next.passed) != 0);
    if kind == Kind::Adoption {
        next.fence = next.fence.max(authority);
        notes |= found_by(&mut next, write.by, record);
    }
    (next, notes)
}

/// A reset: the only write of this crate that may move back. Events after its position must be processed again.
fn put_reset(state: &State, by: Writer, record: Checkpoint, authority: u8) -> (State, Notes) {
    let Some(position) = record.position else { return (*state, Notes::default()) };
    let mut next = put_position(state, record);
    next.due = Some(Due { position, fenced: state.checkpoint.is_some() });
    next.processed = up_to(position);
    next.fence = next.fence.max(authority);
    next.foreign_from_before = matches!(state.foreign, Foreign::Running { .. } | Foreign::Ending { .. });
    let notes = Notes::default().breaking(Invariant::Fenced, authority < state.fence);
    let reported = order_written(&mut next, by);
    (next, notes.and(reported))
}

/// A pause, or its end. The position stays.
fn put_pause(state: &State, by: Writer, record: Checkpoint, authority: u8) -> (State, Notes) {
    let last = state.checkpoint.unwrap_or_default();
    let mut next = put_position(state, record);
    next.fence = next.fence.max(authority);
    let notes = Notes::default()
        .breaking(Invariant::Fenced, authority < state.fence)
        .breaking(Invariant::Monotonic, (record.position, record.pinned) != (last.position, last.pinned));
    let reported = order_written(&mut next, by);
    (next, notes.and(reported))
}

/// The change of an operator is written.
fn order_written(state: &mut State, by: Writer) -> Notes {
    let Writer::Member(number) = by else { return Notes::default() };
    let reset = &mut state.instances[number as usize].reset;
    reset.hit = true;
    Notes::default().breaking(Invariant::ReportTrue, reset.progress == Progress::Reported(ResetReport::NotDone))
}

/// The first adoption of an owner after a reset.
fn found_by(state: &mut State, by: Writer, record: Checkpoint) -> Notes {
    let Some(due) = state.due else { return Notes::default() };
    let promised = due.fenced || state.has_reported(ResetReport::Done);
    let followed = record.position == Some(due.position);
    let Writer::Member(number) = by else { return Notes::default() };
    if !state.instances[number as usize].is_operator {
        state.due = None;
    }
    Notes::default().breaking(Invariant::ResetFollowed, promised && !followed)
}

/// Returns the events up to this one, one bit each.
pub(super) fn up_to(event: u8) -> u8 {
    (1 << (event + 1)) - 1
}

/// Writes the checkpoint, regardless of the current record.
pub(super) fn put_position(state: &State, checkpoint: Checkpoint) -> State {
    let mut next = *state;
    next.checkpoint = Some(checkpoint);
    next.checkpoint_changed();
    next
}

/// A write without a response finally reaches the storage; returns `None` if it is rejected now.
pub(super) fn landed(state: &State, number: usize) -> Option<(Write, State, Notes)> {
    let write = state.late[number]?;
    let mut arrived = *state;
    arrived.late[number] = None;
    let (next, notes) = apply(&arrived, write)?;
    Some((write, next, notes.with(Event::LateWriteLanded)))
}

/// An operator deletes the ownership.
pub(super) fn ownership_deleted(state: &State) -> State {
    let mut next = State { claimed: 0, ..*state };
    next.ownership = None;
    next.ownership_changed();
    next
}

/// An operator deletes the checkpoint, and with it the version that fenced the owners before the last one.
pub(super) fn checkpoint_deleted(state: &State) -> State {
    let mut next = State { checkpoint: None, fence: 0, ..*state };
    next.checkpoint_changed();
    next
}
