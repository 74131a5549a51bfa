//! Migrations from other programs: their plans, and what is done with them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::admin::migrate::{
    BlobContent, BlobContents, LegacyCheckpoint, LegacyListing, LegacyProgram, read,
};
use eventhubs_checkpoint::admin::{Operator, Plan, PlannedEffect};
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, Result};

use crate::administration::{checkpoints, done, operator, refused, write_checkpoint};
use crate::resets::publish;
use crate::world::World;

/// The blobs of another program.
#[derive(Debug)]
struct Blobs(BTreeMap<String, String>);

#[async_trait]
impl BlobContents for Blobs {
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>> {
        let listed = self.0.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(listed.map(|(name, content)| BlobContent::new(name, content.len() as u64, false)).collect())
    }

    async fn read_content(&self, name: &str, _limit: u32) -> Result<Vec<u8>> {
        let content = self.0.get(name).ok_or_else(|| Error::new(ErrorKind::NotFound, "it is absent"))?;
        Ok(content.as_bytes().to_vec())
    }
}

/// An event hub with 20 events in each partition. Their offsets are ten times their numbers.
async fn with_events(partitions: u32) -> (World, Operator) {
    let world = World::new(partitions);
    publish(&world, partitions, 0..20);
    let operator = operator(&world, 1).await;
    (world, operator)
}

async fn planned(world: &World, operator: &Operator, listing: &LegacyListing) -> Plan {
    operator.plan_migration(&world.hub.source(), listing, false).await.unwrap()
}

fn kafka(offsets: &[(u32, i64)]) -> LegacyListing {
    LegacyListing::of(
        offsets.iter().map(|(partition, offset)| LegacyCheckpoint::from_kafka((*partition).into(), *offset)),
    )
}

/// Returns the new position of each partition.
fn positions(plan: &Plan) -> Vec<(&str, Option<i64>, PlannedEffect)> {
    let position = |to: &eventhubs_checkpoint::Position| to.sequence_number;
    plan.changes.iter().map(|it| (it.partition.as_str(), it.to.as_ref().map(position), it.effect)).collect()
}

#[tokio::test(start_paused = true)]
async fn kafka_offsets_name_the_next_event() {
    let (world, operator) = with_events(5).await;
    let plan = planned(&world, &operator, &kafka(&[(0, 0), (1, 1), (2, 8), (3, 20), (4, 500), (9, 1)])).await;
    let created = |partition, number| (partition, Some(number), PlannedEffect::Create);
    let refused = ("9", None, PlannedEffect::Refused);
    let expected = [created("0", -1), created("1", 0), created("2", 7), created("3", 19), created("4", 19), refused];
    assert_eq!(positions(&plan), expected);
    done(&plan, &operator).await;
    let found: Vec<_> = checkpoints(&world).await.into_values().flatten().collect();
    assert_eq!(found, [-1, 0, 7, 19, 19]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_plan_changes_nothing() {
    let (world, operator) = with_events(1).await;
    let plan = planned(&world, &operator, &kafka(&[(0, 8)])).await;
    write_checkpoint(&world, 0, 3).await;
    assert_eq!(refused(&plan, &operator).await, Some(3));
    let plan = planned(&world, &operator, &kafka(&[(0, 8)])).await;
    assert_eq!(plan.writes().count(), 0, "it has a checkpoint now");
    let plan = operator.plan_migration(&world.hub.source(), &kafka(&[(0, 8)]), true).await.unwrap();
    write_checkpoint(&world, 0, 4).await;
    assert_eq!(refused(&plan, &operator).await, Some(4));
}

/// Some SDKs resume by the offset alone, and some records have no sequence number.
#[tokio::test(start_paused = true)]
async fn an_offset_alone_is_completed() {
    let (world, operator) = with_events(4).await;
    let content = |offset: &str| format!(r#"{{"offset": "{offset}", "owner": "host-1"}}"#);
    let offsets = [("0", "70"), ("1", "-1"), ("2", "190"), ("3", "9000")];
    let blobs = offsets.map(|(partition, offset)| (format!("$Default/{partition}"), content(offset)));
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    let listing = read(&Blobs(blobs.into()), LegacyProgram::EventProcessorHost, &group, None, Duration::from_secs(5))
        .await
        .unwrap();
    let plan = planned(&world, &operator, &listing).await;
    let numbers: Vec<_> = positions(&plan).into_iter().map(|(_, number, _)| number).collect();
    assert_eq!(numbers, [Some(7), Some(-1), Some(19), Some(19)]);
    assert_eq!(plan.changes[3].why.as_deref(), Some("it is after the last event"));
}

#[tokio::test(start_paused = true)]
async fn partitions_without_events_begin_at_the_first() {
    let world = World::new(1);
    let operator = operator(&world, 1).await;
    for offset in [0, 7] {
        let plan = planned(&world, &operator, &kafka(&[(0, offset)])).await;
        assert_eq!(positions(&plan), [("0", Some(-1), PlannedEffect::Create)]);
    }
}
