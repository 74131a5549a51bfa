//! An operator: it takes the partition over, adopts, writes another position or a pause, releases, and reports.
//!
//! The real [`ResetProgress`] decides what it does next, and the real [`takeover`] how it takes the partition over. It
//! claims, adopts and releases by the same steps as an owner, and so by the same rules.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::internal::admin::{
    Allowed, ResetProgress, ResetReport, ResetStep, StepEnd, Takeover, takeover,
};
use eventhubs_checkpoint::internal::planner::{Observer, observe};
use eventhubs_checkpoint::internal::rules::{AdoptionStep, Goal};
use eventhubs_checkpoint::{OwnerId, PartitionId};

use super::balancer::Outcome;
use super::listing::{TERMS, recorded, seen};
use super::notes::{Event, Invariant, Notes};
use super::scenario::{Order, Rule};
use super::state::{
    Content, Due, Foreign, Instance, Keys, Kind, Operation, Owner, Progress, Reset, State, Task, Version, Work, Write,
    Writer, short,
};
use super::storage::{Response, attempts};
use super::system::{Label, Model, Steps};

/// Past every expiry.
const AGES: Duration = Duration::from_secs(1000);

impl Model {
    pub(super) fn is_operator(&self, number: usize) -> bool {
        self.scenario.members[number].order.is_some()
    }

    pub(super) fn operators(&self) -> impl Iterator<Item = usize> {
        (0..self.scenario.members.len()).filter(|number| self.is_operator(*number))
    }

    pub(super) fn has_operators(&self) -> bool {
        self.operators().next().is_some()
    }

