//! Claim, renew, steal, release: under which condition (1), and what a doubtful answer means (2).

use std::time::Duration;

use eventhubs_checkpoint::blob::Condition;
use eventhubs_checkpoint::store::ClaimOutcome;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use tokio::join;
use tokio::time::Instant;

use crate::bench::{Bench, EXPIRY, Owner, Said, Win, metadata, owned_by, ownership};
use crate::wire::shown;

/// What both say is what the blob says: one of them has won, unless it cannot tell.
async fn assert_consistent(bench: &Bench, partition: u32, outcomes: [(&str, &ClaimOutcome); 2]) {
    let blob = bench.blob(&ownership(partition)).await.unwrap();
    let mut open = 1;
    for (name, outcome) in outcomes {
        match outcome {
            ClaimOutcome::Won(lease) => {
                assert_eq!((blob.metadata["ownerid"].as_str(), &blob.etag), (name, lease.etag()), "{outcomes:?}");
                open -= 1;
            }
            ClaimOutcome::Lost { by: Some(by) } => assert_eq!(by.as_str(), blob.metadata["ownerid"], "{outcomes:?}"),
            ClaimOutcome::Indeterminate(_) => open = 0,
            other => panic!("{other:?}"),
        }
    }
    assert!(open <= 0, "nobody has won: {outcomes:?}");
}

pub async fn claim_1_no_blob_known_creates(bench: Bench) {
    let a = bench.owner("a").await;
    a.win(0).await;
    assert_eq!(a.requests(), ["create ownership/0"]);
}

pub async fn claim_1_no_blob_known_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    let theirs = bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.claim(0).await.said(), "lost to b");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn claim_1_a_blob_known_is_matched(bench: Bench) {
    let a = bench.owner("a").await;
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    let stolen = a.claim_over(0, &seen).await.lease();
    let renewed = a.renew(&stolen).await.lease();
    assert_eq!(a.release(&renewed).await.said(), "released");
    let sent = a.sent();
    let under: Vec<_> = sent.iter().map(|sent| sent.under().unwrap()).collect();
    assert_eq!(under, [&seen, stolen.etag(), renewed.etag()]);
}

pub async fn claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_claim(bench: Bench) {
    let a = bench.owner("a").await;
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.claim_over(0, &seen).await.said(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_renewal(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.renew(&lease).await.said(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_release(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.release(&lease).await.said(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

/// Azurite calls that a conflict; the read that follows tells.
pub async fn claim_1_404_under_match_creates(bench: Bench) {
    let a = bench.owner("a").await;
    let gone = bench.put(&ownership(0), &owned_by("b")).await;
    bench.delete(&ownership(0)).await;
    a.claim_over(0, &gone).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "create ownership/0"]);
}

pub async fn claim_1_404_under_the_match_of_a_renewal_creates(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    bench.delete(&ownership(0)).await;
    a.sent();
    a.renew(&lease).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "create ownership/0"]);
}

/// Somebody else is faster each time.
pub async fn claim_1_what_is_created_after_404_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    for partition in 0..2 {
        let lease = a.win(partition).await;
        bench.delete(&ownership(partition)).await;
        let (container, name) = (bench.container.clone(), ownership(partition));
        a.wire().after(BlobOperation::Get, &ownership(partition), async move {
            container.write(&name, &owned_by("b"), &Condition::Unconditional).await.unwrap();
        });
        let outcome = if partition == 0 { a.renew(&lease).await } else { a.claim_over(1, lease.etag()).await };
        assert_eq!(outcome.said(), "lost to b");
        assert_eq!(bench.owner_of(partition).await, "b");
    }
}

pub async fn claim_1_of_two_that_find_it_gone_one_creates(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        bench.delete(&ownership(partition)).await;
        a.dawdle();
        b.dawdle();
        let (renewed, claimed) = join!(a.renew(&lease), b.claim_over(partition, lease.etag()));
        assert_consistent(&bench, partition, [("a", &renewed), ("b", &claimed)]).await;
    }
}

