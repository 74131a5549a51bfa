//! A scenario as a system to explore: the possible steps, and the goal.

use std::fmt;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::Goal;

use super::balancer::{Balancers, Condition, Listing, Stimulus};
use super::listing::Relations;
use super::notes::{Event, Invariant, Notes};
use super::scenario::{Member, Rule, Scenario, Timing};
use super::search::{Edge, System};
use super::state::{
    Checkpoint, Content, Foreign, Handoff, HandoffStep, Instance, Owner, RunState, State, Task, Writer,
};
use super::storage::{self, Response};
use crate::explored::Step;

pub(super) const FOREIGN: &str = "F";
pub(super) const PINNER: &str = "the group's first instance";
const OPERATOR: &str = "an operator";

/// Describes a step for a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) actor: &'static str,
    pub(super) what: &'static str,
    pub(super) position: Option<u8>,
    pub(super) response: Option<Response>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.actor, self.what)?;
        if let Some(position) = self.position {
            write!(f, " {position}")?;
        }
        self.response.map_or(Ok(()), |response| write!(f, ": {}", response.text()))
    }
}

/// The steps that lead on from one state.
pub(super) struct Steps<'a>(&'a mut Vec<Edge<State, Label>>);

impl Steps<'_> {
    /// Adds a step without a fault or an event.
    pub(super) fn add(&mut self, actor: &'static str, what: &'static str, to: State) {
        self.noted(actor, what, to, Notes::default());
    }

    pub(super) fn noted(&mut self, actor: &'static str, what: &'static str, to: State, notes: Notes) {
        self.push(Label { actor, what, position: None, response: None }, to, false, notes);
    }

    pub(super) fn fault(&mut self, actor: &'static str, what: &'static str, to: State, notes: Notes) {
        self.push(Label { actor, what, position: None, response: None }, to, true, notes);
    }

    pub(super) fn push(&mut self, label: Label, to: State, fault: bool, notes: Notes) {
        self.0.push(Edge { label, to: to.canonical(), fault, notes });
    }
}

/// A scenario, ready to be explored.
pub(super) struct Model {
    pub(super) scenario: Scenario,
    pub(super) balancers: Balancers,
    pub(super) relations: Relations,
}

impl Model {
    pub(super) fn new(scenario: Scenario) -> Self {
        let balancers = Balancers::of(scenario.members, scenario.ignores_requests);
        Self { scenario, balancers, relations: Relations::of_all(scenario.members) }
    }

    pub(super) fn leaves_out(&self, rule: Rule) -> bool {
        self.scenario.without == Some(rule)
    }

