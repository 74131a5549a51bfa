//! Claim, renew, steal, release: the condition (1), and the meaning of an ambiguous response (2).

use std::time::Duration;

use eventhubs_checkpoint::store::protocol::ClaimOutcome;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan};
use tokio::join;
use tokio::time::Instant;

use crate::bench::{Bench, Describe, EXPIRY, Owner, Win, metadata, owned_by, ownership};
use crate::wire::shown;

/// Both outcomes match the blob: one of them has won, unless its outcome is indeterminate.
async fn assert_consistent(bench: &Bench, partition: u32, outcomes: [(&str, &ClaimOutcome); 2]) {
    let blob = bench.blob(&ownership(partition)).await.unwrap();
    let mut open = 1;
    for (name, outcome) in outcomes {
        match outcome {
            ClaimOutcome::Won(lease) => {
                assert_eq!((&blob.metadata["ownerid"], &blob.etag), (name, lease.etag()), "{outcomes:?}");
                open -= 1;
            }
            ClaimOutcome::Lost { by: Some(by) } => assert_eq!(by.as_str(), &blob.metadata["ownerid"], "{outcomes:?}"),
            ClaimOutcome::Indeterminate(_) => open = 0,
            other => panic!("{other:?}"),
        }
    }
    assert!(open <= 0, "no owner has won: {outcomes:?}");
}

pub async fn line_1_no_known_blob_creates(bench: Bench) {
    let a = bench.owner("a").await;
    a.win(0).await;
    assert_eq!(a.requests(), ["create ownership/0"]);
}

pub async fn line_1_no_known_blob_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    let theirs = bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.claim(0).await.describe(), "lost to b");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn line_1_a_known_blob_is_matched(bench: Bench) {
    let a = bench.owner("a").await;
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    let stolen = a.claim_over(0, &seen).await.lease();
    let renewed = a.renew(&stolen).await.lease();
    assert_eq!(a.release(&renewed).await.describe(), "released");
    let sent = a.sent();
    let under: Vec<_> = sent.iter().map(|sent| sent.under().unwrap()).collect();
    assert_eq!(under, [&seen, stolen.etag(), renewed.etag()]);
}

pub async fn line_1_a_claim_overwrites_no_changed_blob(bench: Bench) {
    let a = bench.owner("a").await;
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.claim_over(0, &seen).await.describe(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn line_1_a_renewal_overwrites_no_changed_blob(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.renew(&lease).await.describe(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

pub async fn line_1_a_release_overwrites_no_changed_blob(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let theirs = bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.release(&lease).await.describe(), "lost to c");
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, theirs);
}

/// Azurite reports a conflict; the read that follows resolves it.
pub async fn line_1_404_under_match_creates(bench: Bench) {
    let a = bench.owner("a").await;
    let gone = bench.put(&ownership(0), &owned_by("b")).await;
    bench.delete(&ownership(0)).await;
    a.claim_over(0, &gone).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "create ownership/0"]);
}

pub async fn line_1_404_under_match_of_a_renewal_creates(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    bench.delete(&ownership(0)).await;
    a.sent();
    a.renew(&lease).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "create ownership/0"]);
}

/// Another instance is faster each time.
pub async fn line_1_a_creation_after_404_overwrites_nothing(bench: Bench) {
    let a = bench.owner("a").await;
    for partition in 0..2 {
        let lease = a.win(partition).await;
        bench.delete(&ownership(partition)).await;
        let (container, name) = (bench.container.clone(), ownership(partition));
        a.wire().after(BlobOperation::Get, &ownership(partition), async move {
            container.overwrite(&name, &owned_by("b")).await.unwrap();
        });
        let outcome = if partition == 0 { a.renew(&lease).await } else { a.claim_over(1, lease.etag()).await };
        assert_eq!(outcome.describe(), "lost to b");
        assert_eq!(bench.owner_of(partition).await, "b");
    }
}

