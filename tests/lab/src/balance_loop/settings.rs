//! The limits of the settings of one loop in relation to each other, to the millisecond.
//!
//! Those of strict leases are in `tests/processor/settings.rs`, extreme values there and in `tests/storage/store`.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, PartitionId, Result};
use tokio::sync::watch;

use super::group::{EXPIRY, INTERVAL};

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

async fn check(store: StoreConfig, config: BalancerConfig) -> Result<()> {
    let group = ConsumerGroup::new("ns", "hub", "group").unwrap();
    let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
    let (_, partitions) = watch::channel(Arc::<[PartitionId]>::from([]));
    Balancer::new(builder.with_config(store).connect().await?, config, partitions).map(|_| ())
}

async fn refused(store: StoreConfig, config: BalancerConfig, why: &str) {
    let error = check(store, config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains(why), "{error}");
}

fn every(interval: Duration) -> BalancerConfig {
    BalancerConfig::default().with_load_balancing_interval(interval)
}

#[tokio::test]
async fn settings_at_the_limits_are_accepted() {
    check(StoreConfig::default(), every(EXPIRY / 3)).await.unwrap();
    check(StoreConfig::default().with_lease_duration(4 * SECOND), every(SECOND)).await.unwrap();
    check(StoreConfig::default().with_foreign_lease_duration(4 * SECOND), every(SECOND)).await.unwrap();
    check(StoreConfig::default().with_request_timeout((EXPIRY / 2).saturating_sub(MOMENT)), every(SECOND))
        .await
        .unwrap();
    check(StoreConfig::default(), every(INTERVAL).with_stall_timeout(EXPIRY / 2)).await.unwrap();
}

#[tokio::test]
async fn settings_beyond_the_limits_are_rejected() {
    refused(
        StoreConfig::default(),
        every(EXPIRY / 3 + MOMENT),
        "at least three times `with_load_balancing_interval`, 20.001s",
    )
    .await;
    refused(
        StoreConfig::default().with_lease_duration((4 * SECOND).saturating_sub(MOMENT)),
        every(SECOND),
        "`with_lease_duration` is 3.999s",
    )
    .await;
    refused(
        StoreConfig::default().with_foreign_lease_duration((4 * SECOND).saturating_sub(MOMENT)),
        every(SECOND),
        "`with_foreign_lease_duration` is 3.999s",
    )
    .await;
    let stall_timeout = (EXPIRY / 2).saturating_sub(MOMENT);
    refused(
        StoreConfig::default(),
        every(INTERVAL).with_stall_timeout(stall_timeout),
        "`with_stall_timeout` is 29.999s",
    )
    .await;
}
