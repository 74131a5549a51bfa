//! An operator: it takes the partition over, adopts, writes another position, releases, and reports.
//!
//! The real [`takeover`] decides how it takes the partition over. Its claim, its adoption and its release go through
//! the same steps, and so through the same rules, as those of an owner.

use std::collections::BTreeSet;
use std::time::Duration;

use super::balancer::Outcome;
use super::listing::{TERMS, recorded, seen};
use super::notes::{Event, Invariant, Notes};
use super::scenario::Rule;
use super::state::{
    Adoption, Checkpoint, Content, Due, Foreign, Instance, Keys, Kind, Operation, Owner, Report, Reset, ResetStep,
    State, Task, Version, Work, Write, Writer, short,
};
use super::storage::{Response, attempts};
use super::system::{Label, Model, Steps};
use eventhubs_checkpoint::internal::admin::{Allowed, Takeover, takeover};
use eventhubs_checkpoint::internal::planner::{Observer, observe};
use eventhubs_checkpoint::internal::rules::Goal;
use eventhubs_checkpoint::{OwnerId, PartitionId};

/// Past every expiry.
const AGES: Duration = Duration::from_secs(1000);

impl Model {
    pub(super) fn is_operator(&self, number: usize) -> bool {
        self.scenario.members[number].resets_to.is_some()
    }

    pub(super) fn operators(&self) -> impl Iterator<Item = usize> {
        (0..self.scenario.members.len()).filter(|number| self.is_operator(*number))
    }

    pub(super) fn has_operators(&self) -> bool {
        self.operators().next().is_some()
    }

