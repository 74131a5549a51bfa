//! Properties of every plan and of every planning group, as functions for tests and simulations.

use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::internal::planner::{Policy, View};
use eventhubs_checkpoint::internal::postconditions::OwnerLoads;
pub use eventhubs_checkpoint::internal::postconditions::{
    Violation, check_evenness, check_fairness, check_plan, fewest_moves,
};

/// Convergence: returns the number of rounds within which a group settles, if every owner plans once per round, one
/// after another, no partition is to be avoided, no owner is capped and none uses the other name case. `None` for
/// [`LoadBalancingStrategy::Weighted`], for which it depends on the loads, see [`steals_to_settle`].
///
/// By number: in each round every owner below the floor gains one partition (Balanced) or all that it lacks (Greedy),
/// and no owner falls below the floor again; in one more round, the owners that may hold one more take it. A requested
/// partition counts as gained when it is requested; the time of the handoff is added. Static: in the first round
/// everything is released, in the second it is claimed.
#[must_use]
pub fn rounds_to_settle(strategy: &LoadBalancingStrategy, partitions: usize, owners: usize) -> Option<usize> {
    match strategy {
        LoadBalancingStrategy::Balanced => Some(partitions / owners.max(1) + 1),
        LoadBalancingStrategy::Greedy | LoadBalancingStrategy::Static(_) => Some(2),
        LoadBalancingStrategy::Weighted { .. } => None,
        other => unimplemented!("{other:?}"),
    }
}

/// Convergence of [`LoadBalancingStrategy::Weighted`] once everything is owned: returns the maximum number of steals;
/// each round that does not settle has one. Every steal lowers the sum of the squared distances from the fair load by
/// at least twice the lightest weight times the least gain. The bound is far above the number in practice.
///
/// Before that, unowned partitions are claimed in at most as many rounds as there are such partitions: while there is
/// one, an owner is below the fair load.
#[must_use]
pub fn steals_to_settle(view: &View<'_>, policy: &Policy, threshold_percent: u32) -> u128 {
    let loads = OwnerLoads::new(view, policy);
    let owners = loads.count_owners();
    let squares = loads.by_owner.values().fold(0, |sum: u128, load| sum.saturating_add(load.saturating_mul(*load)));
    let distances = squares.saturating_sub(loads.total.saturating_mul(loads.total) / owners);
    let least_gain = u128::from(threshold_percent) * loads.total / (100 * owners) + 1;
    let lightest = loads.weights.iter().copied().min().unwrap_or(1);
    distances / (2 * lightest * least_gain)
}
