//! Azure Event Hubs through the official client.

mod case_check;
mod checkpoint_store;
mod client;
mod clients;
mod connect;
mod connection;
mod connection_health;
mod connection_string;
mod connector;
mod dead_letter;
mod dead_letters;
mod errors;
mod groups;
mod link;
mod listed;
mod owned_partitions;
mod owner_level;
mod owners;
mod placement;
mod renewable_credential;
mod request_queue;
mod source;
mod trace_context;

use std::time::Duration;

pub use checkpoint_store::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
pub use connect::EventHubSourceBuilder;
pub use connection_string::ReplaceableConnectionString;
pub use dead_letters::{EventHubDeadLetters, EventHubDeadLettersBuilder};
pub use owner_level::OwnerLevel;
pub use renewable_credential::RenewableCredential;
pub use source::EventHubSource;
pub use trace_context::trace_context;

/// The limit for opening a connection, closing a link, sending a dead letter, and logging in. The client may wait forever
/// for a lost response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
