//! Operators of groups, their resets, and groups to reset.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use eventhubs_checkpoint::Position;
use eventhubs_checkpoint::admin::{Operator, Plan, Reset, ResetError, ResetOptions, ResetOutcome, ResetTarget};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use futures::StreamExt;
use tokio::time::sleep;

use super::{SECOND, group, write_record};
use crate::world::{Instance, World};

/// After this time a lease has expired.
pub const EXPIRY: Duration = Duration::from_secs(70);

pub async fn operator(world: &World) -> Operator {
    operator_with_seed(world, 5).await
}

pub async fn operator_with_seed(world: &World, seed: u64) -> Operator {
    let config = StoreConfig::default().with_lease_duration(world.expiry);
    Operator::builder(world.faulty.clone(), group()).with_config(config).with_seed(seed).connect().await.unwrap()
}

/// The offset of an event in memory is ten times its number.
pub fn at(number: i64) -> Position {
    Position::new(number, (number * 10).to_string())
}

pub fn after(number: i64) -> Reset {
    Reset::to(ResetTarget::Start(StartPosition::AfterSequenceNumber(number)))
}

/// Resets partitions to these sequence numbers.
pub async fn reset(world: &World, resets: &[(u32, i64)]) {
    let resets = resets.iter().map(|&(partition, to)| (partition.into(), at(to))).collect();
    let outcomes = operator(world).await.reset(resets, &ResetOptions::default()).await.unwrap();
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
}

pub async fn planned(world: &World, operator: &Operator, reset: &Reset) -> Plan {
    operator.plan(&world.hub.source(), reset).await.unwrap()
}

/// Executes all of a plan. Returns the outcomes by partition.
pub async fn executed(plan: &Plan, operator: &Operator, options: &ResetOptions) -> BTreeMap<String, ResetOutcome> {
    stopped(plan, operator, options, std::future::pending()).await
}

/// Executes a plan until `stop`.
pub async fn stopped(
    plan: &Plan,
    operator: &Operator,
    options: &ResetOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) -> BTreeMap<String, ResetOutcome> {
    let outcomes = plan.execute(operator, options, stop).await.unwrap();
    outcomes.map(|(partition, outcome)| (partition.to_string(), outcome)).collect().await
}

pub async fn done(plan: &Plan, operator: &Operator) {
    let outcomes = executed(plan, operator, &ResetOptions::default()).await;
    assert_eq!(outcomes.len(), plan.writes().count());
    assert!(outcomes.values().all(|outcome| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
}

/// Executes the plan for one partition, which must be refused because its checkpoint has changed. Returns the
/// checkpoint that was reported.
pub async fn refused(plan: &Plan, operator: &Operator) -> Option<i64> {
    let outcomes = executed(plan, operator, &ResetOptions::default()).await;
    let [(_, ResetOutcome::NotDone(ResetError::Changed { sequence_number }))] =
        &outcomes.iter().collect::<Vec<_>>()[..]
    else {
        panic!("{outcomes:?}")
    };
    *sequence_number
}

/// Fails if an operator still owns a partition.
pub async fn check_returned(world: &World) {
    let owners = world.owners().await;
    assert!(owners.values().all(|owner| !owner.starts_with("operator-")), "{owners:?}");
}

/// Writes a checkpoint like another SDK.
pub async fn write_checkpoint(world: &World, partition: u32, number: i64) {
    let record = [("sequencenumber", number.to_string()), ("offset", (number * 10).to_string())];
    write_record(world, &format!("checkpoint/{partition}"), &record).await;
}

/// Publishes events with these numbers to each of the first partitions.
pub fn publish(world: &World, partitions: u32, numbers: Range<i64>) {
    for partition in 0..partitions {
        for number in numbers.clone() {
            assert_eq!(world.hub.publish(partition, format!("{partition}:{number}")), Some(number));
        }
    }
}

/// Returns how often each of these events was processed.
pub fn times(world: &World, partition: u32, numbers: Range<i64>) -> Vec<usize> {
    numbers.map(|number| world.log.times(&format!("{partition}:{number}"))).collect()
}

/// Waits until the event with this number was processed so often in each of the first partitions.
pub async fn processed(world: &World, partitions: u32, number: i64, wanted: usize) {
    let all = |partition| world.log.times(&format!("{partition}:{number}")) >= wanted;
    world.log.wait_for("the last events", |_| (0..partitions).all(all)).await;
}

/// Starts an instance that owns all partitions, and waits until it has processed and checkpointed ten events of each.
pub async fn with_ten_checkpointed(world: &World, partitions: u32) -> Instance {
    let mut a = world.start("a").await;
    a.wait_until_it_holds(partitions as usize).await;
    publish(world, partitions, 0..10);
    processed(world, partitions, 9, 1).await;
    sleep(2 * SECOND).await;
    a
}

/// Returns a group without an owner, whose checkpoints are at 9, of 20 events each.
pub async fn without_owner(partitions: u32) -> World {
    let world = World::new(partitions);
    publish(&world, partitions, 0..20);
    for partition in 0..partitions {
        write_checkpoint(&world, partition, 9).await;
    }
    world
}

/// Returns a group of one partition, whose live owner has a checkpoint at 9.
pub async fn with_owner() -> (World, GroupStore, Adoption) {
    let world = without_owner(1).await;
    let store = world.store("a").await;
    let adoption = claimed(&store).await;
    (world, store, adoption)
}

/// Claims the first partition over its record, and adopts its checkpoint, as an owner does that an operator has
/// returned the partition to.
pub async fn claimed(store: &GroupStore) -> Adoption {
    let seen = store.read_ownership(&0.into()).await.unwrap();
    let claim = seen.as_ref().map_or_else(|| Claim::unowned(0.into()), Claim::over);
    let ClaimOutcome::Won(lease) = store.claim(&claim).await else { panic!("not won") };
    let AdoptOutcome::Adopted(adoption) = store.adopt(&0.into(), lease.epoch(), Some(&at(0))).await.unwrap() else {
        panic!("not adopted")
    };
    adoption
}

pub async fn advance(store: &GroupStore, adoption: &mut Adoption, number: i64) {
    assert_eq!(store.checkpoint(adoption, &at(number)).await.unwrap(), CheckpointOutcome::Written);
}
