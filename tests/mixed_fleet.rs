//! The checkpoint stores of other SDKs, as they are published, share a container with ours: each scenario with each
//! SDK, and one with all.
//!
//! The tests install the SDKs by themselves, below `tests/mixed_fleet`. Where Node.js or Python is missing, its tests
//! say so in one line and do nothing. With `--nocapture` they tell the versions of the SDKs that they met.

#[path = "protocol/bench.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more")]
mod bench;
#[path = "common/meddled.rs"]
mod meddled;
#[path = "mixed_fleet/peer.rs"]
mod peer;
#[path = "common/sas.rs"]
mod sas;
#[path = "mixed_fleet/scenarios.rs"]
mod scenarios;
#[path = "mixed_fleet/sdk.rs"]
mod sdk;
#[path = "../examples/support/mod.rs"]
mod support;
#[path = "protocol/wire.rs"]
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

mod javascript {
    use crate::{Bench, Peer, Sdk};

    tests!(Sdk::JavaScript);
}

mod python {
    use crate::{Bench, Peer, Sdk};

    tests!(Sdk::Python);
}

#[tokio::test]
async fn three_sdks_take_partitions_over_from_each_other() {
    if Sdk::JavaScript.is_here() && Sdk::Python.is_here() {
        let bench = Bench::in_azurite().await;
        let peers = (Peer::join(Sdk::JavaScript, &bench).await, Peer::join(Sdk::Python, &bench).await);
        scenarios::three_take_partitions_over_from_each_other(bench, peers).await;
    }
}