    pub(super) fn name(&self, number: usize) -> &'static str {
        self.scenario.members[number].name
    }

    /// Returns how the ownership record relates to an instance.
    pub(super) fn relation(&self, state: &State, number: usize) -> Relation {
        state.ownership.map_or(Relation::Unowned, |record| self.relations.of(number, record.owner))
    }

    /// Returns whether the record is an instance's own, in the ownership with this epoch.
    pub(super) fn is_own_in(&self, state: &State, number: usize, epoch: Option<u8>) -> bool {
        let of_ownership = state.ownership.is_some_and(|record| record.keys.epoch == epoch);
        let own = self.relation(state, number) == Relation::This;
        own && (of_ownership || self.leaves_out(Rule::OwnByEpoch))
    }

    /// Returns whether the record may be considered expired, and the cost in steals. A record that no instance renews
    /// may expire at any time; one that an instance renews only in asynchronous timing, and only as often as there are
    /// steals.
    pub(super) fn expired(&self, state: &State) -> Option<u8> {
        let record = state.ownership?;
        let is_renewed = match record.owner {
            Owner::Unowned => false,
            Owner::Member(number) => believes(&state.instances[number as usize]),
            Owner::Foreign => matches!(state.foreign, Foreign::Running { .. }),
        };
        match self.scenario.timing {
            _ if !is_renewed => Some(0),
            Timing::Asynchronous if state.left.steals > 0 => Some(1),
            Timing::Asynchronous | Timing::Synchronous => None,
        }
    }

    fn members(&self) -> impl Iterator<Item = (usize, &'static Member)> {
        self.scenario.members.iter().enumerate()
    }

    /// Adds the events that affect an instance from outside.
    fn fates(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let (actor, instance) = (self.name(number), &state.instances[number]);
        if state.left.crashes > 0 && instance.run_state == RunState::Up {
            let mut to = state.with(number, |instance| *instance = instance.over());
            to.left.crashes -= 1;
            steps.fault(actor, "crashes", to, Notes::default());
        }
        let any_frozen = state.instances.iter().any(|instance| instance.run_state == RunState::Frozen);
        if state.left.freezes > 0 && instance.lease.is_some() && !any_frozen {
            let mut to = state.with(number, |instance| instance.run_state = RunState::Frozen);
            to.left.freezes -= 1;
            steps.fault(actor, "is frozen", to, Notes::default());
        }
        if state.left.releases > 0 && instance.lease.is_some() && !instance.leaving && self.may_operate(instance) {
            let after = self.reaction_now(state, number, Stimulus::StopRequested).after;
            let mut to = state.with(number, |instance| instance.is_now(after));
            to.left.releases -= 1;
            steps.add(actor, "is requested to stop", to);
        }
    }

    fn late_writes(&self, state: &State, steps: &mut Steps<'_>) {
        for number in 0..state.late.len() {
            let Some((write, to, notes)) = storage::landed(state, number) else { continue };
            let actor = match write.by {
                Writer::Member(number) => self.name(number as usize),
                Writer::Pinner => PINNER,
            };
            let what = match write.content {
                Content::Ownership { .. } => "had written the ownership, which lands now",
                Content::Checkpoint { .. } => "had written the checkpoint, which lands now",
            };
            steps.noted(actor, what, to, notes);
        }
    }

    fn deletes(&self, state: &State, steps: &mut Steps<'_>) {
        if state.left.deletes == 0 {
            return;
        }
        let mut spent = *state;
        spent.left.deletes -= 1;
        if state.ownership.is_some() && self.may_be_deleted(state) {
            steps.fault(OPERATOR, "deletes the ownership", storage::ownership_deleted(&spent), Notes::default());
        }
        if state.checkpoint.is_some() {
            steps.fault(OPERATOR, "deletes the checkpoint", storage::checkpoint_deleted(&spent), Notes::default());
        }
    }

    /// An instance lists the group: an instance with a lease detects a loss or a handoff request; any other, even a
    /// requester of the partition, whether the partition can be claimed.
    fn listing_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        let polls = matches!(instance.handoff, Some(Handoff { step: HandoffStep::Polling(_), .. }));
        let busy = instance.operation.is_some() || instance.handoff.is_some() && !polls;
        if busy || !self.may_operate(instance) {
            return;
        }
        if instance.lease.is_none() && self.is_reserved_for_another(state, number) {
            self.reservation_steps(state, number, steps);
            return;
        }
        self.reading_steps(state, number, steps);
    }

    fn reading_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let actor = self.name(number);
        let young = Listing::of(state);
        let expired = Listing { live: false, ..young };
        for (listing, cost) in [(young, Some(0)), (expired, self.expired(state))] {
            let Some(cost) = cost else { continue };
            let mut to = *state;
            to.left.steals -= cost;
            let fault = cost > 0;
            match self.after_listing(number, state.instances[number].condition(), listing) {
                Condition::Over => {
                    let notes = self.replaced(&mut to, number);
                    steps.noted(actor, "lists: a later incarnation of it runs", to, notes);
                }
                Condition::Claiming => self.plan_claims(&to, number, fault, steps),
                Condition::Idle if state.instances[number].lease.is_some() => {
                    let notes = self.drop_lease(&mut to, number).with(Event::LeaseDropped);
                    steps.push(listing_label(actor, "lists: its partition is lost"), to, fault, notes);
                }
                after @ Condition::HandingOver if after != state.instances[number].condition() => {
                    to.instances[number].is_now(after);
                    let notes = Notes::default().with(Event::HandoffSeen);
                    steps.push(listing_label(actor, "sees the handoff request, drains"), to, fault, notes);
                }
                after => assert_eq!(after, state.instances[number].condition(), "after {listing:?}"),
            }
            // If the age makes no difference, one listing is enough.
            if self.ignores_age(number, young) {
                return;
            }
        }
    }

    /// Returns whether the age of the record makes no difference.
    fn ignores_age(&self, number: usize, young: Listing) -> bool {
        let expired = Listing { live: false, ..young };
        [Condition::Idle, Condition::Held { knows_request: false }].into_iter().all(|condition| {
            self.after_listing(number, condition, young) == self.after_listing(number, condition, expired)
        })
    }

    /// A later incarnation of an owner was detected: this one stops.
    pub(super) fn replaced(&self, state: &mut State, number: usize) -> Notes {
        let members = self.scenario.members;
        let by_earlier = state.ownership.is_some_and(|record| match record.owner {
            Owner::Member(other) => {
                let (this, other) = (members[number], members[other as usize]);
                other.owner == this.owner && other.incarnation < this.incarnation
            }
            Owner::Unowned | Owner::Foreign => false,
        });
        state.instances[number] = state.instances[number].over();
        Notes::default().breaking(Invariant::LaterIncarnation, by_earlier).with(Event::Replaced)
    }
}

