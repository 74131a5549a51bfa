//! Azure Event Hubs through its official client. The only folder that knows `azure_messaging_eventhubs`.

mod errors;
mod source;

pub use source::EventHubSource;
