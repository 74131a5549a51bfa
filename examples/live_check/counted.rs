//! A container that counts its requests by the type that Azure bills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::store::BillingType;

/// Numbers of requests, in the order of [`BillingType::ALL`].
pub type Counts = [u64; 4];

#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<[AtomicU64; 4]>);

impl Counters {
    pub fn current_counts(&self) -> Counts {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn add(&self, billing: BillingType, requests: usize) {
        for (count, each) in self.0.iter().zip(BillingType::ALL) {
            if *each == billing {
                count.fetch_add(requests as u64, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Debug)]
pub struct CountedContainer {
    pub inner: Arc<dyn BlobContainer>,
    pub counters: Counters,
    /// How many blobs one request of a listing returns.
    pub page_size: usize,
}

#[async_trait]
impl BlobContainer for CountedContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let listed = self.inner.list(prefix).await;
        let blobs = listed.as_ref().map_or(0, |listed| listed.blobs.len());
        self.counters.add(BillingType::List, blobs.div_ceil(self.page_size).max(1));
        listed
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.counters.add(BillingType::Other, 1);
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let billing = if *condition == Condition::Create { BillingType::Write } else { BillingType::Other };
        self.counters.add(billing, 1);
        self.inner.write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.counters.add(BillingType::Free, 1);
        self.inner.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.counters.add(BillingType::List, 1);
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        let inner = self.inner.with_new_connections()?;
        Ok(Arc::new(Self { inner, counters: self.counters.clone(), page_size: self.page_size }))
    }
}
