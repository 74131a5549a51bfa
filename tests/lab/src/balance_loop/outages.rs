//! The storage is unavailable for minutes: for all, for one, and while an instance crashes.

use eventhubs_checkpoint::balancer::OwnershipEvent;

use super::group::{ABANDONED, LONGEST_CYCLE, MINUTE, ROUND, balanced, events, group, held_by, sizes};

const OWNERS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An outage spans at least ten cycles of each of the five owners, whose phases drift, so few seeds cover them.
const SEEDS: u64 = 4;

#[tokio::test(start_paused = true)]
async fn nothing_moves_after_five_minutes_without_storage() {
    for seed in 0..SEEDS {
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

/// As far as the others can know, it may have crashed at the very end of the outage.
#[tokio::test(start_paused = true)]
async fn a_crash_during_an_outage_expires_after_its_end() {
    for seed in 0..SEEDS {
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
async fn a_disconnected_instance_regains_its_share() {
    let group = group(7, 20, &OWNERS).await;
    let before = group.trace().len();
    group.outage(Some("e"));
    group.run_for(5 * MINUTE).await;
    assert_eq!(held_by(&group, "e"), 0);
    assert_eq!(group.moves().len(), 4, "it is running, so this is a move");
    group.outage_over(Some("e"));
    balanced(&group, LONGEST_CYCLE + ROUND * 4).await;
    group.run_for(5 * MINUTE).await;
    let lost = events(&group, before).into_iter().filter(|(_, owner, event)| {
        owner == "e" && matches!(event, OwnershipEvent::Lost { by: Some(by), .. } if by.as_str() != "e")
    });
    assert_eq!((lost.count(), group.moves().len()), (4, 8), "{group:#?}");
}
