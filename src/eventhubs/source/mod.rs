//! The event source: reads an event hub through the official client, and replaces a client whose connection breaks.

mod client;
pub(super) mod connection;
pub(super) mod connection_health;
mod connections;
mod conversions;
mod event_source;
mod link;
mod owner_level;

pub use conversions::trace_context;
pub use event_source::{EventHubSource, EventHubSourceBuilder};
pub use owner_level::OwnerLevel;
