//! The balancing loop: alone, in whole instances, and in groups of them.

#[path = "../common/world.rs"]
mod world;

mod balance_loop;
mod handoff;
mod leases;
mod loads;
mod own_thread;
mod stalls;
