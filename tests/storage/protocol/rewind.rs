//! Checkpoint: rewind, the only way back.

use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, Operation, Target};
use tokio::join;

use crate::bench::{Adopted, Bench, EXPIRY, Owner, Said, Win, at, checkpoint, metadata, owned_by, ownership, position};

/// Rewinds, and gives whom it told.
async fn rewind(owner: &Owner, partition: u32, to: i64) -> Option<String> {
    let rewound = owner.store.rewind(&partition.into(), &at(to)).await.unwrap();
    rewound.told.map(|told| told.to_string())
}

pub async fn rewind_is_the_only_way_back(bench: Bench) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    a.checkpoint(&mut adoption, 9).await;
    assert_eq!(a.checkpoint(&mut adoption, 3).await.said(), "superseded");
    assert_eq!(bench.position_of(0).await, 9);
    rewind(&bench.owner("operator").await, 0, 3).await;
    assert_eq!(bench.position_of(0).await, 3);
    assert_eq!(a.checkpoint(&mut adoption, 10).await.said(), "rewound");
    let mut adoption = a.adopted(0).await;
    assert_eq!(adoption.record().sequence_number, Some(3));
    assert_eq!(a.checkpoint(&mut adoption, 4).await.said(), "written");
}

pub async fn rewind_writes_a_random_id_to_the_checkpoint_and_to_the_ownership(bench: Bench) {
    let operator = bench.owner("operator").await;
    bench.owner("a").await.run(0).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let rewound = operator.store.rewind(&0.into(), &at(3)).await.unwrap();
        for name in [checkpoint(0), ownership(0)] {
            assert_eq!(bench.read(&name).await["rewound"], rewound.id.as_str());
        }
        ids.push(rewound.id);
    }
    assert_ne!(ids[0], ids[1]);
}

pub async fn rewind_keeps_every_other_key_of_both(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.owner("operator").await);
    a.run(0).await;
    let mut before = Vec::new();
    for name in [checkpoint(0), ownership(0)] {
        let mut record = bench.read(&name).await;
        record.insert("theirs".into(), "1".into());
        bench.put(&name, &record).await;
        before.push(record);
    }
    rewind(&operator, 0, 3).await;
    let mut after = bench.read(&ownership(0)).await;
    after.remove("rewound");
    assert_eq!(after, before[1]);
    assert_eq!(bench.read(&checkpoint(0)).await["theirs"], "1");
}

/// It meets it at its next renewal, which begins another tenure.
pub async fn rewind_is_met_by_an_owner_with_nothing_to_write(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.owner("operator").await);
    let (lease, mut adoption) = a.run(0).await;
    a.checkpoint(&mut adoption, 9).await;
    assert_eq!(rewind(&operator, 0, 3).await.as_deref(), Some("a"));
    let renewed = a.renew(&lease).await.lease();
    assert!(renewed.tenure() > lease.tenure());
    assert_eq!(a.checkpoint(&mut adoption, 10).await.said(), "fenced by a");
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(3));
    // Once.
    a.next_write("ownership/0", Fault::Conflict);
    assert_eq!(a.renew(&renewed).await.lease().tenure(), renewed.tenure());
}

/// By the rules of a mark: a dead one must not be kept alive, and others would not understand.
pub async fn rewind_tells_only_a_live_owner_of_this_crate(bench: Bench) {
    let operator = bench.owner("operator").await;
    let foreign = metadata(&[("ownerid", "python")]);
    for (record, age) in [(foreign, 0), (metadata(&[("ownerid", "")]), 0)] {
        let untouched = bench.put(&ownership(0), &record).await;
        operator.wire().age("ownership/0", age);
        assert_eq!(rewind(&operator, 0, 3).await, None, "{record:?}");
        assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, untouched);
    }
    bench.delete(&ownership(0)).await;
    assert_eq!(rewind(&operator, 0, 3).await, None);
    assert!(bench.blob(&ownership(0)).await.is_none());
}

/// It may only have been suspended: with nothing to write it would never learn of the rewind when it wakes.
pub async fn rewind_releases_a_record_that_has_expired(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.owner("operator").await);
    let (lease, mut adoption) = a.run(0).await;
    a.checkpoint(&mut adoption, 7).await;
    operator.wire().age("ownership/0", 2 * EXPIRY);
    assert_eq!(rewind(&operator, 0, 3).await, None);
    assert_eq!(a.renew(&lease).await.said(), "lost to nobody");
    a.take(0).await;
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(3));
}

pub async fn rewind_waits_for_the_renewal_of_an_owner_past_half_its_expiry(bench: Bench) {
    let operator = bench.owner_with("operator", |builder| builder.expiry(Duration::from_secs(4))).await;
    bench.owner("a").await.run(0).await;
    operator.wire().age("ownership/0", 2);
    let watcher = operator.clone();
    let looks = || operator.sent().iter().filter(|sent| sent.is_read_of("ownership/0")).count();
    let (told, ()) = join!(rewind(&watcher, 0, 3), async {
        while looks() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!bench.read(&ownership(0)).await.contains_key("rewound"));
        operator.wire().age("ownership/0", 0);
    });
    assert_eq!(told.as_deref(), Some("a"));
    assert!(bench.read(&ownership(0)).await.contains_key("rewound"));
}

