//! The rules by which an instance decides.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{OwnerId, PartitionId};

/// How partitions are shared, and how fast an instance claims what it lacks. All instances of a group must use the same
/// strategy.
///
/// ```
/// use eventhubs_checkpoint::balancer::Assignment;
/// use eventhubs_checkpoint::{LoadBalancingStrategy, ProcessorConfig};
///
/// let greedy = ProcessorConfig::default()
///     .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
/// let first_of_three = LoadBalancingStrategy::Static(Assignment::index(0, 3)?);
/// # let _ = (greedy, first_of_three);
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LoadBalancingStrategy {
    /// Equal numbers, one new partition after another: at most one per interval from live owners, and about one per
    /// second of those that are unowned. The default: if many instances start at once, each one sees the others before
    /// it has claimed more than its share, so that no partition moves twice.
    ///
    /// Unowned partitions are claimed together by an instance that has stayed alone for an interval, all of them, and
    /// by one that has seen a group in which each partition had an owner: its part of what another one leaves. Without
    /// handoffs an instance does not know whether it is alone.
    ///
    /// If the storage is slow or throttles, the wait between two claims of unowned partitions grows up to the interval.
    /// A start that will take longer than two minutes is logged.
    ///
    /// Settles within `floor(P/N) + 1` rounds. In a round every instance runs one cycle.
    #[default]
    Balanced,
    /// Equal shares, claimed all at once. Fast to start, but partitions move again if other instances join at that
    /// time. An instance requests all surplus partitions of an owner at once: when a second instance joins a first one,
    /// half of the handlers stop together, each for no longer than if its partition were requested alone. To move
    /// partitions one at a time, use [`Balanced`](Self::Balanced). Settles within two rounds.
    Greedy,
    /// Exactly the assigned partitions, all of them at once. Never steals; waits until the current owner releases the
    /// partition. Releases partitions that are not assigned anymore. Ownership records are written as with the other
    /// strategies, so that other programs see which instance owns what.
    ///
    /// Settles within two rounds after the last change of an assignment, if the assignments neither overlap nor leave
    /// out a partition. A partition that is assigned to no running instance stays unowned.
    Static(Assignment),
    /// Equal loads, one new partition after another as with [`Balanced`](Self::Balanced), with hysteresis: an instance
    /// takes a partition from a live owner only if its load with the partition is still less than the previous load of
    /// that owner, by more than the threshold.
    ///
    /// Not with [`LeaseScope::Instance`](crate::LeaseScope::Instance), whose owners write no loads.
    ///
    /// The loads are those that the owners write into their records. The fair load F is their sum divided by the number
    /// of live owners. In the following, T is the threshold, and all instances see the same loads, which do not change.
    ///
    /// - Only owners below F claim anything. They claim unowned partitions first: a random one of those that fit below
    ///   F, or one more if none fits. By claims alone, no owner exceeds F by more than one partition.
    /// - A partition of weight w is stolen only if `own load + w + T < load of its owner`, and then from the owner with
    ///   the greatest load: the partition that brings the two loads closest together. If it lifts the instance above F,
    ///   it is stolen only if no owner has a smaller load. So a steal never increases the greatest load and never
    ///   decreases the least load.
    /// - In the end no owner's load, without its lightest partition, exceeds the least load of the group by more than
    ///   T. Nothing moves then, nor while the loads drift by no more than the remaining difference.
    /// - The moves end: unowned partitions are claimed in at most as many rounds as there are, mostly far fewer, and
    ///   each steal reduces the sum of the squared loads by more than `2 w T`.
    ///
    /// With equal loads and T below one partition, the result is the same as for equal numbers; if no partition is
    /// unowned at the start, with the fewest moves. A greater T saves moves and makes the loads less even. With unequal
    /// loads the moves are not the fewest, because that problem has no fast solution.
    Weighted {
        /// T, in percent of the fair load: at most 100.
        #[serde(default = "default_threshold")]
        threshold_percent: u32,
    },
}

impl LoadBalancingStrategy {
    /// Returns [`Weighted`](Self::Weighted) with a threshold of ten percent: a move redelivers the events since the
    /// last checkpoint, which a smaller gain does not justify, and measured loads vary by as much.
    #[must_use]
    pub const fn weighted() -> Self {
        Self::Weighted { threshold_percent: default_threshold() }
    }

    /// Returns whether it takes one new partition after another.
    pub(crate) fn claims_one_by_one(&self) -> bool {
        matches!(self, Self::Balanced | Self::Weighted { .. })
    }

    /// Returns whether this instance may own a partition, the `ordinal`th of the event hub, at all.
    pub(crate) fn may_own(&self, ordinal: usize, partition: &PartitionId) -> bool {
        match self {
            Self::Static(assignment) => assignment.covers(ordinal, partition),
            Self::Balanced | Self::Greedy | Self::Weighted { .. } => true,
        }
    }
}

/// How many unowned partitions an instance claims at once under [`LoadBalancingStrategy::Balanced`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimPace {
    /// One, because other instances may just be starting.
    #[default]
    One,
    /// Of those that its share lacks, the part that no other instance claims first.
    Part,
    /// All that its share lacks.
    All,
}

