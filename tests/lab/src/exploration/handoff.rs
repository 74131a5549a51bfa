//! A handoff: an instance requests a partition, and its owner acknowledges the request.
//!
//! `rules::Looked`, `rules::marking` and `rules::Handoff` decide after every read of the record, and their decision goes to
//! the [balancer](super::balancer). The search chooses when a timeout expires.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::internal::rules::{self, Looked, MarkOutcome, Next, Pursuit, marking};

use super::balancer::{Asking, Chance, Condition, Listing, Stimulus};
use super::driven::PATIENCE;
use super::listing::{TERMS, recorded};
use super::notes::{Event, Notes};
use super::ownership::{OLD, YOUNG};
use super::state::{
    Content, Handoff, HandoffStep, Instance, Keys, Life, Operation, Owner, Pursued, State, Version, Write, Writer,
    short,
};
use super::storage::{Answer, attempts};
use super::system::{Label, Model, Steps};

/// When every wait is over.
const LATE: Duration = Duration::from_secs(1000);

impl Model {
    pub(super) fn handoff_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        if instance.operation.is_some() || instance.lease.is_some() {
            return;
        }
        match instance.handoff {
            None => self.begin_handoff(state, number, steps),
            Some(Handoff { victim, step }) => match step {
                HandoffStep::Reading(erased) => self.read_to_mark(state, number, (victim, erased), steps),
                HandoffStep::Marking(under, erased) => self.write_mark(state, number, (under, erased), steps),
                HandoffStep::Pursuing(pursuing) => self.pursue(state, number, victim, pursuing, steps),
            },
        }
    }

    /// A listing shows that another owns the partition and has more than its share. It may be older than the mark of a
    /// third.
    fn begin_handoff(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Some(Owner::Ours(victim)) = state.ownership.map(|record| record.owner) else { return };
        let listing = Listing { mark: None, above_share: true, ..Listing::of(state) };
        if state.left.marks == 0
            || self.reaction_now(state, number, Stimulus::Listed(listing)).after != Condition::Marking
        {
            return;
        }
        let handoff = Handoff { victim, step: HandoffStep::Reading(0) };
        let mut to = state.with(number, |instance| instance.handoff = Some(handoff));
        to.left.marks -= 1;
        steps.add(self.name(number), "lists: another's, wants to ask for it", to);
    }

    fn read_to_mark(&self, state: &State, number: usize, (victim, erased): (u8, u8), steps: &mut Steps<'_>) {
        let who = self.name(number);
        // A record that is renewed is young again and again.
        let ages = [Some(YOUNG), (self.expired(state) == Some(0)).then_some(OLD)];
        for age in ages.into_iter().flatten() {
            let looked = self.looked(state, number, &self.asking(victim), age);
            let (what, next, event) = match marking(looked, TERMS.expiry) {
                Next::Write(under) => {
                    let step = under.version().map(|under| HandoffStep::Marking(under, erased));
                    let to =
                        state.with(number, |instance| instance.handoff = step.map(|step| Handoff { victim, step }));
                    steps.add(who, "reads: may ask", to);
                    continue;
                }
                Next::Done(MarkOutcome::Standing(())) => ("reads: its mark stands", Asking::Stands, Event::MarkStands),
                Next::Done(MarkOutcome::TooOld) => ("reads: too old to ask", Asking::TooOld, Event::MarkTooLate),
                Next::Done(MarkOutcome::Lost) => ("reads: not to be asked", Asking::Lost, Event::MarkLost),
                Next::Done(_) => ("reads: not to be asked", Asking::Refused, Event::MarkLost),
            };
            let to = self.has_marked(state, number, erased, Some(next));
            steps.noted(who, what, to, Notes::default().with(event));
        }
        if let Some(failed) = self.with_failed_read(state) {
            let to = self.has_marked(&failed, number, erased, None);
            steps.fault(who, "cannot read whom to ask", to, Notes::default().with(Event::ReadFailed));
        }
    }

    /// The balancer learns what became of a mark: of the first one as such, of a later one as part of a look at what it
    /// asked for. Nothing became of it if the storage failed.
    fn has_marked(&self, state: &State, number: usize, erased: u8, asking: Option<Asking>) -> State {
        let stands = asking == Some(Asking::Stands);
        let stimulus = match (erased, asking) {
            (0, asking) => Stimulus::Marked(asking),
            (_, asking) => Stimulus::Pursued(asking.map(|_| if stands { Chance::Wait } else { Chance::Over })),
        };
        let after = self.reaction_now(state, number, stimulus).after;
        let marks = erased + u8::from(stands);
        let pursuing = HandoffStep::Pursuing(Pursued { marks, is_acknowledged: false });
        match after {
            Condition::Asked => with_step(state, number, pursuing),
            Condition::Idle => state.with(number, |instance| instance.handoff = None),
            after => unreachable!("{after:?} after {stimulus:?}"),
        }
    }

    fn write_mark(&self, state: &State, number: usize, (under, erased): (Version, u8), steps: &mut Steps<'_>) {
        // Under this version it is what was read, or the write is refused.
        let Some(record) = state.ownership else {
            let to = with_step(state, number, HandoffStep::Reading(erased));
            steps.add(self.name(number), "marks what is not there any more", to);
            return;
        };
        let keys = Keys { handoff_to: Some(short(number)), ..record.keys };
        let content = Content::Ownership { owner: record.owner, keys };
        for attempt in attempts(state, Write { by: Writer::ours(number), under: Some(under), content }) {
            let (step, event) = match attempt.answer {
                Answer::Done => (None, if erased > 0 { Event::MarkedAgain } else { Event::Marked }),
                _ => (Some(HandoffStep::Reading(erased)), Event::MarkDoubtful),
            };
            let to = match step {
                None => self.has_marked(&attempt.state, number, erased, Some(Asking::Stands)),
                Some(step) => with_step(&attempt.state, number, step),
            };
            let label =
                Label { who: self.name(number), what: "marks it", position: None, answer: Some(attempt.answer) };
            steps.push(label, to, attempt.answer.is_fault(), attempt.notes.with(event));
        }
    }

    fn pursue(&self, state: &State, number: usize, victim: u8, pursued: Pursued, steps: &mut Steps<'_>) {
        let look = |now| {
            let mut handoff = self.pursuing(victim, pursued);
            let looked = self.looked(state, number, &handoff, YOUNG);
            let pursuit = handoff.look(looked, now, &PATIENCE);
            let is_erased = looked.is_some_and(|(_, looked)| handoff.is_erased(looked, TERMS.expiry));
            let pursuit = (pursuit != Pursuit::Wait || !is_erased).then_some(pursuit);
            (pursuit, Pursued { is_acknowledged: handoff.is_acknowledged(), ..pursued })
        };
        let in_time = look(Duration::ZERO);
        let impatience = self.impatience(state, number, victim).filter(|_| in_time.0 == Some(Pursuit::Wait));
        let too_late = impatience.map(|cost| (look(LATE), cost)).filter(|(late, _)| late.0 != in_time.0);
        let epoch = state.fresh_epoch();
        for ((pursuit, pursued), cost) in [Some((in_time, 0)), too_late].into_iter().flatten() {
            let mut to = *state;
            to.left.timeouts -= cost;
            let instance = &mut to.instances[number];
            let (what, event) = match pursuit {
                None => {
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Reading(pursued.marks) });
                    ("looks: its mark has gone", None)
                }
                Some(Pursuit::Wait) => {
                    self.has_looked(instance, number, Chance::Wait, None);
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Pursuing(pursued) });
                    ("looks: not yet", None)
                }
                Some(Pursuit::Take(under)) => {
                    self.has_looked(instance, number, Chance::Take, Some((under, epoch)));
                    ("looks: released for it, takes it", Some(Event::HandoffTaken))
                }
                Some(Pursuit::Steal(under)) => {
                    self.has_looked(instance, number, Chance::Steal, Some((under, epoch)));
                    if cost > 0 || !self.answers(state, victim) {
                        // A time-out is over: so much for I6.
                        to.reported = u8::MAX;
                    }
                    ("looks: the time is over, steals it", Some(Event::HandoffStolen))
                }
                Some(_) => {
                    self.has_looked(instance, number, Chance::Over, None);
                    ("looks: not for it any more", Some(Event::HandoffOver))
                }
            };
            let notes = event.map_or(Notes::default(), |event| Notes::default().with(event));
            let label = Label { who: self.name(number), what, position: None, answer: None };
            steps.push(label, to, cost > 0, notes);
        }
    }

    /// The balancer learns what a look at the partition led to: perhaps to a claim over this version, with this epoch.
    fn has_looked(&self, instance: &mut Instance, number: usize, chance: Chance, claim: Option<(Version, u8)>) {
        match self.reaction(number, instance.condition(), Stimulus::Pursued(Some(chance))).after {
            Condition::Asked => {}
            Condition::Idle => instance.handoff = None,
            Condition::Taking | Condition::Stealing => {
                instance.operation = claim.map(|(under, epoch)| Operation::claim(Some(under), Some(epoch)));
            }
            after => unreachable!("{after:?} after {chance:?}"),
        }
    }

    /// At the price of how many time-outs patience may end, while there is nothing to do but wait. One that never
    /// answers, that is not at work, or that is not told any more, has all the time that there is.
    fn impatience(&self, state: &State, number: usize, victim: u8) -> Option<u8> {
        let is_told = state.ownership.is_some_and(|record| record.keys.handoff_to == Some(short(number)));
        let answers = is_told && self.answers(state, victim);
        match state.left.timeouts {
            _ if !answers => Some(0),
            0 => None,
            _ => Some(1),
        }
    }

    fn answers(&self, state: &State, victim: u8) -> bool {
        let Instance { life, lease, .. } = state.instances[victim as usize];
        !self.scenario.deaf && life == Life::Up && lease.is_some()
    }

    /// The record, as the store looks at it.
    fn looked(
        &self,
        state: &State,
        number: usize,
        handoff: &rules::Handoff,
        age: Duration,
    ) -> Option<(Version, Looked)> {
        let members = self.scenario.members;
        let me = members[number].identity().owner;
        state.ownership.map(|record| {
            let looked = Looked::at(&recorded(members, record.owner, record.keys), age, handoff, &me);
            (Version::Current, looked)
        })
    }

    fn asking(&self, victim: u8) -> rules::Handoff {
        let record = recorded(self.scenario.members, Owner::Ours(victim), Keys::default());
        rules::Handoff::asking(PartitionId::from(0), &record, Duration::ZERO).expect("it has an owner")
    }

    fn pursuing(&self, victim: u8, pursued: Pursued) -> rules::Handoff {
        let mut handoff = self.asking(victim);
        for _ in 0..pursued.marks {
            handoff.stands(Duration::ZERO);
        }
        if pursued.is_acknowledged {
            handoff.look(Some(((), Looked::Asked { draining: true })), Duration::ZERO, &PATIENCE);
        }
        handoff
    }

    /// Whether what was released is not claimed as long as the mark in it counts.
    pub(super) fn is_reserved_for_another(&self, state: &State, number: usize) -> bool {
        let listing = Listing::of(state);
        listing.owner == Some(Owner::Nobody)
            && self.reaction_now(state, number, Stimulus::Listed(listing)).after == Condition::Idle
    }

    /// The reservation lapses when the one that asked does not come for it in time.
    pub(super) fn reservation_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let asking = state.ownership.and_then(|record| record.keys.handoff_to);
        let Some(Instance { life, handoff, .. }) = asking.map(|asking| state.instances[asking as usize]) else {
            return;
        };
        let comes = life == Life::Up && handoff.is_some();
        let lapsed = Listing { live: false, ..Listing::of(state) };
        let claims = self.reaction_now(state, number, Stimulus::Listed(lapsed)).after == Condition::Claiming;
        if !claims || comes && state.left.timeouts == 0 {
            return;
        }
        let mut to = *state;
        to.left.timeouts -= u8::from(comes);
        let claim = Operation::claim(Some(Version::Current), Some(state.fresh_epoch()));
        (to.instances[number].operation, to.instances[number].handoff) = (Some(claim), None);
        let label = Label { who: self.name(number), what: "lists: reserved no longer", position: None, answer: None };
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
