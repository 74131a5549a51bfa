//! An instance that asks another for its partition, and the other's answer.
//!
//! Every look at the record is judged by `rules::Looked`, `rules::marking` and `rules::Handoff`. When patience ends is a choice.

use std::time::Duration;

use eventhubs_checkpoint::internal::recorded;
use eventhubs_checkpoint::internal::rules::{self, Looked, MarkOutcome, Next, Patience, Pursuit, marking};
use eventhubs_checkpoint::{Identity, OwnershipRecord, PartitionId, Relation};

use super::listing::TERMS;
use super::notes::{Event, Notes};
use super::ownership::{OLD, YOUNG};
use super::state::{
    Content, Handoff, HandoffStep, Instance, Keys, Lease, Life, Operation, Owner, Pursued, State, Version, Write,
    Writer, short,
};
use super::storage::{Answer, attempts};
use super::system::{Label, Model, Steps};

const PATIENCE: Patience = Patience::new(Duration::from_secs(35), Duration::from_secs(45));
/// When every wait is over.
const LATE: Duration = Duration::from_secs(1000);

impl Model {
    pub(super) fn handoff_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        self.victim_steps(state, number, steps);
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

    /// The owner sees that it is asked, by a renewal that met the mark or in a listing: from now on it drains.
    fn victim_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let instance = &state.instances[number];
        let Some(lease) = instance.lease else { return };
        if self.scenario.deaf || instance.leaving || instance.operation.is_some() || !self.may_operate(instance) {
            return;
        }
        let mine = self.relation(state, number) == Relation::Mine;
        let listed = state.ownership.filter(|_| mine).and_then(|record| record.keys.handoff_to);
        if lease.keys.handoff_to.or(listed).is_none() {
            return;
        }
        let to = state.with(number, |instance| {
            instance.leaving = true;
            instance.lease = Some(Lease { keys: Keys { draining: true, ..lease.keys }, ..lease });
        });
        steps.noted(self.name(number), "sees that it is asked, drains", to, Notes::default().with(Event::HandoffSeen));
    }

    /// Somebody else owns the partition, and is to be asked for it.
    fn begin_handoff(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let Some(Owner::Ours(victim)) = state.ownership.map(|record| record.owner) else { return };
        if state.left.marks == 0 || self.relation(state, number) != Relation::Other {
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
            let (what, step, event) = match marking(looked, TERMS.expiry) {
                Next::Done(MarkOutcome::Standing(())) => {
                    ("reads: its mark stands", Some(marked(erased)), Some(Event::MarkStands))
                }
                Next::Write(under) => {
                    ("reads: may ask", under.version().map(|under| HandoffStep::Marking(under, erased)), None)
                }
                Next::Done(MarkOutcome::TooOld) => ("reads: too old to ask", None, Some(Event::MarkTooLate)),
                Next::Done(_) => ("reads: not to be asked", None, Some(Event::MarkLost)),
            };
            let to = state.with(number, |instance| instance.handoff = step.map(|step| Handoff { victim, step }));
            steps.noted(who, what, to, event.map_or(Notes::default(), |event| Notes::default().with(event)));
        }
        if let Some(failed) = self.with_failed_read(state) {
            let to = failed.with(number, |instance| instance.handoff = None);
            steps.fault(who, "cannot read whom to ask", to, Notes::default().with(Event::ReadFailed));
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
                Answer::Done if erased > 0 => (marked(erased), Event::MarkedAgain),
                Answer::Done => (marked(erased), Event::Marked),
                _ => (HandoffStep::Reading(erased), Event::MarkDoubtful),
            };
            let to = with_step(&attempt.state, number, step);
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
                Some(Pursuit::Wait) => {
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Pursuing(pursued) });
                    ("looks: not yet", None)
                }
                None => {
                    instance.handoff = Some(Handoff { victim, step: HandoffStep::Reading(pursued.marks) });
                    ("looks: its mark has gone", None)
                }
                Some(Pursuit::Take(under)) => {
                    instance.operation = Some(Operation::claim(Some(under), Some(epoch)));
                    ("looks: released for it, takes it", Some(Event::HandoffTaken))
                }
                Some(Pursuit::Steal(under)) => {
                    instance.operation = Some(Operation::claim(Some(under), Some(epoch)));
                    if cost > 0 || !self.answers(state, victim) {
                        // A time-out is over: so much for I6.
                        to.reported = u8::MAX;
                    }
                    ("looks: the time is over, steals it", Some(Event::HandoffStolen))
                }
                Some(_) => {
                    instance.handoff = None;
                    ("looks: not for it any more", Some(Event::HandoffOver))
                }
            };
            let notes = event.map_or(Notes::default(), |event| Notes::default().with(event));
            let label = Label { who: self.name(number), what, position: None, answer: None };
            steps.push(label, to, cost > 0, notes);
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
        let me = self.scenario.members[number].identity().owner;
        state.ownership.map(|record| {
            let looked = Looked::at(&self.recorded(record.owner, record.keys), age, handoff, &me);
            (Version::Current, looked)
        })
    }

    pub(super) fn recorded(&self, owner: Owner, Keys { handoff_to, draining, operator, .. }: Keys) -> OwnershipRecord {
        let identity = |number: u8| self.scenario.members[number as usize].identity();
        let mut record = match owner {
            Owner::Nobody => OwnershipRecord::default(),
            Owner::Foreign => OwnershipRecord::owned_by(recorded::owner("foreign"), None),
            Owner::Ours(number) => {
                let Identity { owner, incarnation, .. } = identity(number);
                OwnershipRecord::owned_by(owner, Some(incarnation))
            }
        };
        record.cooperative = matches!(owner, Owner::Ours(_));
        record.handoff_to = handoff_to.map(|asking| identity(asking).owner);
        record.draining = draining;
        record.operator = self.operators().next().filter(|_| operator).map(|number| identity(short(number)).owner);
        if let Owner::Ours(number) = owner
            && operator
        {
            record.operator = Some(identity(number).owner);
        }
        record
    }

    fn asking(&self, victim: u8) -> rules::Handoff {
        let record = self.recorded(Owner::Ours(victim), Keys::default());
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

    pub(super) fn is_reserved_for_another(state: &State, number: usize) -> bool {
        let released = state.ownership.filter(|record| record.owner == Owner::Nobody);
        released.and_then(|record| record.keys.handoff_to).is_some_and(|asking| asking != short(number))
    }

    /// The reservation lapses when the one that asked does not come for it in time.
    pub(super) fn reservation_steps(&self, state: &State, number: usize, steps: &mut Steps<'_>) {
        let asking = state.ownership.and_then(|record| record.keys.handoff_to);
        let Some(Instance { life, handoff, .. }) = asking.map(|asking| state.instances[asking as usize]) else {
            return;
        };
        let comes = life == Life::Up && handoff.is_some();
        if comes && state.left.timeouts == 0 {
            return;
        }
        let mut to = *state;
        to.left.timeouts -= u8::from(comes);
        to.instances[number].operation = Some(Operation::claim(Some(Version::Current), Some(state.fresh_epoch())));
        let label = Label { who: self.name(number), what: "lists: reserved no longer", position: None, answer: None };
        steps.push(label, to, comes, Notes::default().with(Event::ReservationLapsed));
    }
}

/// The mark stands, for the first time or again.
fn marked(erased: u8) -> HandoffStep {
    HandoffStep::Pursuing(Pursued { marks: erased + 1, is_acknowledged: false })
}

fn with_step(state: &State, number: usize, step: HandoffStep) -> State {
    state.with(number, |instance| {
        if let Some(handoff) = &mut instance.handoff {
            handoff.step = step;
        }
    })
}
