//! An instance that requests a partition from another instance, and the response.
//!
//! Every poll of the record is evaluated by `rules::HandoffView`, `rules::decide_handoff_request` and `rules::Handoff`,
//! and its result goes to the [balancer](super::balancer). The time of a timeout is a choice.

use std::ops::ControlFlow;
use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::internal::rules::{
    self, HandoffRequestOutcome, HandoffStatus, HandoffView, decide_handoff_request,
};
use eventhubs_checkpoint::store::OwnershipRecord;

use super::balancer::{Chance, Condition, Listing, RequestOutcome, Stimulus};
use super::listing::{TERMS, old, recorded};
use super::notes::{Event, Notes};
use super::ownership::YOUNG;
use super::state::{
    Content, Handoff, HandoffStep, Instance, Keys, Operation, Owner, RunState, State, Version, Write, Writer, short,
};
use super::storage::{Response, attempts};
use super::system::{Label, Model, Steps};

/// Past every timeout.
const LATE: Duration = Duration::from_secs(1000);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl Model {
    pub(super) fn handoff_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        if instance.operation.is_some() || instance.lease.is_some() {
            return;
        }
        match instance.handoff {
            None => self.begin_handoff(state, number, steps),
            Some(Handoff { victim, step }) => match step {
                HandoffStep::Reading(erased) => self.read_to_request(state, number, (victim, erased), steps),
                HandoffStep::Requesting(under, erased) => self.write_request(state, number, (under, erased), steps),
                HandoffStep::Polling(requests) => self.poll(state, number, victim, requests, steps),
            },
        }
    }

    /// A listing shows that another instance owns the partition and has more than its share. The listing may be older
    /// than the request of a third instance.
    fn begin_handoff(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Some(Owner::Member(victim)) = state.ownership.map(|record| record.owner) else { return };
        let listing = Listing { handoff_request: None, above_share: true, ..Listing::of(state) };
        if state.left.requests == 0
            || self.reaction_now(state, number, Stimulus::Listed(listing)).after != Condition::Requesting
        {
            return;
        }
        let handoff = Handoff { victim, step: HandoffStep::Reading(0) };
        let mut to = state.with(number, |instance| instance.handoff = Some(handoff));
        to.left.requests -= 1;
        steps.add(self.name(number), "lists: owned by another, wants to request it", to);
    }

    fn read_to_request(&self, state: &State, number: usize, (victim, erased): (u8, u8), steps: &mut Steps<'_>) {
        let actor = self.name(number);
        // A record that is renewed repeatedly becomes fresh again.
        let old = old(&self.record_of(victim));
        let ages = [Some(YOUNG), (self.expired(state) == Some(0)).then_some(old)];
        for age in ages.into_iter().flatten() {
            let looked = self.looked(state, number, &self.requester(victim), age);
            let (what, next, event) = match decide_handoff_request(looked, self.requester(victim).lease_duration()) {
                ControlFlow::Continue(under) => {
                    let step = under.version().map(|under| HandoffStep::Requesting(under, erased));
                    let to =
                        state.with(number, |instance| instance.handoff = step.map(|step| Handoff { victim, step }));
                    steps.add(actor, "reads: may request", to);
                    continue;
                }
                ControlFlow::Break(HandoffRequestOutcome::Requested(())) => {
                    ("reads: its request stands", RequestOutcome::Stands, Event::RequestStands)
                }
                ControlFlow::Break(HandoffRequestOutcome::LeaseTooOld) => {
                    ("reads: too old to request", RequestOutcome::TooOld, Event::RequestTooLate)
                }
                ControlFlow::Break(HandoffRequestOutcome::Lost) => {
                    ("reads: not eligible", RequestOutcome::Lost, Event::MarkLost)
                }
                ControlFlow::Break(_) => ("reads: not eligible", RequestOutcome::Refused, Event::MarkLost),
            };
            let to = self.has_requested(state, number, erased, Some(next));
            steps.noted(actor, what, to, Notes::default().with(event));
        }
        if let Some(failed) = self.with_failed_read(state) {
            let to = self.has_requested(&failed, number, erased, None);
            steps.fault(actor, "cannot read the record to request", to, Notes::default().with(Event::ReadFailed));
        }
    }

    /// The balancer gets the outcome of a handoff request: of the first one as such, of a later one as part of a poll.
    /// It gets none if the storage failed.
    fn has_requested(&self, state: &State, number: usize, erased: u8, requester: Option<RequestOutcome>) -> State {
        let stands = requester == Some(RequestOutcome::Stands);
        let stimulus = match (erased, requester) {
            (0, requester) => Stimulus::Requested(requester),
            (_, requester) => Stimulus::Polled(requester.map(|_| if stands { Chance::Wait } else { Chance::Over })),
        };
        let after = self.reaction_now(state, number, stimulus).after;
        let requests = erased + u8::from(stands);
        let polling = HandoffStep::Polling(requests);
        match after {
            Condition::Pending => with_step(state, number, polling),
            Condition::Idle => state.with(number, |instance| instance.handoff = None),
            after => unreachable!("{after:?} after {stimulus:?}"),
        }
    }

    fn write_request(&self, state: &State, number: usize, (under, erased): (Version, u8), steps: &mut Steps<'_>) {
        // The write is rejected unless the record still has this version, as it was read.
        let Some(record) = state.ownership else {
            let to = with_step(state, number, HandoffStep::Reading(erased));
            steps.add(self.name(number), "requests from a deleted record", to);
            return;
        };
        let keys = Keys { handoff_to: Some(short(number)), ..record.keys };
        let content = Content::Ownership { owner: record.owner, keys };
        for attempt in attempts(state, Write { by: Writer::ours(number), under: Some(under), content }) {
            let (step, event) = match attempt.response {
                Response::Done => (None, if erased > 0 { Event::RequestedAgain } else { Event::Requested }),
                _ => (Some(HandoffStep::Reading(erased)), Event::RequestAmbiguous),
            };
            let to = match step {
                None => self.has_requested(&attempt.state, number, erased, Some(RequestOutcome::Stands)),
                Some(step) => with_step(&attempt.state, number, step),
            };
            let label = Label {
                actor: self.name(number),
                what: "requests a handoff",
                position: None,
                response: Some(attempt.response),
            };
            steps.push(label, to, attempt.response.is_fault(), attempt.notes.with(event));
        }
    }

    fn poll(&self, state: &State, number: usize, victim: u8, requests: u8, steps: &mut Steps<'_>) {
        let poll = |now| {
            let mut handoff = self.polling(victim, requests);
            let looked = self.looked(state, number, &handoff, YOUNG);
            let status = handoff.poll(looked, now, REQUEST_TIMEOUT);
            let is_erased = looked.is_some_and(|(_, looked)| handoff.is_erased(looked));
            (status != HandoffStatus::Pending || !is_erased).then_some(status)
        };
        let in_time = poll(Duration::ZERO);
        let timeout_cost = self.timeout_cost(state, number, victim).filter(|_| in_time == Some(HandoffStatus::Pending));
        let too_late = timeout_cost.map(|cost| (poll(LATE), cost)).filter(|(late, _)| *late != in_time);
        let epoch = state.fresh_epoch();
        for (status, cost) in [Some((in_time, 0)), too_late].into_iter().flatten() {
            let mut to = *state;
            to.left.timeouts -= cost;
            let instance = &mut to.instances[number];
            let (what, event) = match status {
                None => {
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Reading(requests) });
                    ("polls: its request is gone", None)
                }
                Some(HandoffStatus::Pending) => {
                    self.has_looked(instance, number, Chance::Wait, None);
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Polling(requests) });
                    ("polls: pending", None)
                }
                Some(HandoffStatus::Ready(under)) => {
                    self.has_looked(instance, number, Chance::Take, Some((under, epoch)));
                    ("polls: released for it, claims it", Some(Event::HandoffTaken))
                }
                Some(HandoffStatus::TimedOut(under)) => {
                    self.has_looked(instance, number, Chance::Steal, Some((under, epoch)));
                    if cost > 0 || !self.responds(state, victim) {
                        // After a timeout, I6 does not apply.
                        to.reported = u8::MAX;
                    }
                    ("polls: timed out, steals it", Some(Event::HandoffStolen))
                }
                Some(_) => {
                    self.has_looked(instance, number, Chance::Over, None);
                    ("polls: canceled", Some(Event::HandoffOver))
                }
            };
            let notes = event.map_or(Notes::default(), |event| Notes::default().with(event));
            let label = Label { actor: self.name(number), what, position: None, response: None };
            steps.push(label, to, cost > 0, notes);
        }
    }

    /// The balancer gets the result of a poll: possibly a claim over this version, with this epoch.
    fn has_looked(&self, instance: &mut Instance, number: usize, chance: Chance, claim: Option<(Version, u8)>) {
        match self.reaction(number, instance.condition(), Stimulus::Polled(Some(chance))).after {
            Condition::Pending => {}
            Condition::Idle => instance.handoff = None,
            Condition::Taking | Condition::Stealing => {
                instance.operation = claim.map(|(under, epoch)| Operation::claim(Some(under), Some(epoch)));
            }
            after => unreachable!("{after:?} after {chance:?}"),
        }
    }

    /// Returns how many timeouts a handoff timeout costs while there is nothing to do but wait. It is free if the owner
    /// never responds, is not running, or can no longer see the request.
    fn timeout_cost(&self, state: &State, number: usize, victim: u8) -> Option<u8> {
        let is_request_visible = state.ownership.is_some_and(|record| record.keys.handoff_to == Some(short(number)));
        let responds = is_request_visible && self.responds(state, victim);
        match state.left.timeouts {
            _ if !responds => Some(0),
            0 => None,
            _ => Some(1),
        }
    }

    fn responds(&self, state: &State, victim: u8) -> bool {
        let Instance { run_state, lease, .. } = state.instances[victim as usize];
        !self.scenario.ignores_requests && run_state == RunState::Up && lease.is_some()
    }

    /// Returns the record as the store evaluates it.
    fn looked(
        &self,
        state: &State,
        number: usize,
        handoff: &rules::Handoff,
        age: Duration,
    ) -> Option<(Version, HandoffView)> {
        let members = self.scenario.members;
        let this = members[number].identity().owner;
        state.ownership.map(|record| {
            let looked = HandoffView::from_record(&recorded(members, record.owner, record.keys), age, handoff, &this);
            (Version::Current, looked)
        })
    }

    fn record_of(&self, victim: u8) -> OwnershipRecord {
        recorded(self.scenario.members, Owner::Member(victim), Keys::default())
    }

    fn requester(&self, victim: u8) -> rules::Handoff {
        let handoff = rules::Handoff::requested(PartitionId::from(0), &self.record_of(victim), TERMS, Duration::ZERO);
        handoff.expect("it has an owner")
    }

    /// Returns the handoff after this many requests, at time zero: when the timeout expires is a choice here.
    fn polling(&self, victim: u8, requests: u8) -> rules::Handoff {
        let mut handoff = self.requester(victim);
        for _ in 0..requests {
            handoff.renewed(Duration::ZERO);
        }
        handoff
    }

    /// Returns whether a released partition is not claimed because its handoff request is still valid.
    pub(super) fn is_reserved_for_another(&self, state: &State, number: usize) -> bool {
        let listing = Listing::of(state);
        listing.owner == Some(Owner::Unowned)
            && self.reaction_now(state, number, Stimulus::Listed(listing)).after == Condition::Idle
    }

    /// The reservation lapses if the requester does not claim the partition in time.
    pub(super) fn reservation_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let requester = state.ownership.and_then(|record| record.keys.handoff_to);
        let Some(Instance { run_state, handoff, .. }) = requester.map(|requester| state.instances[requester as usize])
        else {
            return;
        };
        let comes = run_state == RunState::Up && handoff.is_some();
        let lapsed = Listing { live: false, ..Listing::of(state) };
        let claims = self.reaction_now(state, number, Stimulus::Listed(lapsed)).after == Condition::Claiming;
        if !claims || comes && state.left.timeouts == 0 {
            return;
        }
        let mut to = *state;
        to.left.timeouts -= u8::from(comes);
        let claim = Operation::claim(Some(Version::Current), Some(state.fresh_epoch()));
        (to.instances[number].operation, to.instances[number].handoff) = (Some(claim), None);
        let label =
            Label { actor: self.name(number), what: "lists: reserved no longer", position: None, response: None };
        steps.push(label, to, comes, Notes::default().with(Event::ReservationLapsed));
    }
}

fn with_step(state: &State, number: usize, step: HandoffStep) -> State {
    state.with(number, |instance| {
        if let Some(handoff) = &mut instance.handoff {
            handoff.step = step;
        }
    })
}
