//! Joins, shutdowns and crashes: every instance gets its share, and the fewest partitions move.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::sim::{Entry, Move, Simulation};
use eventhubs_checkpoint::balancer::{ClaimReason, OwnershipEvent};
use eventhubs_checkpoint::internal::postconditions::fewest_moves;
use eventhubs_checkpoint::store::StorageWarning;

use super::group::{
    ABANDONED, INTERVAL, LONGEST_CYCLE, MINUTE, ROUND, balanced, claims_stay_apart, comes, config, events, group,
    held_by, sizes,
};

const HOUR: Duration = Duration::from_secs(3600);

/// From here on the last loss must have been detected.
async fn quiet_until(group: &Simulation, end: Duration) {
    group.run_for(LONGEST_CYCLE).await;
    let before = (group.trace().len(), group.moves().len());
    group.run_for(end.saturating_sub(group.elapsed())).await;
    assert_eq!((group.trace().len(), group.moves().len()), before, "{group:#?}");
}

/// One, three, two instances; the clock of the second one is ahead.
fn hour_with_a_clock_ahead(ahead: time::Duration) -> (Vec<Entry>, Vec<Move>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut group = Simulation::new(1, 32);
        group.start("a", config()).await.unwrap();
        balanced(&group, ROUND * 32).await;
        claims_stay_apart(&group, 0);
        quiet_until(&group, 15 * MINUTE).await;
        assert_eq!(group.moves(), []);

        group.start_ahead("b", config(), ahead).await.unwrap();
        group.start("c", config()).await.unwrap();
        let skewed = matches!(group.store("b").unwrap().storage_warnings(), [StorageWarning::ClockSkew { .. }]);
        assert_eq!(skewed, !ahead.is_zero());
        balanced(&group, ROUND * 12).await;
        claims_stay_apart(&group, 0);
        quiet_until(&group, 40 * MINUTE).await;
        assert_eq!(group.moves().len(), fewest_moves(32, &[32, 0, 0]));
        assert_eq!(group.moves().len(), 21);

        let before = group.trace().len();
        group.stop("b").await.unwrap();
        balanced(&group, LONGEST_CYCLE + ROUND * 6).await;
        claims_stay_apart(&group, before);
        quiet_until(&group, HOUR).await;
        assert_eq!(group.moves().len(), 21, "a released partition need not be stolen");
        (group.trace(), group.moves())
    })
}

#[test]
fn one_three_two_instances_move_the_fewest_in_an_hour() {
    let right = hour_with_a_clock_ahead(time::Duration::ZERO);
    let wrong = hour_with_a_clock_ahead(time::Duration::HOUR);
    assert_eq!(right, wrong);
}

