//! Administration of groups: releases, deletions, exports, initial checkpoints, descriptions, migrations.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::admin::describe::GroupState;
use eventhubs_checkpoint::admin::migrate::{
    BlobContent, BlobContents, LegacyCheckpoint, LegacyListing, LegacyProgram, read,
};
use eventhubs_checkpoint::admin::{
    DeletableRecord, Deletion, Export, HubRanges, Operator, Plan, PlannedEffect, RecordName, Reset, ResetError,
    ResetOptions, ResetTarget,
};
use eventhubs_checkpoint::processor::StopReason;
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::Checkpoint;
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use eventhubs_checkpoint::{Error, ErrorKind, LeaseScope, PartitionId, Position, Result};
use tokio::time::sleep;

use crate::support::operator::{
    EXPIRY, advance, after, done, operator, planned, publish, refused, times, with_owner, with_ten_checkpointed,
    without_owner, write_checkpoint,
};
use crate::support::{SECOND, checkpoint_of, checkpoints, group, remove_record, write_record};
use crate::world::World;

mod releases {
    use super::*;

    async fn released(world: &World, options: &ResetOptions) -> BTreeMap<String, Result<(), ResetError>> {
        let partitions = (0..2).map(PartitionId::from).collect();
        let outcomes = operator(world).await.release(partitions, options).await.unwrap();
        outcomes.into_iter().map(|(partition, outcome)| (partition.to_string(), outcome)).collect()
    }

