//! By what rules to decide.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::{OwnerId, PartitionId};

/// How partitions are shared, and how fast an instance takes what it lacks. All instances of a group use the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LoadBalancingStrategy {
    /// Equal numbers, at most one new partition per interval. The default: when many instances start at once, each sees
    /// the others before it has taken more than its share, so that nothing moves twice.
    ///
    /// Settles within `floor(P/N) + 1` rounds, a round being one cycle of every instance, one after another.
    #[default]
    Balanced,
    /// Equal numbers, everything that is lacking at once: quick to start, at the price of moves when others join just
    /// then. From an owner that has too much, all of that is asked for at once, so that when a second instance joins a
    /// first one, half of the handlers stop together. Each is away no longer than if it were asked for alone, but to
    /// move one after another, use [`Balanced`](Self::Balanced). Settles within two rounds.
    Greedy,
    /// What is assigned, all of it at once, and nothing else. No live owner is ever robbed: what another holds is
    /// awaited. What is not assigned (any more) is given back. Records are written as ever, so that others see who owns
    /// what.
    ///
    /// Settles within two rounds of the change of the last assignment, if assignments neither overlap nor leave out a
    /// partition. What is assigned to nobody stays unowned, also when the one it is assigned to is gone.
    Static(Assignment),
    /// Equal loads, at most one new partition per interval, with hysteresis: a partition is taken from a live owner
    /// only if I would still hold less than that owner held before, by more than the threshold.
    ///
    /// Not under [`LeaseScope::Instance`](crate::LeaseScope::Instance), whose owners write no loads.
    ///
    /// The loads are those that the owners write into their records; the fair load F is their sum divided by the number
    /// of live owners. Below, T is the threshold, and everybody is given the same loads, which do not change.
    ///
    /// - Only owners below F take anything. What nobody owns is taken first: a random one of those that fit below F, or
    ///   else just one more. So by claims alone nobody exceeds F by more than one partition.
    /// - A partition of weight w is stolen only if `mine + w + T < the victim's load`, and then from the fullest such
    ///   owner, the one that comes closest to evening out the two. If it lifts me above F, only if nobody holds less.
    ///   So the greatest load never grows by a steal, and the least never falls.
    /// - In the end nobody's load, less its lightest partition, exceeds the least load of the group by more than T.
    ///   Then nothing moves. While the loads drift by no more than the difference left, nothing moves either.
    /// - It ends: what nobody owns is claimed in as many rounds as there are such partitions, mostly far fewer, and
    ///   each steal lowers the sum of the squared loads by more than `2 w T`.
    ///
    /// With equal loads and T below one partition that is the sharing by numbers, and if nothing is unowned at the
    /// start, with the fewest moves. With a greater T moves are saved at the price of evenness. With unequal loads the
    /// moves are not the fewest, for that is a problem with no quick solution.
    Weighted {
        /// T, in percent of the fair load.
        threshold_percent: u32,
    },
}

impl LoadBalancingStrategy {
    /// [`Weighted`](Self::Weighted) with a threshold of ten percent: a move costs the events since the last checkpoint
    /// again, which a smaller gain does not pay for, and loads that are measured waver by as much.
    #[must_use]
    pub const fn weighted() -> Self {
        Self::Weighted { threshold_percent: 10 }
    }

    /// Whether a partition, the `ordinal`th of the hub, may be mine at all.
    pub(super) fn admits(&self, ordinal: usize, partition: &PartitionId) -> bool {
        match self {
            Self::Static(assignment) => assignment.covers(ordinal, partition),
            Self::Balanced | Self::Greedy | Self::Weighted { .. } => true,
        }
    }
}

/// The partitions that [`LoadBalancingStrategy::Static`] gives to an instance.
///
/// In a configuration file: `{ "partitions": ["0", "1"] }` or `{ "index": 0, "of": 3 }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RecordedRule")]
pub struct Assignment(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Set(BTreeSet<PartitionId>),
    Index { index: usize, of: usize },
}

