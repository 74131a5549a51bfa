//! Plans of operators for resets: what they contain, what makes them stale, and their outcomes under faults.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::admin::describe::{OwnershipState, RecordedPosition};
use eventhubs_checkpoint::admin::{Plan, PlannedEffect, Reset, ResetError, ResetOptions, ResetOutcome, ResetTarget};
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
use eventhubs_checkpoint::{ErrorKind, OwnerId};
use futures::StreamExt;
use tokio::time::{Instant, sleep};

use crate::support::operator::{
    EXPIRY, advance, after, at, check_returned, claimed, done, executed, operator, operator_with_seed, planned,
    processed, publish, refused, stopped, times, with_owner, with_ten_checkpointed, without_owner, write_checkpoint,
};
use crate::support::sources::{ScriptedSource, SourceFaults};
use crate::support::{SECOND, checkpoint_of, checkpoints, remove_record, write_record};
use crate::world::{World, random_faults};

mod contents {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_link_that_breaks_is_opened_again() {
        for (broken, is_planned) in [(2, true), (3, false)] {
            let world = World::new(1);
            world.hub.publish_many(0, 10, "x");
            let faults = SourceFaults { broken_links: Arc::new(broken.into()), ..SourceFaults::default() };
            let plan = operator(&world).await.plan(&ScriptedSource::new(&world.hub, faults), &after(4)).await;
            assert_eq!(plan.is_ok(), is_planned, "{plan:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_group_moves_exactly_there() {
        let world = World::new(3);
        let mut a = with_ten_checkpointed(&world, 3).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4).with_partitions([0.into(), 2.into()])).await;
        let shown: Vec<_> = plan.changes.iter().map(|change| (change.partition.as_str(), change.effect)).collect();
        assert_eq!(shown, [("0", PlannedEffect::Move), ("2", PlannedEffect::Move)]);
        for change in &plan.changes {
            assert_eq!((change.to.as_ref(), change.delta), (Some(&at(4)), Some(-5)));
            assert_eq!(change.owner.as_ref().map(|owner| owner.id.as_str()), Some("a"));
        }
        assert_eq!(times(&world, 0, 0..10), [1; 10], "nothing is written yet");
        done(&plan, &operator).await;
        assert_eq!(checkpoint_of(&world, 0).await, Some(4));
        check_returned(&world).await;
        world.log.wait_for("again", |log| log.times("0:9") == 2 && log.times("2:9") == 2).await;
        sleep(60 * SECOND).await;
        for (partition, again) in [(0, 2), (1, 1), (2, 2)] {
            assert_eq!(times(&world, partition, 0..10)[..5], [1; 5]);
            assert_eq!(times(&world, partition, 0..10)[5..], [again; 5]);
            assert_eq!(checkpoint_of(&world, partition).await, Some(9));
        }
        a.wait_until_it_holds(3).await;
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_is_found_in_every_partition() {
        let world = World::new(2);
        publish(&world, 2, 0..5);
        sleep(SECOND).await;
        let time = world.hub.now();
        sleep(SECOND).await;
        world.hub.publish(0, "later");
        let operator = operator(&world).await;
        let reset = Reset::to(ResetTarget::Start(StartPosition::EnqueuedAfter(time)));
        let plan = planned(&world, &operator, &reset).await;
        assert!(plan.changes.iter().all(|change| change.effect == PlannedEffect::Create));
        assert!(plan.changes.iter().all(|change| change.to == Some(at(4))), "{plan:?}");
        done(&plan, &operator).await;
        assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(4); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_event_and_expired_events() {
        let world = without_owner(3).await;
        world.hub.expire_before(1, 15);
        world.hub.expire_before(2, i64::MAX);
        let operator = operator(&world).await;
        let effects = |plan: &Plan| plan.changes.iter().map(|change| change.effect).collect::<Vec<_>>();
        let plan = planned(&world, &operator, &after(12)).await;
        assert_eq!(effects(&plan), [PlannedEffect::Move, PlannedEffect::Expired, PlannedEffect::Expired]);
        done(&plan, &operator).await;
        assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(12), Some(14), Some(19)]);
        let plan = planned(&world, &operator, &after(100)).await;
        assert_eq!(effects(&plan), [PlannedEffect::BeyondEnd, PlannedEffect::BeyondEnd, PlannedEffect::NoChange]);
        let missing = planned(&world, &operator, &Reset::to(ResetTarget::Current)).await;
        assert_eq!(missing.writes().count(), 0);
    }

