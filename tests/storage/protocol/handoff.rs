//! Handoff: how an instance requests (1), what the owner does about it (2), the reservation (3), and the timeouts (4).

use std::time::Duration;

use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::store::protocol::Claim;
use eventhubs_checkpoint::store::protocol::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};
use eventhubs_checkpoint::testing::faulty::Fault;
use tokio::join;

use crate::bench::{Bench, Describe, EXPIRY, Owner, Win, metadata, owned_by, ownership};
use crate::wire::shown;

/// Returns an owner that hands over on request.
async fn cooperative(bench: &Bench, name: &str) -> Owner {
    let mut owner = bench.owner(name).await;
    owner.cooperative = true;
    owner
}

/// Requests a partition from a listing. Earlier requests are discarded.
async fn request_handoff(requester: &Owner, partition: u32) -> Result<HandoffRequestOutcome<Handoff>> {
    let listing = requester.store.list_ownerships().await.unwrap();
    let seen = listing.records.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
    requester.sent();
    requester.store.request_handoff(&seen).await
}

async fn request(requester: &Owner, partition: u32) -> Handoff {
    match request_handoff(requester, partition).await {
        Ok(HandoffRequestOutcome::Requested(handoff)) => handoff,
        other => panic!("{}", other.describe()),
    }
}

async fn poll(requester: &Owner, handoff: &mut Handoff) -> HandoffStatus<Claim> {
    requester.store.poll_handoff(handoff).await.unwrap()
}

/// Polls as if the request had been written long ago.
async fn poll_late(requester: &Owner, handoff: &mut Handoff) -> HandoffStatus<Claim> {
    handoff.renewed(Duration::ZERO);
    poll(requester, handoff).await
}

async fn claimed(requester: &Owner, pursuit: HandoffStatus<Claim>) -> String {
    let (HandoffStatus::Ready(claim) | HandoffStatus::TimedOut(claim)) = pursuit else { panic!("{pursuit:?}") };
    requester.make(claim).await.describe()
}

/// Returns the keys of a handoff in a record.
async fn handoff_keys(bench: &Bench, partition: u32) -> Vec<(String, String)> {
    let keys = ["ehcdraining", "ehchandoffto"];
    bench.read(&ownership(partition)).await.into_iter().filter(|(key, _)| keys.contains(&&**key)).collect()
}

fn keys(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    metadata(pairs).into_iter().collect()
}

impl Describe for Result<HandoffRequestOutcome<Handoff>> {
    fn describe(&self) -> String {
        match self {
            Ok(HandoffRequestOutcome::Requested(_)) => "requested".to_owned(),
            Ok(HandoffRequestOutcome::Lost) => "lost".to_owned(),
            Ok(refused) => format!("not eligible: {refused:?}"),
            Err(error) => format!("indeterminate: {:?}", error.kind()),
        }
    }
}

pub async fn line_1_the_request_keeps_every_other_key(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut expected = bench.read(&ownership(0)).await;
    assert_eq!(&expected["ehccooperative"], "1");
    // As a later version may write.
    expected.extend(metadata(&[
        ("ehcload", "heavy"),
        ("ehcleasescope", "universe"),
        ("ehcclaimedat", "today"),
        ("theirs", "1"),
    ]));
    bench.put(&ownership(0), &expected).await;
    let handoff = request(&b, 0).await;
    assert_eq!(handoff.owner().as_str(), "a");
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0"]);
    expected.insert("ehchandoffto", "b");
    assert_eq!(bench.read(&ownership(0)).await, expected);
}

pub async fn line_1_only_before_half_the_lease_duration(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", EXPIRY / 2);
    assert_eq!(request_handoff(&b, 0).await.describe(), "not eligible: LeaseTooOld");
    assert_eq!(handoff_keys(&bench, 0).await, []);
    b.wire().age("ownership/0", EXPIRY / 2 - 1);
    assert_eq!(request_handoff(&b, 0).await.describe(), "requested");
}

pub async fn line_1_only_from_a_cooperative_owner(bench: Bench) {
    let (a, b) = (bench.owner("a").await, cooperative(&bench, "b").await);
    a.win(0).await;
    bench.put(&ownership(1), &metadata(&[("ownerid", "python")])).await;
    for partition in [0, 1] {
        assert_eq!(request_handoff(&b, partition).await.describe(), "not eligible: NotCooperative");
        assert_eq!(handoff_keys(&bench, partition).await, []);
    }
}

pub async fn line_1_not_if_another_has_requested_it(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    a.win(0).await;
    request(&b, 0).await;
    assert_eq!(request_handoff(&c, 0).await.describe(), "not eligible: AlreadyRequested");
    assert_eq!(request_handoff(&b, 0).await.describe(), "requested");
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehchandoffto", "b")]));
}

pub async fn line_1_not_a_released_or_own_record(bench: Bench) {
    let a = cooperative(&bench, "a").await;
    let lease = a.win(0).await;
    assert_eq!(request_handoff(&a, 0).await.describe(), "lost");
    let _ = a.release(&lease).await;
    assert_eq!(request_handoff(&a, 0).await.describe(), "lost");
    assert_eq!(handoff_keys(&bench, 0).await, []);
}

