//! How the balancer of an instance reacts: the reactions of the real
//! [`BalancerState`](eventhubs_checkpoint::internal::balancer::BalancerState).
//!
//! Each reaction is computed once: [`Driven`] brings a fresh state into the [condition](Condition) of the instance,
//! feeds it the [stimulus](Stimulus), and derives the [reaction](Reaction) from its actions and its snapshot. It must
//! be the same whatever the [beacon](Lie) shows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::internal::rules::Goal;

use super::driven::{Driven, Lie};
use super::scenario::{Member, Rule};
use super::state::{Handoff, HandoffStep, Instance, Owner, State};
use super::system::Model;

/// What an instance is doing with the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    Idle,
    /// It is writing its handoff request into the record of another instance.
    Requesting,
    Pending,
    Claiming,
    /// It claims the requested partition, which was released.
    Taking,
    /// It claims the requested partition, which was not released in time.
    Stealing,
    /// `knows_request`: the record already had another instance's handoff request when this instance last won or
    /// renewed it.
    Held {
        knows_request: bool,
    },
    /// The partition is to be released when its processing has stopped.
    Leaving {
        knows_request: bool,
    },
    /// The same, because another instance requested it.
    HandingOver,
    Releasing,
    /// It has ended: a later incarnation of its owner is running, or it was shut down.
    Over,
}

/// An input of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stimulus {
    Listed(Listing),
    /// Its renewal is due.
    RenewalDue,
    Claimed(Outcome),
    Renewed(Outcome),
    /// Never `Replaced`.
    Released(Outcome),
    /// `None` if the storage failed.
    Requested(Option<RequestOutcome>),
    /// `None` if the storage failed.
    Polled(Option<Chance>),
    /// The partition turned out to belong to another owner.
    MarkedLost,
    /// Another part of the instance requests the release.
    StopRequested,
    /// Its processing has stopped.
    Stopped {
        settled: bool,
    },
    /// The drain timeout has expired.
    TimeOver,
    ShutDown,
}

/// The outcome of a claim, a renewal or a release, as the store reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// `again`: a renewal began a new ownership, with its own epoch.
    Won {
        again: bool,
        handoff_request: HandoffRequest,
    },
    Lost,
    Replaced,
    Indeterminate,
}

/// The handoff request in a record that was won or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandoffRequest {
    None,
    /// The request of the previous lease.
    Known,
    New,
}

/// The outcome of a handoff request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequestOutcome {
    Stands,
    Lost,
    TooOld,
    /// Another instance has requested the partition, or the owner is not cooperative.
    Refused,
}

/// The outcome of a poll of a requested partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Chance {
    Wait,
    Take,
    Steal,
    Over,
}

/// What a listing shows of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listing {
    /// `None` if there is no record.
    pub(super) owner: Option<Owner>,
    /// The record is fresh; otherwise expired, or, for a released record, no longer reserved.
    pub(super) live: bool,
    /// The instance of this number has requested it, and is live.
    pub(super) handoff_request: Option<u8>,
    /// The owner has more partitions than its share, and may be requested to hand over this partition.
    pub(super) above_share: bool,
}

/// The reaction of a balancer to a stimulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reaction {
    pub(super) after: Condition,
    /// It requests a renewal, which states whether the owner drains.
    pub(super) renews: Option<Renewal>,
    /// The published epoch of the ownership in which the partition is to be processed.
    pub(super) epoch: Option<i64>,
    pub(super) emitted: Emitted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    Plain,
    Draining,
}

/// The events of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an event of its own")]
pub(super) struct Emitted {
    pub(super) claimed: bool,
    pub(super) lost: bool,
    pub(super) released: bool,
    pub(super) asked_for: bool,
    /// Events may be processed twice.
    pub(super) duplicates: bool,
}

type Fed = (usize, Condition, Stimulus);

/// The balancers of all members, and their known reactions.
pub(super) struct Balancers {
    members: &'static [Member],
    /// No owner hands a partition over.
    ignores_requests: bool,
    known: RefCell<HashMap<Fed, Reaction, BuildHasherDefault<FxHasher>>>,
}

impl Balancers {
    pub(super) fn of(members: &'static [Member], ignores_requests: bool) -> Self {
        Self { members, ignores_requests, known: RefCell::default() }
    }