    /// Only another reset sets it again.
    #[tokio::test(start_paused = true)]
    async fn a_missing_number_is_completed() {
        let world = without_owner(2).await;
        write_record(&world, "checkpoint/0", &[("sequencenumber", "7")]).await;
        write_record(&world, "checkpoint/1", &[("offset", "70")]).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &Reset::to(ResetTarget::Current)).await;
        assert!(plan.changes.iter().all(|change| change.effect == PlannedEffect::Complete), "{plan:?}");
        done(&plan, &operator).await;
        let records = world.store("observer").await.list_checkpoints().await.unwrap().records;
        assert!(records.iter().all(|seen| seen.record.position() == Some(at(7))), "{records:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_partitions_are_rejected() {
        let world = without_owner(2).await;
        let operator = operator(&world).await;
        let named = Reset::to(ResetTarget::Positions([(7.into(), RecordedPosition::default())].into()));
        for reset in [after(3).with_partitions([7.into()]), named] {
            let error = operator.plan(&world.hub.source(), &reset).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("no partition 7: the partitions are 0, 1"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn live_owners_are_left_alone_if_wanted() {
        let world = World::new(2);
        let a = with_ten_checkpointed(&world, 2).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        let outcomes = executed(&plan, &operator, &ResetOptions::default().with_allow_live(false)).await;
        assert_eq!(outcomes.len(), 2);
        for outcome in outcomes.values() {
            assert!(
                matches!(outcome, ResetOutcome::NotDone(ResetError::Live { owner }) if owner.as_str() == "a"),
                "{outcome:?}"
            );
        }
        sleep(60 * SECOND).await;
        assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(9); 2]);
        assert!(world.log.stops.lock().unwrap().is_empty());
        a.crash().await;
        sleep(EXPIRY).await;
        let outcomes = executed(&plan, &operator, &ResetOptions::default().with_allow_live(false)).await;
        assert!(outcomes.values().all(|outcome| matches!(outcome, ResetOutcome::Done)), "{outcomes:?}");
    }
}

mod stale_plans {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_of_the_live_owner_is_expected() {
        let world = World::new(1);
        let a = with_ten_checkpointed(&world, 1).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        publish(&world, 1, 10..15);
        processed(&world, 1, 14, 1).await;
        sleep(2 * SECOND).await;
        assert_eq!(checkpoint_of(&world, 0).await, Some(14));
        done(&plan, &operator).await;
        assert_eq!(checkpoint_of(&world, 0).await, Some(4));
        processed(&world, 1, 14, 2).await;
        assert_eq!(times(&world, 0, 0..15), [[1; 5].as_slice(), &[2; 10]].concat());
        a.shut_down().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_owner_any_change_counts() {
        for changed in [3, 8, 10, 15] {
            let world = without_owner(1).await;
            let operator = operator(&world).await;
            let plan = planned(&world, &operator, &after(4)).await;
            write_checkpoint(&world, 0, changed).await;
            assert_eq!(refused(&plan, &operator).await, Some(changed));
            assert_eq!(checkpoint_of(&world, 0).await, Some(changed));
            check_returned(&world).await;
            done(&planned(&world, &operator, &after(4)).await, &operator).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_checkpoint_created_in_between_stays() {
        let world = World::new(1);
        publish(&world, 1, 0..20);
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        write_checkpoint(&world, 0, 15).await;
        assert_eq!(refused(&plan, &operator).await, Some(15));
        assert_eq!(checkpoint_of(&world, 0).await, Some(15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_checkpoint_is_not_created_again() {
        let (world, _a, _) = with_owner().await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        remove_record(&world, "checkpoint/0").await;
        assert_eq!(refused(&plan, &operator).await, None);
        assert_eq!(checkpoints(&world).await.len(), 0);
    }

    /// The owner may have returned since, or not.
    #[tokio::test(start_paused = true)]
    async fn a_reset_by_another_operator_stays() {
        for to in [2, 15] {
            for returns in [false, true] {
                let (world, a, _) = with_owner().await;
                let first = operator(&world).await;
                let plan = planned(&world, &first, &after(4)).await;
                let second = operator_with_seed(&world, 6).await;
                done(&planned(&world, &second, &after(to)).await, &second).await;
                if returns {
                    let _ = claimed(&a).await;
                }
                assert_eq!(refused(&plan, &first).await, Some(to), "returns: {returns}");
                assert_eq!(checkpoint_of(&world, 0).await, Some(to), "returns: {returns}");
                check_returned(&world).await;
            }
        }
    }

    /// The plan was made while that operator worked.
    #[tokio::test(start_paused = true)]
    async fn a_reset_under_way_stays() {
        let world = without_owner(1).await;
        let operator = operator(&world).await;
        let held = [
            ("ownerid", "operator-1"),
            ("ehcoperator", "operator-1"),
            ("ehcincarnation", "20260101T000000Z-00000001"),
            ("ehcepoch", "7"),
            ("ehcleaseduration", "60"),
        ];
        write_record(&world, "ownership/0", &held).await;
        let plan = planned(&world, &operator, &after(4)).await;
        let described = operator.read().await.unwrap().describe(None);
        assert_eq!(described.partitions[0].state, OwnershipState::Operator);
        write_checkpoint(&world, 0, 15).await;
        let busy = executed(&plan, &operator, &ResetOptions::default()).await;
        assert!(matches!(busy["0"], ResetOutcome::NotDone(ResetError::Busy { .. })), "{busy:?}");
        sleep(EXPIRY).await;
        assert_eq!(refused(&plan, &operator).await, Some(15));
        assert_eq!(checkpoint_of(&world, 0).await, Some(15));
    }

    #[tokio::test(start_paused = true)]
    async fn another_owner_may_not_have_advanced() {
        let (world, _a, _) = with_owner().await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        let b = world.store("b").await;
        let mut adoption = claimed(&b).await;
        advance(&b, &mut adoption, 12).await;
        assert_eq!(refused(&plan, &operator).await, Some(12));
        assert_eq!(checkpoint_of(&world, 0).await, Some(12));
        check_returned(&world).await;
    }

    /// Its first checkpoint is one that exists.
    #[tokio::test(start_paused = true)]
    async fn existing_checkpoints_stay_if_wanted() {
        for keeps in [false, true] {
            let world = World::new(1);
            publish(&world, 1, 0..20);
            write_record(&world, "ownership/0", &[("ownerid", "python")]).await;
            let operator = operator(&world).await;
            let plan = planned(&world, &operator, &after(4).with_keep_existing(keeps)).await;
            assert_eq!(plan.changes[0].effect, PlannedEffect::Create);
            write_checkpoint(&world, 0, 15).await;
            let options = ResetOptions::default().with_allow_foreign(true);
            let outcome = executed(&plan, &operator, &options).await.remove("0").unwrap();
            let changed = matches!(outcome, ResetOutcome::NotDone(ResetError::Changed { sequence_number: Some(15) }));
            assert_eq!(changed, keeps, "{outcome:?}");
            assert_eq!(checkpoint_of(&world, 0).await, Some(if keeps { 15 } else { 4 }));
        }
    }
}

mod stops {
    use super::*;

    /// Returns whether each partition is done. The others are as before.
    async fn check(world: &World, outcomes: &BTreeMap<String, ResetOutcome>, case: &str) -> Vec<bool> {
        check_returned(world).await;
        let checkpoints = checkpoints(world).await;
        let is_done = |(partition, outcome): (&String, &ResetOutcome)| {
            let is_done = match outcome {
                ResetOutcome::Done => true,
                ResetOutcome::NotDone(ResetError::Stopped) => false,
                other => panic!("{case}: {partition}: {other:?}"),
            };
            assert_eq!(checkpoints[partition], Some(if is_done { 4 } else { 9 }), "{case}: {partition}");
            is_done
        };
        outcomes.iter().map(is_done).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_partition_is_done_or_untouched() {
        let mut seen = [0, 0, 0];
        for milliseconds in (0..6000).step_by(200) {
            let world = without_owner(6).await;
            let operator = operator(&world).await;
            let plan = planned(&world, &operator, &after(4)).await;
            world.faulty.set_plan(FaultPlan::default().with(0.7, Fault::Latency(SECOND)));
            let stop = sleep(Duration::from_millis(milliseconds));
            let outcomes = stopped(&plan, &operator, &ResetOptions::default(), stop).await;
            world.faulty.set_plan(FaultPlan::default());
            assert_eq!(outcomes.len(), 6);
            let done = check(&world, &outcomes, &milliseconds.to_string()).await;
            match done.iter().filter(|done| **done).count() {
                0 => seen[0] += 1,
                6 => seen[2] += 1,
                _ => seen[1] += 1,
            }
        }
        assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
    }

    /// The operator waits until owners of other SDKs have stopped.
    #[tokio::test(start_paused = true)]
    async fn the_wait_for_other_sdks_ends_at_once() {
        for milliseconds in [0, 2500, 10_000, 10_005, 59_000] {
            let world = without_owner(3).await;
            write_record(&world, "ownership/0", &[("ownerid", "python")]).await;
            let operator = operator(&world).await;
            let plan = planned(&world, &operator, &after(4)).await;
            let options = ResetOptions::default().with_allow_foreign(true);
            let began = Instant::now();
            let outcomes = stopped(&plan, &operator, &options, sleep(Duration::from_millis(milliseconds))).await;
            assert!(began.elapsed() < Duration::from_millis(milliseconds) + 5 * SECOND, "{:?}", began.elapsed());
            let done = check(&world, &outcomes, &milliseconds.to_string()).await;
            assert_eq!(done, [false; 3]);
        }
    }

    /// The claim is applied, but its response and the read after it are lost. The stop comes before the next claim.
    #[tokio::test(start_paused = true)]
    async fn a_claim_without_a_response_is_returned() {
        let world = without_owner(1).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        world.faulty.inject_on(Target::from(BlobOperation::Write).named("/ownership/0"), Fault::ResponseLost);
        world.faulty.inject_on(Target::from(BlobOperation::Get).named("/ownership/0"), Fault::RequestLost);
        let stop = sleep(Duration::from_millis(100));
        let outcomes = stopped(&plan, &operator, &ResetOptions::default(), stop).await;
        assert_eq!(check(&world, &outcomes, "a claim").await, [false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_group_continues() {
        let world = World::new(2);
        let mut a = with_ten_checkpointed(&world, 2).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        world.faulty.inject_on(Target::from(BlobOperation::Get).named("/checkpoint/0"), Fault::Latency(3 * SECOND));
        let outcomes = stopped(&plan, &operator, &ResetOptions::default(), sleep(SECOND)).await;
        assert!(matches!(outcomes["0"], ResetOutcome::NotDone(ResetError::Stopped)), "{outcomes:?}");
        assert!(matches!(outcomes["1"], ResetOutcome::Done), "{outcomes:?}");
        world.log.wait_for("again", |log| log.times("1:9") == 2).await;
        a.wait_until_it_holds(2).await;
        sleep(60 * SECOND).await;
        assert_eq!(times(&world, 0, 0..10), [1; 10]);
        assert_eq!(checkpoint_of(&world, 0).await, Some(9));
        a.shut_down().await.unwrap();
    }
}

mod faults {
    use super::*;

    fn single_faults() -> [Fault; 9] {
        [
            Fault::ResponseLost,
            Fault::RequestLost,
            Fault::Unreachable,
            Fault::Throttled { retry_after: None },
            Fault::Throttled { retry_after: Some(3 * SECOND) },
            Fault::Conflict,
            Fault::Hang,
            Fault::AppliedLate(SECOND / 10),
            Fault::AppliedLate(20 * SECOND),
        ]
    }

    /// Each request of a reset fails once.
    #[tokio::test(start_paused = true)]
    async fn one_fault_does_not_prevent_a_reset() {
        for fault in single_faults() {
            for (name, operation) in [
                ("/ownership/0", BlobOperation::Write),
                ("/ownership/0", BlobOperation::Get),
                ("/checkpoint/0", BlobOperation::Write),
                ("/checkpoint/0", BlobOperation::Get),
            ] {
                for earlier in 0..2 {
                    let (world, _a, _) = with_owner().await;
                    let operator = operator(&world).await;
                    let plan = planned(&world, &operator, &after(4)).await;
                    let target = Target::from(operation).named(name);
                    for _ in 0..earlier {
                        world.faulty.inject_on(target.clone(), Fault::Latency(Duration::ZERO));
                    }
                    world.faulty.inject_on(target, fault.clone());
                    let case = format!("{fault:?}, {operation} {name}, after {earlier}");
                    let outcomes = executed(&plan, &operator, &ResetOptions::default()).await;
                    assert!(matches!(outcomes["0"], ResetOutcome::Done), "{case}: {outcomes:?}");
                    assert_eq!(checkpoint_of(&world, 0).await, Some(4), "{case}");
                    check_returned(&world).await;
                    sleep(30 * SECOND).await;
                    assert_eq!(checkpoint_of(&world, 0).await, Some(4), "{case}: later");
                    check_returned(&world).await;
                }
            }
        }
    }

    /// The position was written, and its response was lost. All that follows fails.
    #[tokio::test(start_paused = true)]
    async fn an_unknown_outcome_is_reported_as_such() {
        let (world, _a, _) = with_owner().await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        let writes = Target::from(BlobOperation::Write).named("/checkpoint/0");
        world.faulty.inject_on(writes.clone(), Fault::Latency(Duration::ZERO));
        world.faulty.inject_on(writes, Fault::ResponseLost);
        let outage = FaultPlan::default().with_on(1.0, BlobOperation::Get, Fault::Unreachable);
        world.faulty.set_plan(FaultPlan::default());
        let reset = async {
            let outcomes = executed(&plan, &operator, &ResetOptions::default()).await;
            assert!(
                matches!(outcomes["0"], ResetOutcome::Indeterminate { written: false, error: Some(_) }),
                "{outcomes:?}"
            );
        };
        let break_after = async {
            while world.faulty.pending() > 0 {
                tokio::task::yield_now().await;
            }
            world.faulty.set_plan(outage);
        };
        tokio::join!(reset, break_after);
        world.faulty.set_plan(FaultPlan::default());
        assert_eq!(checkpoint_of(&world, 0).await, Some(4));
    }

    /// The position cannot be written. The partition returns to its owner.
    #[tokio::test(start_paused = true)]
    async fn a_failed_write_leaves_the_checkpoint() {
        for fault in [Fault::Unreachable, Fault::Throttled { retry_after: Some(SECOND) }] {
            let (world, _a, _) = with_owner().await;
            let operator = operator(&world).await;
            let plan = planned(&world, &operator, &after(4)).await;
            let writes = Target::from(BlobOperation::Write).named("/checkpoint/0");
            world.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, fault.clone()));
            let outcomes = executed(&plan, &operator, &ResetOptions::default()).await;
            world.faulty.set_plan(FaultPlan::default());
            assert!(matches!(outcomes["0"], ResetOutcome::NotDone(ResetError::Failed(_))), "{fault:?}: {outcomes:?}");
            assert_eq!(checkpoint_of(&world, 0).await, Some(9), "{fault:?}");
            check_returned(&world).await;
            let reserved = world.store("observer").await.read_ownership(&0.into()).await.unwrap().unwrap();
            assert_eq!(reserved.record.handoff_to, OwnerId::new("a").ok(), "{fault:?}");
        }
    }

    /// Also if the responses to the claim were lost: the next attempt finds no owner of another SDK.
    #[tokio::test(start_paused = true)]
    async fn the_wait_for_other_sdks_is_kept() {
        let world = without_owner(1).await;
        write_record(&world, "ownership/0", &[("ownerid", "python")]).await;
        let operator = operator(&world).await;
        let plan = planned(&world, &operator, &after(4)).await;
        world.faulty.inject_on(Target::from(BlobOperation::Write).named("/ownership/0"), Fault::ResponseLost);
        world.faulty.inject_on(Target::from(BlobOperation::Get).named("/ownership/0"), Fault::Unreachable);
        let began = Instant::now();
        let outcomes = executed(&plan, &operator, &ResetOptions::default().with_allow_foreign(true)).await;
        assert!(matches!(outcomes["0"], ResetOutcome::Done), "{outcomes:?}");
        assert_eq!(world.faulty.pending(), 0);
        assert!(began.elapsed() >= 60 * SECOND, "{:?}", began.elapsed());
    }

    /// Random requests fail.
    #[tokio::test(start_paused = true)]
    async fn all_outcomes_are_true() {
        let world = without_owner(4).await;
        let operator = operator(&world).await;
        let (options, mut seen) = (ResetOptions::default(), BTreeMap::<&str, usize>::new());
        for round in 0..60i64 {
            let before = checkpoints(&world).await;
            let to = round % 15;
            let plan = planned(&world, &operator, &after(to)).await;
            let faults = random_faults();
            world.faulty.set_plan(faults.with(0.05, Fault::Throttled { retry_after: None }));
            let outcomes = plan.execute(&operator, &options, pending()).await;
            let outcomes: Vec<_> = match outcomes {
                Ok(outcomes) => outcomes.collect().await,
                Err(_) => Vec::new(),
            };
            world.faulty.set_plan(FaultPlan::default());
            // Late writes have arrived, and leases that were not released have expired.
            sleep(EXPIRY).await;
            let after = checkpoints(&world).await;
            for (partition, outcome) in outcomes {
                let (before, after) = (before[partition.as_str()], after[partition.as_str()]);
                let kind = match outcome {
                    ResetOutcome::Done | ResetOutcome::Indeterminate { written: true, .. } => {
                        assert_eq!(after, Some(to), "{round}: {partition}: {outcome:?}");
                        "done"
                    }
                    ResetOutcome::NotDone(_) => {
                        assert_eq!(after, before, "{round}: {partition}: {outcome:?}");
                        "not done"
                    }
                    _ => {
                        assert!(after == before || after == Some(to), "{round}: {partition}: {outcome:?}");
                        "indeterminate"
                    }
                };
                *seen.entry(kind).or_default() += 1;
            }
        }
        assert!(seen["done"] > 100, "{seen:?}");
    }

    /// Of two plans for the same checkpoint, at most one is executed.
    #[tokio::test(start_paused = true)]
    async fn one_of_two_plans_at_the_same_time() {
        let mut seen = [0; 3];
        for delay in 0..40u32 {
            let (world, _a, _) = with_owner().await;
            let operators = [operator(&world).await, operator_with_seed(&world, 6).await];
            let plans =
                [planned(&world, &operators[0], &after(4)).await, planned(&world, &operators[1], &after(15)).await];
            world.faulty.set_plan(FaultPlan::default().with(0.5, Fault::Latency(Duration::from_millis(300))));
            let options = ResetOptions::default();
            let delayed = async |index: usize, tenths| {
                sleep(tenths * Duration::from_millis(10)).await;
                executed(&plans[index], &operators[index], &options).await
            };
            let (first, second) = tokio::join!(delayed(0, delay), delayed(1, 40 - delay));
            world.faulty.set_plan(FaultPlan::default());
            let is_done = [&first["0"], &second["0"]].map(|outcome| matches!(outcome, ResetOutcome::Done));
            let (expected, index) = match is_done {
                [true, false] => (Some(4), 0),
                [false, true] => (Some(15), 1),
                [false, false] => (Some(9), 2),
                [true, true] => panic!("both: {first:?} {second:?}"),
            };
            seen[index] += 1;
            assert_eq!(checkpoint_of(&world, 0).await, expected, "{first:?} {second:?}");
            check_returned(&world).await;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }

    /// Events are processed again after a reset that is done, and only then.
    #[tokio::test(start_paused = true)]
    async fn all_outcomes_in_a_live_group_are_true() {
        let world = World::new(3);
        let a = with_ten_checkpointed(&world, 3).await;
        let b = world.start("b").await;
        sleep(120 * SECOND).await;
        let (options, mut seen) = (ResetOptions::default(), BTreeMap::<&str, usize>::new());
        for round in 0..60u32 {
            let operator = operator_with_seed(&world, u64::from(round)).await;
            let to = i64::from(round % 8);
            let plan = planned(&world, &operator, &after(to)).await;
            let counts = || (0..3).map(|partition| times(&world, partition, 9..10)[0]).collect::<Vec<_>>();
            let before = counts();
            world.faulty.set_plan(random_faults());
            let stop = sleep(Duration::from_millis(u64::from(round) * 200));
            let outcomes: Vec<_> = match plan.execute(&operator, &options, stop).await {
                Ok(outcomes) => outcomes.collect().await,
                Err(_) => Vec::new(),
            };
            world.faulty.set_plan(FaultPlan::default());
            sleep(200 * SECOND).await;
            assert_eq!(checkpoints(&world).await.into_values().collect::<Vec<_>>(), [Some(9); 3]);
            let after = counts();
            for (partition, outcome) in outcomes {
                let index: usize = partition.as_str().parse().unwrap();
                let again = after[index] - before[index];
                let kind = match outcome {
                    ResetOutcome::Done => {
                        assert!(again >= 1, "{round}: {partition} was not processed again");
                        "done"
                    }
                    ResetOutcome::NotDone(_) => {
                        assert_eq!(again, 0, "{round}: {partition}: {outcome:?}");
                        "not done"
                    }
                    _ => "indeterminate",
                };
                *seen.entry(kind).or_default() += 1;
            }
        }
        assert!(seen["done"] > 40 && seen["not done"] > 10, "{seen:?}");
        a.crash().await;
        b.crash().await;
    }
}
