//! Whole groups of instances in one process and in paused time: hours of a group within a fraction of a second.
//!
//! A [`Plan`] lists the instances and all faults. It is a pure function of a seed and a [`Scale`]. [`run`] executes it
//! with complete processors over one container and one hub in memory, mixed with owners that behave like the other
//! SDKs. An observer sees every write that the container accepts and every call of a handler, and checks the
//! [`Invariant`]s; it never asks the instances for their state. [`shrink`] removes everything from a failing plan that
//! its failure does not need.
//!
//! # Guarantees
//!
//! On a current-thread runtime with paused time the same plan gives the same [`Report`], including the hash of its
//! trace.
//!
//! # Not modeled
//!
//! - A truly frozen process: here its requests, its links and its handlers hang until it wakes, and continue with the
//!   state of before; but its timers run meanwhile, as if it were disconnected from everything.
//! - A truly blocked runtime: here the processor's future is not polled, handlers and links wait, and no request to the
//!   hub passes, so nothing reports that the runtime runs; but the tasks that the processor has spawned run.
//!   [`Simulation::block`] stops that report.
//! - The network between client and service beyond what [`Fault`](eventhubs_checkpoint::testing::faulty::Fault) has,
//!   and the broker beyond what [`MemoryHub`](eventhubs_checkpoint::testing::memory_hub::MemoryHub) has.
//! - Blob names in the other blob-name casing, and the official adapter.
//! - Differences between the real storage and a container in memory, unless [`Scale::platform`] is set.
//!
//! [`Simulation`] is the smaller simulation, with balancing loops only.

mod blocked;
mod bounds;
mod crate_processor;
mod factory;
mod foreign;
mod freeze;
mod host;
mod invariant;
mod ledger;
mod loops;
mod observer;
mod plan;
mod quota;
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
pub use self::ledger::Ledger;
pub use self::loops::{Entry, LoopEventKind, Meter, Metered, Move, Simulation};
pub use self::observer::{BatchInProgress, Reporter, TimelineEntry, TimelineEvent};
pub use self::plan::{
    BadEvents, Blobs, Failure, FailureRule, Incident, IncidentKind, Load, Member, OwnPositions, Plan, Reset, Role,
    Scale, Settings, StartAt, StorageFault, Terms, Tuning,
};
pub use self::quota::{ManagementRequests, SERVICE as MANAGEMENT_QUOTA};
pub use self::report::{Report, Totals};
pub use self::rivals::LeaseGrab;
pub use self::shrink::shrink;
pub use self::world::{processed_after, read_after, run};
