//! Azure Event Hubs through the official client.

mod adapter;
mod credentials;
mod dead_letter_origin;
mod dead_letters;
mod errors;
mod redriver;
mod sdk;
mod source;

use std::time::Duration;

pub use adapter::{BlobCheckpointStore, BlobCheckpointStoreBuilder};
pub use credentials::{RenewableCredential, ReplaceableConnectionString};
pub use dead_letter_origin::DeadLetterOrigin;
pub use dead_letters::{EventHubDeadLetterSink, EventHubDeadLetterSinkBuilder};
pub use redriver::EventHubRedriver;
pub use source::{EventHubSource, EventHubSourceBuilder, OwnerLevel, trace_context};

/// A filter for the log, for `tracing_subscriber::EnvFilter`: what this crate logs at `info` and above, and nothing of
/// the official client and its AMQP stack. They log each link that breaks or is displaced as a warning or an error,
/// from which this crate recovers, and which it logs itself. Directives that are appended take precedence.
pub const LOG_FILTER: &str =
    "info,azure_messaging_eventhubs=off,azure_core_amqp=off,fe2o3_amqp=off,typespec_client_core=warn";

/// The limit for opening a connection, closing a link, sending a dead letter, and logging in. The client may wait
/// forever for a lost response.
const CLIENT_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
