//! An instance's claims, renewals and releases, as the store performs them.
//!
//! `rules::OwnershipOperation` decides which request is next, and what its response means. Every outcome goes to the
//! [balancer](super::balancer).

use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::{
    FoundOwnership, Goal, OwnershipOperation, OwnershipStep, Settled, WriteCondition,
};

use super::balancer::{Condition, HandoffRequest, Outcome, Renewal, Stimulus};
use super::canonical::condition_passed;
use super::listing::{TERMS, recorded};
use super::notes::{Event, Invariant, Notes};
use super::scenario::Rule;
use super::state::{
    Content, Instance, Keys, Lease, Operation, Owner, RunState, State, Task, Version, Work, Write, Writer,
};
use super::storage::{Response, attempts};
use super::system::{Label, Model, Steps};

pub(super) const YOUNG: Duration = Duration::ZERO;

/// What comes next after a read.
type Next = ControlFlow<Settled, OwnershipOperation<Version>>;

impl Model {
    /// Returns whether it may begin an operation on the ownership. In the store that does not depend on work on the
    /// checkpoint; a scenario that forbids the overlap has fewer states.
    pub(super) fn may_operate(&self, instance: &Instance) -> bool {
        self.scenario.overlaps || matches!(instance.work.task, Task::Running | Task::Stopped)
    }

