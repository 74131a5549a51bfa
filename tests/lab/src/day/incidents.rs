//! What happens to a group during the run.

use std::time::Duration;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::testing::event_hub::EventHubEmulator;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::args::Args;
use super::instances::Instance;

/// Something that happens at a random moment, a given number of times per hour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Incident {
    Handoff,
    /// The service detaches the reader of a partition, as when it moves the partition to another node.
    Detach,
    /// All connections are cut.
    Cut,
}

/// The incidents of a run in their order.
pub(super) fn incidents(args: &Args, rng: &mut StdRng) -> Vec<(Duration, Incident)> {
    let mut all = Vec::new();
    for (incident, per_hour) in [
        (Incident::Handoff, args.handoffs_per_hour),
        (Incident::Detach, args.detaches_per_hour),
        (Incident::Cut, args.cuts_per_hour),
    ] {
        if per_hour <= 0.0 {
            continue;
        }
        let every = Duration::from_secs_f64(3600.0 / per_hour);
        let mut slot = Duration::ZERO;
        while slot < args.duration() {
            all.push((slot + every.mul_f64(rng.random_range(0.1..0.9)), incident));
            slot += every;
        }
    }
    all.retain(|(at, _)| *at < args.duration());
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Lets the incident happen.
pub(super) fn cause(incident: Incident, hub: &EventHubEmulator, instances: &[Instance], rng: &mut StdRng) {
    match incident {
        Incident::Handoff => give_up_partition(instances, rng),
        Incident::Detach => {
            if let Some(partition) = hub.partition_ids().choose(rng) {
                // There may be no reader at the moment.
                let _ = hub.detach_receivers(ConsumerGroup::DEFAULT_NAME, partition);
            }
        }
        Incident::Cut => {
            hub.cut_connections();
        }
    }
}

/// Lets an instance with the fewest partitions give one up. It then has fewer than its share, so that another instance
/// hands a partition over to it.
fn give_up_partition(instances: &[Instance], rng: &mut StdRng) {
    let owned = instances.iter().filter_map(Instance::ours).map(|instance| (instance, instance.partitions()));
    let Some((instance, partitions)) = owned.min_by_key(|(_, partitions)| partitions.len()) else { return };
    if let Some(partition) = partitions.choose(rng) {
        instance.release(partition);
    }
}