    pub(super) fn operator_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Instance { operation, lease, work, reset, .. } = state.instances[number];
        if operation.is_some() {
            return self.operation_steps(state, number, steps);
        }
        if reset.has_failed {
            self.give_up(state, number, steps);
        }
        match (lease, work.task) {
            (None, _) => self.take_over(state, number, steps),
            (Some(_), Task::Running) => self.reset(state, number, steps),
            (Some(_), Task::Adopting(Adoption::ReadCheckpoint)) if self.is_there_already(state, number) => {
                let mut to = released_next(state, number, true);
                to.due =
                    state.checkpoint.and_then(|there| there.position).map(|position| Due { position, fenced: true });
                to.instances[number].reset.hit = true;
                steps.add(self.name(number), "finds the position already stored", to);
            }
            (Some(_), _) => self.work_steps(state, number, steps),
        }
    }

    /// The step that the rule forbids.
    fn is_there_already(&self, state: &State, number: usize) -> bool {
        let stored = state.checkpoint.and_then(|checkpoint| checkpoint.position);
        self.leaves_out(Rule::ResetIsWritten) && stored == self.scenario.members[number].resets_to
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
                let notes = self.report(&mut paid, number, self.unwritten(state.instances[number].reset));
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
        (return_to, settles): (Option<u8>, bool),
        fault: bool,
        steps: &mut Steps<'_>,
    ) {
        let inherits = state.ownership.is_some_and(|record| record.keys.operator && record.owner != Owner::Unowned);
        let under = state.ownership.map(|_| Version::Current);
        for epoch in self.epochs(state, None).into_iter().flatten() {
            let mut claim = Operation::claim(under, Some(epoch));
            claim.keys = Keys { handoff_to: return_to, operator: true, ..claim.keys };
            let to = state.with(number, |instance| {
                instance.operation = Some(claim);
                instance.reset.displaces_foreign |= settles;
            });
            let label =
                Label { actor: self.name(number), what: "wants to take it over", position: None, response: None };
            steps.push(label, to, fault, Notes::default().with_if(Event::ResetInherited, inherits));
        }
    }

    fn reset(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Instance { lease, work, reset, .. } = state.instances[number];
        let (Some(lease), Some(position)) = (lease, self.scenario.members[number].resets_to) else { return };
        if self.waits(reset) && !reset.has_waited {
            if !self.works_on(state) {
                let to = state.with(number, |instance| instance.reset.has_waited = true);
                steps.add(self.name(number), "has waited for the other SDK", to);
            }
            return;
        }
        let unconditional =
            self.leaves_out(Rule::ResetIsConditional).then(|| state.checkpoint.map(|_| Version::Current));
        let record = Checkpoint { position: Some(position), pinned: false };
        let content = Content::Checkpoint { record, kind: Kind::Reset, authority: work.authority };
        let write = Write { by: Writer::ours(number), under: unconditional.unwrap_or(work.version), content };
        for attempt in attempts(state, write) {
            let (to, notes) = match attempt.response {
                Response::Done if self.leaves_out(Rule::ResetReportedLast) => {
                    let mut to = attempt.state;
                    let notes = self.report(&mut to, number, Report::Done);
                    (to, notes)
                }
                Response::Done => (released_next(&attempt.state, number, true), Notes::default()),
                response => {
                    let to = attempt.state.with(number, |instance| {
                        instance.work = Work::adopting(lease.keys.epoch, lease.claim_number);
                        (instance.reset.has_failed, instance.reset.has_waited) = (true, false);
                        instance.reset.in_doubt |= response.is_fault();
                    });
                    (to, Notes::default().with(Event::ResetAgain))
                }
            };
            let label = Label {
                actor: self.name(number),
                what: "resets to",
                position: Some(position),
                response: Some(attempt.response),
            };
            steps.push(label, to, attempt.response.is_fault(), attempt.notes.and(notes));
        }
    }

    /// Returns whether it waits for owners of another SDK, which detect its ownership meanwhile.
    fn waits(&self, reset: Reset) -> bool {
        let with_foreign = self.scenario.foreign && !self.leaves_out(Rule::ResetSettlesWithForeign);
        (reset.displaces_foreign || with_foreign) && !self.leaves_out(Rule::ResetSettles)
    }

    fn works_on(&self, state: &State) -> bool {
        match state.foreign {
            Foreign::Starting(_) | Foreign::Running { .. } => true,
            Foreign::Ending { .. } => !self.leaves_out(Rule::ResetSettlesHandlers),
            Foreign::Idle | Foreign::Claiming(_) => false,
        }
    }

    /// Its attempts are exhausted.
    fn give_up(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let actor = self.name(number);
        if state.instances[number].lease.is_some() {
            return steps.add(actor, "gives up", released_next(state, number, false));
        }
        let mut to = *state;
        let notes = self.report(&mut to, number, self.unwritten(state.instances[number].reset));
        steps.noted(actor, "gives up, reports", to, notes);
    }

    /// Returns its report of a position that was not written, as far as it knows.
    fn unwritten(&self, reset: Reset) -> Report {
        let indeterminate = reset.in_doubt && !self.leaves_out(Rule::ResetAmbiguityIsReported);
        if indeterminate { Report::Unsure } else { Report::NotDone }
    }

    /// It detected that it no longer owns the partition.
    pub(super) fn operator_lost(&self, state: &mut State, number: usize) -> Notes {
        let reset = state.instances[number].reset;
        let stored = state.checkpoint.and_then(|checkpoint| checkpoint.position);
        let is_there = stored == self.scenario.members[number].resets_to;
        let looked_up = self.leaves_out(Rule::ResetAmbiguityIsNotLookedUp) && reset.in_doubt && is_there;
        let report = if looked_up { Report::Done } else { self.unwritten(reset) };
        self.report(state, number, report)
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
        let reset = instance.reset;
        match (operation.goal, outcome) {
            (Goal::Release, outcome) => {
                let released = matches!(outcome, Outcome::Won { .. })
                    || outcome == Outcome::Lost && self.leaves_out(Rule::ResetOvertaken);
                let report = match reset.step {
                    ResetStep::Releasing { written: true } if released => Report::Done,
                    ResetStep::Releasing { written: true } => Report::Unsure,
                    _ => self.unwritten(reset),
                };
                self.report(state, number, report)
            }
            (_, Outcome::Won { .. }) => self.holds(state, number, operation),
            (_, Outcome::Lost | Outcome::Replaced | Outcome::Indeterminate) => {
                instance.reset.has_failed = true;
                Notes::default()
            }
        }
    }

    fn report(&self, state: &mut State, number: usize, report: Report) -> Notes {
        let Instance { reset, .. } = state.instances[number];
        let over = state.instances[number].over();
        state.instances[number] =
            Instance { reset: Reset { step: ResetStep::Reported(report), ..Reset::default() }, ..over };
        let notes = Notes::default();
        match report {
            Report::NotDone => notes.with(Event::ResetNotDone).breaking(Invariant::ReportTrue, reset.hit),
            Report::Unsure => {
                let written = reset.step == ResetStep::Releasing { written: true };
                notes.with(Event::ResetIndeterminate).breaking(Invariant::ReportTrue, !reset.in_doubt && !written)
            }
            Report::Done => {
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

/// It releases the partition next.
fn released_next(state: &State, number: usize, written: bool) -> State {
    state.with(number, |instance| {
        instance.operation = instance.lease.take().map(|lease| Operation::of(lease, Goal::Release));
        instance.work = Work::default();
        instance.reset.step = ResetStep::Releasing { written };
    })
}
