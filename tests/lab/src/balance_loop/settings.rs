//! The limits of the settings of one loop in relation to each other, to the millisecond.
//!
//! Those of strict leases are in `tests/processor/leases.rs`, extreme values in `tests/storage/store` and
//! `tests/processor`.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Balancer, BalancerConfig};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::store::{GroupStore, GroupStoreBuilder};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, PartitionId, Result};
use tokio::sync::watch;

use super::group::{EXPIRY, INTERVAL};

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

fn builder() -> GroupStoreBuilder {
    let group = ConsumerGroup::new("ns", "hub", "group").unwrap();
    GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap())
}

async fn check(builder: GroupStoreBuilder, config: BalancerConfig) -> Result<()> {
    let (_, partitions) = watch::channel(Arc::<[PartitionId]>::from([]));
    Balancer::new(builder.connect().await?, config, partitions).map(|_| ())
}

async fn refused(builder: GroupStoreBuilder, config: BalancerConfig, why: &str) {
    let error = check(builder, config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains(why), "{error}");
}

fn every(interval: Duration) -> BalancerConfig {
    BalancerConfig::default().with_load_balancing_interval(interval)
}

#[tokio::test]
async fn settings_at_the_limits_are_accepted() {
    check(builder(), every(EXPIRY / 3)).await.unwrap();
    check(builder().with_lease_duration(4 * SECOND), every(SECOND)).await.unwrap();
    check(builder().with_foreign_lease_duration(4 * SECOND), every(SECOND)).await.unwrap();
    check(builder().with_request_timeout((EXPIRY / 2).saturating_sub(MOMENT)), every(SECOND)).await.unwrap();
    check(builder(), every(INTERVAL).with_stall_timeout(EXPIRY / 2)).await.unwrap();
}

#[tokio::test]
async fn settings_beyond_the_limits_are_rejected() {
    refused(builder(), every(EXPIRY / 3 + MOMENT), "at least three times `with_load_balancing_interval`, 20.001s")
        .await;
    refused(
        builder().with_lease_duration((4 * SECOND).saturating_sub(MOMENT)),
        every(SECOND),
        "`with_lease_duration` is 3.999s",
    )
    .await;
    refused(
        builder().with_foreign_lease_duration((4 * SECOND).saturating_sub(MOMENT)),
        every(SECOND),
        "`with_foreign_lease_duration` is 3.999s",
    )
    .await;
    let stall_timeout = (EXPIRY / 2).saturating_sub(MOMENT);
    refused(builder(), every(INTERVAL).with_stall_timeout(stall_timeout), "`with_stall_timeout` is 29.999s").await;
}
