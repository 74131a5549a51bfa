//! Tests that affect their whole process, and so must not share it with the others: `credentials` collects everything
//! that any thread logs, and `signals` sends signals to itself, whose handlers stay installed and ignore Ctrl-C from
//! then on.

#[path = "../common/sas.rs"]
mod sas;
#[path = "../../examples/support/mod.rs"]
mod support;
#[path = "../common/world.rs"]
mod world;

mod credentials;
#[cfg(unix)]
mod signals;