    pub(super) fn operation_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        match (instance.operation, instance.lease) {
            (Some(operation), _) => self.next_request(state, number, operation, steps),
            (None, Some(lease)) if self.may_operate(instance) => {
                if let Some(renewal) = self.reaction_now(state, number, Stimulus::RenewalDue).renews {
                    let goal = if renewal == Renewal::Draining { Goal::Acknowledge } else { Goal::Renew };
                    self.next_request(state, number, Operation::of(lease, goal), steps);
                }
                if instance.leaving && self.is_settled(&instance.work) {
                    self.release_settled(state, number, lease, steps);
                } else if instance.leaving {
                    self.release_unsettled(state, number, lease, steps);
                }
            }
            _ => {}
        }
    }

    fn next_request(&self, state: &State, number: usize, operation: Operation, steps: &mut Steps<'_>) {
        match operation.next.step {
            OwnershipStep::Write { under } => self.write_record(state, number, operation, under, steps),
            OwnershipStep::Read { attempted } => self.read_record(state, number, operation, attempted, steps),
            OwnershipStep::ReadOnceOld { written } => self.read_once_old(state, number, operation, written, steps),
        }
    }

    /// Returns whether the last checkpoint is written, or was given up.
    fn is_settled(&self, work: &Work) -> bool {
        let settled = self.has_written_all(work) || self.leaves_out(Rule::CheckpointBeforeRelease);
        work.task == Task::Stopped || work.task == Task::Running && settled
    }

    /// Its processing has stopped.
    fn release_settled(&self, state: &State, number: usize, lease: Lease, steps: &mut Steps<'_>) {
        let stopped = Stimulus::Stopped { settled: true };
        if self.reaction_now(state, number, stopped).after == Condition::Releasing {
            self.next_request(&given_up(state, number, lease), number, Operation::of(lease, Goal::Release), steps);
        }
    }

    /// The drain timeout has expired: it reports that events may be processed twice.
    fn release_unsettled(&self, state: &State, number: usize, lease: Lease, steps: &mut Steps<'_>) {
        let work = state.instances[number].work;
        if state.left.unsettled == 0 || work.task != Task::Running {
            return;
        }
        let reaction = self.reaction_now(state, number, Stimulus::TimeOver);
        assert_eq!(reaction.after, Condition::Releasing);
        let mut to = given_up(state, number, lease);
        to.left.unsettled -= 1;
        if reaction.emitted.duplicates {
            report_unsettled(&mut to, &work);
        }
        let notes = Notes::default().with(Event::ReleasedUnsettled);
        steps.fault(self.name(number), "gives up its checkpoint, and reports it", to, notes);
    }

    /// A listing led to a claim, with one of the epochs that it may have now, or without one.
    pub(super) fn plan_claims(&self, state: &State, number: usize, fault: bool, steps: &mut Steps<'_>) {
        let under = state.ownership.map(|_| Version::Current);
        let (what, event) = match (under, self.relation(state, number)) {
            (None, _) => ("lists: no record, wants to claim", None),
            (_, Relation::Unowned) => ("lists: released, wants to claim", None),
            (_, Relation::This) => {
                ("lists: its own record that it does not run, reclaims", Some(Event::OwnRecordReclaimed))
            }
            (_, Relation::EarlierIncarnation) => {
                ("lists: an earlier incarnation of it, reclaims", Some(Event::EarlierIncarnationReclaimed))
            }
            (_, Relation::LaterIncarnation | Relation::Other) => ("lists: expired, wants to claim", None),
        };
        let reclaims = event == Some(Event::EarlierIncarnationReclaimed);
        let notes = event.map_or(Notes::default(), |event| Notes::default().with(event));
        let own = self.relation(state, number) == Relation::This;
        // Its own record without an epoch is not claimed until it is old enough.
        for epoch in self.epochs(state, None).into_iter().filter(|epoch| epoch.is_some() || !own) {
            let claim = Operation { reclaims, ..Operation::claim(under, epoch) };
            let to = state.with(number, |instance| (instance.operation, instance.handoff) = (Some(claim), None));
            let label = Label { actor: self.name(number), what, position: None, response: None };
            steps.push(label, to, fault, notes);
        }
    }

    fn write_record(
        &self,
        state: &State,
        number: usize,
        operation: Operation,
        under: WriteCondition<Version>,
        steps: &mut Steps<'_>,
    ) {
        let goal = operation.next.goal;
        let owner = if goal == Goal::Release { Owner::Unowned } else { Owner::ours(number) };
        let content = Content::Ownership { owner, keys: operation.keys };
        let what = match goal {
            Goal::Claim if operation.renews => "renews a deleted record",
            Goal::Claim => "claims",
            Goal::Renew | Goal::Rewrite => "renews",
            Goal::Acknowledge => "acknowledges",
            Goal::Release => "releases",
        };
        for attempt in attempts(state, Write { by: Writer::ours(number), under: under.version(), content }) {
            let (mut to, mut notes) = (attempt.state, attempt.notes);
            if attempt.response == Response::Done {
                match OwnershipOperation::after_write(goal, Version::Current, operation.keys.epoch.is_some()) {
                    ControlFlow::Continue(next) => {
                        to.instances[number].operation = Some(Operation { next, ..operation });
                    }
                    ControlFlow::Break(_) => notes |= self.settled(&mut to, number, operation),
                }
            } else {
                let mut attempted = under;
                // The version of the attempt is unchanged if the storage did not change.
                if attempt.response == Response::Unseen {
                    condition_passed(&mut attempted);
                }
                let next = OwnershipOperation { goal, step: OwnershipStep::Read { attempted } };
                to.instances[number].operation = Some(Operation { next, ..operation });
            }
            let label = Label { actor: self.name(number), what, position: None, response: Some(attempt.response) };
            steps.push(label, to, attempt.response.is_fault(), notes);
        }
    }

    /// The goal is reached in the current record.
    fn settled(&self, state: &mut State, number: usize, operation: Operation) -> Notes {
        let still_own = operation.next.goal == Goal::Release && self.relation(state, number) == Relation::This;
        let lease = state.instances[number].lease;
        let outcome = Outcome::Won {
            again: lease.is_some_and(|lease| lease.keys.epoch != operation.keys.epoch),
            handoff_request: match operation.keys.handoff_to {
                None => HandoffRequest::None,
                requester if requester == lease.and_then(|lease| lease.keys.handoff_to) => HandoffRequest::Known,
                Some(_) => HandoffRequest::New,
            },
        };
        self.ended(state, number, operation, outcome).breaking(Invariant::Released, still_own)
    }

    /// The balancer, or the operator, gets the outcome of an operation.
    fn ended(&self, state: &mut State, number: usize, operation: Operation, outcome: Outcome) -> Notes {
        if self.is_operator(number) {
            return self.operator_ended(state, number, operation, outcome);
        }
        let before = state.instances[number].condition();
        let stimulus = match operation.next.goal {
            Goal::Release => Stimulus::Released(outcome),
            _ if operation.renews => Stimulus::Renewed(outcome),
            _ => Stimulus::Claimed(outcome),
        };
        let reaction = self.reaction(number, before, stimulus);
        state.instances[number].operation = None;
        match reaction.after {
            Condition::Over => self.replaced(state, number),
            after @ (Condition::Idle | Condition::Pending) => {
                let instance = &mut state.instances[number];
                instance.handoff = instance.handoff.filter(|_| after == Condition::Pending);
                self.drop_lease(state, number)
            }
            after @ (Condition::Held { .. } | Condition::Leaving { .. } | Condition::HandingOver) => {
                let notes = match outcome {
                    Outcome::Won { .. } => self.holds(state, number, operation),
                    _ => Notes::default(),
                };
                state.instances[number].is_now(after);
                notes.with_if(Event::HandoffSeen, reaction.emitted.asked_for)
            }
            Condition::Releasing => {
                let notes = self.holds(state, number, operation);
                let lease = state.instances[number].lease.take();
                state.instances[number].operation = lease.map(|lease| Operation::of(lease, Goal::Release));
                notes
            }
            after => unreachable!("{after:?} after {stimulus:?}"),
        }
    }

    /// It has won the partition, or still owns it.
    pub(super) fn holds(&self, state: &mut State, number: usize, operation: Operation) -> Notes {
        let Some(record) = state.ownership else { return Notes::default() };
        let instance = &mut state.instances[number];
        instance.lease =
            Some(Lease { version: Version::Current, keys: operation.keys, claim_number: record.claim_number });
        instance.handoff = None;
        let mut notes = Notes::default();
        if operation.next.goal == Goal::Claim {
            notes = notes.with_if(Event::OwnershipOutlived, instance.work.task != Task::Stopped);
            self.begin_ownership(instance, operation.keys.epoch, record.claim_number);
            if operation.reclaims && self.leaves_out(Rule::ReclaimedIsAdopted) {
                Self::run_as_it_is(state, number);
            }
        }
        notes
    }

    /// A new ownership: work of the earlier one ends, then the partition is adopted.
    fn begin_ownership(&self, instance: &mut Instance, epoch: Option<u8>, claim_number: u8) {
        if self.scenario.overlaps && instance.work.task != Task::Stopped {
            instance.work.outlived = true;
        } else if instance.leaving {
            instance.work = Work::default();
        } else {
            instance.work = Work::adopting(epoch, claim_number);
        }
    }

    fn run_as_it_is(state: &mut State, number: usize) {
        let seen = state.seen();
        let position = seen.and_then(|seen| seen.checkpoint.position);
        let work = &mut state.instances[number].work;
        work.task = Task::Running;
        (work.version, work.last.position) = (seen.map(|seen| seen.version), position);
        work.at = position.unwrap_or_default();
        state.fence = state.fence.max(work.authority);
    }

    fn read_record(
        &self,
        state: &State,
        number: usize,
        mut operation: Operation,
        attempted: WriteCondition<Version>,
        steps: &mut Steps<'_>,
    ) {
        self.failed_read(state, number, operation, steps);
        if let Some(record) = state.ownership.filter(|_| self.relation(state, number) == Relation::This) {
            if self.leaves_out(Rule::WonIsWrittenAgain) {
                operation.keys.epoch = record.keys.epoch;
            }
            if !self.leaves_out(Rule::RenewalKeepsRequest) {
                operation.keys.handoff_to = record.keys.handoff_to;
            }
        }
        let mut known = [None; 3];
        for ((age, cost), earlier) in self.ages(state, number).into_iter().flatten().zip(0..) {
            let next = self.next_after_read(state, number, operation, attempted, age);
            if known[..earlier].contains(&Some(next)) {
                continue;
            }
            known[earlier] = Some(next);
            let mut paid = *state;
            paid.left.steals -= cost;
            if let ControlFlow::Continue(next @ OwnershipOperation { goal: Goal::Claim, .. }) = next {
                self.claim_again(&paid, number, (operation, next, age), cost > 0, steps);
                continue;
            }
            let mut to = paid;
            let (what, notes) = self.go_on(&mut to, number, operation, next, age);
            let label = Label { actor: self.name(number), what, position: None, response: None };
            steps.push(label, to, cost > 0, notes);
        }
    }

    /// With one of the epochs that the claim may have now, or without one.
    fn claim_again(
        &self,
        state: &State,
        number: usize,
        (operation, next, age): (Operation, OwnershipOperation<Version>, Duration),
        fault: bool,
        steps: &mut Steps<'_>,
    ) {
        let own = self.relation(state, number) == Relation::This;
        let (actor, goal) = (self.name(number), operation.next.goal);
        let what = if own { "reads: its own, writes again" } else { "reads: not written, writes again" };
        let notes = Notes::default().with(tried_again(goal, next, own, age));
        let own = operation.keys.epoch;
        let kept = (goal != Goal::Claim && self.leaves_out(Rule::EpochCreate)).then(|| vec![own]);
        for epoch in kept.unwrap_or_else(|| self.epochs(state, own)) {
            let keys = Keys { epoch, ..operation.keys };
            let again = Operation { next, keys, ..operation };
            let to = state.with(number, |instance| instance.operation = Some(again));
            steps.push(Label { actor, what, position: None, response: None }, to, fault, notes);
        }
    }

    /// Returns the possible ages of the record, each with its cost in steals.
    fn ages(&self, state: &State, number: usize) -> [Option<(Duration, u8)>; 2] {
        let record = state.ownership.map(|record| recorded(self.scenario.members, record.owner, record.keys));
        let record = record.unwrap_or_default();
        let own = self.scenario.members[number].lease_durations().own;
        let other = match self.relation(state, number) {
            // Too old for a renewal to be valid, but not expired.
            Relation::This => Some((own / 2 + Duration::from_secs(1), 0)),
            Relation::LaterIncarnation => self.expired(state).map(|cost| (TERMS.lifetime(&record), cost)),
            Relation::EarlierIncarnation | Relation::Other | Relation::Unowned => None,
        };
        [Some((YOUNG, 0)), other]
    }

    /// Returns the decision of the rules, and its goal; or the decision without the disabled rule.
    fn next_after_read(
        &self,
        state: &State,
        number: usize,
        operation: Operation,
        attempted: WriteCondition<Version>,
        age: Duration,
    ) -> Next {
        let mut goal = operation.next.goal;
        let mut relation = self.relation(state, number);
        let mut age = age;
        match self.scenario.without {
            Some(Rule::WonIsWrittenAgain) if goal == Goal::Claim && relation == Relation::This => {
                (goal, age) = (Goal::Renew, YOUNG);
            }
            Some(Rule::ReleaseIsVerified) if goal == Goal::Release => {
                return ControlFlow::Break(Settled::Applied);
            }
            Some(Rule::LaterIncarnationStays) if relation == Relation::EarlierIncarnation => {
                relation = Relation::LaterIncarnation;
            }
            _ => {}
        }
        let found = state.ownership.map(|record| {
            let Keys { draining, epoch, .. } = record.keys;
            let lifetime = TERMS.lifetime(&recorded(self.scenario.members, record.owner, record.keys));
            FoundOwnership { relation, version: Version::Current, age, lifetime, epoch: epoch.map(i64::from), draining }
        });
        let lease_duration = self.scenario.members[number].lease_durations().own;
        let epoch = operation.keys.epoch.map(i64::from);
        OwnershipOperation::after_read(goal, &attempted, epoch, found, lease_duration)
    }

    /// The record was written without an epoch, over one that was too young.
    fn read_once_old(
        &self,
        state: &State,
        number: usize,
        operation: Operation,
        written: Version,
        steps: &mut Steps<'_>,
    ) {
        self.failed_read(state, number, operation, steps);
        for epoch in self.epochs(state, None) {
            let age = if epoch.is_some() { Duration::MAX } else { YOUNG };
            let found = state.ownership.map(|_| (Version::Current, age));
            match OwnershipOperation::after_wait(written, found) {
                ControlFlow::Continue(next) if next.step != operation.next.step => {
                    let again = Operation { next, keys: Keys { epoch, ..operation.keys }, ..operation };
                    let to = state.with(number, |instance| instance.operation = Some(again));
                    steps.add(self.name(number), "reads: its own, old enough for an epoch", to);
                }
                ControlFlow::Continue(_) => {}
                ControlFlow::Break(settled) => {
                    let mut to = *state;
                    let (what, notes) = self.go_on(&mut to, number, operation, ControlFlow::Break(settled), age);
                    steps.noted(self.name(number), what, to, notes);
                    return;
                }
            }
        }
    }

    fn go_on(
        &self,
        state: &mut State,
        number: usize,
        operation: Operation,
        next: Next,
        age: Duration,
    ) -> (&'static str, Notes) {
        let own = self.relation(state, number) == Relation::This;
        let notes = Notes::default();
        match next {
            ControlFlow::Continue(next) => {
                let event = tried_again(operation.next.goal, next, own, age);
                state.instances[number].operation = Some(Operation { next, ..operation });
                (
                    if own { "reads: its own, writes again" } else { "reads: not written, writes again" },
                    notes.with(event),
                )
            }
            ControlFlow::Break(Settled::Applied) => {
                let event = match operation.next.goal {
                    Goal::Acknowledge => Event::AcknowledgementStands,
                    Goal::Renew | Goal::Rewrite | Goal::Claim => Event::RenewalStands,
                    Goal::Release => Event::ReleaseStands,
                };
                let settled = self.settled(state, number, operation);
                let is_asked = settled.contains(Event::HandoffSeen);
                let mut notes = notes.with(event);
                notes |= settled;
                (if is_asked { "reads: applied, with a handoff request" } else { "reads: applied" }, notes)
            }
            ControlFlow::Break(Settled::Lost) => {
                let event = match operation.next.goal {
                    Goal::Release => Event::ReleaseStands,
                    _ if operation.renews => Event::RenewalLost,
                    _ => Event::ClaimLost,
                };
                let mut notes = notes.with(event);
                notes |= self.ended(state, number, operation, Outcome::Lost);
                ("reads: not its own, lost", notes)
            }
            ControlFlow::Break(Settled::Replaced) => {
                ("reads: a later incarnation of it", self.ended(state, number, operation, Outcome::Replaced))
            }
        }
    }

    /// The outcome is unknown.
    fn failed_read(&self, state: &State, number: usize, operation: Operation, steps: &mut Steps<'_>) {
        let Some(mut to) = self.with_failed_read(state) else { return };
        let mut notes = self.ended(&mut to, number, operation, Outcome::Indeterminate);
        notes |= Notes::default().with(Event::ReadFailed);
        steps.fault(self.name(number), "cannot read the record", to, notes);
    }

    /// Returns the state after a failed read, if one may fail.
    pub(super) fn with_failed_read(&self, state: &State) -> Option<State> {
        let mut to = *state;
        to.left.faults = to.left.faults.checked_sub(1)?;
        self.scenario.reads_fail.then_some(to)
    }

    /// It no longer considers itself the owner.
    pub(super) fn drop_lease(&self, state: &mut State, number: usize) -> Notes {
        let epoch = state.instances[number].lease.and_then(|lease| lease.keys.epoch);
        let is_own_record = self.is_own_in(state, number, epoch);
        let instance = &mut state.instances[number];
        let dropped = instance.lease.take().is_some();
        instance.leaving = false;
        if !self.scenario.overlaps {
            instance.work = Work::default();
        }
        let kept = dropped && is_own_record && instance.run_state == RunState::Up;
        let notes = Notes::default().breaking(Invariant::Kept, kept);
        if self.is_operator(number) { notes.and(self.operator_lost(state, number)) } else { notes }
    }
}