#[tokio::test(start_paused = true)]
async fn at_most_claims_stay_apart() {
    let mut group = Simulation::new(2, 3);
    group.start("a", config()).await.unwrap();
    let first = comes(&group, ROUND, |group| held_by(group, "a") == 1).await;
    assert!(first < Duration::from_secs(1), "the first cycle comes at the start, not after {first:?}");
    balanced(&group, ROUND * 3).await;
    group.run_for(5 * MINUTE).await;
    group.set_partitions(0..8);
    balanced(&group, INTERVAL + ROUND * 5).await;
    claims_stay_apart(&group, 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_instance_claims_a_random_partition() {
    let mut first = BTreeSet::new();
    for seed in 0..20 {
        let mut group = Simulation::new(seed, 32);
        group.start("a", config()).await.unwrap();
        comes(&group, ROUND, |group| held_by(group, "a") == 1).await;
        first.extend(group.owners().into_keys());
    }
    assert!(first.len() > 5, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn the_surplus_is_idle_and_takes_over() {
    let mut group = group(3, 5, &["a", "b", "c", "d", "e", "f"]).await;
    assert_eq!(sizes(&group), [1, 1, 1, 1, 1, 0]);
    let victim = group.owners().into_values().next().unwrap().to_string();
    let idle = group.counts().into_iter().find(|(_, held)| *held == 0).unwrap().0.to_string();
    group.crash(&victim).await.unwrap();
    comes(&group, ABANDONED + LONGEST_CYCLE, |group| held_by(group, &idle) == 1).await;
    group.run_for(5 * MINUTE).await;
    assert_eq!(sizes(&group), [1, 1, 1, 1, 1]);
    // The other owners do not see an instance that holds nothing: one of them may take a second partition first, which
    // is then stolen.
    assert!(group.moves().len() <= 1, "{group:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_join_steals_one_per_round_above_the_share() {
    let mut group = group(4, 18, &["a", "b", "c"]).await;
    assert_eq!(sizes(&group), [6, 6, 6]);
    assert_eq!(group.moves(), []);
    let before = group.trace().len();
    group.start("d", config()).await.unwrap();
    balanced(&group, ROUND * 4).await;
    claims_stay_apart(&group, before);
    group.run_for(5 * MINUTE).await;
    assert_eq!(sizes(&group), [5, 5, 4, 4]);
    assert_eq!(group.moves().len(), fewest_moves(18, &[6, 6, 6, 0]));
    assert!(group.moves().iter().all(|moved| moved.to.as_str() == "d"));
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_shared_within_the_bound() {
    for seed in 0..5 {
        let mut group = group(seed, 20, &["a", "b", "c", "d"]).await;
        assert_eq!(sizes(&group), [5, 5, 5, 5]);
        let before = group.trace().len();
        group.crash("c").await.unwrap();
        // At most two for each survivor; the first of them in the first cycle that finds the record expired.
        balanced(&group, ABANDONED + LONGEST_CYCLE + ROUND).await;
        claims_stay_apart(&group, before);
        group.run_for(5 * MINUTE).await;
        assert_eq!((sizes(&group), group.moves().len()), (vec![7, 7, 6], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn starts_at_once_and_a_growing_hub_steal_nothing() {
    for seed in 0..5 {
        let mut group = Simulation::new(seed, 20);
        for owner in ["a", "b", "c", "d"] {
            group.start(owner, config()).await.unwrap();
        }
        balanced(&group, ROUND * 6).await;
        group.run_for(5 * MINUTE).await;
        let before = group.trace().len();
        group.set_partitions(0..25);
        balanced(&group, INTERVAL + ROUND * 3).await;
        group.run_for(5 * MINUTE).await;
        assert_eq!((sizes(&group), group.moves().len()), (vec![7, 6, 6, 6], 0), "{group:#?}");
        let claimed = events(&group, before);
        let unowned =
            |event: &OwnershipEvent| matches!(event, OwnershipEvent::Claimed { reason: ClaimReason::Unowned, .. });
        assert!(claimed.len() == 5 && claimed.iter().all(|(_, _, event)| unowned(event)), "{claimed:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_is_served_within_one_interval() {
    let mut group = group(5, 8, &["a", "b"]).await;
    let before = group.trace().len();
    group.start("c", config()).await.unwrap();
    comes(&group, INTERVAL, |group| held_by(group, "c") == 1).await;
    let lost = |group: &Simulation| {
        events(group, before).into_iter().any(|(_, _, event)| matches!(event, OwnershipEvent::Lost { by: Some(_), .. }))
    };
    comes(&group, LONGEST_CYCLE, lost).await;
    balanced(&group, ROUND * 2).await;
}

/// A hub that changes continuously does not increase the number of claims.
#[tokio::test(start_paused = true)]
async fn claims_stay_apart_while_the_hub_grows() {
    let mut group = Simulation::new(6, 8);
    group.start("a", config()).await.unwrap();
    for partitions in 9..40 {
        group.run_for(INTERVAL / 3).await;
        group.set_partitions(0..partitions);
    }
    claims_stay_apart(&group, 0);
    balanced(&group, ROUND * 40).await;
}