pub async fn line_1_of_two_that_find_no_blob_one_creates(bench: Bench) {
    let (a, b) = (bench.owner("a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        bench.delete(&ownership(partition)).await;
        a.add_jitter();
        b.add_jitter();
        let (renewed, claimed) = join!(a.renew(&lease), b.claim_over(partition, lease.etag()));
        assert_consistent(&bench, partition, [("a", &renewed), ("b", &claimed)]).await;
    }
}

pub async fn line_1_409_and_412_are_verified_conflicts(bench: Bench) {
    let a = bench.owner("a").await;
    bench.put(&ownership(0), &owned_by("b")).await;
    assert_eq!(a.claim(0).await.describe(), "lost to b");
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0"]);
    let seen = bench.put(&ownership(0), &owned_by("b")).await;
    bench.put(&ownership(0), &owned_by("c")).await;
    assert_eq!(a.claim_over(0, &seen).await.describe(), "lost to c");
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
}

pub async fn line_1_no_response_is_indeterminate_and_verified(bench: Bench) {
    let a = bench.owner("a").await;
    for (partition, fault) in [Fault::RequestLost, Fault::ResponseLost].into_iter().enumerate() {
        let name = format!("ownership/{partition}");
        a.next_write(&name, fault);
        a.win(partition.try_into().unwrap()).await;
        assert_eq!(a.requests()[..2], [format!("create {name}"), format!("read {name}")]);
    }
}

pub async fn line_2_a_confirmed_renewal_has_the_age_of_the_read(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    for age in [0, 20, EXPIRY / 2] {
        a.sent();
        a.wire().age("ownership/0", age);
        a.next_write("ownership/0", Fault::ResponseLost);
        let requested = Instant::now();
        let renewed = a.renew(&lease).await.lease();
        let sent = a.sent();
        assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0"]);
        let age = Duration::from_secs(age.unsigned_abs());
        assert!(a.counts_from(&renewed, requested - age..=sent[1].when - age), "{age:?}");
        let now = bench.blob(&ownership(0)).await.unwrap();
        assert_eq!((renewed.etag(), renewed.epoch()), (&now.etag, lease.epoch()));
        // The next one continues from there.
        bench.put(&ownership(0), &now.metadata).await;
    }
}

pub async fn line_2_an_old_confirmed_renewal_is_written_again(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    a.sent();
    a.wire().age("ownership/0", EXPIRY / 2 + 1);
    a.next_write("ownership/0", Fault::ResponseLost);
    let renewed = a.renew(&lease).await.lease();
    let sent = a.sent();
    assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!((sent[2].under(), sent[2].etag.as_ref()), (sent[1].etag.as_ref(), Some(renewed.etag())));
    assert!(a.counts_from(&renewed, sent[1].when..=Instant::now()));
}

/// The claim with a response counts: an earlier one may have been applied long ago.
async fn assert_written_again(bench: &Bench, a: &Owner, condition: &str, outcome: ClaimOutcome) {
    let won = outcome.lease();
    let sent = a.sent();
    let first = format!("{condition} ownership/0");
    assert_eq!(shown(&sent), [&first, "read ownership/0", "match ownership/0"]);
    assert_eq!(sent[2].under(), sent[1].etag.as_ref());
    assert_eq!(bench.blob(&ownership(0)).await.unwrap().etag, *won.etag());
    assert!(a.counts_from(&won, sent[1].when..=Instant::now()));
}

pub async fn line_2_a_confirmed_claim_is_written_again(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::ResponseLost);
    let outcome = a.claim(0).await;
    assert_written_again(&bench, &a, "create", outcome).await;
}

pub async fn line_2_a_confirmed_steal_is_written_again(bench: Bench) {
    let a = bench.owner("a").await;
    let victims = bench.put(&ownership(0), &owned_by("b")).await;
    a.next_write("ownership/0", Fault::ResponseLost);
    let outcome = a.claim_over(0, &victims).await;
    assert_written_again(&bench, &a, "match", outcome).await;
}

/// Another instance takes it between the read and the second write.
pub async fn line_2_the_second_write_overwrites_nothing(bench: Bench) {
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
        assert_eq!((outcome.describe().as_str(), bench.owner_of(partition).await.as_str()), ("lost to b", "b"));
    }
}

pub async fn line_2_an_unchanged_etag_means_retry(bench: Bench) {
    let a = bench.owner("a").await;
    let victims = bench.put(&ownership(0), &owned_by("b")).await;
    a.next_write("ownership/0", Fault::RequestLost);
    a.claim_over(0, &victims).await.lease();
    let sent = a.sent();
    assert_eq!(shown(&sent), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(sent[2].under(), Some(&victims));
}

pub async fn line_2_no_blob_means_retry(bench: Bench) {
    let a = bench.owner("a").await;
    a.next_write("ownership/0", Fault::RequestLost);
    a.win(0).await;
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0", "create ownership/0"]);
}

pub async fn line_2_retries_are_bounded(bench: Bench) {
    let a = bench.owner("a").await;
    let lease = a.win(1).await;
    a.sent();
    a.faulty.set_plan(FaultPlan::default().with_on(1.0, BlobOperation::Write, Fault::RequestLost));
    assert_eq!(a.claim(0).await.describe(), "indeterminate: Contended");
    assert_eq!(a.requests(), ["create ownership/0", "read ownership/0"].repeat(5));
    // A fresh record would be valid.
    a.wire().age("ownership/1", EXPIRY / 2 + 1);
    assert_eq!(a.renew(&lease).await.describe(), "indeterminate: Contended");
    assert_eq!(a.release(&lease).await.describe(), "indeterminate: Contended");
    assert_eq!(a.requests().len(), 20);
}

pub async fn line_2_otherwise_the_recorded_owner_has_won(bench: Bench) {
    let a = bench.owner("a").await;
    for (record, by) in
        [(owned_by("b"), "b"), (metadata(&[("ownerid", "c")]), "c"), (metadata(&[("ownerid", "")]), "no owner")]
    {
        let lease = a.win(0).await;
        let lost = format!("lost to {by}");
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        assert_eq!(a.renew(&lease).await.describe(), lost);
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        let seen = bench.blob(&ownership(0)).await.unwrap().etag;
        assert_eq!(a.claim_over(0, &seen).await.describe(), lost);
        bench.delete(&ownership(0)).await;
        a.next_write("ownership/0", Fault::ConcurrentWrite(record.clone()));
        assert_eq!(a.claim(0).await.describe(), lost);
        assert_eq!(bench.read(&ownership(0)).await, record);
        bench.delete(&ownership(0)).await;
    }
}

pub async fn line_2_of_two_claims_at_once_one_wins(bench: Bench) {
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

pub async fn line_2_of_a_renewal_and_a_steal_at_once_one_wins(bench: Bench) {
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
            // It was lost, and the previous record remained until it was stolen.
            ClaimOutcome::Won(before) if before.etag() == lease.etag() => {}
            _ => assert_consistent(&bench, partition, [("a", &renewed), ("b", &stolen)]).await,
        }
        if let ClaimOutcome::Won(stolen) = stolen {
            assert_eq!(bench.blob(&ownership(partition)).await.unwrap().etag, *stolen.etag());
        }
    }
}