pub async fn line_1_a_request_overwrites_nothing(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_write("ownership/0", Fault::ConcurrentWrite(owned_by("c")));
    assert_eq!(request_handoff(&b, 0).await.describe(), "lost");
    assert_eq!(bench.read(&ownership(0)).await, owned_by("c"));
}

/// Both are in the record in the end, in either order.
pub async fn line_1_a_request_and_a_renewal_at_once_both_count(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        a.add_jitter();
        b.add_jitter();
        let (renewed, marked) = join!(a.renew(&lease), request_handoff(&b, partition));
        assert_eq!((renewed.describe(), marked.describe()), ("won".to_owned(), "requested".to_owned()));
        assert_eq!(bench.owner_of(partition).await, "a");
        assert_eq!(handoff_keys(&bench, partition).await, keys(&[("ehchandoffto", "b")]));
    }
}

pub async fn line_1_of_two_requests_at_once_one_remains(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    for partition in 0..bench.rounds {
        a.win(partition).await;
        b.add_jitter();
        c.add_jitter();
        let (by_b, by_c) = join!(request_handoff(&b, partition), request_handoff(&c, partition));
        let winner = if by_b.describe() == "requested" { "b" } else { "c" };
        assert_ne!(by_b.describe(), by_c.describe());
        assert_eq!(handoff_keys(&bench, partition).await, keys(&[("ehchandoffto", winner)]));
    }
}

pub async fn claim_2_a_request_found_in_the_record_counts(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_write("ownership/0", Fault::ResponseLost);
    request(&b, 0).await;
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0", "read ownership/0"]);
}

pub async fn claim_2_a_request_that_was_not_applied_is_retried(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    for fault in [Fault::RequestLost, Fault::Conflict] {
        b.next_write("ownership/0", fault);
    }
    request(&b, 0).await;
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0"].repeat(3));
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehchandoffto", "b")]));
}

pub async fn claim_2_a_request_to_another_owner_is_lost(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut theirs = owned_by("c");
    theirs.insert("ehchandoffto", "b");
    b.next_write("ownership/0", Fault::ConcurrentWrite(theirs));
    assert_eq!(request_handoff(&b, 0).await.describe(), "lost");
}

pub async fn claim_3_a_request_with_a_failed_read_is_unknown(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_read_fails("ownership/0");
    assert_eq!(request_handoff(&b, 0).await.describe(), "indeterminate: Indeterminate");
    let mut handoff = request(&b, 0).await;
    b.next_read_fails("ownership/0");
    b.store.poll_handoff(&mut handoff).await.unwrap_err();
}

pub async fn line_2_a_conflicting_renewal_shows_the_request(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    assert_eq!(lease.handoff_requested_by(), None);
    request(&b, 0).await;
    a.sent();
    let mut renewed = a.renew(&lease).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
    for _ in 0..2 {
        assert_eq!((renewed.handoff_requested_by().unwrap().as_str(), renewed.epoch()), ("b", lease.epoch()));
        assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehchandoffto", "b")]));
        renewed = a.renew(&renewed).await.lease();
    }
}

/// The renewal finds the request, and the record that it reads is fresh; but it lacks the acknowledgment for which the
/// requester waits.
pub async fn line_2_an_acknowledgment_replaces_a_fresh_record(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    request(&b, 0).await;
    a.sent();
    let draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehcdraining", "1"), ("ehchandoffto", "b")]));
    assert_eq!(draining.handoff_requested_by().unwrap().as_str(), "b");
}

pub async fn line_2_an_applied_acknowledgment_counts(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    request(&b, 0).await;
    let requested = a.renew(&lease).await.lease();
    a.sent();
    a.next_write("ownership/0", Fault::ResponseLost);
    let draining = a.renew(&requested.acknowledging_handoff()).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
    assert_eq!(*draining.etag(), bench.blob(&ownership(0)).await.unwrap().etag);
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehcdraining", "1"), ("ehchandoffto", "b")]));
}

pub async fn line_2_the_owner_renews_while_draining(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = request(&b, 0).await;
    let mut draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    for _ in 0..2 {
        assert_eq!(poll(&b, &mut handoff).await, HandoffStatus::Pending);
        draining = a.renew(&draining).await.lease();
        assert_eq!(handoff_keys(&bench, 0).await, keys(&[("ehcdraining", "1"), ("ehchandoffto", "b")]));
    }
}

/// The owner does not know the request yet.
pub async fn line_2_a_release_keeps_the_request(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    request(&b, 0).await;
    a.sent();
    assert_eq!(a.release(&lease).await.describe(), "released");
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    let epoch = lease.epoch().to_string();
    let released =
        metadata(&[("ehcleaseduration", "60"), ("ehcepoch", &epoch), ("ehchandoffto", "b"), ("ownerid", "")]);
    assert_eq!(bench.read(&ownership(0)).await, released);
}

