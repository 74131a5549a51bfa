//! The command line tool `ehcp` as its users run it: the built program, on Azurite and the Event Hubs emulator, with
//! groups of this crate and of published SDKs.

#[path = "../common/compiled.rs"]
mod compiled;
#[path = "../official/mixed_fleet/continuity.rs"]
mod continuity;
#[path = "../official/mixed_fleet/crate_processor.rs"]
#[allow(dead_code, reason = "shared with the tests of mixed fleets")]
mod crate_processor;
#[path = "../official/mixed_fleet/fleet.rs"]
#[allow(dead_code, reason = "shared with the tests of mixed fleets")]
mod fleet;
#[path = "../official/mixed_fleet/foreign_processor.rs"]
#[allow(dead_code, reason = "shared with the tests of mixed fleets")]
mod foreign_processor;
#[path = "../official/mixed_fleet/processed.rs"]
#[allow(dead_code, reason = "shared with the tests of mixed fleets")]
mod processed;
#[path = "../../examples/support/publisher.rs"]
#[allow(dead_code, reason = "shared with examples")]
mod publisher;
#[path = "../common/python.rs"]
mod python;
#[path = "../common/sas.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod sas;
#[path = "../official/mixed_fleet/sdk.rs"]
#[allow(dead_code, reason = "shared with the tests of mixed fleets")]
mod sdk;
#[path = "../../examples/support/mod.rs"]
#[allow(dead_code, reason = "shared with examples")]
mod support;

/// What the shared files need of the tests of records.
mod bench {
    use eventhubs_checkpoint::ConsumerGroup;

    pub fn group() -> ConsumerGroup {
        ConsumerGroup::new("localhost", "orders", "$Default").unwrap()
    }
}

mod browser;
mod program;
mod server;

mod cost;
mod events;
mod exit_codes;
mod help;
mod keda;
mod kills;
mod kubernetes;
mod legacy;
mod live;
mod migrate;
mod moves;
mod page;
mod profiles;
mod redrive;
mod relay;
mod remedies;
mod safety;
#[cfg(all(unix, feature = "tui"))]
mod screen;
mod secrets;
mod serve;
mod standstill;
mod transcript;
mod undo;
mod watch;
