//! A blob container that behaves like the real Azure Blob service where emulators do not.
//!
//! Each of these behaviors is one that the service shows on its best day. None is an error, so
//! [`FaultyContainer`](super::FaultyContainer) does not inject them. [`Platform`] adds them to any other container:
//!
//! | behavior | switch | source |
//! |---|---|---|
//! | dots at the end of each segment of a blob's name are dropped | [`with_dots_dropped`](Platform::with_dots_dropped) | "Avoid blob names that end with a dot (.) ... No path segments should end with a dot (.)" ([naming rules]); [azure-sdk-for-java#36674], [AzureStorageExplorer#1133], [AzureStorageExplorer#2833] ("by design"), [wellcomecollection/platform#4790] |
//! | a flat listing shows directories, in accounts with a hierarchical namespace | [`with_directories`](Platform::with_directories) | [azure-docs#57754], [azure-sdk-for-python#34734], [adlfs#277] (`hdi_isfolder`); they stay when they are empty: [azure-sdk-for-python#40061] |
//! | the `Date` of an answer comes from another machine than its `Last-Modified` | [`with_front_ends`](Platform::with_front_ends) | the layers of front ends and of partition servers: [Calder et al., SOSP 2011] |
//!
//! [naming rules]: https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
//! [azure-sdk-for-java#36674]: https://github.com/Azure/azure-sdk-for-java/issues/36674
//! [AzureStorageExplorer#1133]: https://github.com/microsoft/AzureStorageExplorer/issues/1133
//! [AzureStorageExplorer#2833]: https://github.com/microsoft/AzureStorageExplorer/issues/2833
//! [wellcomecollection/platform#4790]: https://github.com/wellcomecollection/platform/issues/4790
//! [azure-docs#57754]: https://github.com/MicrosoftDocs/azure-docs/issues/57754
//! [azure-sdk-for-python#34734]: https://github.com/Azure/azure-sdk-for-python/issues/34734
//! [azure-sdk-for-python#40061]: https://github.com/Azure/azure-sdk-for-python/issues/40061
//! [adlfs#277]: https://github.com/fsspec/adlfs/pull/277
//! [Calder et al., SOSP 2011]: https://azure.microsoft.com/blog/sosp-paper-windows-azure-storage-a-highly-available-cloud-storage-service-with-strong-consistency/
//!
//! # Guarantees
//!
//! - The same seed and the same calls in the same order get the same answers. On a current-thread runtime with paused
//!   time a whole test repeats itself.
//! - A request takes effect in the container below as one request with the same condition, and without a wait.
//! - With all switches off, every call goes to the container below as it is.
//!
//! # Non-guarantees
//!
//! - Azure states no bound for the difference of two clocks; the default is an assumption.
//! - A listing of several pages comes from one front end.
//! - A blob and a directory of the same name may exist at once; then the blob is shown. The service refuses the later one.
//! - Names that the service treats in ways that no source states are rejected: a segment of nothing but dots, and with
//!   directories a name that ends with a slash.
//! - The case of metadata keys is not changed. The service keeps the case in which a key was written, but clients and
//!   proxies change it on the way ([azure-sdk-for-js#8117], [adlfs#418]). Every [`BlobContainer`] makes up for that: it
//!   shows keys in lower case.
//!
//! [azure-sdk-for-js#8117]: https://github.com/Azure/azure-sdk-for-js/issues/8117
//! [adlfs#418]: https://github.com/fsspec/adlfs/pull/418

mod directories;
mod front_ends;
mod names;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

pub(crate) use self::directories::is_directory;

use self::directories::Directories;
use self::front_ends::{Clock, FrontEnds};
use crate::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ListResult, Metadata, ResponseInfo, WriteResult,
    validate_blob_name,
};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// How far the clock of a front end is ahead or behind, by default. With the whole seconds of `Date` and `Last-Modified`
/// on top, it is what [`LeaseDurations::GRACE`](crate::LeaseDurations::GRACE) allows for.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// A container with the behaviors of the real service. Clones, and [`isolated`](BlobContainer::with_new_connections) ones, share the
/// front ends and the directories.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> eventhubs_checkpoint::Result<()> {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
/// use eventhubs_checkpoint::testing::faulty::Platform;
///
/// let platform = Platform::new(Arc::new(MemoryContainer::new()), 7);
/// platform.write("group/pod-1.", &Metadata::new(), &Condition::Create).await?;
/// assert!(platform.get("group/pod-1").await.is_ok());
/// let names: Vec<_> = platform.list("").await?.blobs.into_iter().map(|blob| blob.name).collect();
/// assert_eq!(names, ["group", "group/pod-1"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Platform {
    inner: Arc<dyn BlobContainer>,
    seed: u64,
    drops_dots: bool,
    shows_directories: bool,
    front_ends: Arc<Mutex<FrontEnds>>,
    directories: Arc<Mutex<Directories>>,
}

