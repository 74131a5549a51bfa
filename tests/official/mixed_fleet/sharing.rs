//! What happens to processors of several SDKs that share an event hub. Events keep coming all the time.

use std::time::Duration;

use tokio::time::Instant;

use super::fleet::{EXPIRY, Fleet};
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
