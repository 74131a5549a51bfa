//! Whole groups of instances in one process and in paused time: what they do in hours, within a fraction of a second.
//!
//! A [`Plan`] says who takes part and everything that will go wrong. It is a pure function of a seed and a [`Scale`].
//! [`run`] lets it happen, to whole processors over one container and one hub in memory, mixed with owners that behave
//! like the other SDKs. An observer sees every write that the container accepts and every call of a handler, and checks
//! the [`Invariant`]s; it never asks the instances what they believe. [`shrink`] leaves out of a failing plan whatever
//! is not needed for its failure.
//!
//! # Guarantees
//!
//! On a current-thread runtime with paused time the same plan gives the same [`Report`], to the hash of its trace.
//!
//! # Not modelled
//!
//! - A process that is frozen: its requests, its links and its handlers hang until it wakes, and go on with what it
//!   believed before. Its timers run on meanwhile, as if it were cut off from everything.
//! - The network between client and service beyond what [`Fault`](eventhubs_checkpoint::testing::faulty::Fault) has,
//!   and the broker beyond what [`MemoryHub`](eventhubs_checkpoint::testing::memory_hub::MemoryHub) has.
//! - Two trees of names, and the official adapter.
//! - What the real storage does and a container in memory does not, unless [`Scale::platform`] is set.
//!
//! [`Simulation`] is the smaller one, with balancing loops alone.

mod bounds;
mod crate_processor;
mod factory;
mod foreign;
mod freeze;
mod host;
mod invariant;
mod loops;
mod observer;
mod plan;
mod recorder;
mod report;
mod rivals;
mod shrink;
#[cfg(test)]
mod tests;
mod world;

pub use self::bounds::Bounds;
pub use self::crate_processor::CrateProcessor;
pub use self::factory::{BuiltIn, InstanceFactory};
pub use self::foreign::{Foreign, Sdk};
pub use self::freeze::HostSource;
pub use self::host::{ExitStatus, Host, InstanceFuture, InstanceKind};
pub use self::invariant::{Invariant, Violation};
pub use self::loops::{Entry, LoopEventKind, Move, Simulation};
pub use self::observer::{BatchInProgress, Reporter, TimelineEntry, TimelineEvent};
pub use self::plan::{
    Incident, IncidentKind, Load, Member, Plan, Reset, Role, Scale, Settings, StartAt, StorageFault, Tuning,
};
pub use self::report::{Report, Totals};
pub use self::rivals::LeaseGrab;
pub use self::shrink::shrink;
pub use self::world::run;
