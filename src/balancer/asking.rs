//! Planned moves: asking live owners for partitions, and letting those go that other instances ask for.

use super::action::Request;
use super::context::Context;
use super::events::{Event, Releasing};
use super::lease::Held;
use super::note::Note;
use super::partitions::{Asked, Doing, Partitions};
use super::retries::back_off;
use crate::error::Result;
use crate::model::{Moment, OwnerId, PartitionId};
use crate::planner::{ClaimReason, Holder, PlannedHandoff, View};
use crate::store::{Claim, Handoff, MarkOutcome, Pursuit};
use crate::telemetry::Operation;

/// The instance that asks.
impl Partitions {
    pub(super) fn start_marks(&mut self, context: &mut Context, planned: Vec<PlannedHandoff>) {
        for seen in planned.into_iter().filter_map(|planned| planned.seen) {
            self.doing.insert(seen.partition.clone(), Doing::Marking);
            context.request(Request::Mark(seen));
        }
    }

    pub(super) fn on_marked(
        &mut self,
        context: &mut Context,
        partition: &PartitionId,
        outcome: Result<MarkOutcome<Handoff>>,
    ) {
        self.forget(partition);
        match outcome {
            Ok(MarkOutcome::Standing(handoff)) => {
                context.tell(Event::Asked { partition: partition.clone(), from: handoff.owner().clone() });
                let asked = Asked { handoff, next: Some(next_look(context)), failures: 0 };
                self.doing.insert(partition.clone(), Doing::Asked(asked));
                context.change();
            }
            Ok(MarkOutcome::Lost) => context.disturb(),
            // The next cycle plans again.
            Ok(refused) => context.note(Note::NotAsked(partition.clone(), refused)),
            Err(error) => {
                self.undecided(context, Operation::Mark, vec![partition.clone()], error);
            }
        }
    }

    /// Looks at what is due. An instance that claims nothing asks for nothing: a mark cannot be taken back, but what is
    /// released for this instance goes to others when the reservation has lapsed.
    pub(super) fn start_looks(&mut self, context: &mut Context) {
        if context.claims_nothing() {
            return self.stop_asking(context);
        }
        for doing in self.doing.values_mut() {
            let Doing::Asked(asked) = doing else { continue };
            if asked.next.is_some_and(|next| next <= context.now) {
                asked.next = None;
                let patience = context.settings.patience;
                context.request(Request::Pursue { handoff: asked.handoff.clone(), patience });
            }
        }
    }

    pub(super) fn stop_asking(&mut self, context: &mut Context) {
        let before = self.doing.len();
        self.doing.retain(|_, doing| !matches!(doing, Doing::Asked(_)));
        for doing in self.doing.values_mut() {
            if let Doing::Claiming { asked, .. } = doing {
                *asked = None;
            }
        }
        if self.doing.len() < before {
            context.change();
        }
    }

    pub(super) fn on_pursued(&mut self, context: &mut Context, handoff: Handoff, outcome: Result<Pursuit<Claim>>) {
        let partition = handoff.partition().clone();
        let Some(Doing::Asked(Asked { failures, .. })) = self.doing.get(&partition) else { return };
        let failures = if outcome.is_err() { failures.saturating_add(1) } else { 0 };
        let (owner, patience) = (handoff.owner().clone(), context.settings.patience_with(&handoff));
        let asked = Asked { handoff, next: Some(next_look(context)), failures };
        match outcome {
            Ok(Pursuit::Wait) => {
                self.doing.insert(partition, Doing::Asked(asked));
            }
            Ok(Pursuit::Take(claim)) => self.claim_asked(context, claim, ClaimReason::HandedOver, asked),
            Ok(Pursuit::Steal(claim)) if !context.had_outage_within(patience) => {
                self.claim_asked(context, claim, ClaimReason::Stolen(owner), asked);
            }
            // After an outage the next cycle plans again: the owner may have responded unseen, or been unable to.
            Ok(Pursuit::Steal(_) | Pursuit::Over) => {
                self.forget(&partition);
                context.disturb();
                context.change();
            }
            Err(error) => {
                let first = context.settings.interval() / 2;
                let pause = back_off(failures - 1, first, context.settings.expiry());
                let next = context.now + pause.max(context.settings.asked_to_wait(&error));
                self.doing.insert(partition.clone(), Doing::Asked(Asked { next: Some(next), ..asked }));
                context.note(Note::Undecided(Operation::Read, vec![partition], error));
            }
        }
    }

    /// The storage responds again: partitions whose looks have failed are looked at soon.
    pub(super) fn look_soon_at_failed(&mut self, context: &Context) {
        let soon = next_look(context);
        for doing in self.doing.values_mut() {
            if let Doing::Asked(asked) = doing
                && asked.failures > 0
            {
                (asked.next, asked.failures) = (asked.next.map(|next| next.min(soon)), 0);
            }
        }
    }
}

/// The instance that is asked.
impl Partitions {
    /// By a listing. An owner that asked and died since is not waited for: its mark is taken away, so that others may
    /// ask.
    pub(super) fn heed_marks(&mut self, context: &mut Context, view: &View<'_>) {
        for entry in view.partitions.iter().filter(|entry| entry.holder == Holder::Me) {
            let mark = view.record(&entry.partition).and_then(|seen| seen.record.handoff_to.as_ref());
            let Some(asking) = mark.filter(|asking| **asking != context.settings.me.owner) else { continue };
            match (&entry.handoff_to, self.doing.get_mut(&entry.partition)) {
                (Some(by), Some(Doing::Held(held))) => {
                    let epoch = held.epoch();
                    self.hand_over(context, &entry.partition, epoch, by);
                }
                (None, Some(Doing::Held(held))) => held.drop_mark(asking),
                _ => {}
            }
        }
    }

    /// Another instance asked for the partition.
    pub(super) fn hand_over(&mut self, context: &mut Context, partition: &PartitionId, epoch: i64, by: &OwnerId) {
        if !context.settings.hands_over() || context.is_ending() {
            return;
        }
        if self.get_of(partition, epoch).is_some_and(Held::acknowledge) {
            context.tell(Event::AskedFor { partition: partition.clone(), by: by.clone() });
            context.asked_for_by(partition, by);
            self.drain(context, partition, epoch, Releasing::HandedOver);
        }
    }
}

/// When to look at a partition that was asked for.
fn next_look(context: &Context) -> Moment {
    context.now + context.settings.interval() / 2
}