    async fn check_done(world: &World) {
        let outcomes = released(world, &ResetOptions::default()).await;
        assert!(outcomes.len() == 2 && outcomes.values().all(Result::is_ok), "{outcomes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_owner_loses_its_partitions() {
        for scope in [LeaseScope::Partition, LeaseScope::Instance] {
            let mut world = World::new(2);
            world.config = world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(scope));
            let mut a = with_ten_checkpointed(&world, 2).await;
            check_done(&world).await;
            assert!(world.owners().await.values().all(String::is_empty));
            let reason = world.first_stop().await;
            assert!(matches!(reason, StopReason::OwnershipLost { .. }), "{scope:?}: {reason:?}");
            sleep(60 * SECOND).await;
            a.wait_until_it_holds(2).await;
            assert_eq!(times(&world, 0, 0..10), [1; 10], "{scope:?}");
            assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(9); 2]);
            a.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_owner_loses_its_partitions() {
        for scope in [LeaseScope::Partition, LeaseScope::Instance] {
            let mut world = World::new(2);
            world.config = world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(scope));
            let a = with_ten_checkpointed(&world, 2).await;
            a.crash().await;
            sleep(EXPIRY).await;
            let described = operator(&world).await.read().await.unwrap().describe(None);
            assert_eq!(described.group.state, GroupState::Dead, "{scope:?}");
            check_done(&world).await;
            assert!(world.owners().await.values().all(String::is_empty), "{scope:?}");
            let mut b = world.start("b").await;
            b.wait_until_it_holds(2).await;
            b.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_owner_stays_if_wanted() {
        for scope in [LeaseScope::Partition, LeaseScope::Instance] {
            let mut world = World::new(2);
            world.config = world.config.clone().with_balancer(|balancer| balancer.with_lease_scope(scope));
            let a = with_ten_checkpointed(&world, 2).await;
            sleep(300 * SECOND).await;
            let outcomes = released(&world, &ResetOptions::default().with_allow_live(false)).await;
            for outcome in outcomes.into_values() {
                assert!(
                    matches!(outcome.unwrap_err(), ResetError::Live { owner } if owner.as_str() == "a"),
                    "{scope:?}"
                );
            }
            assert!(world.owners().await.values().all(|owner| owner == "a"));
            a.shut_down().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_without_a_record_gets_none() {
        let world = without_owner(1).await;
        let outcomes = operator(&world).await.release(vec![99.into()], &ResetOptions::default()).await.unwrap();
        assert!(matches!(outcomes[0].1, Ok(())), "{outcomes:?}");
        assert!(world.owners().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_response_is_found_out() {
        for operation in 0..2 {
            let world = without_owner(2).await;
            for partition in 0..2 {
                write_record(&world, &format!("ownership/{partition}"), &[("ownerid", "")]).await;
            }
            let writes = Target::from(BlobOperation::Write).named("/ownership/0");
            if operation == 1 {
                world.faulty.inject_on(writes.clone(), Fault::Latency(Duration::ZERO));
            }
            world.faulty.inject_on(writes, Fault::ResponseLost);
            check_done(&world).await;
            assert!(world.owners().await.values().all(String::is_empty));
        }
    }
}

mod deletions {
    use super::*;

    fn all() -> Deletion {
        let mut deletion = Deletion::default();
        (deletion.checkpoints, deletion.ownerships, deletion.heartbeats) = (true, true, true);
        deletion
    }

    fn checkpoints_only() -> Deletion {
        let mut deletion = Deletion::default();
        deletion.checkpoints = true;
        deletion
    }

    #[tokio::test(start_paused = true)]
    async fn the_records_of_live_members_are_marked() {
        let world = World::new(2);
        let a = with_ten_checkpointed(&world, 2).await;
        let operator = operator(&world).await;
        let live = |found: &[DeletableRecord]| {
            found.iter().map(|found| (found.record.to_string(), found.is_live)).collect::<BTreeMap<_, _>>()
        };
        let found = live(&operator.reader().plan_deletion(&all()).await.unwrap());
        assert!(found.len() >= 4 && found.values().all(|live| *live), "{found:?}");
        let mut limited = all();
        limited.partitions = Some([1.into()].into());
        let found = live(&operator.reader().plan_deletion(&limited).await.unwrap());
        assert!(found.contains_key("ownership/1") && !found.contains_key("ownership/0"), "{found:?}");
        assert!(operator.reader().plan_deletion(&Deletion::default()).await.unwrap().is_empty());
        a.crash().await;
        sleep(EXPIRY).await;
        let found = live(&operator.reader().plan_deletion(&all()).await.unwrap());
        assert!(found.values().all(|live| !*live), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_record_stays() {
        let (world, a, mut adoption) = with_owner().await;
        let operator = operator(&world).await;
        let found = operator.reader().plan_deletion(&checkpoints_only()).await.unwrap().remove(0);
        assert_eq!(found.record, RecordName::Checkpoint(0.into()));
        advance(&a, &mut adoption, 12).await;
        assert_eq!(operator.reader().delete(&found).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(checkpoint_of(&world, 0).await, Some(12));
        let found = operator.reader().plan_deletion(&checkpoints_only()).await.unwrap().remove(0);
        operator.reader().delete(&found).await.unwrap();
        assert_eq!(checkpoints(&world).await.len(), 0);
        operator.reader().delete(&found).await.unwrap();
        write_checkpoint(&world, 0, 3).await;
        assert_eq!(
            operator.reader().delete(&found).await.unwrap_err().kind(),
            ErrorKind::Conflict,
            "it is another one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_response_is_repeated() {
        for fault in
            [Fault::ResponseLost, Fault::RequestLost, Fault::Unreachable, Fault::Throttled { retry_after: None }]
        {
            let world = without_owner(1).await;
            let operator = operator(&world).await;
            let found = operator.reader().plan_deletion(&checkpoints_only()).await.unwrap().remove(0);
            world.faulty.inject_on(BlobOperation::Delete, fault.clone());
            let error = operator.reader().delete(&found).await.unwrap_err();
            let left = usize::from(fault != Fault::ResponseLost);
            assert_eq!(checkpoints(&world).await.len(), left, "{fault:?}: {error}");
            assert_ne!(error.kind(), ErrorKind::Conflict, "{fault:?}");
            operator.reader().delete(&found).await.unwrap();
            assert_eq!(checkpoints(&world).await.len(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_export_brings_all_positions_back() {
        let world = without_owner(4).await;
        for (partition, number) in (0..3).zip([-1, 4, 19]) {
            write_checkpoint(&world, partition, number).await;
        }
        let operator = operator(&world).await;
        let before = world.store("observer").await.list_checkpoints().await.unwrap().records;
        let export = Export::from(&operator.read().await.unwrap().describe(None));
        for found in operator.reader().plan_deletion(&all()).await.unwrap() {
            operator.reader().delete(&found).await.unwrap();
        }
        assert_eq!(checkpoints(&world).await.len(), 0);
        let read: Export = serde_json::from_str(&serde_json::to_string(&export).unwrap()).unwrap();
        let reset = Reset::to(read.into());
        for without_hub in [false, true] {
            let plan = if without_hub {
                operator.plan_without_hub(&reset).await.unwrap()
            } else {
                planned(&world, &operator, &reset).await
            };
            let expected = if without_hub { PlannedEffect::NoChange } else { PlannedEffect::Create };
            assert!(plan.changes.len() == 4 && plan.changes.iter().all(|change| change.effect == expected), "{plan:?}");
            done(&plan, &operator).await;
        }
        let after = world.store("observer").await.list_checkpoints().await.unwrap().records;
        let positions = |seen: Vec<Checkpoint>| {
            seen.into_iter().map(|seen| (seen.partition, seen.record.position())).collect::<Vec<_>>()
        };
        assert_eq!(positions(after), positions(before));
    }
}

mod initial_checkpoints {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_are_written_where_there_is_none() {
        let world = without_owner(4).await;
        let operator = operator(&world).await;
        for partition in [1, 3] {
            remove_record(&world, &format!("checkpoint/{partition}")).await;
        }
        let plan = planned(&world, &operator, &after(15)).await;
        assert_eq!(plan.writes().count(), 4);
        write_checkpoint(&world, 3, 2).await;
        world.faulty.inject_on(Target::from(BlobOperation::Write).named("/checkpoint/1"), Fault::ResponseLost);
        let outcomes = plan.init(&operator).await;
        let outcomes: Vec<_> =
            outcomes.into_iter().map(|(partition, outcome)| (partition.as_str(), outcome.unwrap())).collect();
        assert_eq!(outcomes, [("1", InitOutcome::Written), ("3", InitOutcome::Exists)]);
        assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(9), Some(15), Some(9), Some(2)]);
        let again: Vec<_> = plan.init(&operator).await.into_iter().map(|(_, outcome)| outcome.unwrap()).collect();
        assert_eq!(again, [InitOutcome::Written, InitOutcome::Exists]);
        let records = world.store("observer").await.list_checkpoints().await.unwrap().records;
        assert_eq!(records.iter().filter(|seen| seen.record.initial).count(), 1);
        assert!(world.owners().await.is_empty(), "no partition is taken over");
    }
}

mod descriptions {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_live_group_is_described_and_healthy() {
        let world = World::new(3);
        let a = with_ten_checkpointed(&world, 3).await;
        world.hub.publish(1, "hang");
        sleep(2 * SECOND).await;
        let operator = operator(&world).await;
        let records = operator.read().await.unwrap();
        let hub = HubRanges::read(&world.hub.source()).await.unwrap();
        let described = records.describe(Some(&hub));
        assert_eq!((described.group.state, described.group.members), (GroupState::Stable, 1));
        assert_eq!(described.group.lag.events, Some(1));
        let partitions = &described.members[0].partitions;
        assert_eq!(partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>(), ["0", "1", "2"]);
        assert_eq!(records.diagnose(Some(&hub), 3 * 60 * SECOND).len(), 0);
        sleep(4 * 60 * SECOND).await;
        let findings = operator.read().await.unwrap().diagnose(Some(&hub), 3 * 60 * SECOND);
        let found: Vec<_> = findings.iter().map(|found| (found.check.as_str(), found.partitions.len())).collect();
        assert_eq!(found, [("stuck-partition", 1)]);
        a.crash().await;
    }

    #[tokio::test(start_paused = true)]
    async fn positions_from_before_a_recreation_are_refused() {
        let world = without_owner(1).await;
        let operator = operator(&world).await;
        let export = Export::from(&operator.read().await.unwrap().describe(None));
        let reset = Reset::to(export.clone().into()).with_recorded_at(export.taken_at.unwrap());
        assert_eq!(planned(&world, &operator, &reset).await.changes[0].effect, PlannedEffect::NoChange);
        sleep(60 * SECOND).await;
        world.hub.recreate();
        publish(&world, 1, 0..20);
        let change = planned(&world, &operator, &reset).await.changes.remove(0);
        let why = change.why.unwrap_or_default();
        assert!(change.effect == PlannedEffect::Refused && why.contains("created after the positions"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_recreated_event_hub_is_found_and_repaired() {
        let world = without_owner(2).await;
        sleep(60 * SECOND).await;
        world.hub.recreate();
        publish(&world, 2, 0..5);
        let operator = operator(&world).await;
        let hub = HubRanges::read(&world.hub.source()).await.unwrap();
        let found = operator.read().await.unwrap().diagnose(Some(&hub), 3 * 60 * SECOND);
        let checks: Vec<_> = found.iter().map(|found| found.check.as_str()).collect();
        assert_eq!(
            checks,
            ["no-members", "checkpoint-of-former-hub"],
            "five events wait, however many the old hub had"
        );
        let plan = planned(&world, &operator, &Reset::to(ResetTarget::Start(StartPosition::Earliest))).await;
        done(&plan, &operator).await;
        let found = operator.read().await.unwrap().diagnose(Some(&hub), 3 * 60 * SECOND);
        assert_eq!(found.iter().map(|found| found.check.as_str()).collect::<Vec<_>>(), ["no-members"]);
    }
}

/// Migrations from other programs: their plans, and what is done with them.
mod migrations {
    use super::*;

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
        let operator = operator(&world).await;
        (world, operator)
    }

    async fn planned_migration(world: &World, operator: &Operator, listing: &LegacyListing) -> Plan {
        operator.plan_migration(&world.hub.source(), listing, false).await.unwrap()
    }

    fn kafka(offsets: &[(u32, i64)]) -> LegacyListing {
        LegacyListing::of(
            offsets.iter().map(|(partition, offset)| LegacyCheckpoint::from_kafka((*partition).into(), *offset)),
        )
    }

    /// Returns the new position of each partition.
    fn positions(plan: &Plan) -> Vec<(&str, Option<i64>, PlannedEffect)> {
        let position = |to: &Position| to.sequence_number;
        plan.changes.iter().map(|it| (it.partition.as_str(), it.to.as_ref().map(position), it.effect)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn kafka_offsets_name_the_next_event() {
        let (world, operator) = with_events(5).await;
        let plan =
            planned_migration(&world, &operator, &kafka(&[(0, 0), (1, 1), (2, 8), (3, 20), (4, 500), (9, 1)])).await;
        let created = |partition, number| (partition, Some(number), PlannedEffect::Create);
        let refused = ("9", None, PlannedEffect::Refused);
        let expected =
            [created("0", -1), created("1", 0), created("2", 7), created("3", 19), created("4", 19), refused];
        assert_eq!(positions(&plan), expected);
        done(&plan, &operator).await;
        let found: Vec<_> = checkpoints(&world).await.into_values().flatten().collect();
        assert_eq!(found, [-1, 0, 7, 19, 19]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_plan_changes_nothing() {
        let (world, operator) = with_events(1).await;
        let plan = planned_migration(&world, &operator, &kafka(&[(0, 8)])).await;
        write_checkpoint(&world, 0, 3).await;
        assert_eq!(refused(&plan, &operator).await, Some(3));
        let plan = planned_migration(&world, &operator, &kafka(&[(0, 8)])).await;
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
        let listing =
            read(&Blobs(blobs.into()), LegacyProgram::EventProcessorHost, &group(), None, Duration::from_secs(5))
                .await
                .unwrap();
        let plan = planned_migration(&world, &operator, &listing).await;
        let numbers: Vec<_> = positions(&plan).into_iter().map(|(_, number, _)| number).collect();
        assert_eq!(numbers, [Some(7), Some(-1), Some(19), Some(19)]);
        assert_eq!(plan.changes[3].why.as_deref(), Some("it is after the last event"));
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_without_events_begin_at_the_first() {
        let world = World::new(1);
        let operator = operator(&world).await;
        for offset in [0, 7] {
            let plan = planned_migration(&world, &operator, &kafka(&[(0, offset)])).await;
            assert_eq!(positions(&plan), [("0", Some(-1), PlannedEffect::Create)]);
        }
    }
}
