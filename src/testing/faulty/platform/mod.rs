//! A blob container that behaves like the real Azure Blob service where emulators do not.
//!
//! The service shows each of these behaviors during normal operation, or in an account with such settings. None is a
//! failure, so [`FaultyContainer`](super::FaultyContainer) does not inject them. [`Platform`] adds them to any other
//! container:
//!
//! | behavior | switch | source |
//! |---|---|---|
//! | dots at the end of each segment of a blob's name are dropped | [`with_dots_dropped`](Platform::with_dots_dropped) | "Avoid blob names that end with a dot (.) ... No path segments should end with a dot (.)" ([naming rules]); [azure-sdk-for-java#36674], [AzureStorageExplorer#1133], [AzureStorageExplorer#2833] ("by design"), [wellcomecollection/platform#4790] |
//! | a flat listing shows directories, in accounts with a hierarchical namespace | [`with_directories`](Platform::with_directories) | [azure-docs#57754], [azure-sdk-for-python#34734], [adlfs#277] (`hdi_isfolder`); empty directories are kept: [azure-sdk-for-python#40061] |
//! | the `Date` of a response comes from a different machine than its `Last-Modified` | [`with_front_ends`](Platform::with_front_ends) | the layers of front ends and of partition servers: [Calder et al., SOSP 2011] |
//! | every request takes the same time, or longer and longer | [`with_latency`](Platform::with_latency) | [latency], which depends on the region and the load |
//! | a listing also passes deleted blobs and former versions, page by page, although it does not show them | [`with_history`](Platform::with_history) | [soft delete], [versioning] ("can increase the latency for blob listing operations"), [azure-storage-net#612], [azure-storage-fuse#50] |
//! | some operations are not permitted | [`with_denied`](Platform::with_denied) | [permissions of a SAS], [roles] |
//! | 404 without an error code | [`with_error_codes`](Platform::with_error_codes) | [azure-sdk-for-cpp#5369], [azure-storage-node#356], [Azurite#88] |
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
//! [latency]: https://learn.microsoft.com/azure/storage/blobs/storage-blobs-latency
//! [soft delete]: https://learn.microsoft.com/azure/storage/blobs/soft-delete-blob-overview
//! [versioning]: https://learn.microsoft.com/azure/storage/blobs/versioning-overview
//! [azure-storage-net#612]: https://github.com/Azure/azure-storage-net/issues/612
//! [azure-storage-fuse#50]: https://github.com/Azure/azure-storage-fuse/pull/50
//! [permissions of a SAS]: https://learn.microsoft.com/rest/api/storageservices/create-service-sas
//! [roles]: https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/storage
//! [azure-sdk-for-cpp#5369]: https://github.com/Azure/azure-sdk-for-cpp/issues/5369
//! [azure-storage-node#356]: https://github.com/Azure/azure-storage-node/issues/356
//! [Azurite#88]: https://github.com/Azure/Azurite/issues/88
//! [Calder et al., SOSP 2011]: https://azure.microsoft.com/blog/sosp-paper-windows-azure-storage-a-highly-available-cloud-storage-service-with-strong-consistency/
//!
//! # Guarantees
//!
//! - The same seed and the same calls in the same order produce the same responses. On a current-thread runtime with
//!   paused time a test is deterministic.
//! - A request takes effect in the wrapped container as one request with the same condition, after half of its latency.
//!   A request that its caller drops has taken effect, or has not.
//! - A request that is denied or has an invalid name takes no effect.
//! - With all switches off, every call is passed to the wrapped container unchanged.
//!
//! # Non-guarantees
//!
//! - Azure specifies no bound for the difference of two clocks; the default is an assumption.
//! - All pages of a listing come from one front end, and show the same moment.
//! - Deleted blobs and former versions are kept forever, and cannot be listed or restored.
//! - A blob and a directory with the same name may exist at once; then the blob is shown. The service rejects the later
//!   one.
//! - Names whose treatment by the service is undocumented are rejected: those with a segment of only dots, and, with
//!   directories, those that end with a slash.
//! - The case of metadata keys is not changed. The service keeps the case in which a key was written, but clients and
//!   proxies change it ([azure-sdk-for-js#8117], [adlfs#418]). [`Metadata`] has no other keys than lowercase ones, so
//!   no container can show that.
//!
//! [azure-sdk-for-js#8117]: https://github.com/Azure/azure-sdk-for-js/issues/8117
//! [adlfs#418]: https://github.com/fsspec/adlfs/pull/418

mod directories;
mod front_ends;
mod history;
mod latency;
mod names;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

