//! Partition ownership and checkpoints for Azure Event Hubs consumers, kept in Azure Blob Storage.
pub mod blob;
pub mod clock;
mod error;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{Error, ErrorKind, Result};
