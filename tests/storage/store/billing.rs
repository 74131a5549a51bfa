//! Requests are counted by the type that Azure bills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::store::protocol::membership::HeartbeatOutcome;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, CheckpointOutcome, Claim, ClaimOutcome, ReleaseOutcome};
use eventhubs_checkpoint::store::{BillingType, GroupStore, StoreConfig};
use eventhubs_checkpoint::{OwnerId, Position, Result};

use super::{group, win, zero};
use crate::intercepted::{Intercept, Intercepted};

/// Counts the calls of the port, in the order of [`BillingType::ALL`].
#[derive(Clone, Default)]
struct Bill(Arc<[AtomicU64; 4]>);

impl Bill {
    fn add(&self, billing: BillingType) {
        self.0[billing as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

#[async_trait]
impl Intercept for Bill {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        self.add(BillingType::List);
        inner.list(prefix).await
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        self.add(BillingType::Other);
        inner.get(name).await
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        self.add(if *condition == Condition::Create { BillingType::Write } else { BillingType::Other });
        inner.write(name, metadata, condition).await
    }

    async fn delete(&self, inner: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.add(BillingType::Free);
        inner.delete(name, etag).await
    }

    async fn create_container(&self, inner: &dyn BlobContainer) -> Result<ContainerCreation> {
        self.add(BillingType::List);
        inner.create_container().await
    }
}

async fn connect(container: &Arc<MemoryContainer>, owner: &str) -> (GroupStore, Bill) {
    let bill = Bill::default();
    let billed = Intercepted { inner: container.clone(), interceptor: bill.clone() };
    let builder = GroupStore::builder(billed, group(), OwnerId::new(owner).unwrap());
    let config = StoreConfig::default().with_create_container(true);
    (builder.with_config(config).connect().await.unwrap(), bill)
}

fn counts(store: &GroupStore) -> Vec<u64> {
    BillingType::ALL.iter().map(|billing| store.request_counts().billed_as(*billing)).collect()
}

/// With the check of the storage, and with requests that fail.
#[tokio::test]
async fn every_request_is_billed_by_its_type() {
    let container = Arc::new(MemoryContainer::missing());
    let (a, bill) = connect(&container, "a").await;
    assert_eq!(counts(&a), bill.counts());
    assert_eq!(counts(&a), [8, 2, 6, 1], "three listings of records, four of the check, and a new container");

    let lease = win(&a).await;
    let AdoptOutcome::Adopted(mut adoption) = a.adopt(&zero(), lease.epoch(), None).await.unwrap() else { panic!() };
    let written = a.checkpoint(&mut adoption, &Position::new(1, "1")).await.unwrap();
    assert!(matches!(written, CheckpointOutcome::Written));
    assert!(matches!(a.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written));
    a.list_ownerships().await.unwrap();
    let (b, other_bill) = connect(&container, "b").await;
    assert!(matches!(b.claim(&Claim::unowned(zero())).await, ClaimOutcome::Lost { .. }));
    assert!(matches!(a.release(&lease).await, ReleaseOutcome::Released));
    a.end_heartbeat().await.unwrap();
    assert_eq!((counts(&a), counts(&b)), (bill.counts(), other_bill.counts()));
    assert_eq!(counts(&a)[BillingType::Write as usize], 2 + 3, "an ownership, a checkpoint, a heartbeat");
}