pub(crate) use self::directories::is_directory;
pub use self::latency::Latency;

use self::directories::Directories;
use self::front_ends::{Clock, FrontEnds};
use self::history::History;
use super::fault::BlobOperation;
use super::server_time;
use crate::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
    validate_blob_name,
};
use crate::error::{Error, ErrorKind, Result};
use crate::util::lock;

/// The default maximum difference of a front end's clock. Together with the whole seconds of `Date` and
/// `Last-Modified`, it is what [`LeaseDurations::GRACE`](crate::LeaseDurations::GRACE) allows for.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

/// A container with the behaviors of the real service. Clones, and containers that
/// [`with_new_connections`](BlobContainer::with_new_connections) returned, share all that it remembers.
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
    shows_error_codes: bool,
    denied: BTreeSet<BlobOperation>,
    latency: Latency,
    started: Instant,
    front_ends: Arc<Mutex<FrontEnds>>,
    directories: Arc<Mutex<Directories>>,
    history: Option<Arc<Mutex<History>>>,
}

impl Platform {
    /// Adds to `inner` the behaviors of every account: dots, directories and front ends. The seed decides the clock
    /// differences of the front ends, and which front end responds to a request.
    #[must_use]
    pub fn new(inner: Arc<dyn BlobContainer>, seed: u64) -> Self {
        Self {
            inner,
            seed,
            drops_dots: true,
            shows_directories: true,
            shows_error_codes: true,
            denied: BTreeSet::new(),
            latency: Latency::default(),
            started: Instant::now(),
            history: None,
            front_ends: Arc::new(Mutex::new(FrontEnds::new(seed, CLOCK_DIFFERENCE))),
            directories: Arc::default(),
        }
    }

    /// Sets whether dots at the end of each segment of a blob name are dropped: `a.` is `a` in every read, write and
    /// deletion, and a listing shows `a`. The prefix of a listing is not changed. Default true.
    #[must_use]
    pub fn with_dots_dropped(mut self, dropped: bool) -> Self {
        self.drops_dots = dropped;
        self
    }

    /// Sets whether the account has a hierarchical namespace. Each blob is then in directories, which listings and
    /// reads show as entries without a trailing slash, with the metadata `hdi_isfolder=true`. Default true.
    #[must_use]
    pub fn with_directories(mut self, directories: bool) -> Self {
        self.shows_directories = directories;
        self
    }

    /// Sets the maximum difference between the clocks of the front ends, which provide the `Date` of a response, and
    /// the clock of the storage, which provides `Last-Modified`. Zero disables the difference. Default 1 s.
    #[must_use]
    pub fn with_front_ends(mut self, difference: Duration) -> Self {
        self.front_ends = Arc::new(Mutex::new(FrontEnds::new(self.seed, difference)));
        self
    }

    /// Sets how long each request takes, counted from this call if that changes. Default: no time.
    #[must_use]
    pub fn with_latency(mut self, latency: Latency) -> Self {
        (self.latency, self.started) = (latency, Instant::now());
        self
    }

    /// Keeps deleted blobs and former versions, which no response shows. A listing passes them nevertheless: it takes
    /// the time `page` for every page but the first of this many blobs and versions, shown or not. Default: nothing is
    /// kept, and a listing is one page.
    #[must_use]
    pub fn with_history(mut self, page_size: NonZeroUsize, page: Duration) -> Self {
        self.history = Some(Arc::new(Mutex::new(History::new(page_size, page))));
        self
    }

    /// Sets which operations fail with [`ErrorKind::Unauthorized`]. Default none.
    #[must_use]
    pub fn with_denied(mut self, denied: impl IntoIterator<Item = BlobOperation>) -> Self {
        self.denied = denied.into_iter().collect();
        self
    }

    /// Sets whether errors have their error code. Without it, a container that is missing cannot be told from a blob
    /// that is, and only requests to the container itself are [`Rejected`](ErrorKind::Rejected). Default true.
    #[must_use]
    pub fn with_error_codes(mut self, shown: bool) -> Self {
        self.shows_error_codes = shown;
        self
    }

    /// Sends a request. It arrives after half of its time.
    async fn send<T>(
        &self,
        operation: BlobOperation,
        extra: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let latency = self.latency.after(self.started.elapsed()) + extra;
        pass(latency / 2).await;
        let response = if self.denied.contains(&operation) {
            Err(denied(operation).with_server_time(server_time(&*self.inner).await))
        } else {
            request.await
        };
        pass(latency / 2).await;
        response.map_err(|error| if self.shows_error_codes { error } else { without_code(operation, error) })
    }

