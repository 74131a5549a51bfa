//! Other SDKs, as they are published, share a container with ours: each scenario with each SDK, and one with all. First
//! their checkpoint stores alone, then their whole processors, which read from an event hub.
//!
//! The tests install the SDKs by themselves, below `tests/mixed_fleet`. Where Node.js or Python is missing, its tests
//! say so in one line and do nothing. With `--nocapture` they tell the versions of the SDKs that they met.

#[path = "common/bench.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more")]
mod bench;
#[path = "mixed_fleet/fleet.rs"]
mod fleet;
#[path = "common/meddled.rs"]
mod meddled;
#[path = "mixed_fleet/ours.rs"]
mod ours;
#[path = "mixed_fleet/peer.rs"]
mod peer;
#[path = "mixed_fleet/processed.rs"]
mod processed;
#[path = "../examples/support/publisher.rs"]
mod publisher;
#[path = "common/sas.rs"]
mod sas;
#[path = "mixed_fleet/scenarios.rs"]
mod scenarios;
#[path = "mixed_fleet/sdk.rs"]
mod sdk;
#[path = "mixed_fleet/sharing.rs"]
mod sharing;
#[path = "../examples/support/mod.rs"]
mod support;
#[path = "mixed_fleet/theirs.rs"]
mod theirs;
#[path = "common/wire.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more")]
mod wire;

use bench::Bench;
use peer::Peer;
use sdk::Sdk;

/// A test of each scenario with one SDK, each in a container of its own.
macro_rules! tests {
    ($sdk:expr; $($scenario:ident,)+) => {$(
        #[tokio::test]
        async fn $scenario() {
            if $sdk.is_here() {
                let bench = Bench::in_azurite().await;
                let peer = Peer::join($sdk, &bench).await;
                crate::scenarios::$scenario(bench, peer).await;
            }
        }
    )+};
    ($sdk:expr) => {
        tests! { $sdk;
            each_lists_what_the_other_wrote_and_nothing_else,
            each_claims_what_the_other_released,
            each_is_refused_by_an_etag_that_the_other_has_replaced,
            of_two_first_claims_one_holds,
            what_a_peer_takes_over_is_lost_to_it_with_all_our_keys,
            a_peer_fences_by_its_first_checkpoint,
            our_name_without_our_keys_is_an_earlier_life,
            each_reads_the_others_checkpoints,
            a_pinned_start_is_a_checkpoint_like_any_other,
            a_peers_checkpoints_on_our_partition_are_survived,
        }
    };
}

/// A test of each scenario with the processors of one SDK, each on an event hub of its own.
macro_rules! processors {
    ($sdk:expr; $($scenario:ident,)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            if $sdk.is_here() {
                crate::sharing::$scenario($sdk).await;
            }
        }
    )+};
    ($sdk:expr) => {
        processors! { $sdk;
            everybody_ends_with_a_fair_share_and_nothing_is_lost,
            others_that_leave_and_die_are_taken_over_and_nothing_is_lost,
            ours_that_leave_and_die_are_taken_over_by_another_and_nothing_is_lost,
        }
    };
}

mod javascript {
    use crate::{Bench, Peer, Sdk};

    tests!(Sdk::JavaScript);
    processors!(Sdk::JavaScript);
}

mod python {
    use crate::{Bench, Peer, Sdk};

    tests!(Sdk::Python);
    processors!(Sdk::Python);
}

#[tokio::test]
async fn three_sdks_take_partitions_over_from_each_other() {
    if Sdk::JavaScript.is_here() && Sdk::Python.is_here() {
        let bench = Bench::in_azurite().await;
        let peers = (Peer::join(Sdk::JavaScript, &bench).await, Peer::join(Sdk::Python, &bench).await);
        scenarios::three_take_partitions_over_from_each_other(bench, peers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sdks_share_and_take_over_from_each_other() {
    if Sdk::JavaScript.is_here() && Sdk::Python.is_here() {
        sharing::three_sdks_share_and_take_over_from_each_other().await;
    }
}
