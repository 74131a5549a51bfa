//! What tests need, of this crate and of its users.

pub mod conformance;
mod emptied;
#[cfg(feature = "testing-hub")]
pub mod event_hub;
pub mod faulty;
pub mod memory_hub;

pub use crate::clock::{LeaseClock, SystemLeaseClock, SystemWallClock, WallClock};
pub use emptied::EmptiedReport;
