//! Heartbeats of instances, and owners that are declared dead: for authors of balancing loops.
//!
//! The calls are methods of [`GroupStore`](super::GroupStore): [`send_heartbeat`](super::GroupStore::send_heartbeat),
//! [`list_heartbeats`](super::GroupStore::list_heartbeats), [`declare_dead`](super::GroupStore::declare_dead).

pub use super::heartbeat::HeartbeatOutcome;
pub(crate) use super::heartbeat::stale_age;
pub use super::rules::DeclareDeadOutcome;
pub use crate::model::{Heartbeat, HeartbeatRecord};