pub async fn claim_1_409_and_412_are_conflicts_and_looked_into(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.claim(0).await.said(), "lost to b");
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0"]);
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.claim_over(0, &seen).await.said(), "lost to c");
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
}

pub async fn claim_1_no_answer_is_unknown_and_looked_into(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, fault) in [Fault::RequestLost, Fault::ResponseLost].into_iter().enumerate() {
        let name = format!("ownership/{partition}");
        a.next_write(&name, fault);
        a.win(partition.try_into().unwrap()).await;
        assert_eq!(a.requests()[..2], [format!("create {name}"), format!("read {name}")]);
    }
}

pub async fn claim_2_a_renewal_found_to_be_mine_is_won_with_the_age_of_the_record_read(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    for age in [0, 20, EXPIRY / 2] {
        a.sent();
        a.wire().age("ownership/0", age);
        a.next_write("ownership/0", Fault::ResponseLost);
        let asked = Instant::now();
        let renewed = a.renew(&lease).await.lease();
        let sent = a.sent();
        assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0"]);
        let age = Duration::from_secs(age.unsigned_abs());
        assert!((asked - age..=sent[1].when - age).contains(&a.valid_from(&renewed)), "{age:?}");
        let now = bench.blob(&ownership(0)).await.unwrap();
        assert_eq!((renewed.etag(), renewed.epoch()), (&now.etag, lease.epoch()));
        // The next one goes on from there.
        bench.put(&ownership(0), &now.metadata).await;
    }
}

pub async fn claim_2_a_renewal_found_past_half_the_expiry_is_written_anew_under_that_etag(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    a.sent();
    a.wire().age("ownership/0", EXPIRY / 2 + 1);
    a.next_write("ownership/0", Fault::ResponseLost);
    let renewed = a.renew(&lease).await.lease();
    let sent = a.sent();
    assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!((sent[2].under(), sent[2].etag.as_ref()), (sent[1].etag.as_ref(), Some(renewed.etag())));
    assert!(a.valid_from(&renewed) >= sent[1].when);
}

/// The claim that answers counts: an earlier one may have landed long ago.
async fn assert_written_anew(bench: &Bench, a: &Owner, condition: &str, outcome: ClaimOutcome) {
    let won = outcome.lease();
    let sent = a.sent();
    let first = format!("{condition} ownership/0");
    assert_eq!(shown(&sent), [&first, "read ownership/0", "match ownership/0"]);
    assert_eq!(sent[2].under(), sent[1].etag.as_ref());
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, *won.etag());
    assert!(a.valid_from(&won) >= sent[1].when);
}

pub async fn claim_2_a_claim_found_to_be_mine_is_written_anew_before_it_counts(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::ResponseLost);
    let outcome = a.claim(0).await;
    assert_written_anew(&bench, &a, "create", outcome).await;
}

pub async fn claim_2_a_steal_found_to_be_mine_is_written_anew_before_it_counts(bench: Bench) {
    let a = bench.owner("a").await;
    let victims = bench.put(&ownership(0), &owned_by("b")).await;
    a.next_write("ownership/0", Fault::ResponseLost);
    let outcome = a.claim_over(0, &victims).await;
    assert_written_anew(&bench, &a, "match", outcome).await;
}

/// Somebody takes it between the look and the second write.
pub async fn claim_2_what_is_written_anew_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, age) in [(0, 0), (1, EXPIRY / 2 + 1)] {
        let lease = (partition == 1).then_some(a.win(1).await);
        let name = format!("ownership/{partition}");
        a.wire().age(&name, age);
        a.next_write(&name, Fault::ResponseLost);
        a.next_write(&name, Fault::ConcurrentWrite(owned_by("b")));
        let outcome = match &lease {
            Some(lease) => a.renew(lease).await,
            None => a.claim(partition).await,
        };
        assert_eq!((outcome.said().as_str(), bench.owner_of(partition).await.as_str()), ("lost to b", "b"));
    }
}

