//! Blob containers, and the store on one: in memory, in Azurite, and on a fake service.

#[path = "../common/bench.rs"]
mod bench;
#[path = "../common/captured.rs"]
mod captured;
#[path = "../common/intercepted.rs"]
mod intercepted;
#[path = "../common/placing.rs"]
mod placing;
#[path = "../common/sas.rs"]
mod sas;
#[path = "../common/service.rs"]
mod service;
#[path = "../common/stub.rs"]
mod stub;
#[path = "../../examples/support/mod.rs"]
mod support;
#[path = "../common/wire.rs"]
mod wire;

mod conformance;
mod faulty;
mod http;
mod on_service;
mod protocol;
mod store;
