//! The cost of a load-balancing decision for the largest possible event hub and a large group: 2048 partitions, 300
//! owners.
//!
//! `cargo bench --bench balance` prints medians. The floor of the same run is one pass over a view that clones every
//! name in it, which is necessary to hand the view on. Each measurement alternates with the floor, so that a busy
//! machine affects both.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};

use eventhubs_checkpoint::internal::planner::{ETag, Heartbeat, Observer, Ownership, Policy, View, observe, plan};
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use eventhubs_checkpoint::store::protocol::membership::HeartbeatRecord;
use eventhubs_checkpoint::{Identity, Incarnation, InvalidName, OwnerId, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::Instant;

const PARTITIONS: u32 = 2048;
const OWNERS: u32 = 300;
const ROUNDS: usize = 301;
const TERMS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo passes this to a benchmark. Without it, as in `cargo test --benches`, one round shows that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    println!("{PARTITIONS} partitions, {OWNERS} owners; median of {rounds} rounds\n");
    println!("{:<42} {:>10} {:>10}  ratio  aim", "", "ours", "floor");

    let group = Group::new()?;
    let settled = group.listing(|partition| partition % OWNERS);
    let partitions: Vec<PartitionId> = (0..PARTITIONS).map(PartitionId::from).collect();
    let running = (0..PARTITIONS).filter(|partition| partition % OWNERS == 0).map(PartitionId::from).collect();
    let heartbeats = group.heartbeats();
    let observer = Observer {
        this: &group.members[0],
        lease_durations: TERMS,
        running: &running,
        heartbeats: &heartbeats,
        outage_ended: None,
    };
    let now = Duration::from_secs(1);
    let view = observe(&settled, &partitions, &observer, now);
    compare(rounds, "observe", &view, || observe(&settled, &partitions, &observer, now));
    compare(rounds, "observe, the hub's list in no order", &view, || {
        observe(&settled, &scattered(&partitions), &observer, now)
    });

    let crowded = group.listing(crowded);
    let crowded = observe(&crowded, &partitions, &observer, now);
    for (name, policy) in policies(&partitions)? {
        let mut rng = StdRng::seed_from_u64(1);
        compare(rounds, &format!("plan {name}, settled"), &view, || plan(&view, &policy, &mut rng));
        compare(rounds, &format!("plan {name}, joining"), &crowded, || plan(&crowded, &policy, &mut rng));
    }
    Ok(())
}

fn policies(partitions: &[PartitionId]) -> Result<Vec<(&'static str, Policy)>, Box<dyn std::error::Error>> {
    let by = |strategy| Policy { strategy, ..Policy::default() };
    let loads = partitions.iter().cloned().zip((0..).map(|place| 1000 + place * 7919 % 1000)).collect();
    let avoid: BTreeSet<_> = partitions.iter().step_by(3).cloned().collect();
    Ok(vec![
        ("Balanced", by(LoadBalancingStrategy::Balanced)),
        ("Balanced, a third avoided", Policy { avoid, ..by(LoadBalancingStrategy::Balanced) }),
        ("Greedy", by(LoadBalancingStrategy::Greedy)),
        ("Greedy, with handoff", Policy { handoff: true, ..by(LoadBalancingStrategy::Greedy) }),
        ("Static", by(LoadBalancingStrategy::Static(Assignment::index(0, OWNERS as usize)?))),
        ("Weighted", Policy { loads, ..by(LoadBalancingStrategy::weighted()) }),
    ])
}

/// Returns the owner in a crowded group: this instance owns nothing, the others own almost everything or almost
/// nothing, and no partition is unowned.
fn crowded(partition: u32) -> u32 {
    if partition < OWNERS { partition.max(1) } else { 1 + partition % (OWNERS / 3) }
}

fn scattered(partitions: &[PartitionId]) -> Vec<PartitionId> {
    let step = 1021;
    (0..partitions.len()).map(|place| partitions[place * step % partitions.len()].clone()).collect()
}

struct Group {
    members: Vec<Identity>,
}

impl Group {
    fn new() -> Result<Self, InvalidName> {
        let incarnation = Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 0);
        let owner = |number| OwnerId::new(format!("orders-consumer-7d9f8b6c5-{number:05}"));
        let member = |number| Ok(Identity::new(owner(number)?, incarnation.clone()));
        Ok(Self { members: (0..OWNERS).map(member).collect::<Result<_, _>>()? })
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        let record =
            |member: &Identity| HeartbeatRecord::new(member.owner.clone(), member.incarnation.clone(), TERMS.own);
        let seen =
            |member| Heartbeat::new(record(member), ETag::new("heartbeat"), Duration::from_secs(5), Duration::ZERO);
        self.members.iter().map(seen).collect()
    }

    fn listing(&self, owner_of: impl Fn(u32) -> u32) -> Vec<Ownership> {
        let record = |partition| {
            let owner = &self.members[owner_of(partition) as usize];
            let mut record = OwnershipRecord::owned_by(owner.owner.clone(), Some(owner.incarnation.clone()));
            record.lease_duration = Some(TERMS.own);
            record.cooperative = true;
            record
        };
        let seen = |partition: u32| {
            let age = Duration::from_secs(5);
            Ownership::new(
                partition.into(),
                record(partition),
                ETag::new("seen"),
                age,
                (OffsetDateTime::UNIX_EPOCH, Duration::ZERO),
            )
        };
        (0..PARTITIONS).map(seen).collect()
    }
}

/// Measures and prints one row of the table.
fn compare<T>(rounds: usize, title: &str, view: &View<'_>, mut work: impl FnMut() -> T) {
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(time(&mut work));
        floor.push(time(|| view.partitions.clone()));
    }
    let (ours, floor) = (median(ours), median(floor));
    let ratio = ours.as_secs_f64() / floor.as_secs_f64();
    println!("{title:<42} {:>7.1} us {:>7.1} us  {ratio:>5.1}  at most 1000 us", micros(ours), micros(floor));
}

fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    let result = black_box(work());
    let elapsed = started.elapsed();
    drop(result);
    elapsed
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