const fn default_threshold() -> u32 {
    10
}

/// The partitions that [`LoadBalancingStrategy::Static`] assigns to an instance.
///
/// In a configuration file: `{ "partitions": ["0", "1"] }` or `{ "index": 0, "of": 3 }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RecordedRule", into = "RecordedRule")]
pub struct Assignment(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Set(BTreeSet<PartitionId>),
    Index { index: usize, of: usize },
}

/// A rule as it is in a configuration file, not checked.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<BTreeSet<PartitionId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<usize>,
}

impl From<Assignment> for RecordedRule {
    fn from(Assignment(rule): Assignment) -> Self {
        match rule {
            Rule::Set(partitions) => Self { partitions: Some(partitions), ..Self::default() },
            Rule::Index { index, of } => Self { index: Some(index), of: Some(of), ..Self::default() },
        }
    }
}

impl TryFrom<RecordedRule> for Assignment {
    type Error = Error;

    fn try_from(rule: RecordedRule) -> Result<Self> {
        match (rule.partitions, rule.index, rule.of) {
            (Some(partitions), None, None) => Ok(Self(Rule::Set(partitions))),
            (None, Some(index), Some(of)) => Self::index(index, of),
            _ => Err(Error::config("an assignment has either `partitions`, or `index` and `of`")),
        }
    }
}

impl Assignment {
    /// Assigns exactly these partitions. Ids that the event hub does not have are ignored until it has them.
    #[must_use]
    pub fn partitions(ids: impl IntoIterator<Item = PartitionId>) -> Self {
        Self(Rule::Set(ids.into_iter().collect()))
    }

    /// Assigns every partition whose place in the ordered list of the event hub, counted from 0, has the remainder
    /// `index` when divided by `of`. So the same partition key goes to the same instance while the number of instances
    /// stays the same, and no instance needs the name of another.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if `index` is not less than `of`: correct the numbers.
    ///
    /// ```
    /// use eventhubs_checkpoint::balancer::Assignment;
    /// assert!(Assignment::index(2, 3).is_ok());
    /// assert!(Assignment::index(3, 3).is_err());
    /// ```
    pub fn index(index: usize, of: usize) -> Result<Self> {
        if index >= of {
            return Err(Error::config(format!(
                "index {index} of {of} instances: there must be at least one instance, and indexes go from 0 to one less than \
                 their number"
            )));
        }
        Ok(Self(Rule::Index { index, of }))
    }

    /// Returns whether it assigns a partition, the `ordinal`th of the event hub.
    #[must_use]
    pub fn covers(&self, ordinal: usize, partition: &PartitionId) -> bool {
        match &self.0 {
            Rule::Set(ids) => ids.contains(partition),
            Rule::Index { index, of } => ordinal % of == *index,
        }
    }
}

/// The rules by which an instance decides. An instance that must claim nothing at all, because it is stalled or shuts
/// down, does not make a plan.
///
/// ```
/// use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
/// use eventhubs_checkpoint::internal::planner::Policy;
/// let policy = Policy { strategy: LoadBalancingStrategy::Greedy, max_partitions: Some(8), ..Policy::default() };
/// # assert!(policy.avoid.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// How partitions are shared.
    pub strategy: LoadBalancingStrategy,
    /// How many unowned partitions [`LoadBalancingStrategy::Balanced`] claims at once.
    pub pace: ClaimPace,
    /// A random number from 0 to 1 for all plans of a cycle. With a small one, an instance of a large group claims an
    /// unowned partition although others claim it first.
    pub chance: f64,
    /// The most partitions that this instance may own. It releases those above the limit. Other instances do not know
    /// the limit: they consider this owner [idle](Self::idle) after a while. Until then, and if all of them are at
    /// their limits, [`Plan::unclaimed_due_to_limit`](super::Plan::unclaimed_due_to_limit) counts what stays unowned.
    pub max_partitions: Option<usize>,
    /// Other owners that are below their share but claim no unowned partitions, as [`Idleness`](super::Idleness) finds
    /// them. They do not count while partitions are unowned. They keep what they own, and are never left with less than
    /// their share.
    pub idle: BTreeSet<OwnerId>,
    /// Partitions that must be neither claimed nor requested now: an attempt has just failed, an operation is under
    /// way, or this instance released them with a cooldown. The cooldown binds only the incarnation that released them,
    /// which remembers it; other instances may claim them at once.
    pub avoid: BTreeSet<PartitionId>,
    /// Whether a partition is requested instead of stolen, if its owner is
    /// [cooperative](super::PartitionView::cooperative): that owner finishes the events in flight and hands the
    /// partition over. Off by default: the requesting instance must be able to wait for the response, and to steal if
    /// there is none.
    pub handoff: bool,
    /// For [`LoadBalancingStrategy::Weighted`]: the load of each partition, in any unit, for instance bytes per second.
    /// A partition that is missing counts as the mean of the others. A partition with next to no load counts as a tenth
    /// of that mean, because a link and a lease also have a cost.
    pub loads: BTreeMap<PartitionId, u64>,
}