pub async fn line_2_a_request_and_a_release_at_once_agree(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        let seen = b.store.list_ownerships().await.unwrap().records;
        let seen = seen.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
        a.add_jitter();
        b.add_jitter();
        let (released, marked) = join!(a.release(&lease), b.store.request_handoff(&seen));
        assert_eq!((released.describe(), bench.owner_of(partition).await), ("released".to_owned(), String::new()));
        let (reported, left) = (marked.describe(), handoff_keys(&bench, partition).await);
        let expected = if reported == "requested" { keys(&[("ehchandoffto", "b")]) } else { Vec::new() };
        assert_eq!(left, expected, "{reported}");
    }
}

pub async fn line_3_a_reserved_release_repeats_no_event(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, cooperative(&bench, "b").await);
    let (lease, mut adoption) = a.run(0).await;
    let mut handoff = request(&b, 0).await;
    let draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    assert_eq!(poll(&b, &mut handoff).await, HandoffStatus::Pending);
    assert_eq!(a.checkpoint(&mut adoption, 7).await.describe(), "written");
    let _ = a.release(&draining).await;
    let taken = poll(&b, &mut handoff).await;
    assert!(matches!(taken, HandoffStatus::Ready(_)), "{taken:?}");
    assert_eq!(claimed(&b, taken).await, "won");
    assert_eq!((bench.owner_of(0).await.as_str(), handoff_keys(&bench, 0).await), ("b", Vec::new()));
    assert_eq!(b.adopted(0).await.record().sequence_number, Some(7));
}

pub async fn line_3_any_other_release_ends_it(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for (partition, left) in [(0, vec![("ownerid", "")]), (1, vec![("ownerid", ""), ("ehchandoffto", "c")])] {
        a.win(partition).await;
        let mut handoff = request(&b, partition).await;
        bench.put(&ownership(partition), &metadata(&left)).await;
        assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Canceled);
    }
}

pub async fn line_3_a_change_of_owner_ends_it(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    a.win(0).await;
    let mut handoff = request(&b, 0).await;
    c.take(0).await;
    assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Canceled);
    bench.delete(&ownership(0)).await;
    assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Canceled);
}

/// A later incarnation of the owner owns it, without a request.
pub async fn line_3_a_later_incarnation_has_no_request(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut handoff = request(&b, 0).await;
    bench.later("a").await.take(0).await;
    assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Canceled);
}

pub async fn line_4_a_fresh_record_is_no_acknowledgment(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = request(&b, 0).await;
    let renewed = a.renew(&a.renew(&lease).await.lease()).await.lease();
    assert_eq!(poll(&b, &mut handoff).await, HandoffStatus::Pending);
    let stolen = poll_late(&b, &mut handoff).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
    a.renew(&renewed.acknowledging_handoff()).await.lease();
    assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Pending);
}

pub async fn line_4_without_an_acknowledgment_it_is_stolen(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, cooperative(&bench, "b").await);
    let lease = a.win(0).await;
    let mut handoff = request(&b, 0).await;
    let renewed = a.renew(&a.renew(&lease).await.lease()).await.lease();
    let stolen = poll_late(&b, &mut handoff).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
    b.sent();
    assert_eq!(claimed(&b, stolen).await, "won");
    let sent = b.sent();
    assert_eq!((shown(&sent), sent[0].under()), (vec!["match ownership/0".to_owned()], Some(renewed.etag())));
    assert_eq!((bench.owner_of(0).await.as_str(), handoff_keys(&bench, 0).await), ("b", Vec::new()));
}

/// However long that takes. If it stops renewing, a listing shows that it has expired.
pub async fn line_4_a_draining_owner_is_waited_for(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = request(&b, 0).await;
    a.renew(&lease.acknowledging_handoff()).await.lease();
    b.wire().age("ownership/0", EXPIRY + 2);
    assert_eq!(poll_late(&b, &mut handoff).await, HandoffStatus::Pending);
}

pub async fn line_4_a_steal_that_conflicts_is_polled_further(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = request(&b, 0).await;
    let stolen = poll_late(&b, &mut handoff).await;
    let renewed = a.renew(&a.renew(&lease).await.lease()).await.lease();
    assert_eq!(claimed(&b, stolen).await, "lost to a");
    let stolen = poll_late(&b, &mut handoff).await;
    let _ = a.release(&renewed).await;
    assert_eq!(claimed(&b, stolen).await, "lost to no owner");
    let taken = poll_late(&b, &mut handoff).await;
    assert!(matches!(taken, HandoffStatus::Ready(_)), "{taken:?}");
    assert_eq!(claimed(&b, taken).await, "won");
}

/// As another SDK might do, which replaces all keys.
pub async fn line_4_an_erased_request_is_repeated_a_few_times(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let unmarked = bench.read(&ownership(0)).await;
    let mut handoff = request(&b, 0).await;
    for again in [true, true, false] {
        bench.put(&ownership(0), &unmarked).await;
        assert_eq!(poll(&b, &mut handoff).await, HandoffStatus::Pending);
        assert_eq!(bench.read(&ownership(0)).await.contains_key("ehchandoffto"), again);
    }
    let stolen = poll_late(&b, &mut handoff).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
}