    pub(super) fn operator_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Instance { operation, work, reset, .. } = state.instances[number];
        let Progress::Working(progress) = reset.progress else { return };
        // A release is given up after it failed, before it is sent again.
        let may_give_up = match operation {
            None => true,
            Some(operation) => operation.next.goal == Goal::Release && !operation.is_reading(),
        };
        if reset.has_failed && may_give_up {
            let mut to = *state;
            let notes = self.operator_goes_on(&mut to, number, StepEnd::GivenUp { in_doubt: false });
            steps.noted(self.name(number), "gives up", to, notes);
        }
        if operation.is_some() {
            return self.operation_steps(state, number, steps);
        }
        match progress.step {
            ResetStep::TakeOver => self.take_over(state, number, steps),
            ResetStep::Adopt
                if work.task == Task::Adopting(AdoptionStep::ReadCheckpoint)
                    && self.is_there_already(state, number) =>
            {
                let mut to = *state;
                to.due =
                    state.checkpoint.and_then(|there| there.position).map(|position| Due { position, fenced: true });
                let step = ResetStep::Write;
                let reset =
                    Reset { hit: true, progress: Progress::Working(ResetProgress { step, ..progress }), ..reset };
                to.instances[number].reset = reset;
                let notes = self.operator_goes_on(&mut to, number, StepEnd::Done);
                steps.noted(self.name(number), "finds the position already stored", to, notes);
            }
            ResetStep::Adopt => self.work_steps(state, number, steps),
            ResetStep::Hold if !self.is_own_in(state, number, work.epoch) => {
                let mut to = *state;
                let notes = self.drop_lease(&mut to, number);
                steps.noted(self.name(number), "waits, and finds that it lost the partition", to, notes);
            }
            ResetStep::Hold if self.works_on(state) => {}
            ResetStep::Hold => {
                let mut to = *state;
                let notes = self.operator_goes_on(&mut to, number, StepEnd::Done);
                steps.noted(self.name(number), "has waited for the other SDK", to, notes);
            }
            ResetStep::Write => self.write_change(state, number, steps),
            // The release is an operation of the store.
            ResetStep::Release { .. } => {}
        }
    }

    /// A step has ended.
    pub(super) fn operator_goes_on(&self, state: &mut State, number: usize, end: StepEnd) -> Notes {
        let instance = &mut state.instances[number];
        let Progress::Working(progress) = instance.reset.progress else { return Notes::default() };
        let next = match progress.after_step(end) {
            ControlFlow::Continue(next) => next,
            ControlFlow::Break(report) => return self.report(state, number, report),
        };
        instance.reset.progress = Progress::Working(next);
        instance.reset.has_failed |= matches!(end, StepEnd::Lost | StepEnd::Failed { .. });
        match (next.step, instance.lease) {
            (ResetStep::Release { .. }, Some(lease)) => {
                instance.reset.has_failed = false;
                instance.operation = Some(Operation::of(lease, Goal::Release));
                instance.lease = None;
                instance.work = Work::default();
            }
            (ResetStep::Adopt, Some(lease)) => {
                instance.work = Work::adopting(lease.keys.epoch, lease.claim_number);
            }
            _ => {}
        }
        Notes::default()
    }

    /// The step that the rule forbids.
    fn is_there_already(&self, state: &State, number: usize) -> bool {
        self.leaves_out(Rule::ResetIsWritten) && self.shows_order(state, number)
    }

    fn shows_order(&self, state: &State, number: usize) -> bool {
        self.scenario.members[number].order.is_some_and(|order| order.is_in(state.checkpoint))
    }

    fn take_over(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let actor = self.name(number);
        let may_live = !matches!(state.ownership.map(|record| record.owner), None | Some(Owner::Unowned));
        let old = if may_live { self.expired(state) } else { Some(0) };
        let mut before = None;
        for (age, cost) in [(Duration::ZERO, Some(0)), (AGES, old)] {
            let Some(cost) = cost else { continue };
            let decided = self.takeover(state, number, age);
            if before.as_ref() == Some(&decided) {
                continue;
            }
            let mut paid = *state;
            paid.left.steals -= cost;
            if let Some(takeover) = decided {
                self.claim_for_reset(&paid, number, takeover, cost > 0, steps);
            } else {
                let notes = self.operator_goes_on(&mut paid, number, StepEnd::GivenUp { in_doubt: false });
                steps.noted(actor, "lists: another operator is active, reports", paid, notes);
            }
            before = Some(decided);
        }
    }

    /// Returns the owner to which the partition is to be returned, and whether to wait for other SDKs. `None` if
    /// another operator is working on it.
    fn takeover(&self, state: &State, number: usize, age: Duration) -> Option<(Option<u8>, bool)> {
        let partition = PartitionId::from(0);
        let record = state.ownership.map(|there| {
            let record = recorded(self.scenario.members, there.owner, there.keys);
            seen(partition.clone(), record, age, Duration::ZERO)
        });
        let this = self.scenario.members[number].identity();
        let observer = Observer {
            this: &this,
            lease_durations: TERMS,
            running: &BTreeSet::new(),
            heartbeats: &[],
            outage_ended: None,
        };
        let view = observe(record.as_slice(), std::slice::from_ref(&partition), &observer, Duration::ZERO);
        let Takeover { return_to, settle, .. } =
            takeover(&view, &partition, Allowed { live: true, foreign: true }).ok()?;
        let is_left = state.ownership.filter(|record| record.keys.operator && record.owner != Owner::Unowned);
        let return_to = match is_left.map(|record| record.owner) {
            Some(Owner::Member(operator)) if self.leaves_out(Rule::ResetInherits) => Some(operator),
            _ => return_to.and_then(|owner| self.member(&owner)),
        };
        Some((return_to, settle))
    }

    fn member(&self, owner: &OwnerId) -> Option<u8> {
        let named = |number: &usize| self.scenario.members[*number].identity().owner == *owner;
        (0..self.scenario.members.len()).find(named).map(short)
    }

    fn claim_for_reset(
        &self,
        state: &State,
        number: usize,
        (return_to, settle): (Option<u8>, bool),
        fault: bool,
        steps: &mut Steps<'_>,
    ) {
        let inherits = state.ownership.is_some_and(|record| record.keys.operator && record.owner != Owner::Unowned);
        let under = state.ownership.map(|_| Version::Current);
        let with_foreign = self.scenario.foreign && !self.leaves_out(Rule::ResetSettlesWithForeign);
        let must_hold = (settle || with_foreign) && !self.leaves_out(Rule::ResetSettles);
        for epoch in self.epochs(state, None).into_iter().flatten() {
            let mut claim = Operation::claim(under, Some(epoch));
            claim.keys = Keys { handoff_to: return_to, operator: true, ..claim.keys };
            let to = state.with(number, |instance| {
                instance.operation = Some(claim);
                if let Progress::Working(progress) = &mut instance.reset.progress {
                    progress.must_hold |= must_hold;
                }
            });
            let label =
                Label { actor: self.name(number), what: "wants to take it over", position: None, response: None };
            steps.push(label, to, fault, Notes::default().with_if(Event::ResetInherited, inherits));
        }
    }

    fn write_change(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Some(order) = self.scenario.members[number].order else { return };
        let work = state.instances[number].work;
        let unconditional =
            self.leaves_out(Rule::ResetIsConditional).then(|| state.checkpoint.map(|_| Version::Current));
        let mut record = order.applied_to(work.last);
        let (kind, what, position) = match order {
            Order::Reset(position) => (Kind::Reset, "resets to", Some(position)),
            Order::Pause => (Kind::Pause, "pauses", None),
            Order::Resume => (Kind::Pause, "resumes", None),
        };
        record.paused &= kind != Kind::Reset || !self.leaves_out(Rule::PauseIsKept);
        let content = Content::Checkpoint { record, kind, authority: work.authority };
        let write = Write { by: Writer::ours(number), under: unconditional.unwrap_or(work.version), content };
        for attempt in attempts(state, write) {
            let mut to = attempt.state;
            let notes = match attempt.response {
                Response::Done if self.leaves_out(Rule::ResetReportedLast) => {
                    self.report(&mut to, number, ResetReport::Done)
                }
                Response::Done => self.operator_goes_on(&mut to, number, StepEnd::Done),
                response => {
                    to.instances[number].reset.unanswered |= response.is_fault();
                    let in_doubt = response.is_fault() && !self.leaves_out(Rule::ResetAmbiguityIsReported);
                    self.operator_goes_on(&mut to, number, StepEnd::Failed { in_doubt }).with(Event::ResetAgain)
                }
            };
            let label = Label { actor: self.name(number), what, position, response: Some(attempt.response) };
            steps.push(label, to, attempt.response.is_fault(), attempt.notes.and(notes));
        }
    }

    fn works_on(&self, state: &State) -> bool {
        match state.foreign {
            Foreign::Starting(_) | Foreign::Running { .. } => true,
            Foreign::Ending { .. } => !self.leaves_out(Rule::ResetSettlesHandlers),
            Foreign::Idle | Foreign::Claiming(_) => false,
        }
    }

    /// It detected that it no longer owns the partition.
    pub(super) fn operator_lost(&self, state: &mut State, number: usize) -> Notes {
        let is_there = self.shows_order(state, number);
        match state.instances[number].reset.progress {
            Progress::Working(ResetProgress { in_doubt: true, .. })
                if is_there && self.leaves_out(Rule::ResetAmbiguityIsNotLookedUp) =>
            {
                self.report(state, number, ResetReport::Done)
            }
            _ => self.operator_goes_on(state, number, StepEnd::Lost),
        }
    }

    /// Its claim or its release has ended.
    pub(super) fn operator_ended(
        &self,
        state: &mut State,
        number: usize,
        operation: Operation,
        outcome: Outcome,
    ) -> Notes {
        let instance = &mut state.instances[number];
        (instance.operation, instance.leaving) = (None, false);
        let is_release = operation.next.goal == Goal::Release;
        let end = match outcome {
            Outcome::Won { .. } => StepEnd::Done,
            Outcome::Lost if is_release && self.leaves_out(Rule::ResetOvertaken) => StepEnd::Done,
            Outcome::Lost | Outcome::Replaced => StepEnd::Lost,
            Outcome::Indeterminate => StepEnd::Failed { in_doubt: false },
        };
        if is_release && end == (StepEnd::Failed { in_doubt: false }) {
            instance.operation = Some(operation.again());
        }
        let mut notes = Notes::default();
        if !is_release && end == StepEnd::Done {
            notes = self.holds(state, number, operation);
        }
        notes.and(self.operator_goes_on(state, number, end))
    }

    fn report(&self, state: &mut State, number: usize, report: ResetReport) -> Notes {
        let Instance { reset, .. } = state.instances[number];
        let over = state.instances[number].over();
        let reported = Reset { progress: Progress::Reported(report), ..Reset::default() };
        state.instances[number] = Instance { reset: reported, ..over };
        let notes = Notes::default();
        match report {
            ResetReport::NotDone => notes.with(Event::ResetNotDone).breaking(Invariant::ReportTrue, reset.hit),
            ResetReport::Indeterminate { written } => {
                let is_true = if written { reset.hit } else { reset.unanswered };
                notes.with(Event::ResetIndeterminate).breaking(Invariant::ReportTrue, !is_true)
            }
            ResetReport::Done => {
                let stored = state.checkpoint.and_then(|checkpoint| checkpoint.position);
                let other_case = state.due.is_some_and(|due| stored != Some(due.position));
                let works = state.foreign_from_before && matches!(state.foreign, Foreign::Running { .. });
                notes
                    .with(Event::ResetDone)
                    .breaking(Invariant::ReportTrue, !reset.hit)
                    .breaking(Invariant::ResetFollowed, other_case)
                    .breaking(Invariant::ReportReleased, state.is_owned_by(Owner::ours(number)))
                    .breaking(Invariant::ReturnedToOwner, self.is_for_operator(state))
                    .breaking(Invariant::ForeignSilent, works)
            }
        }
    }

    fn is_for_operator(&self, state: &State) -> bool {
        let released = state.ownership.filter(|record| record.owner == Owner::Unowned);
        released.and_then(|record| record.keys.handoff_to).is_some_and(|owner| self.is_operator(owner as usize))
    }
}
