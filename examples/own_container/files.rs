//! The files of the folder, one request at a time.

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

/// Each blob is a file, which holds version, time and metadata as JSON. Files are small and near: a request just
/// blocks.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Deletes it with the last clone: it is only for show.
    _place: Arc<TempDir>,
}

type Stored = (u64, OffsetDateTime, Metadata);

/// What a request sees: the whole folder, alone, at one moment.
pub(crate) struct Turn<'a> {
    folder: &'a Path,
    number: u64,
    pub(crate) answer: ResponseInfo,
}

impl Folder {
    pub(crate) fn temporary() -> Result<Self> {
        let place = tempfile::tempdir().map_err(broken)?;
        Ok(Self { path: place.path().join("leases"), _place: Arc::new(place) })
    }

    /// Only one request at a time, of all processes, so that conditions hold. Its number is the ETag of what it writes.
    /// The time is that of the file system: all instances must go by one clock, and this one is nearest to a
    /// server.
    pub(crate) fn request<T>(&self, apply: impl FnOnce(&Turn<'_>) -> Result<T>) -> Result<T> {
        let (number, server_time, _lock) = lock(&self.path.with_extension("lock")).map_err(broken)?;
        let answer = ResponseInfo::new(server_time, tokio::time::Instant::now());
        // Refusals carry the time as well.
        apply(&Turn { folder: &self.path, number, answer }).map_err(|error| error.with_server_time(Some(server_time)))
    }
}

/// Freed when the file is dropped.
fn lock(path: &Path) -> io::Result<(u64, OffsetDateTime, File)> {
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

impl Turn<'_> {
    fn path(&self, name: &str) -> Result<PathBuf> {
        validate_blob_name(name)?;
        self.check_folder()?;
        let file = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
        if file.len() > LONGEST_FILE_NAME {
            return Err(Error::new(ErrorKind::Rejected, format!("{name:?} is too long for a file name: {file:?}")));
        }
        Ok(self.folder.join(file))
    }

    fn check_folder(&self) -> Result<()> {
        let missing = || Error::new(ErrorKind::ContainerNotFound, "the folder does not exist; create it");
        self.folder.is_dir().then_some(()).ok_or_else(missing)
    }

    pub(crate) fn names(&self) -> Result<Vec<String>> {
        self.check_folder()?;
        let decoded = |file: fs::DirEntry| {
            percent_decode_str(&file.file_name().to_string_lossy()).decode_utf8_lossy().into_owned()
        };
        fs::read_dir(self.folder).map_err(broken)?.map(|file| file.map(decoded).map_err(broken)).collect()
    }

    pub(crate) fn read(&self, name: &str) -> Result<Blob> {
        let text = fs::read(self.path(name)?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("there is no blob {name:?}")),
            _ => broken(error),
        })?;
        let (version, last_modified, metadata): Stored = serde_json::from_slice(&text).map_err(broken)?;
        Ok(Blob::new(name, metadata, etag(version), last_modified, self.answer))
    }

    pub(crate) fn check(&self, name: &str, condition: &Condition) -> Result<()> {
        let found = match self.read(name) {
            Ok(blob) => Some(blob.etag),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let holds = match condition {
            Condition::Unconditional => true,
            Condition::Create => found.is_none(),
            Condition::IfMatch(etag) => found.as_ref() == Some(etag),
        };
        holds.then_some(()).ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{name:?} is not as {condition:?}")))
    }

    pub(crate) fn store(&self, name: &str, metadata: Metadata) -> Result<ETag> {
        let stored: Stored = (self.number, self.answer.server_time, metadata);
        // Whoever is killed in between leaves the blob as it was.
        let aside = self.folder.with_extension("new");
        fs::write(&aside, serde_json::to_vec(&stored).map_err(broken)?).map_err(broken)?;
        fs::rename(aside, self.path(name)?).map_err(broken)?;
        Ok(etag(self.number))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path(name)?).map_err(broken)
    }
}

/// Who cannot tell whether a request was carried out says `Unknown`: the caller then looks.
pub(crate) fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Indeterminate, "the folder cannot be used").with_source(error)
}

fn etag(number: u64) -> ETag {
    ETag::new(&number.to_string())
}
