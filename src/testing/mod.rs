//! Support for tests of this crate and of its users. It is as stable as the rest of the API, except for what emulators
//! accept.

pub mod conformance;
mod emptied;
pub mod faulty;
pub mod memory_hub;
mod overwrite;
mod test_partition;

pub use crate::clock::{LeaseClock, SystemLeaseClock, SystemWallClock, WallClock};
pub use emptied::EmptiedReport;
pub use overwrite::Overwrite;
pub use test_partition::TestPartition;
