//! The published Rust SDK 0.15 with its blob checkpoint store, which uses the names as they are given: what happens
//! when something goes wrong while it shares a group. `tests/ehcp/moves.rs` moves whole groups.

use std::time::Duration;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::NameCase;
use eventhubs_checkpoint::testing::Overwrite;
use tokio::time::{Instant, sleep};

use super::adapted_processor::AdaptedProcessor;
use super::continuity::Continuity;
use super::fleet::{Fleet, Positions, TIMEOUT};
use super::sdk::Sdk;

const POLL: Duration = Duration::from_millis(20);

async fn verbatim(partitions: u16) -> Fleet {
    let mut fleet = Fleet::new(partitions).await;
    fleet.case = NameCase::Verbatim;
    fleet
}

/// The steps of `docs/moving-a-group.md` one after another, under names that all share: the official store gives way
/// to that of this crate, which needs the newer SDK, and then the official processor gives way, too.
pub async fn the_store_is_replaced_then_the_processor() {
    let fleet = verbatim(4).await;
    let c = fleet.foreign(Sdk::Rust).await;
    fleet.settles_among(&[c.owner()]).await;
    let b = AdaptedProcessor::start(&fleet, "b").await;
    fleet.settles_among(&[b.owner(), c.owner()]).await;
    c.shut_down().await;
    fleet.settles_among(&[b.owner()]).await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a", b.owner()]).await;
    b.shut_down().await;
    fleet.settles_among(&["a"]).await;
    fleet.ends_without_loss().await;
    a.shut_down().await;
}

/// Returns the partitions whose checkpoints are earlier than before.
fn moved_back(before: &Positions, now: &Positions) -> Vec<String> {
    let is_earlier = |id: &String| now[id].sequence_number < before[id].sequence_number;
    before.keys().filter(|id| now.contains_key(*id)).filter(|id| is_earlier(id)).cloned().collect()
}

/// An owner that was stopped for longer than its lease continues with the events that it had received. It writes its
/// checkpoints without a condition, over the later ones of the new owner, which are replaced by the new owner's next
/// ones.
#[cfg(unix)]
pub async fn a_frozen_owner_checkpoints_late() {
    let fleet = verbatim(2).await;
    let c = fleet.foreign(Sdk::Rust).await;
    fleet.has_an_owner().await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a", c.owner()]).await;
    c.pause();
    fleet.settles_among(&["a"]).await;
    // Then the checkpoints are after all events that the frozen owner has received.
    fleet.settles_among(&["a"]).await;
    let mut before = fleet.checkpoints().await;
    c.resume();
    let (resumed, mut regressions) = (Instant::now(), Vec::new());
    while resumed.elapsed() < Duration::from_secs(2) {
        let now = fleet.checkpoints().await;
        regressions.extend(moved_back(&before, &now));
        before = now;
    }
    // They are seen only if the new owner does not write its next checkpoint in the meantime.
    println!("checkpoints that moved back: {regressions:?}");
    fleet.settles_among(&["a", c.owner()]).await;
    c.kill().await;
    fleet.settles_among(&["a"]).await;
    fleet.ends_without_loss().await;
    a.shut_down().await;
}

/// Instances of this SDK do not look at the other casing. If they are started although the group is live under lower-case
/// names, each partition has two owners, which take it from each other at the broker.
pub async fn both_name_cases_have_owners_at_once() {
    let fleet = Fleet::new(2).await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a"]).await;
    let c = fleet.foreign(Sdk::Rust).await;
    let started = Instant::now();
    loop {
        let observation = Continuity::of(&fleet);
        sleep(POLL).await;
        let observed = observation.observed().await;
        if observed.owned_twice.len() == 2 {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "{observed:?}");
    }
    c.kill().await;
    fleet.settles_among(&["a"]).await;
    fleet.ends_without_loss().await;
    a.shut_down().await;
}

/// One checkpoint that cannot be read fails the listing of the old store, and with it the processor. This crate reports
/// the checkpoint, and takes the partitions over.
pub async fn a_malformed_checkpoint_ends_only_the_old_ones() {
    let fleet = verbatim(4).await;
    let (c, d) = (fleet.foreign(Sdk::Rust).await, fleet.foreign(Sdk::Rust).await);
    fleet.has_an_owner().await;
    let a = fleet.own("a").await;
    fleet.settles_among(&["a", c.owner(), d.owner()]).await;
    let metadata = [("sequencenumber", ""), ("offset", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let name = "localhost/orders/$Default/checkpoint/9";
    fleet.container.overwrite(name, &Metadata::from(metadata)).await.unwrap();
    for old in [c, d] {
        let errors = old.ends_with_error().await;
        assert!(errors.contains("empty string"), "{errors}");
    }
    fleet.settles_among(&["a"]).await;
    fleet.container.remove(name).await.unwrap();
    fleet.ends_without_loss().await;
    a.shut_down().await;
}
