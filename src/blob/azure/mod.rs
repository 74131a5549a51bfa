//! A container of Azure Blob Storage, through `azure_core`'s HTTP pipeline.
//!
//! Uses seven calls of the REST API. Writes and deletions are sent once; only reads are retried, in their first second.

mod auth;
mod body;
pub(super) mod builder;
mod client;
mod connection_string;
mod container;
mod contents;
mod credentials;
mod date;
pub(super) mod endpoint;
pub(super) mod errors;
pub(super) mod headers;
mod listing;
pub(super) mod operation;
mod redacted;
mod refresh;
mod refusals;
mod settings;
pub(super) mod shared_key;
#[cfg(test)]
mod tests;
mod token;
mod token_policy;
mod unusable;

pub use self::auth::Access;
pub use self::builder::AzureContainerBuilder;
pub use self::container::AzureContainer;
