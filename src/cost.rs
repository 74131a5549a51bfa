//! What the requests to the storage cost: prices by the type that Azure bills, and an estimate for a group.
//!
//! A listing costs more than ten times as much as the change of a record or a read, so the number of requests alone
//! says little. Capacity and network cost next to nothing: the records have no content, and traffic within a region is
//! free.
//!
//! ```
//! use eventhubs_checkpoint::cost::{GroupSize, RequestPrices, SteadyRequests};
//! use eventhubs_checkpoint::processor::ProcessorConfig;
//! use eventhubs_checkpoint::store::StoreConfig;
//!
//! let size = GroupSize::new(32, 4).with_busy_partitions(32);
//! let per_hour = SteadyRequests::estimate(size, &ProcessorConfig::default(), &StoreConfig::default());
//! let prices = RequestPrices::sample();
//! assert_eq!(format!("{:.2}", prices.usd_per_month(per_hour.by_type())), "10.64");
//! ```

use std::time::Duration;

use crate::balancer::{MOST_LISTED_TOGETHER, WATCHED};
use crate::model::LeaseScope;
use crate::processor::ProcessorConfig;
use crate::store::StoreConfig;
use crate::telemetry::{BillingType, RequestCounts};

/// The hours of a month for prices, as in the price calculator of Azure.
pub const HOURS_PER_MONTH: f64 = 730.0;

/// The unit of the prices.
const REQUESTS_PER_PRICE: f64 = 10_000.0;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Prices of an account, in USD per 10,000 requests. Exhaustive: the requests of this crate have no other types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestPrices {
    /// The price of list and create-container operations.
    pub list: f64,
    /// The price of write operations: the creation of a record.
    pub write: f64,
    /// The price of all other operations: a change or a read of a record.
    pub other: f64,
}

impl RequestPrices {
    /// The date of the [sample](Self::sample).
    pub const SAMPLE_DATE: &str = "2024-07-26";

    /// Returns the sample prices of Microsoft's article [Estimate the cost of using Azure Blob
    /// Storage](https://learn.microsoft.com/azure/storage/blobs/blob-storage-estimate-costs), for the hot tier of a
    /// general-purpose v2 account. The article calls them fictitious; they are near the real prices of that year.
    /// Replace them with the prices of your account, region and redundancy.
    #[must_use]
    pub fn sample() -> Self {
        Self { list: 0.055, write: 0.055, other: 0.0044 }
    }

    /// Returns the price of these requests, in USD.
    #[must_use]
    pub fn usd_for(&self, requests: BilledRequests) -> f64 {
        (requests.list * self.list + requests.write * self.write + requests.other * self.other) / REQUESTS_PER_PRICE
    }

    /// Returns the price of a month with these requests in each hour, in USD.
    #[must_use]
    pub fn usd_per_month(&self, per_hour: BilledRequests) -> f64 {
        HOURS_PER_MONTH * self.usd_for(per_hour)
    }
}

/// A number of requests by the type that Azure bills, in all or per hour. Free ones do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BilledRequests {
    /// List and create container operations.
    pub list: f64,
    /// Write operations.
    pub write: f64,
    /// Other operations.
    pub other: f64,
}

impl BilledRequests {
    /// Returns the number of these requests that are sent per hour, if they were sent in this time.
    #[must_use]
    pub fn per_hour(self, time: Duration) -> Self {
        let times = times_per_hour(time);
        Self { list: self.list * times, write: self.write * times, other: self.other * times }
    }

    /// Returns the number of all of them.
    #[must_use]
    pub fn total(self) -> f64 {
        self.list + self.write + self.other
    }
}

impl From<&RequestCounts> for BilledRequests {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn from(counts: &RequestCounts) -> Self {
        let [list, write, other] =
            [BillingType::List, BillingType::Write, BillingType::Other].map(|billing| counts.billed_as(billing) as f64);
        Self { list, write, other }
    }
}