impl Platform {
    /// Adds all behaviors to `inner`. The seed decides how far the clocks of the front ends are off, and which of them
    /// answers.
    #[must_use]
    pub fn new(inner: Arc<dyn BlobContainer>, seed: u64) -> Self {
        Self {
            inner,
            seed,
            drops_dots: true,
            shows_directories: true,
            front_ends: Arc::new(Mutex::new(FrontEnds::new(seed, CLOCKS_APART))),
            directories: Arc::default(),
        }
    }

    /// Whether dots at the end of each segment of a blob's name are dropped: `a.` is `a` to every read, write and
    /// deletion, and a listing shows `a`. The prefix of a listing is taken as it is. Default yes.
    #[must_use]
    pub fn with_dots_dropped(mut self, dropped: bool) -> Self {
        self.drops_dots = dropped;
        self
    }

    /// Whether the account has a hierarchical namespace. Each blob is then in directories, which listings and reads show
    /// as entries without a slash at the end, with `hdi_isfolder=true` as their metadata. Default yes.
    #[must_use]
    pub fn with_directories(mut self, directories: bool) -> Self {
        self.shows_directories = directories;
        self
    }

    /// How far the clocks of the front ends, which give the `Date` of an answer, are at most ahead of or behind the clock
    /// of the storage, which gives `Last-Modified`. Zero switches the difference off. Default 1 s.
    #[must_use]
    pub fn with_front_ends(mut self, apart: Duration) -> Self {
        self.front_ends = Arc::new(Mutex::new(FrontEnds::new(self.seed, apart)));
        self
    }

    /// The front end that gets the next request.
    fn front_end(&self) -> Clock {
        lock(&self.front_ends).next()
    }

    /// The name under which the service stores a blob.
    fn stored<'a>(&self, name: &'a str) -> Result<Cow<'a, str>> {
        validate_blob_name(name)?;
        if self.shows_directories && name.ends_with('/') {
            return Err(rejected(name, "ends with a slash, as a directory does; use another one"));
        }
        if !self.drops_dots {
            return Ok(Cow::Borrowed(name));
        }
        names::stored(name).ok_or_else(|| rejected(name, "has a segment of nothing but dots; use another one"))
    }

    /// What a read of a blob that does not exist shows.
    fn directory(&self, name: &str, missing: &Error) -> Option<Blob> {
        let is_asked_for = self.shows_directories && missing.kind() == ErrorKind::NotFound;
        let server_time = missing.server_time().filter(|_| is_asked_for)?;
        lock(&self.directories).find(name, ResponseInfo::new(server_time, Instant::now()))
    }
}

fn rejected(name: &str, rule: &str) -> Error {
    Error::new(ErrorKind::Rejected, format!("the blob name {name:?} {rule}"))
}

impl Clock {
    fn date(self, answer: ResponseInfo) -> ResponseInfo {
        let ahead = time::Duration::seconds(self.seconds_ahead(answer.received_at));
        ResponseInfo { server_time: answer.server_time.saturating_add(ahead), ..answer }
    }

    fn date_error(self, error: Error) -> Error {
        let ahead = time::Duration::seconds(self.seconds_ahead(Instant::now()));
        let server_time = error.server_time().map(|time| time.saturating_add(ahead));
        error.with_server_time(server_time)
    }
}

#[async_trait]
impl BlobContainer for Platform {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let clock = self.front_end();
        let mut list = self.inner.list(prefix).await.map_err(|error| clock.date_error(error))?;
        if self.shows_directories {
            lock(&self.directories).add_to(&mut list, prefix);
        }
        for blob in &mut list.blobs {
            blob.response = clock.date(blob.response);
        }
        list.response = clock.date(list.response);
        Ok(list)
    }

    /// The blob has the name that was asked for, for the service does not repeat it.
    async fn get(&self, name: &str) -> Result<Blob> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let blob = match self.inner.get(&stored).await {
            Ok(blob) => blob,
            Err(error) => self.directory(&stored, &error).ok_or_else(|| clock.date_error(error))?,
        };
        Ok(Blob { name: name.to_owned(), response: clock.date(blob.response), ..blob })
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let written = self.inner.write(&stored, metadata, condition).await.map_err(|error| clock.date_error(error))?;
        lock(&self.directories).note(&stored, &written.etag, written.last_modified);
        Ok(WriteResult { response: clock.date(written.response), ..written })
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let deleted = self.inner.delete(&stored, condition).await;
        deleted.map(|answer| clock.date(answer)).map_err(|error| clock.date_error(error))
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let clock = self.front_end();
        let creation = self.inner.create_container().await.map_err(|error| clock.date_error(error))?;
        if creation == ContainerCreation::Created {
            lock(&self.directories).clear();
        }
        Ok(creation)
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self { inner: self.inner.with_new_connections()?, ..self.clone() }))
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platform")
            .field("seed", &self.seed)
            .field("drops_dots", &self.drops_dots)
            .field("shows_directories", &self.shows_directories)
            .field("front_ends", &*lock(&self.front_ends))
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
