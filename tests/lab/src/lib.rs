//! Verification of `eventhubs-checkpoint` that its users do not need.
//!
//! | | what runs | what is checked |
//! |---|---|---|
//! | [`sim`], `cargo simulate` | whole groups of processors in one process, in virtual time | every write that the storage accepts, every call of a handler |
//! | `chaos`, `cargo chaos` | real processes, an AMQP hub, an HTTP storage, real signals | the same, from outside |
//! | `day`, `cargo day` | a group with a credential of Microsoft Entra ID, over AMQP, for hours of paused time | every event is delivered, no partition is unread for long |
//! | `exploration` | the rules of the store and the state of the balancer, in every order of events | invariants in every state |
//! | [`proportion`], `cargo simulate --proportion` | the same groups, while some percent of the requests fail | how much longer everything takes |
//! | `balance` | groups of planners without a store | the postconditions of every plan, bounds of convergence |
//! | `balance_loop` | groups of balancing loops without handlers, [`sim::Simulation`] | the events of each loop |
//! | [`ruler`], `cargo ruler` | these, on a library with planted faults | which of them finds which fault, and how soon |
//!
//! One implementation, [`history`], checks the guarantees about checkpoints for all runs that process events.

#![allow(clippy::cast_precision_loss, reason = "numbers to be shown")]

#[cfg(test)]
mod balance;
#[cfg(test)]
mod balance_loop;
mod billing;
#[cfg(unix)]
pub mod chaos;
#[cfg(target_os = "linux")]
pub mod day;
mod draw;
#[cfg(target_os = "linux")]
#[path = "../../common/entra.rs"]
#[expect(dead_code, reason = "it never fails here")]
mod entra;
#[cfg(test)]
mod exploration;
pub mod explored;
pub mod history;
pub mod proportion;
pub mod ruler;
pub mod sim;
pub mod simulate;
mod table;

#[cfg(unix)]
#[path = "../../../examples/support/publisher.rs"]
mod publisher;
#[cfg(unix)]
#[path = "../../../examples/support/runs.rs"]
mod runs;
#[cfg(unix)]
#[path = "../../common/sas.rs"]
#[expect(dead_code, reason = "only signatures for a listing of the container are used")]
mod sas;
#[cfg(unix)]
#[path = "../../../examples/support/signals.rs"]
mod signals;
#[cfg(all(unix, test))]
#[path = "../../common/stub.rs"]
#[expect(dead_code, reason = "it always responds here")]
mod stub;
#[cfg(unix)]
#[path = "../../../examples/support/mod.rs"]
#[expect(dead_code, reason = "only its own Azurite is used")]
mod support;
