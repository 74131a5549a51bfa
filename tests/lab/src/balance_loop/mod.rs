//! Groups of balancing loops on one container, in paused time.

mod cost;
mod failing_storage;
mod group;
mod handoff;
mod idle;
mod lease_scope;
mod limits;
mod outages;
mod pace;
mod reasons;
mod releases;
mod settings;
mod shares;
