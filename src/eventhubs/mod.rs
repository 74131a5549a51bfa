//! Azure Event Hubs through its official client. The only folder that knows `azure_messaging_eventhubs`.

mod checkpoint_store;
mod clients;
mod connect;
mod errors;
mod health;
mod held;
mod link;
mod source;
mod unowned;

pub use checkpoint_store::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
pub use connect::EventHubSourceBuilder;
pub use source::EventHubSource;
