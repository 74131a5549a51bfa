//! The storage requests of a group in the steady state, and their price: for this crate, the requests of its loops in
//! an hour of virtual time; for the other SDKs, an estimate from their defaults.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::Balancer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::cost::{BilledRequests, GroupSize, RequestPrices, SteadyRequests};
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::{GroupStore, RequestCounts, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, LeaseScope, OwnerId, PartitionId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::simulate::Failure;
use crate::simulate::scale::LARGE;
use crate::table;

/// Groups whose requests are counted.
const SIZES: [GroupSize; 3] = [GroupSize::new(32, 4), GroupSize::new(256, 16), GroupSize::new(1024, 64)];
/// More than a group needs until its cycles have reached their maximum length.
const SETTLED: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The defaults of an SDK: each cycle lists, and renews every owned partition.
struct Sdk {
    name: &'static str,
    /// The average number of seconds between two cycles.
    interval: f64,
    listings: f64,
    expiry: u32,
}

const SDKS: [Sdk; 6] = [
    Sdk { name: ".NET", interval: 30.0, listings: 1.0, expiry: 120 },
    Sdk { name: "Java", interval: 30.0, listings: 1.0, expiry: 120 },
    Sdk { name: "JavaScript", interval: 10.0, listings: 1.0, expiry: 60 },
    // Up to a fifth longer.
    Sdk { name: "Python", interval: 33.0, listings: 1.0, expiry: 180 },
    // From 0.8 to 1.3 times 10 s.
    Sdk { name: "Go", interval: 10.5, listings: 1.0, expiry: 60 },
    // It lists the checkpoints, too.
    Sdk { name: "Rust", interval: 30.0, listings: 2.0, expiry: 60 },
];

impl Sdk {
    fn requests_per_hour(&self, size: GroupSize) -> BilledRequests {
        let cycles = HOUR.as_secs_f64() / self.interval;
        let list = cycles * f64::from(size.instances) * self.listings;
        BilledRequests { list, write: 0.0, other: cycles * f64::from(size.partitions) }
    }
}

/// Returns the table, in Markdown.
pub fn requests() -> Result<String, Failure> {
    let large = GroupSize::new(LARGE.partitions, u32::try_from(LARGE.instances)?);
    let sizes = SIZES.iter().chain([&large]);
    let columns = sizes.clone().map(|size| format!("{} partitions, {} instances", size.partitions, size.instances));
    let header: Vec<_> = ["", "expiry, s"].map(str::to_owned).into_iter().chain(columns).collect();
    let mut rows = Vec::new();
    for (name, processor, store) in settings() {
        let mut row = vec![format!("**this crate**, {name}"), store.lease_duration.as_secs().to_string()];
        for size in SIZES {
            row.push(cell(counted(size, &processor, &store)?));
        }
        row.push(cell(SteadyRequests::estimate(large, &processor, &store).by_type()));
        rows.push(row);
    }
    rows.extend(SDKS.iter().map(|sdk| {
        let cells = sizes.clone().map(|size| cell(sdk.requests_per_hour(*size)));
        [sdk.name.to_owned(), sdk.expiry.to_string()].into_iter().chain(cells).collect()
    }));
    let RequestPrices { list, other, .. } = RequestPrices::sample();
    Ok(format!(
        "Requests per hour of a group in the steady state (of which listings), and USD per month, with the sample prices \
         of {}: {list} per 10,000 listings, and {other} per 10,000 renewals or heartbeats. The numbers for {} partitions \
         and of other SDKs are computed.\n\n{}",
        RequestPrices::SAMPLE_DATE,
        large.partitions,
        table::markdown(&header, &rows)
    ))
}

fn cell(per_hour: BilledRequests) -> String {
    let usd = RequestPrices::sample().usd_per_month(per_hour);
    format!("{:.0} ({:.0}), {usd:.1} USD", per_hour.total(), per_hour.list)
}

/// The settings of this crate that are compared.
fn settings() -> [(&'static str, ProcessorConfig, StoreConfig); 3] {
    let by_instance =
        ProcessorConfig::default().with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance));
    [
        ("`LeaseScope::Partition`", ProcessorConfig::default(), StoreConfig::default()),
        ("`LeaseScope::Instance`", by_instance, StoreConfig::default()),
        ("`fast_failover`", ProcessorConfig::fast_failover(), StoreConfig::fast_failover()),
    ]
}