fn listing_label(actor: &'static str, what: &'static str) -> Label {
    Label { actor, what, position: None, response: None }
}

/// Returns whether an instance keeps its record alive: it owns it, or is just about to find out that it does.
fn believes(instance: &Instance) -> bool {
    let claiming =
        instance.operation.is_some_and(|operation| operation.next.goal == Goal::Claim && operation.is_reading());
    instance.run_state == RunState::Up && (instance.lease.is_some() || claiming)
}

impl System for Model {
    type State = State;
    type Label = Label;

    fn start(&self) -> State {
        self.scenario.start().canonical()
    }

    fn steps(&self, from: &State, edges: &mut Vec<Edge<State, Label>>) {
        let mut steps = Steps(edges);
        for (number, member) in self.members() {
            match from.instances[number].run_state {
                RunState::Before => {
                    steps.add(member.name, "starts", from.with(number, |instance| instance.run_state = RunState::Up));
                }
                RunState::Frozen => {
                    steps.add(member.name, "wakes", from.with(number, |instance| instance.run_state = RunState::Up));
                }
                RunState::Up if member.order.is_some() => {
                    self.operator_steps(from, number, &mut steps);
                    self.fates(from, number, &mut steps);
                }
                RunState::Up => {
                    self.listing_steps(from, number, &mut steps);
                    self.operation_steps(from, number, &mut steps);
                    self.work_steps(from, number, &mut steps);
                    self.handoff_steps(from, number, &mut steps);
                    self.fates(from, number, &mut steps);
                }
                RunState::Over => {}
            }
        }
        self.foreign_steps(from, &mut steps);
        self.pinner_steps(from, &mut steps);
        self.late_writes(from, &mut steps);
        self.deletes(from, &mut steps);
        self.second_passes(from, &mut steps);
    }

    fn is_goal(&self, state: &State) -> bool {
        let last = self.scenario.last_event;
        let is_paused = state.checkpoint.is_some_and(|checkpoint| checkpoint.paused);
        let stored = match state.checkpoint {
            _ if is_paused => true,
            Some(Checkpoint { position, pinned: false, .. }) => position == Some(last),
            // Only the next write detects its deletion, or a start that was pinned after it.
            Some(_) | None => self.scenario.left.deletes > state.left.deletes,
        };
        let at_work = |number: usize| {
            let Instance { run_state, lease, work, .. } = state.instances[number];
            let all = if is_paused { work.paused } else { work.last.position == Some(last) };
            run_state == RunState::Up && lease.is_some() && work.task == Task::Running && all
        };
        let owned = match state.ownership.map(|record| record.owner) {
            Some(Owner::Member(number)) => at_work(number as usize),
            Some(Owner::Foreign) => matches!(state.foreign, Foreign::Running { .. }),
            Some(Owner::Unowned) | None => false,
        };
        let requester = state.instances.iter().any(|instance| instance.handoff.is_some());
        let resetting = self.operators().any(|number| state.instances[number].run_state != RunState::Over);
        stored && owned && !requester && !resetting
    }

    fn observed(&self, from: &State, notes: &Notes) -> impl Iterator<Item = Step> {
        self.observed_steps(from, *notes)
    }

    fn is_hopeless(&self, state: &State) -> bool {
        let owners = self.members().filter(|(number, _)| !self.is_operator(*number));
        let all_over =
            owners.map(|(number, _)| state.instances[number].run_state).all(|run_state| run_state == RunState::Over);
        all_over && !self.scenario.foreign
    }
}