/// A rule as a configuration file has it, not checked.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RecordedRule {
    Set { partitions: BTreeSet<PartitionId> },
    Index { index: usize, of: usize },
}

impl TryFrom<RecordedRule> for Assignment {
    type Error = Error;

    fn try_from(rule: RecordedRule) -> Result<Self> {
        match rule {
            RecordedRule::Set { partitions } => Ok(Self(Rule::Set(partitions))),
            RecordedRule::Index { index, of } => Self::index(index, of),
        }
    }
}

impl Assignment {
    /// Exactly these. Ids that the hub does not have are of no consequence until it has them.
    #[must_use]
    pub fn partitions(ids: impl IntoIterator<Item = PartitionId>) -> Self {
        Self(Rule::Set(ids.into_iter().collect()))
    }

    /// Every partition whose place in the hub's ordered list, counted from 0, leaves the remainder `index` when divided
    /// by `of`. So the same key goes to the same instance while the number of instances stays, and no instance needs to
    /// know a name of another.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if `index` is not below `of`: correct the numbers.
    ///
    /// ```
    /// use eventhubs_checkpoint::balancer::Assignment;
    /// assert!(Assignment::index(2, 3).is_ok());
    /// assert!(Assignment::index(3, 3).is_err());
    /// ```
    pub fn index(index: usize, of: usize) -> Result<Self> {
        if index >= of {
            return Err(Error::config(format!(
                "index {index} of {of} instances: there must be at least one instance, and indexes go from 0 to one below \
                 their number"
            )));
        }
        Ok(Self(Rule::Index { index, of }))
    }

    /// Whether it covers a partition, the `ordinal`th of the hub.
    #[must_use]
    pub fn covers(&self, ordinal: usize, partition: &PartitionId) -> bool {
        match &self.0 {
            Rule::Set(ids) => ids.contains(partition),
            Rule::Index { index, of } => ordinal % of == *index,
        }
    }
}

/// By what rules to decide. An instance that is to claim nothing at all, because it is stalled or about to end, does
/// not ask for a plan.
///
/// ```
/// use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
/// use eventhubs_checkpoint::internal::planner::Policy;
/// let policy = Policy { strategy: Strategy::Greedy, max_partitions: Some(8), ..Policy::default() };
/// # assert!(policy.avoid.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// How partitions are shared.
    pub strategy: LoadBalancingStrategy,
    /// The most that I may hold. What is above it is released. The others do not know of it: they find this
    /// owner [idle](Self::idle) after a while. Until then, and if they are all at their limits,
    /// [`Plan::unclaimed_due_to_limit`](super::Plan::unclaimed_due_to_limit) says what stays unowned.
    pub max_partitions: Option<usize>,
    /// Other owners that are below their share, but claim no unowned partitions, as [`Idleness`](super::Idleness) finds
    /// them. They do not count where something is unowned. They keep what they hold, and are never brought below their
    /// share.
    pub idle: BTreeSet<OwnerId>,
    /// Partitions to be neither claimed nor asked for now: an attempt has just failed, an operation is under way, or I
    /// gave them back with a cooldown. That binds only the life that did so, which remembers it; others may claim them
    /// at once.
    pub avoid: BTreeSet<PartitionId>,
    /// Whether a partition is asked for rather than stolen, if its owner is
    /// [cooperative](super::PartitionView::cooperative): that owner finishes what it has begun and hands the partition
    /// over. Off by default: whoever asks must be able to wait for the answer, and to steal if none comes.
    pub handoff: bool,
    /// For [`LoadBalancingStrategy::Weighted`]: the load of each partition, in any unit, for instance bytes per second. A partition
    /// that is missing counts as the mean of those that are there, one with next to no load as a tenth of that mean,
    /// because a link and a lease cost something too.
    pub loads: BTreeMap<PartitionId, u64>,
}