fn counted(size: GroupSize, processor: &ProcessorConfig, store: &StoreConfig) -> Result<BilledRequests, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let (_hub, known) = watch::channel((0..size.partitions).map(PartitionId::from).collect::<Arc<[_]>>());
        let container = Arc::new(MemoryContainer::new());
        let (mut stores, mut handles, mut loops) = (Vec::new(), Vec::new(), JoinSet::new());
        for instance in 0..size.instances {
            let group = ConsumerGroup::new(
                "example.servicebus.windows.net",
                "orders",
                if size.capitals { "$Default" } else { "group" },
            )?;
            let owner = OwnerId::new(format!("owner-{instance}"))?;
            let builder = GroupStore::builder(container.clone(), group, owner).with_config(store.clone());
            let store = builder.with_seed(instance.into()).connect().await?;
            let config = processor.balancer.clone().with_seed(instance.into());
            let (balancer, handle) = Balancer::new(store.clone(), config, known.clone())?;
            loops.spawn(balancer.run());
            stores.push(store);
            handles.push(handle);
        }
        sleep(SETTLED).await;
        let before = sent(&stores);
        sleep(HOUR).await;
        let after = sent(&stores);
        Ok(BilledRequests {
            list: after.list - before.list,
            write: after.write - before.write,
            other: after.other - before.other,
        })
    })
}

/// Returns what all of them have sent so far.
fn sent(stores: &[GroupStore]) -> BilledRequests {
    let mut counts = RequestCounts::default();
    for store in stores {
        counts += store.request_counts();
    }
    BilledRequests::from(&counts)
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::balancer::BalancerConfig;

    use super::*;
    use crate::sim::Simulation;

    /// In an hour each instance may list once more or less than on average.
    fn assert_near(sent: BilledRequests, estimated: BilledRequests, instances: u32, what: &str) {
        let more = [(sent.list, estimated.list, f64::from(instances)), (sent.other, estimated.other, 0.0)];
        for (sent, estimated, tolerance) in more {
            let is_near = (sent - estimated).abs() <= 0.05 * estimated + tolerance;
            assert!(is_near, "{what}: {sent} were sent, and {estimated} estimated");
        }
        assert!(sent.write.abs() < 0.5, "{what}: {sent:?}");
    }

    #[test]
    fn the_estimate_of_an_sdk() {
        let cells = SDKS.map(|sdk| cell(sdk.requests_per_hour(SIZES[0])));
        assert_eq!(
            cells,
            [
                "4320 (480), 3.2 USD",
                "4320 (480), 3.2 USD",
                "12960 (1440), 9.5 USD",
                "3927 (436), 2.9 USD",
                "12343 (1371), 9.0 USD",
                "4800 (960), 5.1 USD"
            ]
        );
    }

    /// With four instances on 32 partitions.
    #[test]
    fn a_small_group_costs_no_more_than_promised() {
        let [by_default, by_instance, fast] = settings().map(|(_, processor, store)| {
            RequestPrices::sample().usd_per_month(counted(SIZES[0], &processor, &store).unwrap())
        });
        assert!(by_default <= 3.3 && by_instance <= 2.3 && fast <= 6.0, "{by_default}, {by_instance}, {fast}");
    }

    #[test]
    fn the_estimate_is_what_the_loops_send() {
        for size in [GroupSize::new(32, 4), GroupSize::new(16, 2).with_capitals(true)] {
            for (name, processor, store) in settings() {
                let estimated = SteadyRequests::estimate(size, &processor, &store).by_type();
                assert_near(
                    counted(size, &processor, &store).unwrap(),
                    estimated,
                    size.instances,
                    &format!("{name}, {size:?}"),
                );
            }
        }
    }

    /// An instance that owns nothing has a heartbeat, so that others leave it a share.
    #[tokio::test(start_paused = true)]
    async fn the_estimate_counts_idle_instances() {
        let size = GroupSize::new(4, 6);
        let mut group = Simulation::new(1, size.partitions).with_handlers(Duration::from_secs(1));
        for instance in 0..size.instances {
            group.start(&format!("owner-{instance}"), BalancerConfig::default()).await.unwrap();
        }
        group.run_for(SETTLED).await;
        drop(group.meter().take());
        group.run_for(HOUR).await;
        let estimated = SteadyRequests::estimate(size, &ProcessorConfig::default(), &StoreConfig::default());
        assert_near(group.meter().take().billed, estimated.by_type(), size.instances, "the group");
    }
}