    /// Returns the clock of the front end that responds to the next request.
    fn front_end(&self) -> Clock {
        lock(&self.front_ends).next()
    }

    /// Returns the name under which the service stores a blob.
    fn stored<'a>(&self, name: &'a str) -> Result<Cow<'a, str>> {
        validate_blob_name(name)?;
        if self.shows_directories && name.ends_with('/') {
            return Err(rejected(name, "ends with a slash, like a directory; use another name"));
        }
        if !self.drops_dots {
            return Ok(Cow::Borrowed(name));
        }
        names::stored(name).ok_or_else(|| rejected(name, "has a segment of only dots; use another name"))
    }

    /// Returns the directory that a read shows if there is no blob with this name.
    fn directory(&self, name: &str, missing: &Error) -> Option<Blob> {
        let is_eligible = self.shows_directories && missing.kind() == ErrorKind::NotFound;
        let server_time = missing.server_time().filter(|_| is_eligible)?;
        lock(&self.directories).find(name, ResponseInfo::new(server_time, Instant::now()))
    }
}

/// Waits, but does not even yield without latency.
async fn pass(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// Returns the error of an operation that the credentials do not permit.
fn denied(operation: BlobOperation) -> Error {
    let message = format!("{operation}: the service responded 403 (AuthorizationPermissionMismatch)");
    Error::new(ErrorKind::Unauthorized, message)
}

/// Returns the error of the same response without its error code.
fn without_code(operation: BlobOperation, error: Error) -> Error {
    if error.kind() != ErrorKind::ContainerNotFound {
        return error;
    }
    let is_of_blob = !matches!(operation, BlobOperation::List | BlobOperation::CreateContainer);
    let kind = if is_of_blob { ErrorKind::NotFound } else { ErrorKind::Rejected };
    Error::new(kind, format!("{operation}: the service responded 404 (no error code)"))
        .with_server_time(error.server_time())
}

fn rejected(name: &str, rule: &str) -> Error {
    Error::new(ErrorKind::Rejected, format!("the blob name {name:?} {rule}"))
}

impl Clock {
    fn date(self, response: ResponseInfo) -> ResponseInfo {
        let ahead = time::Duration::seconds(self.seconds_ahead(response.received_at));
        ResponseInfo { server_time: response.server_time.saturating_add(ahead), ..response }
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
        let extra = self.history.as_ref().map_or(Duration::ZERO, |history| lock(history).time_of(prefix));
        let listed = self.send(BlobOperation::List, extra, self.inner.list(prefix)).await;
        let mut list = listed.map_err(|error| clock.date_error(error))?;
        if self.shows_directories {
            lock(&self.directories).add_to(&mut list, prefix);
        }
        for blob in &mut list.blobs {
            blob.response = clock.date(blob.response);
        }
        list.response = clock.date(list.response);
        Ok(list)
    }

    /// The returned blob has the requested name, because the service does not return the name.
    async fn get(&self, name: &str) -> Result<Blob> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let blob = match self.send(BlobOperation::Get, Duration::ZERO, self.inner.get(&stored)).await {
            Ok(blob) => blob,
            Err(error) => self.directory(&stored, &error).ok_or_else(|| clock.date_error(error))?,
        };
        Ok(Blob { name: name.to_owned(), response: clock.date(blob.response), ..blob })
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let write = async {
            let written = self.inner.write(&stored, metadata, condition).await?;
            if let Some(history) = &self.history {
                lock(history).note(&stored);
            }
            Ok(written.with_versioned(self.history.is_some()))
        };
        let written =
            self.send(BlobOperation::Write, Duration::ZERO, write).await.map_err(|error| clock.date_error(error))?;
        lock(&self.directories).note(&stored, &written.etag, written.response.server_time);
        Ok(WriteResult { response: clock.date(written.response), ..written })
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        let stored = self.stored(name)?;
        let clock = self.front_end();
        let deleted = self.send(BlobOperation::Delete, Duration::ZERO, self.inner.delete(&stored, etag)).await;
        deleted.map(|response| clock.date(response)).map_err(|error| clock.date_error(error))
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let clock = self.front_end();
        let created = self.send(BlobOperation::CreateContainer, Duration::ZERO, self.inner.create_container()).await;
        let creation = created.map_err(|error| clock.date_error(error))?;
        if creation == ContainerCreation::Created {
            lock(&self.directories).clear();
            if let Some(history) = &self.history {
                lock(history).clear();
            }
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
            .field("shows_error_codes", &self.shows_error_codes)
            .field("denied", &self.denied)
            .field("latency", &self.latency)
            .field("front_ends", &*lock(&self.front_ends))
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
