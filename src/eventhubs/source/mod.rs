//! The event source: reads an event hub through the official client, and replaces the client when its connection breaks.

mod client;
mod clients;
pub(super) mod connection;
pub(super) mod connection_health;
mod conversions;
mod event_source;
mod link;

pub use conversions::trace_context;
pub use event_source::{EventHubSource, EventHubSourceBuilder, OwnerLevel};
