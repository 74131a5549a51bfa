//! Other SDKs, as they are published, share a container with ours: each scenario with each SDK, and one with all. First
//! their checkpoint stores alone, then their whole processors, which read from an event hub.
//!
//! The tests install the SDKs by themselves, in this folder. Where Node.js or Python is missing, its tests say so in
//! one line and do nothing. With `--nocapture` they tell the versions of the SDKs that they met.

mod fleet;
mod ours;
mod peer;
mod processed;
mod scenarios;
mod sdk;
mod sharing;
mod theirs;

use peer::Peer;
use sdk::Sdk;

use crate::bench::Bench;

/// A test of each scenario with one SDK, each in a container of its own.
macro_rules! tests {
    ($sdk:expr; $($scenario:ident,)+) => {$(
        #[tokio::test]
        async fn $scenario() {
            if $sdk.is_here() {
                let bench = Bench::in_azurite().await;
                let peer = Peer::join($sdk, &bench).await;
                super::scenarios::$scenario(bench, peer).await;
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
                super::sharing::$scenario($sdk).await;
            }
        }
    )+};
    ($sdk:expr) => {
        processors! { $sdk;
            everybody_ends_with_a_fair_share_and_nothing_is_lost,
            others_that_leave_and_die_are_taken_over_and_nothing_is_lost,
            ours_that_leave_and_die_are_taken_over_by_another_and_nothing_is_lost,
            a_reset_of_the_live_group_is_followed,
        }
    };
}

mod javascript {
    use super::{Bench, Peer, Sdk};

    tests!(Sdk::JavaScript);
    processors!(Sdk::JavaScript);
}

mod python {
    use super::{Bench, Peer, Sdk};

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