    pub(super) fn reaction(&self, number: usize, condition: Condition, stimulus: Stimulus) -> Reaction {
        let requested = (number, condition, stimulus);
        if let Some(reaction) = self.known.borrow().get(&requested) {
            return *reaction;
        }
        let [reaction, others @ ..] = Lie::ALL.map(|lie| {
            Driven::into_condition(self.members, number, self.ignores_requests, lie, condition, stimulus)
                .reaction(stimulus)
        });
        assert!(
            others.iter().all(|other| *other == reaction),
            "the beacon decides: {requested:?}, {reaction:?}, {others:?}"
        );
        self.known.borrow_mut().insert(requested, reaction);
        reaction
    }
}

impl Model {
    /// Returns the reaction of an instance's balancer, or the reaction without the disabled rule: then its inputs are
    /// altered.
    pub(super) fn reaction(&self, number: usize, condition: Condition, stimulus: Stimulus) -> Reaction {
        let (condition, stimulus) = match (self.scenario.without, condition, stimulus) {
            (Some(Rule::OwnRecordsAreReclaimed), Condition::Idle, Stimulus::Listed(listing))
                if self.is_own(number, listing.owner) =>
            {
                let by_another = Listing { owner: Some(Owner::Foreign), live: true, ..listing };
                (condition, Stimulus::Listed(by_another))
            }
            (Some(Rule::FailedReadDecidesNothing), _, Stimulus::Claimed(Outcome::Indeterminate)) => {
                (condition, Stimulus::Claimed(Outcome::Lost))
            }
            (Some(Rule::FailedReadDecidesNothing), _, Stimulus::Renewed(Outcome::Indeterminate)) => {
                (condition, Stimulus::Renewed(Outcome::Lost))
            }
            truth => (truth.1, truth.2),
        };
        self.balancers.reaction(number, condition, stimulus)
    }

    fn is_own(&self, number: usize, owner: Option<Owner>) -> bool {
        owner.is_some_and(|owner| self.relations.of(number, owner) == Relation::This)
    }

    /// Returns the condition of an instance after a listing. An instance may reclaim in the same step what a listing
    /// shows as lost; here that takes another listing, as if it had claimed another partition first.
    pub(super) fn after_listing(&self, number: usize, condition: Condition, listing: Listing) -> Condition {
        let reaction = self.reaction(number, condition, Stimulus::Listed(listing));
        if reaction.emitted.lost { Condition::Idle } else { reaction.after }
    }

    /// Returns the reaction of an instance in the current state.
    pub(super) fn reaction_now(&self, state: &State, number: usize, stimulus: Stimulus) -> Reaction {
        self.reaction(number, state.instances[number].condition(), stimulus)
    }
}

impl Listing {
    /// Returns what a listing shows now, with a fresh record.
    pub(super) fn of(state: &State) -> Self {
        let owner = state.ownership.map(|record| record.owner);
        let handoff_request = state.ownership.and_then(|record| record.keys.handoff_to);
        Self { owner, live: true, handoff_request, above_share: false }
    }
}

impl Instance {
    /// Continues in this condition with the current lease.
    pub(super) fn is_now(&mut self, after: Condition) {
        self.leaving = matches!(after, Condition::Leaving { .. } | Condition::HandingOver);
        if let Some(lease) = &mut self.lease {
            lease.keys.draining |= after == Condition::HandingOver;
        }
    }

    pub(super) fn condition(&self) -> Condition {
        let operation = self.operation.map(|operation| (operation.next.goal, operation.renews));
        match (operation, self.lease, self.handoff) {
            (Some((Goal::Release, _)), ..) => Condition::Releasing,
            (Some((_, false)), _, Some(_)) => Condition::Taking,
            (Some((_, false)), _, None) => Condition::Claiming,
            (_, Some(lease), _) => {
                let knows_request = lease.keys.handoff_to.is_some();
                match (self.leaving, lease.keys.draining) {
                    (true, true) => Condition::HandingOver,
                    (true, false) => Condition::Leaving { knows_request },
                    (false, _) => Condition::Held { knows_request },
                }
            }
            // The balancer ignores the renewal of a lease that was given up meanwhile.
            (_, None, Some(Handoff { step: HandoffStep::Reading(0) | HandoffStep::Requesting(_, 0), .. })) => {
                Condition::Requesting
            }
            (_, None, Some(_)) => Condition::Pending,
            (_, None, None) => Condition::Idle,
        }
    }
}
