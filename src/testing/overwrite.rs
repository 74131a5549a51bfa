//! Writes and deletions whatever a blob holds, which [`BlobContainer`] cannot express.

use async_trait::async_trait;

use crate::blob::{BlobContainer, Condition, Metadata, ResponseInfo, WriteResult};
use crate::error::{Error, ErrorKind, Result};

/// How often a call reads and writes. A name that is read but can never be written names a directory.
const MAX_ATTEMPTS: u32 = 100;

/// Changes a blob whatever it holds, like another tool or an SDK that writes without conditions. Each call reads the
/// blob, writes or deletes that version, and starts again after a conflict, up to 100 times.
#[async_trait]
pub trait Overwrite: BlobContainer {
    /// Replaces all metadata of a blob, or creates the blob.
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`].
    async fn overwrite(&self, name: &str, metadata: &Metadata) -> Result<WriteResult> {
        for _ in 0..MAX_ATTEMPTS {
            let condition = match self.get(name).await {
                Ok(blob) => Condition::IfMatch(blob.etag),
                Err(error) if error.kind() == ErrorKind::NotFound => Condition::Create,
                Err(error) => return Err(error),
            };
            match self.write(name, metadata, &condition).await {
                Err(error) if was_changed(&error) => {}
                outcome => return outcome,
            }
        }
        Err(always_changed(name))
    }

    /// Deletes a blob. A missing blob is [`ErrorKind::NotFound`].
    ///
    /// # Errors
    ///
    /// The errors of [`BlobContainer`].
    async fn remove(&self, name: &str) -> Result<ResponseInfo> {
        for _ in 0..MAX_ATTEMPTS {
            match self.delete(name, &self.get(name).await?.etag).await {
                Err(error) if was_changed(&error) => {}
                outcome => return outcome,
            }
        }
        Err(always_changed(name))
    }
}

impl<C: BlobContainer + ?Sized> Overwrite for C {}

/// Another writer came between the read and the write.
fn was_changed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound)
}

fn always_changed(name: &str) -> Error {
    Error::new(ErrorKind::Contended, format!("{name:?} was changed between each read and the write after it"))
}
