//! Azure Event Hubs through its official client. The only folder that knows `azure_messaging_eventhubs`.

mod checkpoint_store;
mod clients;
mod connect;
mod connector;
mod errors;
mod health;
mod held;
mod link;
mod listed;
mod owner_level;
mod source;

use std::time::Duration;

pub use checkpoint_store::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
pub use connect::EventHubSourceBuilder;
pub use owner_level::OwnerLevel;
pub use source::EventHubSource;

/// The client can wait for ever for an answer that got lost.
const REQUEST_DEADLINE: Duration = Duration::from_secs(20);
