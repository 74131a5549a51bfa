//! A container of Azure Blob Storage, through `azure_core`'s HTTP pipeline.
//!
//! Uses seven calls of the REST API. Writes and deletions are sent once; only reads are retried, in their first second.

mod access;
pub(super) mod builder;
mod client;
mod container;
mod credentials;
pub(super) mod endpoint;
pub(super) mod errors;
pub(super) mod headers;
mod listing;
mod refresh;
pub(super) mod refusals;
pub(super) mod shared_key;
#[cfg(test)]
mod tests;
mod token;

pub use self::access::Access;
pub use self::builder::AzureContainerBuilder;
pub use self::container::AzureContainer;

/// What the parsers find.
#[cfg(feature = "testing")]
pub(crate) mod internal {
    pub use super::access::resolve_access;
    pub use super::listing::tree::find_difference;
}
