//! An instance's work on the partition: adopting, processing, checkpoints.
//!
//! `rules::AdoptionStep` and `rules::CheckpointStep` decide which request is next, and what its response means.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use eventhubs_checkpoint::internal::admin::StepEnd;
use eventhubs_checkpoint::internal::rules::{
    AdoptionStep, CheckpointPlace, CheckpointStep, Checkpointed, PositionFrom, Unwritten, WriteCondition,
};

use super::balancer::Stimulus;
use super::notes::{Event, Invariant, Notes, Start};
use super::ownership::report_unsettled;
use super::scenario::{Member, Rule};
use super::state::{Checkpoint, Content, Kind, Owner, Ownership, Seen, State, Task, Version, Work, Write, Writer};
use super::storage::{Response, attempts, up_to};
use super::system::{Label, Model, Steps};

impl Model {
    pub(super) fn work_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let (actor, instance) = (self.name(number), &state.instances[number]);
        if instance.operation.is_some() && !self.scenario.overlaps {
            return;
        }
        self.stopping_steps(state, number, steps);
        match instance.work.task {
            Task::Stopped => {
                if let Some(lease) = instance.lease.filter(|_| !instance.leaving) {
                    let work = Work::adopting(lease.keys.epoch, lease.claim_number);
                    steps.add(actor, "begins to adopt", state.with(number, |instance| instance.work = work));
                }
            }
            Task::Adopting(step) => self.adopt(state, number, step, steps),
            Task::Running => {
                self.process(state, number, steps);
                self.begin_checkpoint(state, number, steps);
            }
            Task::Checkpointing(step) => {
                if self.scenario.overlaps {
                    self.process(state, number, steps);
                }
                self.checkpoint(state, number, step, steps);
            }
        }
    }

    /// A task whose lease is lost, or that is to stop, ends in its own time. A checkpoint in progress ends first.
    fn stopping_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        let is_over = instance.lease.is_none() || instance.work.outlived;
        let ends = match instance.work.task {
            Task::Adopting(_) => is_over || instance.leaving,
            Task::Running => is_over,
            Task::Stopped | Task::Checkpointing(_) => false,
        };
        if ends {
            let to = state.with(number, |instance| instance.work = Work::default());
            steps.add(self.name(number), "stops", to);
        }
    }

    fn process(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        let waits = instance.work.paused && !self.leaves_out(Rule::PauseIsObeyed);
        if instance.leaving || waits || instance.work.at >= self.scenario.last_event {
            return;
        }
        let event = instance.work.at + 1;
        let mut to = state.with(number, |instance| instance.work.at = event);
        to.processed |= 1 << event;
        if let Some(lease) = instance.lease.filter(|_| !instance.work.outlived) {
            to.fence = to.fence.max(lease.claim_number);
        }
        let again = state.processed & !state.reported & 1 << event != 0;
        let notes = Notes::default().breaking(Invariant::Once, again);
        let label = Label { actor: self.name(number), what: "processes event", position: Some(event), response: None };
        steps.push(label, to, false, notes);
    }

    fn adopt(&self, state: &State, number: usize, step: AdoptionStep<Version>, steps: &mut Steps<'_>) {
        let actor = self.name(number);
        match step {
            AdoptionStep::ReadCheckpoint => {
                let seen = state.seen();
                let Member { on_adapter, order, .. } = self.scenario.members[number];
                let start_is_known = self.scenario.pins && !on_adapter && order.is_none();
                let place = seen.map(|seen| self.place(seen.checkpoint));
                let next = AdoptionStep::after_checkpoint(place, start_is_known);
                let to = state.with(number, |instance| {
                    instance.work.seen = seen;
                    instance.work.task = Task::Adopting(next);
                });
                steps.push(read_label(actor, "adopts: reads the checkpoint", seen), to, false, Notes::default());
            }
            AdoptionStep::ReadOwnership { from } => {
                let work = &state.instances[number].work;
                let unverified = self.leaves_out(Rule::AdoptReadsOwnership)
                    || self.is_operator(number) && self.leaves_out(Rule::ResetIsVerified);
                let own = self.is_own_in(state, number, work.epoch) || unverified;
                let next = AdoptionStep::after_ownership(work.seen.map(|seen| seen.version), from, own);
                let mut to = *state;
                Self::verified(&mut to, number);
                let notes = match next {
                    ControlFlow::Continue(next) => {
                        to.instances[number].work.task = Task::Adopting(next);
                        Notes::default()
                    }
                    ControlFlow::Break(Unwritten::Nothing) => {
                        self.adopted(&mut to, number, None).with(Event::AdoptedWithoutWrite)
                    }
                    ControlFlow::Break(Unwritten::Lost) => self.lost(&mut to, number).with(Event::AdoptLost),
                };
                let is_lost = next == ControlFlow::Break(Unwritten::Lost);
                steps.noted(
                    actor,
                    if is_lost { "adopts: reads the ownership, lost" } else { "adopts: reads the ownership" },
                    to,
                    notes,
                );
            }
            AdoptionStep::Write { under, from } => self.write_adoption(state, number, (under, from), steps),
        }
        self.failed_read_while_adopting(state, number, step, steps);
    }

    /// The error is returned, and the partition is adopted from the start.
    fn failed_read_while_adopting(
        &self,
        state: &State,
        number: usize,
        step: AdoptionStep<Version>,
        steps: &mut Steps<'_>,
    ) {
        if !matches!(step, AdoptionStep::ReadOwnership { .. }) {
            return;
        }
        let Some(mut to) = self.with_failed_read(state) else { return };
        let work = &mut to.instances[number].work;
        (work.task, work.seen) = (Task::Adopting(AdoptionStep::ReadCheckpoint), None);
        let mut notes = Notes::default().with(Event::ReadFailed);
        if self.is_operator(number) {
            notes |= self.operator_goes_on(&mut to, number, StepEnd::Failed { in_doubt: false });
        }
        steps.fault(self.name(number), "adopts: a read fails", to, notes);
    }

    fn write_adoption(
        &self,
        state: &State,
        number: usize,
        (under, from): (WriteCondition<Version>, PositionFrom),
        steps: &mut Steps<'_>,
    ) {
        let work = &state.instances[number].work;
        let found = work.seen.map_or(Checkpoint::default(), |seen| seen.checkpoint);
        let record = match from {
            PositionFrom::Found => found,
            PositionFrom::Start => Checkpoint { pinned: true, ..Checkpoint::at(self.scenario.starts_at) },
        };
        let content = Content::Checkpoint { record, kind: Kind::Adoption, authority: work.authority };
        let pinned_over_blob = from == PositionFrom::Start && under != WriteCondition::Create;
        for attempt in attempts(state, Write { by: Writer::ours(number), under: under.version(), content }) {
            let (mut to, mut notes) = (attempt.state, attempt.notes);
            let written = attempt.response == Response::Done;
            let work = &mut to.instances[number].work;
            if written {
                work.seen = Some(Seen { version: Version::Current, checkpoint: record });
                notes |= self.adopted(&mut to, number, Some(Version::Current));
            } else {
                work.task = Task::Adopting(AdoptionStep::AFTER_AMBIGUOUS_WRITE);
                work.seen = None;
                notes = notes.with(Event::AdoptRepeated);
            }
            notes = notes.with_if(Event::StartPinnedOverBlob, written && pinned_over_blob);
            let label = Label {
                actor: self.name(number),
                what: "adopts: writes",
                position: record.position,
                response: Some(attempt.response),
            };
            steps.push(label, to, attempt.response.is_fault(), notes);
        }
    }

    /// The last read or written checkpoint is in `seen`. Events before a pinned start are skipped.
    fn adopted(&self, state: &mut State, number: usize, version: Option<Version>) -> Notes {
        let instance = &mut state.instances[number];
        let adopted = instance.work.seen.take().map(|seen| seen.checkpoint).unwrap_or_default();
        let work = &mut instance.work;
        work.task = Task::Running;
        (work.last, work.version) = (adopted, version);
        work.at = adopted.position.unwrap_or_default();
        // The official processor does not know pauses.
        work.paused = adopted.paused && !self.scenario.members[number].on_adapter;
        // An operator without a blob has fenced nothing yet.
        if version.is_some() || !self.is_operator(number) {
            state.fence = state.fence.max(work.authority);
        }
        if self.is_operator(number) {
            return self.operator_goes_on(state, number, StepEnd::Done);
        }
        let missed = up_to(work.at) & !state.processed;
        let skipped = !adopted.pinned && missed & !state.passed != 0;
        state.passed |= missed;
        let mut notes = self.is_given_its_epoch(state, number);
        if !state.instances[number].work.paused {
            notes = notes.starting(Start { adopted: version.map(|_| adopted) });
        }
        notes
            .breaking(Invariant::Skipped, skipped)
            .with_if(Event::PinAdopted, adopted.pinned && missed != 0)
            .with_if(Event::PauseAdopted, adopted.paused)
    }

    /// The task detected that the partition is not its own. The lease is given up, unless it belongs to a later
    /// ownership.
    fn lost(&self, state: &mut State, number: usize) -> Notes {
        let outlived = state.instances[number].work.outlived;
        state.instances[number].work = Work::default();
        let forgets = !outlived && self.reaction_now(state, number, Stimulus::MarkedLost).emitted.lost;
        if forgets { self.drop_lease(state, number) } else { Notes::default() }
    }

    /// The ownership was read.
    fn verified(state: &mut State, number: usize) {
        let work = &mut state.instances[number].work;
        let is_own_record = |record: &Ownership| record.owner == Owner::ours(number) && record.keys.epoch == work.epoch;
        if let Some(record) = state.ownership.filter(is_own_record) {
            work.authority = record.claim_number;
        }
    }

    fn begin_checkpoint(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let work = state.instances[number].work;
        if self.has_written_all(&work) {
            return;
        }
        let mut to = *state;
        if work.outlived {
            let notes = self.lost(&mut to, number);
            steps.noted(self.name(number), "wants to checkpoint in an ownership that is over", to, notes);
            return;
        }
        to.instances[number].work.writing = work.at;
        let first = CheckpointStep::first_step(work.version);
        if let CheckpointStep::Write { under } = first
            && !self.scenario.overlaps
        {
            self.write_checkpoint(&to, number, under, steps);
            return;
        }
        to.instances[number].work.task = Task::Checkpointing(first);
        steps.add(self.name(number), "wants to checkpoint", to);
    }

    /// Returns whether there is nothing to checkpoint.
    pub(super) fn has_written_all(&self, work: &Work) -> bool {
        let superseded = self.place(work.last).compare_with(i64::from(work.at)).is_some_and(Ordering::is_ge);
        superseded || work.at == work.last.position.unwrap_or_default()
    }

    fn checkpoint(&self, state: &State, number: usize, step: CheckpointStep<Version>, steps: &mut Steps<'_>) {
        match step {
            CheckpointStep::Write { under } => self.write_checkpoint(state, number, under, steps),
            CheckpointStep::ReadCheckpoint if self.leaves_out(Rule::OwnershipAfterCheckpoint) => {
                self.read_ownership_first(state, number, steps);
            }
            CheckpointStep::ReadCheckpoint => {
                let seen = state.seen();
                let to = state.with(number, |instance| {
                    instance.work.seen = seen;
                    instance.work.task = Task::Checkpointing(CheckpointStep::AFTER_CHECKPOINT);
                });
                steps.push(read_label(self.name(number), "reads the checkpoint", seen), to, false, Notes::default());
            }
            CheckpointStep::ReadOwnership => self.read_ownership(state, number, steps),
        }
        self.failed_read_while_writing(state, number, step, steps);
    }

    /// The step that the rule forbids: the ownership is read before the checkpoint.
    fn read_ownership_first(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let mut to = *state;
        Self::verified(&mut to, number);
        let mut notes = Notes::default();
        if self.is_own_in(state, number, state.instances[number].work.epoch) {
            to.instances[number].work.task = Task::Checkpointing(CheckpointStep::ReadOwnership);
        } else {
            notes = self.lost(&mut to, number);
        }
        steps.noted(self.name(number), "reads the ownership, before the checkpoint", to, notes);
    }

    fn read_ownership(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let mut to = *state;
        let mut own = self.is_own_in(state, number, state.instances[number].work.epoch);
        if self.leaves_out(Rule::OwnershipAfterCheckpoint) {
            to.instances[number].work.seen = state.seen();
            own = true;
        } else {
            Self::verified(&mut to, number);
        }
        let work = &mut to.instances[number].work;
        let found = work.seen.map(|seen| (seen.version, self.place(seen.checkpoint)));
        let next = CheckpointStep::after_ownership(found, own, i64::from(work.writing));
        let superseded = next == ControlFlow::Break(Checkpointed::Superseded);
        let stored = work.seen.map(|seen| seen.checkpoint).unwrap_or_default();
        let reported = superseded || next == ControlFlow::Break(Checkpointed::Written);
        let broken = reported && (stored.pinned || stored.position < Some(work.writing));
        if next != ControlFlow::Break(Checkpointed::Fenced) {
            work.version = work.seen.take().map(|seen| seen.version);
            let forgotten = superseded && self.leaves_out(Rule::SupersededIsWritten);
            let position = if forgotten { work.last.position } else { stored.position };
            work.last = Checkpoint { position, ..stored };
        }
        let creates = next == ControlFlow::Continue(CheckpointStep::Write { under: WriteCondition::Create });
        let pin_replaced = stored.pinned && next.is_continue() && !creates;
        let (what, event) = match next {
            ControlFlow::Break(Checkpointed::Fenced) => ("reads the ownership: fenced", Event::CheckpointFenced),
            ControlFlow::Break(Checkpointed::Superseded) => {
                ("reads the ownership: its own, superseded", Event::CheckpointSuperseded)
            }
            ControlFlow::Break(Checkpointed::Written) => {
                ("reads the ownership: its own, and the write has landed", Event::CheckpointLanded)
            }
            ControlFlow::Continue(_) if creates => {
                ("reads the ownership: its own, creates the checkpoint", Event::CheckpointCreated)
            }
            ControlFlow::Continue(_) => ("reads the ownership: its own, writes again", Event::CheckpointTriedAgain),
        };
        let notes =
            self.checkpoint_goes_on(&mut to, number, next).with(event).with_if(Event::PinReplaced, pin_replaced);
        steps.noted(self.name(number), what, to, notes.breaking(Invariant::Durable, broken));
    }

    fn write_checkpoint(&self, state: &State, number: usize, under: WriteCondition<Version>, steps: &mut Steps<'_>) {
        let work = &state.instances[number].work;
        let Work { authority, writing, .. } = *work;
        let paused = work.last.paused && !self.leaves_out(Rule::PauseIsKept);
        let record = Checkpoint { paused, ..Checkpoint::at(writing) };
        let content = Content::Checkpoint { record, kind: Kind::Position, authority };
        for attempt in attempts(state, Write { by: Writer::ours(number), under: under.version(), content }) {
            let mut to = attempt.state;
            let work = &mut to.instances[number].work;
            if attempt.response == Response::Done {
                (work.last, work.version) = (record, Some(Version::Current));
                (work.task, work.writing) = (Task::Running, 0);
            } else {
                work.task = Task::Checkpointing(CheckpointStep::AFTER_AMBIGUOUS_WRITE);
            }
            let label = Label {
                actor: self.name(number),
                what: "checkpoints",
                position: record.position,
                response: Some(attempt.response),
            };
            steps.push(label, to, attempt.response.is_fault(), attempt.notes);
        }
    }

    fn checkpoint_goes_on(
        &self,
        state: &mut State,
        number: usize,
        next: ControlFlow<Checkpointed, CheckpointStep<Version>>,
    ) -> Notes {
        let work = &mut state.instances[number].work;
        match next {
            ControlFlow::Continue(next) => work.task = Task::Checkpointing(next),
            ControlFlow::Break(Checkpointed::Written | Checkpointed::Superseded) => {
                (work.task, work.writing) = (Task::Running, 0);
            }
            ControlFlow::Break(Checkpointed::Fenced) => return self.lost(state, number),
        }
        Notes::default()
    }

    /// The position stays pending; a stopping owner gives it up.
    fn failed_read_while_writing(
        &self,
        state: &State,
        number: usize,
        step: CheckpointStep<Version>,
        steps: &mut Steps<'_>,
    ) {
        if matches!(step, CheckpointStep::Write { .. }) {
            return;
        }
        let Some(mut to) = self.with_failed_read(state) else { return };
        let leaving = to.instances[number].leaving;
        if leaving && self.reaction_now(state, number, Stimulus::Stopped { settled: false }).emitted.duplicates {
            report_unsettled(&mut to, &state.instances[number].work);
        }
        let work = &mut to.instances[number].work;
        if leaving {
            *work = Work::default();
        } else {
            (work.task, work.seen, work.writing) = (Task::Running, None, 0);
        }
        steps.fault(self.name(number), "a read fails", to, Notes::default().with(Event::ReadFailed));
    }
}

fn read_label(actor: &'static str, what: &'static str, seen: Option<Seen>) -> Label {
    Label { actor, what, position: seen.and_then(|seen| seen.checkpoint.position), response: None }
}

impl Model {
    fn place(&self, checkpoint: Checkpoint) -> CheckpointPlace {
        match checkpoint.position {
            None => CheckpointPlace::Nowhere,
            Some(_) if checkpoint.pinned && !self.leaves_out(Rule::PinComparesWithNothing) => CheckpointPlace::Pinned,
            Some(position) => CheckpointPlace::At(i64::from(position)),
        }
    }
}
