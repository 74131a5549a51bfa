//! What the balancer of an instance does about the partition: the reactions of the real
//! [`State`](eventhubs_checkpoint::internal::balancer::State).
//!
//! Each reaction is worked out once: [`Driven`] brings a fresh state into the [condition](Condition) of the instance,
//! feeds it the [stimulus](Stimulus), and reads the [reaction](Reaction) off its actions and its snapshot.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

use eventhubs_checkpoint::Relation;
use eventhubs_checkpoint::internal::rules::Goal;

use super::driven::Driven;
use super::scenario::{Member, Rule};
use super::state::{Handoff, HandoffStep, Instance, Owner, State};
use super::system::Model;

/// What an instance does with the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    Idle,
    /// It writes its mark into the record of another.
    Marking,
    Asked,
    Claiming,
    /// It claims what it asked for, once that is released.
    Taking,
    /// It claims what it asked for and did not get in time.
    Stealing,
    /// `knows_mark`: the record already had the mark of another when this instance won or renewed it last.
    Held {
        knows_mark: bool,
    },
    /// The partition is to be released when its processing has stopped.
    Leaving {
        knows_mark: bool,
    },
    /// The same, because another instance asked for it.
    HandingOver,
    Releasing,
    /// It has ended: a later life of its owner is at work, or it was shut down.
    Over,
}

/// What an instance learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stimulus {
    Listed(Listing),
    /// Its renewal is due.
    RenewalDue,
    Claimed(Outcome),
    Renewed(Outcome),
    /// `Replaced` does not come.
    Released(Outcome),
    /// Without a value if the storage failed.
    Marked(Option<Asking>),
    /// Without a value if the storage failed.
    Pursued(Option<Chance>),
    /// The partition turned out to belong to another owner.
    Forgotten,
    /// Something of the instance wants the partition released.
    ToldToStop,
    /// Its processing has stopped.
    Stopped {
        settled: bool,
    },
    /// The time to stop processing is over.
    TimeOver,
    ShutDown,
}

/// How the store says that a claim, a renewal or a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    /// `anew`: the renewal won the partition again, with a new epoch.
    Won {
        anew: bool,
        mark: Mark,
    },
    Lost,
    Replaced,
    Undecided,
}

/// Whether a record that was won or renewed has the mark of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    None,
    /// That of the lease before.
    Known,
    New,
}

/// What became of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asking {
    Stands,
    Lost,
    TooOld,
    /// Another has asked, or the owner hands nothing over.
    Refused,
}

/// What a look at a partition that was asked for leads to.
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
    /// Nothing if there is no record.
    pub(super) owner: Option<Owner>,
    /// It is young; otherwise expired, or, of a released record, no longer reserved.
    pub(super) live: bool,
    /// The instance of this number has asked for it, and lives.
    pub(super) mark: Option<u8>,
    /// The other tree of names shows a live owner.
    pub(super) elsewhere: bool,
    /// The owner has more partitions than its share, and this is the one that may be asked for.
    pub(super) above_share: bool,
}

/// What a balancer does about a stimulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reaction {
    pub(super) after: Condition,
    /// It requests a renewal, which says whether it drains.
    pub(super) renews: Option<Renewal>,
    /// The epoch of the tenure in which the partition is to be processed, as published.
    pub(super) epoch: Option<i64>,
    pub(super) says: Says,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    Plain,
    Draining,
}

/// The events of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an event of its own")]
pub(super) struct Says {
    pub(super) claimed: bool,
    pub(super) lost: bool,
    pub(super) released: bool,
    pub(super) asked_for: bool,
    /// Events may be processed twice.
    pub(super) duplicates: bool,
}

type Asked = (usize, Condition, Stimulus);

/// The balancers of all members, and their reactions as far as they are known.
pub(super) struct Balancers {
    members: &'static [Member],
    /// No owner hands a partition over.
    deaf: bool,
    known: RefCell<HashMap<Asked, Reaction, BuildHasherDefault<FxHasher>>>,
}

impl Balancers {
    pub(super) fn of(members: &'static [Member], deaf: bool) -> Self {
        Self { members, deaf, known: RefCell::default() }
    }