pub async fn claim_2_etag_unchanged_was_not_applied_and_is_tried_again(bench: Bench) {
    let a = bench.owner("a").await;
    let victims = bench.put(&ownership(0), &owned_by("b")).await;
    a.next_write("ownership/0", Fault::RequestLost);
    a.claim_over(0, &victims).await.lease();
    let sent = a.sent();
    assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(sent[2].under(), Some(&victims));
}

pub async fn claim_2_no_blob_was_not_applied_and_is_tried_again(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::RequestLost);
    a.win(0).await;
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0", "create ownership/0"]);
}

pub async fn claim_2_trying_again_is_bounded(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(1).await;
    a.sent();
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::RequestLost));
    assert_eq!(a.claim(0).await.said(), "undecided: Contended");
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0"].repeat(5));
    // A young one would stand.
    a.wire().age("ownership/1", EXPIRY / 2 + 1);
    assert_eq!(a.renew(&lease).await.said(), "undecided: Contended");
    assert_eq!(a.release(&lease).await.said(), "undecided: Contended");
    assert_eq!(a.requests().len(), 20);
}

pub async fn claim_2_else_it_is_lost_to_whom_the_record_names(bench: Bench) {
    let a = bench.owner("a").await;
    for (record, by) in
        [(owned_by("b"), "b"), (metadata(&[("ownerid", "c")]), "c"), (metadata(&[("ownerid", "")]), "nobody")]
    {
        let lease = a.win(0).await;
        let lost = format!("lost to {by}");
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        assert_eq!(a.renew(&lease).await.said(), lost);
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        let seen = bench.blob(&ownership(0)).await.unwrap().etag;
        assert_eq!(a.claim_over(0, &seen).await.said(), lost);
        bench.delete(&ownership(0)).await;
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        assert_eq!(a.claim(0).await.said(), lost);
        assert_eq!(bench.read(&ownership(0)).await, record);
        bench.delete(&ownership(0)).await;
    }
}

pub async fn claim_2_of_two_that_claim_at_once_one_wins_whatever_gets_lost(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let plan = FaultPlan::default()
        .with(0.7, Fault::Latency(Duration::from_millis(3)))
        .with_on(0.25, BlobOperation::Write, Fault::ResponseLost)
        .with_on(0.15, BlobOperation::Write, Fault::RequestLost)
        .with_on(0.05, BlobOperation::Write, Fault::Conflict);
    a.faulty.set_plan(plan.clone());
    b.faulty.set_plan(plan);
    for partition in 0..bench.rounds {
        let (of_a, of_b) = join!(a.claim(partition), b.claim(partition));
        assert_consistent(&bench, partition, [("a", &of_a), ("b", &of_b)]).await;
    }
}

pub async fn claim_2_of_a_renewal_and_a_steal_at_once_one_wins_whatever_gets_lost(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    let plan = FaultPlan::default()
        .with(0.7, Fault::Latency(Duration::from_millis(3)))
        .with_on(0.25, BlobOperation::Write, Fault::ResponseLost)
        .with_on(0.15, BlobOperation::Write, Fault::RequestLost);
    for partition in 0..bench.rounds {
        a.faulty.set_plan(FaultPlan::default());
        let lease = a.win(partition).await;
        a.faulty.set_plan(plan.clone());
        b.faulty.set_plan(plan.clone());
        let (renewed, stolen) = join!(a.renew(&lease), b.claim_over(partition, lease.etag()));
        match &renewed {
            // It was lost, and the record before stood until it was stolen.
            ClaimOutcome::Won(before) if before.etag() == lease.etag() => {}
            _ => assert_consistent(&bench, partition, [("a", &renewed), ("b", &stolen)]).await,
        }
        if let ClaimOutcome::Won(stolen) = stolen {
            assert_eq!(bench.blob(&ownership(partition)).await.unwrap().etag, *stolen.etag());
        }
    }
}
