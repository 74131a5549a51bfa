//! Scenarios of processors of several SDKs that share an event hub with a continuous load.

use std::time::Duration;

use tokio::time::Instant;

use super::fleet::{EXPIRY, Fleet, Positions};
use super::foreign_processor::ForeignProcessor;
use super::sdk::Sdk;

/// Server times have whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

pub async fn all_get_a_fair_share_and_nothing_is_lost(sdk: Sdk) {
    let fleet = Fleet::with_names_of(sdk, 7).await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a"]).await;
    let c = fleet.foreign(sdk).await;
    fleet.settles_among(&["a", c.owner()]).await;
    let (b, d) = (fleet.own("b").await, fleet.foreign(sdk).await);
    fleet.settles_among(&["a", "b", c.owner(), d.owner()]).await;
    drop((a, b, c, d));
}

pub async fn foreign_instances_that_end_are_taken_over(sdk: Sdk) {
    let fleet = Fleet::with_names_of(sdk, 6).await;
    let (c, d) = (fleet.foreign(sdk).await, fleet.foreign(sdk).await);
    let a = fleet.own("a").await;
    fleet.settles_among(&["a", c.owner(), d.owner()]).await;

    let owner = c.owner().to_owned();
    c.shut_down().await;
    // A processor that stops while it renews may lose its release: Java may renew afterwards, Go cancels the request,
    // which may have been applied, and Python does not wait for it. Then both release under the version before.
    if !matches!(sdk, Sdk::Java | Sdk::Go | Sdk::Python) {
        assert!(fleet.ages_of(&owner).await.is_empty(), "it shut down gracefully, but has not released all");
    }
    fleet.settles_among(&["a", d.owner()]).await;

    let owner = d.owner().to_owned();
    d.kill().await;
    let killed = Instant::now();
    let oldest = oldest(&fleet, &owner).await;
    fleet.settles_among(&["a"]).await;
    assert!(killed.elapsed() + oldest + ROUNDING >= EXPIRY, "taken from a running owner after {:?}", killed.elapsed());
    a.shut_down().await;
}

pub async fn crate_instances_that_end_are_taken_over(sdk: Sdk) {
    let fleet = Fleet::with_names_of(sdk, 6).await;
    let (a, b) = (fleet.own("a").await, fleet.own("b").await);
    let c = fleet.foreign(sdk).await;
    fleet.settles_among(&["a", "b", c.owner()]).await;

    a.shut_down().await;
    assert!(fleet.ages_of("a").await.is_empty(), "it shut down gracefully, but has not released all");
    fleet.settles_among(&["b", c.owner()]).await;

    b.kill().await;
    let killed = Instant::now();
    let oldest = oldest(&fleet, "b").await;
    fleet.settles_among(&[c.owner()]).await;
    assert!(killed.elapsed() + oldest + ROUNDING >= EXPIRY, "taken from a running owner after {:?}", killed.elapsed());
    c.shut_down().await;
}

/// Every partition is processed again from the new position on, and from no earlier event. A Python processor stops
/// when a listing shows its partition with another owner. The others continue to read and write checkpoints until the
/// broker displaces them, which nothing in the blobs can cause: the operator never reports such a reset as done, and it
/// succeeds once that processor has ended.
pub async fn a_reset_of_the_live_group_is_followed(sdk: Sdk) {
    let fleet = Fleet::with_names_of(sdk, 4).await;
    let c = fleet.foreign(sdk).await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a", c.owner()]).await;
    let targets = fleet.all_checkpoints().await;
    fleet.settles_among(&["a", c.owner()]).await;

    let owners = fleet.records().await;
    if sdk == Sdk::Python {
        follows(&fleet, &targets).await;
        c.shut_down().await;
    } else {
        let foreign: Positions =
            targets.into_iter().filter(|(partition, _)| owners[partition].0 == c.owner()).collect();
        let first = foreign.clone().into_iter().take(1).collect();
        assert_eq!(fleet.resets_once(&first).await, [""; 0], "it reads on");
        c.shut_down().await;
        follows(&fleet, &foreign).await;
    }
    a.shut_down().await;
}

async fn follows(fleet: &Fleet, targets: &Positions) {
    let newest = fleet.published();
    fleet.processed.clear();
    fleet.resets(targets).await;
    for (partition, target) in targets {
        fleet.processes_range(partition, target.sequence_number + 1, newest[partition]).await;
    }
}

pub async fn three_sdks_share_and_take_over_from_each_other() {
    let fleet = Fleet::new(8).await;
    let c = fleet.foreign(Sdk::JavaScript).await;
    let a = fleet.own("a").await;
    let d = fleet.foreign(Sdk::Python).await;
    fleet.settles_among(&["a", c.owner(), d.owner()]).await;
    c.shut_down().await;
    fleet.settles_among(&["a", d.owner()]).await;
    let e = fleet.foreign(Sdk::JavaScript).await;
    fleet.settles_among(&["a", d.owner(), e.owner()]).await;
    d.kill().await;
    fleet.settles_among(&["a", e.owner()]).await;
    a.kill().await;
    fleet.settles_among(&[e.owner()]).await;
    e.shut_down().await;
}

/// All SDKs share one group, and each of them crashes once. Go and Rust use names as given, so the test gives them the
/// lower case that the others use. Rust joins before the other SDKs, so that it rarely takes a partition from them: its
/// receivers have no owner level, and the event hub refuses them while the previous owner still reads. The processors
/// of Go, Java and JavaScript do not stop reading when they lose an ownership.
pub async fn all_sdks_share_and_survive_a_crash_of_each() {
    let mut fleet = Fleet::new(12).await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a"]).await;
    let mut others = Vec::new();
    for sdk in [Sdk::Rust, Sdk::Go, Sdk::Java, Sdk::JavaScript, Sdk::Python] {
        let joined = fleet.foreign_in(sdk, "$default").await;
        match sdk {
            Sdk::Rust => fleet.refusable = Some(joined.owner().to_owned()),
            Sdk::Go | Sdk::Java | Sdk::JavaScript => fleet.reading_on.push(joined.owner().to_owned()),
            Sdk::Python => {}
        }
        others.push(joined);
        settle(&fleet, &["a"], &others).await;
    }
    for _ in 0..2 {
        for crashed in others.drain(..2) {
            crashed.kill().await;
        }
        settle(&fleet, &["a"], &others).await;
    }
    let b = fleet.own("b").await;
    settle(&fleet, &["a", "b"], &others).await;
    a.kill().await;
    for crashed in others {
        crashed.kill().await;
    }
    settle(&fleet, &["b"], &[]).await;
    fleet.ends_without_loss().await;
    b.shut_down().await;
}

async fn settle(fleet: &Fleet, own: &[&str], others: &[ForeignProcessor]) {
    let started = Instant::now();
    let owners: Vec<_> = own.iter().copied().chain(others.iter().map(ForeignProcessor::owner)).collect();
    fleet.settles_among(&owners).await;
    println!("{} instances share after {:.1} s", owners.len(), started.elapsed().as_secs_f64());
}

/// Returns the age of the oldest record of an owner that was just killed, and so has released nothing.
async fn oldest(fleet: &Fleet, killed: &str) -> Duration {
    let ages = fleet.ages_of(killed).await;
    ages.into_iter().max().unwrap_or_else(|| panic!("{killed} was killed, but owns nothing anymore"))
}
