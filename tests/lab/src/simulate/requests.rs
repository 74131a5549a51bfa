//! The storage requests of a group in the steady state: for this crate, the requests of its loops in an hour of virtual
//! time; for the other SDKs, an estimate from their defaults.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::Balancer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::{GroupStore, StorageOperation, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, LeaseScope, OwnerId, PartitionId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::simulate::Failure;
use crate::table;

/// Partitions and instances.
const SIZES: [(u32, u32); 3] = [(32, 4), (256, 16), (1024, 64)];
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
    fn requests_per_hour(&self, (partitions, instances): (u32, u32)) -> f64 {
        let cycles = HOUR.as_secs_f64() / self.interval;
        cycles * (f64::from(partitions) + f64::from(instances) * self.listings)
    }
}

/// Returns the table, in Markdown.
pub fn requests() -> Result<String, Failure> {
    let sizes = SIZES.map(|(partitions, instances)| format!("{partitions} partitions, {instances} instances"));
    let header: Vec<_> = ["", "expiry, s"].map(str::to_owned).into_iter().chain(sizes).collect();
    let mut rows = Vec::new();
    for (name, processor, store) in settings() {
        let mut row = vec![format!("**this crate**, {name}"), store.lease_duration.as_secs().to_string()];
        for size in SIZES {
            row.push(counted(size, &processor, &store)?.to_string());
        }
        rows.push(row);
    }
    rows.extend(SDKS.iter().map(|sdk| {
        let counts = SIZES.map(|size| format!("{:.0}", sdk.requests_per_hour(size)));
        [sdk.name.to_owned(), sdk.expiry.to_string()].into_iter().chain(counts).collect()
    }));
    Ok(format!("Requests per hour of a group in the steady state:\n\n{}", table::markdown(&header, &rows)))
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

fn counted(
    (partitions, instances): (u32, u32),
    processor: &ProcessorConfig,
    store: &StoreConfig,
) -> Result<u64, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let (_hub, known) = watch::channel((0..partitions).map(PartitionId::from).collect::<Arc<[_]>>());
        let container = Arc::new(MemoryContainer::new());
        let (mut stores, mut handles, mut loops) = (Vec::new(), Vec::new(), JoinSet::new());
        for instance in 0..instances {
            let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "group")?;
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
        Ok(sent(&stores) - before)
    })
}

fn sent(stores: &[GroupStore]) -> u64 {
    let counts = stores.iter().map(GroupStore::request_counts);
    counts.flat_map(|counts| StorageOperation::ALL.iter().map(move |operation| counts.total(*operation))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_an_sdk() {
        let requests = SDKS.map(|sdk| format!("{:.0}", sdk.requests_per_hour((32, 4))));
        assert_eq!(requests, ["4320", "4320", "12960", "3927", "12343", "4800"]);
    }

    /// With four instances on 32 partitions.
    #[test]
    fn fast_failover_costs_half_more_than_the_default() {
        let [by_default, _, fast] =
            settings().map(|(_, processor, store)| counted((32, 4), &processor, &store).unwrap());
        assert!(2 * fast <= 3 * by_default && by_default <= 4600, "{fast}, {by_default}");
    }

    #[test]
    fn leases_of_an_instance_cost_less() {
        let [by_partition, by_instance, _] =
            settings().map(|(_, processor, store)| counted((16, 2), &processor, &store).unwrap());
        assert!(by_partition > 16 * 120 + 2 * 120, "{by_partition}");
        assert!((2 * 348..=2 * 376).contains(&by_instance), "{by_instance}");
    }
}
