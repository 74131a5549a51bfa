//! Published versions of other SDKs share a container with this crate: each scenario with each SDK, and one with all.
//! First only their checkpoint stores, then their complete processors, which read from an event hub.
//!
//! The tests install the SDKs in this folder and in `tests/official`. If Node.js, Python, Go, Java, Maven, or OpenSSL
//! is missing, the tests that need it print one line and do nothing. With `--nocapture`, they print the versions of the
//! SDKs.

mod adapted_processor;
#[allow(dead_code, reason = "shared with the tests of ehcp")]
mod continuity;
#[allow(dead_code, reason = "shared with the tests of ehcp")]
mod crate_processor;
#[allow(dead_code, reason = "shared with the tests of ehcp")]
mod fleet;
mod foreign_processor;
mod official;
mod peer;
mod processed;
mod rust_sdk;
mod scenarios;
mod sdk;
mod sharing;

use eventhubs_checkpoint::store::NameCase;
use peer::Peer;
use sdk::Sdk;

use crate::bench::Bench;

/// A test of each scenario with one SDK, each in its own container.
macro_rules! tests {
    ($sdk:expr, $case:expr; $($scenario:ident,)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
        async fn $scenario() {
            if $sdk.is_here() {
                let bench = Bench::in_azurite_with($case).await;
                let peer = Peer::join($sdk, &bench).await;
                crate::mixed_fleet::scenarios::$scenario(bench, peer).await;
            }
        }
    )+};
    ($sdk:expr, $case:expr) => {
        tests! { $sdk, $case;
            each_lists_only_the_records_of_the_other,
            each_claims_a_partition_released_by_the_other,
            each_is_rejected_with_a_replaced_etag,
            of_two_first_claims_one_holds,
            a_takeover_by_a_peer_erases_the_other_keys,
            a_peer_fences_with_its_first_checkpoint,
            its_name_without_keys_is_an_earlier_incarnation,
            each_reads_the_checkpoints_of_the_other,
            an_initial_checkpoint_is_an_ordinary_one,
            checkpoints_of_a_peer_cause_no_loss,
        }
    };
}

/// A test of each scenario with the processors of one SDK, each on its own event hub.
macro_rules! processors {
    ($sdk:expr; $($scenario:ident,)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            if $sdk.is_here() {
                crate::mixed_fleet::sharing::$scenario($sdk).await;
            }
        }
    )+};
    ($sdk:expr) => {
        processors! { $sdk;
            all_get_a_fair_share_and_nothing_is_lost,
            foreign_instances_that_end_are_taken_over,
            crate_instances_that_end_are_taken_over,
            a_reset_of_the_live_group_is_followed,
        }
    };
}

mod javascript {
    use super::{Bench, NameCase, Peer, Sdk};

    tests!(Sdk::JavaScript, NameCase::Lower);
    processors!(Sdk::JavaScript);
}

mod python {
    use super::{Bench, NameCase, Peer, Sdk};

    tests!(Sdk::Python, NameCase::Lower);
    processors!(Sdk::Python);
}

mod java {
    use super::{Bench, NameCase, Peer, Sdk};

    tests!(Sdk::Java, NameCase::Lower);
    processors!(Sdk::Java);

    /// Only its processor lower-cases the names.
    mod names_as_given {
        use super::{Bench, NameCase, Peer, Sdk};

        tests!(Sdk::Java, NameCase::Verbatim);
    }
}

mod go {
    use super::{Bench, NameCase, Peer, Sdk};

    tests!(Sdk::Go, NameCase::Verbatim);
    processors!(Sdk::Go);

    /// An application can configure its names in lower case.
    mod lower_case {
        use super::{Bench, NameCase, Peer, Sdk};

        tests!(Sdk::Go, NameCase::Lower);
    }
}

mod rust {
    use super::{Sdk, rust_sdk};

    /// A test of each scenario with the published Rust SDK.
    macro_rules! tests {
        ($($(#[$attribute:meta])* $scenario:ident,)+) => {$(
            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                if Sdk::Rust.is_here() {
                    rust_sdk::$scenario().await;
                }
            }
        )+};
    }

    tests! {
        #[cfg(unix)]
        a_frozen_owner_checkpoints_late,
        both_name_cases_have_owners_at_once,
        a_malformed_checkpoint_ends_only_the_old_ones,
        the_store_is_replaced_then_the_processor,
    }
}

/// The stores of all SDKs that have such a script.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn all_take_partitions_over_from_each_other() {
    let sdks = [Sdk::JavaScript, Sdk::Python, Sdk::Java, Sdk::Go];
    let bench = Bench::in_azurite().await;
    let mut peers = Vec::new();
    for sdk in sdks.into_iter().filter(|sdk| sdk.is_here()) {
        peers.push(Peer::join(sdk, &bench).await);
    }
    scenarios::all_take_partitions_over_from_each_other(bench, peers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sdks_share_and_take_over_from_each_other() {
    if Sdk::JavaScript.is_here() && Sdk::Python.is_here() {
        sharing::three_sdks_share_and_take_over_from_each_other().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sdks_share_and_survive_a_crash_of_each() {
    if [Sdk::JavaScript, Sdk::Python, Sdk::Java, Sdk::Go, Sdk::Rust].into_iter().all(Sdk::is_here) {
        sharing::all_sdks_share_and_survive_a_crash_of_each().await;
    }
}
