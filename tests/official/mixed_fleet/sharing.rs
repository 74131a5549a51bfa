//! What happens to processors of several SDKs that share an event hub. Events keep coming all the time.

use std::time::Duration;

use tokio::time::Instant;

use super::fleet::{EXPIRY, Fleet, Positions};
use super::sdk::Sdk;

/// Server times come in whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

pub async fn everybody_ends_with_a_fair_share_and_nothing_is_lost(sdk: Sdk) {
    let fleet = Fleet::new(7).await;
    let a = fleet.ours("a").await;
    fleet.settles_among(&["a"]).await;
    let c = fleet.theirs(sdk).await;
    fleet.settles_among(&["a", c.owner()]).await;
    let (b, d) = (fleet.ours("b").await, fleet.theirs(sdk).await);
    fleet.settles_among(&["a", "b", c.owner(), d.owner()]).await;
    drop((a, b, c, d));
}

pub async fn others_that_leave_and_die_are_taken_over_and_nothing_is_lost(sdk: Sdk) {
    let fleet = Fleet::new(6).await;
    let (c, d) = (fleet.theirs(sdk).await, fleet.theirs(sdk).await);
    let a = fleet.ours("a").await;
    fleet.settles_among(&["a", c.owner(), d.owner()]).await;

    let owner = c.owner().to_owned();
    c.leave().await;
    assert!(fleet.ages_of(&owner).await.is_empty(), "it left in good order, but has not released all");
    fleet.settles_among(&["a", d.owner()]).await;

    let owner = d.owner().to_owned();
    d.die().await;
    let died = Instant::now();
    let oldest = oldest(&fleet, &owner).await;
    fleet.settles_among(&["a"]).await;
    assert!(died.elapsed() + oldest + ROUNDING >= EXPIRY, "taken from the living after {:?}", died.elapsed());
    a.leave().await;
}

pub async fn ours_that_leave_and_die_are_taken_over_by_another_and_nothing_is_lost(sdk: Sdk) {
    let fleet = Fleet::new(6).await;
    let (a, b) = (fleet.ours("a").await, fleet.ours("b").await);
    let c = fleet.theirs(sdk).await;
    fleet.settles_among(&["a", "b", c.owner()]).await;

    a.leave().await;
    assert!(fleet.ages_of("a").await.is_empty(), "it left in good order, but has not released all");
    fleet.settles_among(&["b", c.owner()]).await;

    b.die().await;
    let died = Instant::now();
    let oldest = oldest(&fleet, "b").await;
    fleet.settles_among(&[c.owner()]).await;
    assert!(died.elapsed() + oldest + ROUNDING >= EXPIRY, "taken from the living after {:?}", died.elapsed());
    c.leave().await;
}

/// Every partition is processed again from the new position on, and from no earlier event. A Python processor stops when a
/// listing shows its partition in other hands. A JavaScript one reads on and writes checkpoints until the broker displaces
/// it, which nothing in the blobs can bring about: the operator never reports such a reset as done, and it succeeds once
/// that processor has ended.
pub async fn a_reset_of_the_live_group_is_followed(sdk: Sdk) {
    let fleet = Fleet::new(4).await;
    let c = fleet.theirs(sdk).await;
    let a = fleet.ours("a").await;
    fleet.settles_among(&["a", c.owner()]).await;
    let targets = fleet.checkpoints().await;
    assert_eq!(targets.len(), 4);
    fleet.settles_among(&["a", c.owner()]).await;

    let owners = fleet.records().await;
    if sdk == Sdk::JavaScript {
        let theirs: Positions = targets.into_iter().filter(|(partition, _)| owners[partition].0 == c.owner()).collect();
        assert_eq!(fleet.resets_once(&theirs).await, [""; 0], "it reads on");
        c.leave().await;
        follows(&fleet, &theirs).await;
        a.leave().await;
    } else {
        follows(&fleet, &targets).await;
        c.leave().await;
        a.leave().await;
    }
}

async fn follows(fleet: &Fleet, targets: &Positions) {
    let newest = fleet.published();
    fleet.processed.clear();
    fleet.resets(targets).await;
    for (partition, target) in targets {
        fleet.processes_again(partition, target.sequence_number + 1, newest[partition]).await;
    }
}

pub async fn three_sdks_share_and_take_over_from_each_other() {
    let fleet = Fleet::new(8).await;
    let c = fleet.theirs(Sdk::JavaScript).await;
    let a = fleet.ours("a").await;
    let d = fleet.theirs(Sdk::Python).await;
    fleet.settles_among(&["a", c.owner(), d.owner()]).await;
    c.leave().await;
    fleet.settles_among(&["a", d.owner()]).await;
    let e = fleet.theirs(Sdk::JavaScript).await;
    fleet.settles_among(&["a", d.owner(), e.owner()]).await;
    d.die().await;
    fleet.settles_among(&["a", e.owner()]).await;
    a.die().await;
    fleet.settles_among(&[e.owner()]).await;
    e.leave().await;
}

/// The age of the oldest record of somebody who has just died, and so has released nothing.
async fn oldest(fleet: &Fleet, dead: &str) -> Duration {
    let ages = fleet.ages_of(dead).await;
    ages.into_iter().max().unwrap_or_else(|| panic!("{dead} died, but owns nothing any more"))
}
