//! Azure Event Hubs through the official client.

mod adapter;
mod credentials;
mod dead_letters;
mod errors;
mod sdk;
mod source;

use std::time::Duration;

pub use adapter::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
pub use credentials::{RenewableCredential, ReplaceableConnectionString};
pub use dead_letters::{EventHubDeadLetterSink, EventHubDeadLetterSinkBuilder};
pub use source::{EventHubSource, EventHubSourceBuilder, OwnerLevel, trace_context};

/// The limit for opening a connection, closing a link, sending a dead letter, and logging in. The client may wait
/// forever for a lost response.
const CLIENT_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
