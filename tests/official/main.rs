//! This crate with published software: the official client and processor over AMQP and Azurite, and fleets with other
//! SDKs.

#[path = "../common/bench.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more")]
mod bench;
#[path = "../common/compiled.rs"]
mod compiled;
#[path = "../common/intercepted.rs"]
mod intercepted;
#[path = "../common/placing.rs"]
mod placing;
#[path = "../../examples/support/publisher.rs"]
mod publisher;
#[path = "../common/publishing.rs"]
mod publishing;
#[path = "../common/python.rs"]
mod python;
#[path = "../common/sas.rs"]
mod sas;
#[path = "../../examples/support/mod.rs"]
mod support;
#[path = "../common/wire.rs"]
#[expect(dead_code, reason = "shared with the tests of the rules, which need more")]
mod wire;

mod end_to_end;
mod mixed_fleet;
mod neighbors;
mod official_processor;
mod position_table;