    pub(super) fn reaction(&self, number: usize, condition: Condition, stimulus: Stimulus) -> Reaction {
        let asked = (number, condition, stimulus);
        if let Some(reaction) = self.known.borrow().get(&asked) {
            return *reaction;
        }
        let reaction = Driven::into_condition(self.members, number, self.deaf, condition, stimulus).reaction(stimulus);
        self.known.borrow_mut().insert(asked, reaction);
        reaction
    }
}

impl Model {
    /// What the balancer of an instance does, or would do without the rule that is left out: then it is lied to.
    pub(super) fn reaction(&self, number: usize, condition: Condition, stimulus: Stimulus) -> Reaction {
        let (condition, stimulus) = match (self.scenario.without, condition, stimulus) {
            (Some(Rule::OrphansAreClaimed), Condition::Idle, Stimulus::Listed(listing))
                if self.is_own(number, listing.owner) =>
            {
                let by_another = Listing { owner: Some(Owner::Foreign), live: true, ..listing };
                (condition, Stimulus::Listed(by_another))
            }
            (Some(Rule::FailedReadDecidesNothing), _, Stimulus::Claimed(Outcome::Undecided)) => {
                (condition, Stimulus::Claimed(Outcome::Lost))
            }
            (Some(Rule::FailedReadDecidesNothing), _, Stimulus::Renewed(Outcome::Undecided)) => {
                (condition, Stimulus::Renewed(Outcome::Lost))
            }
            truth => (truth.1, truth.2),
        };
        self.balancers.reaction(number, condition, stimulus)
    }

    fn is_own(&self, number: usize, owner: Option<Owner>) -> bool {
        owner.is_some_and(|owner| self.relations.of(number, owner) == Relation::Mine)
    }

    /// What an instance does about a listing. What it loses by it, it may claim in the same step; here that takes
    /// another listing, as if it had claimed another partition first.
    pub(super) fn after_listing(&self, number: usize, condition: Condition, listing: Listing) -> Condition {
        let reaction = self.reaction(number, condition, Stimulus::Listed(listing));
        if reaction.says.lost { Condition::Idle } else { reaction.after }
    }

    /// What an instance does about a stimulus now.
    pub(super) fn reaction_now(&self, state: &State, number: usize, stimulus: Stimulus) -> Reaction {
        self.reaction(number, state.instances[number].condition(), stimulus)
    }
}

impl Listing {
    /// What a listing shows now, of a young record.
    pub(super) fn of(state: &State) -> Self {
        let owner = state.ownership.map(|record| record.owner);
        let mark = state.ownership.and_then(|record| record.keys.handoff_to);
        Self { owner, live: true, mark, elsewhere: false, above_share: false }
    }
}

impl Instance {
    /// It goes on so with the lease that it has.
    pub(super) fn is_now(&mut self, after: Condition) {
        self.leaving = matches!(after, Condition::Leaving { .. } | Condition::HandingOver);
        if let Some(lease) = &mut self.lease {
            lease.keys.draining |= after == Condition::HandingOver;
        }
    }

    pub(super) fn condition(&self) -> Condition {
        let operation = self.operation.map(|operation| (operation.goal, operation.renews));
        match (operation, self.lease, self.handoff) {
            (Some((Goal::Release, _)), ..) => Condition::Releasing,
            (Some((_, false)), _, Some(_)) => Condition::Taking,
            (Some((_, false)), _, None) => Condition::Claiming,
            (_, Some(lease), _) => {
                let knows_mark = lease.keys.handoff_to.is_some();
                match (self.leaving, lease.keys.draining) {
                    (true, true) => Condition::HandingOver,
                    (true, false) => Condition::Leaving { knows_mark },
                    (false, _) => Condition::Held { knows_mark },
                }
            }
            // A renewal of a lease that was given up meanwhile is no concern of the balancer any more.
            (_, None, Some(Handoff { step: HandoffStep::Reading(0) | HandoffStep::Marking(_, 0), .. })) => {
                Condition::Marking
            }
            (_, None, Some(_)) => Condition::Asked,
            (_, None, None) => Condition::Idle,
        }
    }
}