impl Operation {
    pub(super) fn of(lease: Lease, goal: Goal) -> Self {
        let is_release = goal == Goal::Release;
        let keys = if is_release { lease.keys.released() } else { lease.keys };
        let next = OwnershipOperation::to_write(goal, WriteCondition::IfMatch(lease.version));
        Self { next, keys, reclaims: false, renews: !is_release }
    }

    pub(super) fn claim(under: Option<Version>, epoch: Option<u8>) -> Self {
        let next = OwnershipOperation::to_write(Goal::Claim, under.into());
        Self { next, keys: Keys { epoch, ..Keys::default() }, reclaims: false, renews: false }
    }

    /// Returns the same operation, from its last write on.
    pub(super) fn again(self) -> Self {
        let next = match self.next.step {
            OwnershipStep::Read { attempted } => OwnershipOperation::to_write(self.next.goal, attempted),
            OwnershipStep::Write { .. } | OwnershipStep::ReadOnceOld { .. } => self.next,
        };
        Self { next, ..self }
    }

    pub(super) fn is_reading(&self) -> bool {
        matches!(self.next.step, OwnershipStep::Read { .. })
    }

    /// Returns whether it is a claim that found no record.
    pub(super) fn creates(&self) -> bool {
        let (OwnershipStep::Write { under } | OwnershipStep::Read { attempted: under }) = self.next.step else {
            return false;
        };
        self.next.goal == Goal::Claim && under == WriteCondition::Create
    }
}