/// The size of a group whose requests are estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupSize {
    /// The partitions of the event hub.
    pub partitions: u32,
    /// The running instances.
    pub instances: u32,
    /// See [`with_busy_partitions`](Self::with_busy_partitions).
    pub busy_partitions: u32,
    /// See [`with_capitals`](Self::with_capitals).
    pub capitals: bool,
}

impl GroupSize {
    /// Describes a group without events, whose names have no uppercase letters.
    #[must_use]
    pub const fn new(partitions: u32, instances: u32) -> Self {
        Self { partitions, instances, busy_partitions: 0, capitals: false }
    }

    /// Sets how many partitions always have events, so that they write a checkpoint in every
    /// [interval](crate::processor::CheckpointPolicy::with_interval). Default 0.
    #[must_use]
    pub const fn with_busy_partitions(mut self, busy_partitions: u32) -> Self {
        self.busy_partitions = busy_partitions;
        self
    }

    /// Sets whether the name of the namespace, the event hub or the consumer group has uppercase letters, as `$Default`
    /// does: each instance then also lists the blobs with the [other blob-name casing](crate::store::BlobNameCase),
    /// every ten lease durations. Default false.
    #[must_use]
    pub const fn with_capitals(mut self, capitals: bool) -> Self {
        self.capitals = capitals;
        self
    }
}

/// The requests of a group per hour, while it is balanced and nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SteadyRequests {
    /// Listings of ownerships and heartbeats, and of the other blob-name casing.
    pub listings: f64,
    /// Renewals of leases.
    pub renewals: f64,
    /// Reads and writes of the beacon, and reads of watched owners.
    pub polls: f64,
    /// Heartbeats.
    pub heartbeats: f64,
    /// Checkpoints.
    pub checkpoints: f64,
}

impl SteadyRequests {
    /// Estimates the requests per hour of a group of this crate, all of whose instances have these settings, which
    /// [`check_settings`](ProcessorConfig::check_settings) accepts.
    ///
    /// Not included: starts, moves and failures, checkpoints that
    /// [`max_events`](crate::processor::CheckpointPolicy::with_max_events) makes more frequent, and the more frequent
    /// renewals and listings while a processor of another SDK is in the group. The lag is read from the event hub.
    #[must_use]
    pub fn estimate(size: GroupSize, processor: &ProcessorConfig, store: &StoreConfig) -> Self {
        let times = store.lease_times();
        let balancer = &processor.balancer;
        let pace = balancer.steady_pace(times, processor.effective_drain_timeout(times), size.instances);
        let by_instance = balancer.lease_scope == LeaseScope::Instance;
        let listings = if by_instance && size.partitions as usize > MOST_LISTED_TOGETHER { 2.0 } else { 1.0 };
        let case_looks = if size.capitals { times_per_hour(pace.case_look) } else { 0.0 };
        let owners = size.instances.min(size.partitions);
        let with_heartbeat = match balancer.lease_scope {
            LeaseScope::Instance => size.instances,
            // So that the others leave a share to an instance that owns nothing.
            LeaseScope::Partition if balancer.handoff => size.instances - owners,
            LeaseScope::Partition => 0,
        };
        Self {
            listings: f64::from(size.instances) * listings * times_per_hour(pace.listing)
                + f64::from(owners) * case_looks,
            renewals: if by_instance { 0.0 } else { f64::from(size.partitions) * times_per_hour(pace.renewal) },
            polls: f64::from(size.instances) * times_per_hour(pace.beacon_read)
                + f64::from(size.instances.min(1)) * times_per_hour(pace.beacon_refresh)
                + (f64::from(owners) * f64::from(owners.saturating_sub(1).min(WATCHED))
                    + f64::from(size.instances - owners) * f64::from(owners.min(WATCHED)))
                    * times_per_hour(pace.owner_look),
            heartbeats: f64::from(with_heartbeat) * times_per_hour(pace.heartbeat),
            checkpoints: f64::from(size.busy_partitions)
                * processor.checkpoint_policy.interval.map_or(0.0, times_per_hour),
        }
    }