pub async fn rewind_puts_back_under_the_etag_that_it_read_or_creates(bench: Bench) {
    let operator = bench.owner("operator").await;
    let mut theirs = position(20);
    theirs.insert("theirs".into(), "1".into());
    for partition in 0..2 {
        if partition == 1 {
            bench.put(&checkpoint(partition), &position(9)).await;
        }
        operator.next_write("/checkpoint/", Fault::Overtaken(theirs.clone()));
        rewind(&operator, partition, 3).await;
        assert_eq!(bench.position_of(partition).await, 3);
        assert_eq!(bench.read(&checkpoint(partition)).await["theirs"], "1");
    }
}

pub async fn rewind_marks_the_ownership_under_the_etag_that_it_read(bench: Bench) {
    let operator = bench.owner("operator").await;
    bench.put(&ownership(0), &owned_by("a")).await;
    operator.next_write("/ownership/", Fault::Overtaken(owned_by("b")));
    assert_eq!(rewind(&operator, 0, 3).await.as_deref(), Some("b"));
    assert_eq!(bench.owner_of(0).await, "b");
}

pub async fn rewind_outlives_lost_answers_and_is_bounded(bench: Bench) {
    let operator = bench.owner("operator").await;
    bench.put(&ownership(0), &owned_by("a")).await;
    for name in ["/checkpoint/", "/ownership/"] {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            operator.next_write(name, fault);
            assert_eq!(rewind(&operator, 0, 3).await.as_deref(), Some("a"));
        }
        let always = Target::from(Operation::Write).named(name);
        operator.faulty.set_plan(FaultPlan::default().with_on(1.0, always, Fault::Conflict));
        operator.sent();
        let error = operator.store.rewind(&0.into(), &at(3)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended);
        let writes = operator.sent().iter().filter(|sent| sent.is_write_of(name)).count();
        assert_eq!(writes, 5);
        operator.faulty.set_plan(FaultPlan::default());
    }
}

/// Of two at once, or of one that ended half-way, each record may name another.
pub async fn rewind_is_met_once_even_if_the_two_records_name_different_ones(bench: Bench) {
    let a = bench.owner("a").await;
    let (lease, _) = a.run(0).await;
    for (name, id) in [(checkpoint(0), "1"), (ownership(0), "2")] {
        let mut record = bench.read(&name).await;
        record.insert("rewound".into(), id.into());
        bench.put(&name, &record).await;
    }
    let renewed = a.renew(&lease).await.lease();
    assert!(renewed.tenure() > lease.tenure());
    let mut adoption = a.adopted(0).await;
    for number in 0..2 {
        a.next_write("/ownership/", Fault::Conflict);
        assert_eq!(a.renew(&renewed).await.lease().tenure(), renewed.tenure());
        a.next_write("/checkpoint/", Fault::Conflict);
        assert_eq!(a.checkpoint(&mut adoption, number).await.said(), "written");
    }
}

/// The owner renews and checkpoints while it is put back: it stops once, and goes on from there.
pub async fn rewind_and_an_owner_at_work_lose_neither(bench: Bench) {
    let (a, operator) = (bench.owner("a").await, bench.owner("operator").await);
    for partition in 0..bench.rounds {
        let (lease, mut adoption) = a.run(partition).await;
        a.checkpoint(&mut adoption, 9).await;
        a.dawdle();
        operator.dawdle();
        let (told, renewed, checkpointed) =
            join!(rewind(&operator, partition, 3), a.renew(&lease), a.checkpoint(&mut adoption, 10),);
        assert_eq!(told.as_deref(), Some("a"));
        let renewed = a.renew(&renewed.lease()).await.lease();
        assert!(renewed.tenure() > lease.tenure(), "the rewind was not met");
        assert!(["written", "rewound", "fenced by a"].contains(&checkpointed.said().as_str()), "{checkpointed:?}");
        assert_eq!(a.checkpoint(&mut adoption, 11).await.said(), "fenced by a");
        let adoption = a.adopt(partition, Some(-1)).await.adoption();
        assert_eq!(adoption.record().sequence_number, Some(3));
        assert_eq!(bench.read(&ownership(partition)).await["ownerid"], "a");
    }
}

/// One position stands, and the owner goes on from there, whichever of the two was told last.
pub async fn rewind_of_two_at_once_one_stands(bench: Bench) {
    let (a, one, other) = (bench.owner("a").await, bench.owner("one").await, bench.owner("other").await);
    for partition in 0..bench.rounds {
        let (lease, mut adoption) = a.run(partition).await;
        a.checkpoint(&mut adoption, 9).await;
        one.dawdle();
        other.dawdle();
        join!(rewind(&one, partition, 3), rewind(&other, partition, 4));
        let renewed = a.renew(&lease).await.lease();
        let mut adoption = a.adopt(partition, Some(-1)).await.adoption();
        let position = bench.position_of(partition).await;
        assert!([3, 4].contains(&position) && adoption.record().sequence_number == Some(position));
        // It stops for them no second time.
        a.next_write("/ownership/", Fault::Conflict);
        a.next_write("/checkpoint/", Fault::Conflict);
        assert_eq!(a.renew(&renewed).await.lease().tenure(), renewed.tenure());
        assert_eq!(a.checkpoint(&mut adoption, 10).await.said(), "written");
    }
}