/// It no longer runs the partition, and is about to release it.
fn given_up(state: &State, number: usize, lease: Lease) -> State {
    state.with(number, |instance| {
        instance.lease = None;
        instance.operation = Some(Operation::of(lease, Goal::Release));
        instance.work = Work::default();
    })
}

/// Events that no checkpoint covers may be processed again, which is reported.
pub(super) fn report_unsettled(state: &mut State, work: &Work) {
    for event in work.last.position.unwrap_or_default() + 1..=work.at {
        state.reported |= 1 << event;
    }
}

fn tried_again(goal: Goal, next: OwnershipOperation<Version>, own: bool, age: Duration) -> Event {
    let creates = next.step == OwnershipStep::Write { under: WriteCondition::Create };
    match (goal, creates, own) {
        (Goal::Claim, _, true) => Event::ClaimFoundOwn,
        (Goal::Acknowledge, _, true) => Event::AcknowledgementTriedAgain,
        (Goal::Renew, _, true) if age > YOUNG => Event::RenewalFoundOld,
        (Goal::Renew | Goal::Acknowledge, true, _) => Event::RenewalCreates,
        (Goal::Release, ..) => Event::ReleaseTriedAgain,
        (_, true, _) => Event::ClaimOverNothing,
        (_, false, _) => Event::ClaimOverUnchanged,
    }
}
