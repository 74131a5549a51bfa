//! Counts the requests that reach a container, and how many come at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::cost::BilledRequests;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::store::BillingType;
use tokio::time::Instant;

use crate::billing::Bill;

/// The requests since the last [`Meter::take`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metered {
    /// All requests.
    pub requests: u64,
    /// The requests that are not free, by the type that Azure bills.
    pub billed: BilledRequests,
    /// The most requests within one second.
    pub peak: u64,
    /// The most requests for one blob within one second. A listing is for no blob.
    pub peak_of_blob: u64,
}

/// Counts requests. Clones share the same counts.
#[derive(Clone)]
pub struct Meter {
    started: Instant,
    counts: Arc<Mutex<Counts>>,
    bill: Bill,
}

#[derive(Default)]
struct Counts {
    metered: Metered,
    /// The current second, and its requests, in total and for each blob.
    second: u64,
    within: u64,
    of_blobs: HashMap<String, u64>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), counts: Arc::default(), bill: Bill::default() }
    }

    pub(super) fn around(&self, inner: Arc<dyn BlobContainer>) -> Arc<dyn BlobContainer> {
        Arc::new(Counted { inner, meter: self.clone() })
    }

    /// Returns the counts since the last call, and starts again from zero.
    #[must_use]
    pub fn take(&self) -> Metered {
        Metered { billed: self.bill.take(), ..std::mem::take(&mut *lock(&self.counts)).metered }
    }

    fn count(&self, billing: BillingType, blob: Option<&str>) {
        self.bill.add(billing);
        let second = self.started.elapsed().as_secs();
        let mut counts = lock(&self.counts);
        if counts.second != second {
            (counts.second, counts.within) = (second, 0);
            counts.of_blobs.clear();
        }
        counts.within += 1;
        counts.metered.requests += 1;
        counts.metered.peak = counts.metered.peak.max(counts.within);
        let Some(blob) = blob else { return };
        let of_blob = counts.of_blobs.entry(blob.to_owned()).or_default();
        *of_blob += 1;
        let of_blob = *of_blob;
        counts.metered.peak_of_blob = counts.metered.peak_of_blob.max(of_blob);
    }
}

struct Counted {
    inner: Arc<dyn BlobContainer>,
    meter: Meter,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for Counted {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.meter.count(BillingType::List, None);
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.meter.count(BillingType::Other, Some(name));
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        self.meter.count(condition.into(), Some(name));
        self.inner.write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.meter.count(BillingType::Free, Some(name));
        self.inner.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self { inner: Arc::clone(&self.inner), meter: self.meter.clone() }))
    }
}
