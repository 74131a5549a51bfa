//! The storage is away for minutes: for all, for one, and while somebody dies.

use eventhubs_checkpoint::balancer::OwnershipEvent;

use super::group::{ABANDONED, LONGEST_CYCLE, MINUTE, ROUND, balanced, group, held_by, sizes, told};

const OWNERS: [&str; 5] = ["a", "b", "c", "d", "e"];

#[tokio::test(start_paused = true)]
async fn nothing_moves_after_five_minutes_without_storage() {
    for seed in 0..10 {
        let group = group(seed, 20, &OWNERS).await;
        let before = (group.owners(), group.trace().len());
        group.outage(None);
        group.run_for(5 * MINUTE).await;
        group.outage_over(None);
        group.run_for(10 * MINUTE).await;
        assert_eq!((group.owners(), group.trace().len()), before, "{group:#?}");
        assert_eq!(group.moves(), []);
    }
}

/// It may have died at the very end of it, as far as the others can tell.
#[tokio::test(start_paused = true)]
async fn who_died_in_an_outage_is_replaced_within_the_expiry_from_its_end_and_a_round_for_each_partition() {
    for seed in 0..10 {
        let mut group = group(seed, 20, &OWNERS).await;
        let orphaned = u32::try_from(held_by(&group, "e")).unwrap();
        group.outage(None);
        group.run_for(2 * MINUTE).await;
        group.crash("e").await.unwrap();
        group.run_for(3 * MINUTE).await;
        group.outage_over(None);
        balanced(&group, ABANDONED + LONGEST_CYCLE + ROUND * orphaned).await;
        group.run_for(5 * MINUTE).await;
        assert_eq!((sizes(&group), group.moves().len()), (vec![5, 5, 5, 5], 0), "{group:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_alone_loses_its_partitions_and_gets_its_share_again() {
    let group = group(7, 20, &OWNERS).await;
    let before = group.trace().len();
    group.outage(Some("e"));
    group.run_for(5 * MINUTE).await;
    assert_eq!(held_by(&group, "e"), 0);
    assert_eq!(group.moves().len(), 4, "it runs, so that this is a move");
    group.outage_over(Some("e"));
    balanced(&group, LONGEST_CYCLE + ROUND * 4).await;
    group.run_for(5 * MINUTE).await;
    let lost = told(&group, before).into_iter().filter(|(_, owner, event)| {
        owner == "e" && matches!(event, OwnershipEvent::Lost { by: Some(by), .. } if by.as_str() != "e")
    });
    assert_eq!((lost.count(), group.moves().len()), (4, 8), "{group:#?}");
}
