//! The files of the folder. Requests run one at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eventhubs_checkpoint::blob::{Blob, Condition, ETag, Metadata, ResponseInfo, validate_blob_name};
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tempfile::TempDir;
use time::OffsetDateTime;

const LONGEST_FILE_NAME: usize = 255;

/// Each blob is a file with its version, time and metadata as JSON. The files are small and local, so a request simply
/// blocks.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Deletes the folder with the last clone, because this is an example.
    _folder: Arc<TempDir>,
}

type Stored = (u64, OffsetDateTime, Metadata);

/// Exclusive access to the whole folder for one request.
pub(crate) struct Request<'a> {
    folder: &'a Path,
    number: u64,
    pub(crate) response: ResponseInfo,
}

impl Folder {
    pub(crate) fn temporary() -> Result<Self> {
        let folder = tempfile::tempdir().map_err(unknown_outcome)?;
        Ok(Self { path: folder.path().join("leases"), _folder: Arc::new(folder) })
    }

    /// Runs one request at a time, over all processes, so that conditions hold. The number of a request is the ETag of
    /// what it writes. The time comes from the file system, because all instances must use one clock, and this one is
    /// the closest to a server's.
    pub(crate) fn run_request<T>(&self, apply: impl FnOnce(&Request<'_>) -> Result<T>) -> Result<T> {
        let (number, server_time, _lock) = lock_folder(&self.path.with_extension("lock")).map_err(unknown_outcome)?;
        let response = ResponseInfo::new(server_time, tokio::time::Instant::now());
        // Errors carry the time too.
        apply(&Request { folder: &self.path, number, response })
            .map_err(|error| error.with_server_time(Some(server_time)))
    }
}

/// Locks the folder until the returned file is dropped.
fn lock_folder(path: &Path) -> io::Result<(u64, OffsetDateTime, File)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let last: u64 = if text.is_empty() { 0 } else { text.parse().map_err(io::Error::other)? };
    let number = last + 1;
    file.rewind()?;
    write!(file, "{number}")?;
    let time = OffsetDateTime::from(file.metadata()?.modified()?);
    Ok((number, OffsetDateTime::from_unix_timestamp(time.unix_timestamp()).map_err(io::Error::other)?, file))
}

impl Request<'_> {
    fn path(&self, name: &str) -> Result<PathBuf> {
        validate_blob_name(name)?;
        self.check_folder()?;
        let file = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
        if file.len() > LONGEST_FILE_NAME {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{name:?} is too long for a file name: {file:?}"),
            ));
        }
        Ok(self.folder.join(file))
    }

    fn check_folder(&self) -> Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ContainerNotFound, "the folder does not exist; create it"))
    }

    pub(crate) fn list_names(&self) -> Result<Vec<String>> {
        self.check_folder()?;
        fs::read_dir(self.folder)
            .map_err(unknown_outcome)?
            .map(|file| {
                let name = file.map_err(unknown_outcome)?.file_name();
                Ok(percent_decode_str(&name.to_string_lossy()).decode_utf8_lossy().into_owned())
            })
            .collect()
    }

    pub(crate) fn read(&self, name: &str) -> Result<Blob> {
        let text = fs::read(self.path(name)?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("there is no blob {name:?}")),
            _ => unknown_outcome(error),
        })?;
        let (version, last_modified, metadata): Stored = serde_json::from_slice(&text).map_err(unknown_outcome)?;
        Ok(Blob::new(name, metadata, etag(version), last_modified, self.response))
    }

    pub(crate) fn check(&self, name: &str, condition: &Condition) -> Result<()> {
        let found = match self.read(name) {
            Ok(blob) => Some(blob.etag),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match condition {
            Condition::Create if found.is_none() => Ok(()),
            Condition::IfMatch(etag) if found.as_ref() == Some(etag) => Ok(()),
            _ => Err(Error::new(ErrorKind::Conflict, format!("{name:?} does not meet the condition {condition:?}"))),
        }
    }

    pub(crate) fn store(&self, name: &str, metadata: Metadata) -> Result<ETag> {
        let stored: Stored = (self.number, self.response.server_time, metadata);
        // A process that is killed before the rename leaves the blob unchanged.
        let temporary_file = self.folder.with_extension("new");
        fs::write(&temporary_file, serde_json::to_vec(&stored).map_err(unknown_outcome)?).map_err(unknown_outcome)?;
        fs::rename(temporary_file, self.path(name)?).map_err(unknown_outcome)?;
        Ok(etag(self.number))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path(name)?).map_err(unknown_outcome)
    }
}

/// Returns [`ErrorKind::Indeterminate`], because the request may have been applied. The caller then reads the record.
pub(crate) fn unknown_outcome(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Indeterminate, "the folder is not usable").with_source(error)
}

fn etag(number: u64) -> ETag {
    ETag::new(&number.to_string())
}
