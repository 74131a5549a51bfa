//! The official client against the Event Hubs stand-in, with a limit on every call.

mod publish;
mod receive;

pub use publish::*;
pub use receive::*;