    /// Returns all of them by the type that Azure bills.
    #[must_use]
    pub fn by_type(&self) -> BilledRequests {
        BilledRequests {
            list: self.listings,
            write: 0.0,
            other: self.renewals + self.polls + self.heartbeats + self.checkpoints,
        }
    }
}

fn times_per_hour(wait: Duration) -> f64 {
    HOUR.div_duration_f64(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::OnLeaseExpiry;
    use crate::processor::CheckpointPolicy;

    fn estimate(size: GroupSize, processor: &ProcessorConfig, store: &StoreConfig) -> [i64; 5] {
        let SteadyRequests { listings, renewals, polls, heartbeats, checkpoints } =
            SteadyRequests::estimate(size, processor, store);
        #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
        [listings, renewals, polls, heartbeats, checkpoints].map(|number| number.round() as i64)
    }

    #[test]
    fn each_type_has_its_price() {
        let prices = RequestPrices { list: 0.5, write: 0.4, other: 0.1 };
        let requests = BilledRequests { list: 10_000.0, write: 20_000.0, other: 30_000.0 };
        assert!((prices.usd_for(requests) - 1.6).abs() < 1e-9);
        assert!((prices.usd_per_month(requests) - 1168.0).abs() < 1e-9);
        assert!((requests.per_hour(2 * HOUR).total() - 30_000.0).abs() < 1e-9);
    }

    #[test]
    fn the_estimate_follows_the_settings() {
        let of_instance = ProcessorConfig::default().with_balancer(|it| it.with_lease_scope(LeaseScope::Instance));
        let strict = ProcessorConfig::default()
            .with_balancer(|it| it.with_on_lease_expiry(OnLeaseExpiry::Stop))
            .with_drain_timeout(Duration::from_secs(20));
        let size = GroupSize::new(32, 4).with_busy_partitions(10);
        for (processor, store, expected) in [
            (ProcessorConfig::default(), StoreConfig::default(), [51, 4042, 5414, 0, 7200]),
            (of_instance, StoreConfig::default(), [51, 0, 5414, 960, 7200]),
            (ProcessorConfig::fast_failover(), StoreConfig::fast_failover(), [217, 0, 7433, 4114, 7200]),
            (strict, StoreConfig::default(), [51, 5272, 5414, 0, 7200]),
            (
                ProcessorConfig::default().with_checkpoint_policy(CheckpointPolicy::default().without_interval()),
                StoreConfig::default().with_lease_duration(Duration::from_secs(120)),
                [25, 2021, 5107, 0, 0],
            ),
        ] {
            assert_eq!(estimate(size, &processor, &store), expected, "{:?}", processor.balancer);
        }
    }

    #[test]
    fn the_estimate_follows_the_size() {
        let of_instance = ProcessorConfig::default().with_balancer(|it| it.with_lease_scope(LeaseScope::Instance));
        for (size, processor, expected) in [
            (GroupSize::new(32, 4).with_capitals(true), ProcessorConfig::default(), [75, 4042, 5414, 0, 0]),
            (GroupSize::new(2, 4), ProcessorConfig::default(), [51, 253, 5288, 480, 0]),
            (
                GroupSize::new(2, 4),
                ProcessorConfig::default().with_balancer(|it| it.with_handoff(false)),
                [51, 253, 5288, 0, 0],
            ),
            (GroupSize::new(2000, 4), of_instance.clone(), [51, 0, 5414, 960, 0]),
            (GroupSize::new(2001, 4), of_instance, [101, 0, 5414, 960, 0]),
            (GroupSize::new(0, 0), ProcessorConfig::default(), [0; 5]),
        ] {
            assert_eq!(estimate(size, &processor, &StoreConfig::default()), expected, "{size:?}");
        }
    }
}
