//! A container of Azure Blob Storage, over `azure_core`'s HTTP pipeline.
//!
//! Six calls of the REST interface and nothing else. Writes and deletions are sent once; only reads are repeated, and
//! everything ends within the request deadline.

mod auth;
pub(super) mod builder;
mod client;
mod connection_string;
mod container;
mod credentials;
mod date;
pub(super) mod endpoint;
pub(super) mod errors;
pub(super) mod headers;
mod redacted;
mod refresh;
mod refusals;
mod settings;
pub(super) mod shared_key;
#[cfg(test)]
mod tests;
mod token;
mod unusable;
mod xml;

pub use self::auth::Access;
pub use self::builder::AzureContainerBuilder;
pub use self::container::AzureContainer;
