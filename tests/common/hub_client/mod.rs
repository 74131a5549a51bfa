//! The official client against the Event Hubs emulator, with a timeout for every call.

mod publish;
mod receive;

pub use publish::*;
pub use receive::*;
