//! Handoff: how a thief asks (1), what the victim does about it (2), the reservation (3), and the time-outs (4).

use std::time::Duration;

use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::store::{Claim, Handoff, HandoffRequestOutcome, HandoffStatus, HandoffTimeouts};
use eventhubs_checkpoint::testing::faulty::Fault;
use tokio::join;

use crate::bench::{Bench, EXPIRY, Owner, Said, Win, metadata, owned_by, ownership};
use crate::wire::shown;

/// Nothing comes in time.
const NONE: HandoffTimeouts = HandoffTimeouts::new(Duration::ZERO, Duration::ZERO);

/// An owner that hands over on request.
async fn cooperative(bench: &Bench, name: &str) -> Owner {
    let mut owner = bench.owner(name).await;
    owner.store = owner.store.cooperative(true);
    owner
}

/// A partition is asked for by what a listing shows. What was sent before is forgotten.
async fn mark(thief: &Owner, partition: u32) -> Result<HandoffRequestOutcome<Handoff>> {
    let listing = thief.store.list_ownerships().await.unwrap();
    let seen = listing.records.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
    thief.sent();
    thief.store.request_handoff(&seen).await
}

async fn ask(thief: &Owner, partition: u32) -> Handoff {
    match mark(thief, partition).await {
        Ok(HandoffRequestOutcome::Requested(handoff)) => handoff,
        other => panic!("{}", other.said()),
    }
}

async fn look(thief: &Owner, handoff: &mut Handoff) -> HandoffStatus<Claim> {
    look_with(thief, handoff, &thief.store.handoff_timeouts()).await
}

async fn look_with(thief: &Owner, handoff: &mut Handoff, patience: &HandoffTimeouts) -> HandoffStatus<Claim> {
    thief.store.poll_handoff(handoff, patience).await.unwrap()
}

async fn claimed(thief: &Owner, pursuit: HandoffStatus<Claim>) -> String {
    let (HandoffStatus::Ready(claim) | HandoffStatus::TimedOut(claim)) = pursuit else { panic!("{pursuit:?}") };
    thief.store.claim_all(vec![claim]).await.remove(0).1.said()
}

/// The keys of a handoff in a record.
async fn handoff_keys(bench: &Bench, partition: u32) -> Vec<(String, String)> {
    let keys = ["draining", "handoffto"];
    bench.read(&ownership(partition)).await.into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect()
}

fn keys(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    metadata(pairs).into_iter().collect()
}

impl Said for Result<HandoffRequestOutcome<Handoff>> {
    fn said(&self) -> String {
        match self {
            Ok(HandoffRequestOutcome::Requested(_)) => "standing".to_owned(),
            Ok(HandoffRequestOutcome::Lost) => "lost".to_owned(),
            Ok(refused) => format!("not eligible: {refused:?}"),
            Err(error) => format!("undecided: {:?}", error.kind()),
        }
    }
}

pub async fn handoff_1_the_thief_marks_and_copies_every_other_key(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut expected = bench.read(&ownership(0)).await;
    assert_eq!(expected["cooperative"], "1");
    // Such as a later version may write.
    expected.extend(metadata(&[
        ("load", "heavy"),
        ("leasescope", "universe"),
        ("claimedat", "today"),
        ("theirs", "1"),
    ]));
    bench.put(&ownership(0), &expected).await;
    let handoff = ask(&b, 0).await;
    assert_eq!((handoff.owner().as_str(), handoff.is_acknowledged()), ("a", false));
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0"]);
    expected.insert("handoffto".into(), "b".into());
    assert_eq!(bench.read(&ownership(0)).await, expected);
}

pub async fn handoff_1_only_a_record_younger_than_half_the_expiry(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.wire().age("ownership/0", EXPIRY / 2);
    assert_eq!(mark(&b, 0).await.said(), "not eligible: LeaseTooOld");
    assert_eq!(handoff_keys(&bench, 0).await, []);
    b.wire().age("ownership/0", EXPIRY / 2 - 1);
    assert_eq!(mark(&b, 0).await.said(), "standing");
}

pub async fn handoff_1_only_a_record_of_a_cooperative_owner(bench: Bench) {
    let (a, b) = (bench.owner("a").await, cooperative(&bench, "b").await);
    a.win(0).await;
    bench.put(&ownership(1), &metadata(&[("ownerid", "python")])).await;
    for partition in [0, 1] {
        assert_eq!(mark(&b, partition).await.said(), "not eligible: NotCooperative");
        assert_eq!(handoff_keys(&bench, partition).await, []);
    }
}

pub async fn handoff_1_not_one_that_another_has_asked_for(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    a.win(0).await;
    ask(&b, 0).await;
    assert_eq!(mark(&c, 0).await.said(), "not eligible: AlreadyRequested");
    assert_eq!(mark(&b, 0).await.said(), "standing");
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("handoffto", "b")]));
}

pub async fn handoff_1_nothing_that_is_released_or_mine(bench: Bench) {
    let a = cooperative(&bench, "a").await;
    let lease = a.win(0).await;
    assert_eq!(mark(&a, 0).await.said(), "lost");
    a.release(&lease).await;
    assert_eq!(mark(&a, 0).await.said(), "lost");
    assert_eq!(handoff_keys(&bench, 0).await, []);
}

pub async fn handoff_1_a_mark_overwrites_nothing(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_write("ownership/0", Fault::ConcurrentWrite(owned_by("c")));
    assert_eq!(mark(&b, 0).await.said(), "lost");
    assert_eq!(bench.read(&ownership(0)).await, owned_by("c"));
}

/// Both are there in the end, whichever came first.
pub async fn handoff_1_of_a_mark_and_a_renewal_at_once_neither_is_lost(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        a.dawdle();
        b.dawdle();
        let (renewed, marked) = join!(a.renew(&lease), mark(&b, partition));
        assert_eq!((renewed.said(), marked.said()), ("won".to_owned(), "standing".to_owned()));
        assert_eq!(bench.owner_of(partition).await, "a");
        assert_eq!(handoff_keys(&bench, partition).await, keys(&[("handoffto", "b")]));
    }
}

pub async fn handoff_1_of_two_that_ask_at_once_one_stands(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    for partition in 0..bench.rounds {
        a.win(partition).await;
        b.dawdle();
        c.dawdle();
        let (by_b, by_c) = join!(mark(&b, partition), mark(&c, partition));
        let winner = if by_b.said() == "standing" { "b" } else { "c" };
        assert_ne!(by_b.said(), by_c.said());
        assert_eq!(handoff_keys(&bench, partition).await, keys(&[("handoffto", winner)]));
    }
}

pub async fn claim_2_a_mark_found_on_the_record_of_the_same_owner_is_standing(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_write("ownership/0", Fault::ResponseLost);
    ask(&b, 0).await;
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0", "read ownership/0"]);
}

pub async fn claim_2_a_mark_that_was_not_applied_is_tried_again(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    for fault in [Fault::RequestLost, Fault::Conflict] {
        b.next_write("ownership/0", fault);
    }
    ask(&b, 0).await;
    assert_eq!(b.requests(), ["read ownership/0", "match ownership/0"].repeat(3));
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("handoffto", "b")]));
}

pub async fn claim_2_a_mark_on_the_record_of_another_owner_is_lost(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut theirs = owned_by("c");
    theirs.insert("handoffto".into(), "b".into());
    b.next_write("ownership/0", Fault::ConcurrentWrite(theirs));
    assert_eq!(mark(&b, 0).await.said(), "lost");
}

pub async fn claim_3_a_mark_whose_read_fails_is_undecided(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    b.next_read_fails("ownership/0");
    assert_eq!(mark(&b, 0).await.said(), "undecided: Indeterminate");
    let mut handoff = ask(&b, 0).await;
    b.next_read_fails("ownership/0");
    b.store.poll_handoff(&mut handoff, &NONE).await.unwrap_err();
}

pub async fn handoff_2_the_victim_sees_it_by_the_renewal_that_conflicts(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    assert_eq!(lease.handoff_requested_by(), None);
    ask(&b, 0).await;
    a.sent();
    let mut renewed = a.renew(&lease).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
    for _ in 0..2 {
        assert_eq!((renewed.handoff_requested_by().unwrap().as_str(), renewed.epoch()), ("b", lease.epoch()));
        assert_eq!(handoff_keys(&bench, 0).await, keys(&[("handoffto", "b")]));
        renewed = a.renew(&renewed).await.lease();
    }
}

/// The renewal meets the mark, and the record that it reads is young; but it does not say what the thief waits for.
pub async fn handoff_2_the_acknowledgement_is_written_even_over_a_young_record(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    ask(&b, 0).await;
    a.sent();
    let draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("draining", "1"), ("handoffto", "b")]));
    assert_eq!(draining.handoff_requested_by().unwrap().as_str(), "b");
}

pub async fn handoff_2_an_acknowledgement_that_was_applied_stands(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    ask(&b, 0).await;
    let asked = a.renew(&lease).await.lease();
    a.sent();
    a.next_write("ownership/0", Fault::ResponseLost);
    let draining = a.renew(&asked.acknowledging_handoff()).await.lease();
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0"]);
    assert_eq!(*draining.etag(), bench.blob(&ownership(0)).await.unwrap().etag);
    assert_eq!(handoff_keys(&bench, 0).await, keys(&[("draining", "1"), ("handoffto", "b")]));
}

pub async fn handoff_2_the_victim_renews_while_draining(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    let mut draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    for _ in 0..2 {
        assert_eq!(look(&b, &mut handoff).await, HandoffStatus::Pending);
        draining = a.renew(&draining).await.lease();
        assert_eq!(handoff_keys(&bench, 0).await, keys(&[("draining", "1"), ("handoffto", "b")]));
    }
}

/// The victim does not know yet that it is asked.
pub async fn handoff_2_a_release_that_meets_the_mark_keeps_it(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    ask(&b, 0).await;
    a.sent();
    assert_eq!(a.release(&lease).await.said(), "released");
    assert_eq!(a.requests(), ["match ownership/0", "read ownership/0", "match ownership/0"]);
    let epoch = lease.epoch().to_string();
    let released = metadata(&[("epoch", &epoch), ("handoffto", "b"), ("ownerid", "")]);
    assert_eq!(bench.read(&ownership(0)).await, released);
}

pub async fn handoff_2_of_a_mark_and_a_release_at_once_the_record_says_what_both_were_told(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for partition in 0..bench.rounds {
        let lease = a.win(partition).await;
        let seen = b.store.list_ownerships().await.unwrap().records;
        let seen = seen.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
        a.dawdle();
        b.dawdle();
        let (released, marked) = join!(a.release(&lease), b.store.request_handoff(&seen));
        assert_eq!((released.said(), bench.owner_of(partition).await), ("released".to_owned(), String::new()));
        let (said, left) = (marked.said(), handoff_keys(&bench, partition).await);
        let expected = if said == "standing" { keys(&[("handoffto", "b")]) } else { Vec::new() };
        assert_eq!(left, expected, "{said}");
    }
}

pub async fn handoff_3_what_is_released_for_the_thief_is_taken_and_repeats_no_event(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, cooperative(&bench, "b").await);
    let (lease, mut adoption) = a.run(0).await;
    let mut handoff = ask(&b, 0).await;
    let draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    assert_eq!(look(&b, &mut handoff).await, HandoffStatus::Pending);
    assert_eq!(a.checkpoint(&mut adoption, 7).await.said(), "written");
    a.release(&draining).await;
    let taken = look(&b, &mut handoff).await;
    assert!(matches!(taken, HandoffStatus::Ready(_)), "{taken:?}");
    assert_eq!(claimed(&b, taken).await, "won");
    assert_eq!((bench.owner_of(0).await.as_str(), handoff_keys(&bench, 0).await), ("b", Vec::new()));
    assert_eq!(b.adopted(0).await.record().sequence_number, Some(7));
}

pub async fn handoff_3_what_is_released_for_another_or_for_nobody_is_over(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    for (partition, left) in [(0, vec![("ownerid", "")]), (1, vec![("ownerid", ""), ("handoffto", "c")])] {
        a.win(partition).await;
        let mut handoff = ask(&b, partition).await;
        bench.put(&ownership(partition), &metadata(&left)).await;
        assert_eq!(look_with(&b, &mut handoff, &NONE).await, HandoffStatus::Canceled);
    }
}

pub async fn handoff_3_once_the_owner_has_changed_it_is_over(bench: Bench) {
    let (a, b, c) = (cooperative(&bench, "a").await, bench.owner("b").await, bench.owner("c").await);
    a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    c.take(0).await;
    assert_eq!(look_with(&b, &mut handoff, &NONE).await, HandoffStatus::Canceled);
    bench.delete(&ownership(0)).await;
    assert_eq!(look_with(&b, &mut handoff, &NONE).await, HandoffStatus::Canceled);
}

/// A later life of the victim owns it: it has not been asked.
pub async fn handoff_3_a_victim_that_has_started_anew_was_not_asked(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    bench.later("a").await.take(0).await;
    assert_eq!(look_with(&b, &mut handoff, &NONE).await, HandoffStatus::Canceled);
}

pub async fn handoff_4_a_young_record_is_no_acknowledgement(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    let renewed = a.renew(&a.renew(&lease).await.lease()).await.lease();
    assert_eq!(look(&b, &mut handoff).await, HandoffStatus::Pending);
    assert!(!handoff.is_acknowledged());
    a.renew(&renewed.acknowledging_handoff()).await.lease();
    assert_eq!(look(&b, &mut handoff).await, HandoffStatus::Pending);
    assert!(handoff.is_acknowledged());
}

pub async fn handoff_4_defaults_to_half_the_expiry_and_a_deadline_then_three_quarters(bench: Bench) {
    let patience = bench.owner("b").await.store.handoff_timeouts();
    assert_eq!(patience.acknowledgement, Duration::from_secs(35));
    assert_eq!(patience.release, Duration::from_secs(45));
}

pub async fn handoff_4_without_an_acknowledgement_it_is_stolen_under_a_fresh_etag(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, cooperative(&bench, "b").await);
    let lease = a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    let patience = HandoffTimeouts::new(Duration::ZERO, b.store.handoff_timeouts().release);
    let renewed = a.renew(&a.renew(&lease).await.lease()).await.lease();
    let stolen = look_with(&b, &mut handoff, &patience).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
    b.sent();
    assert_eq!(claimed(&b, stolen).await, "won");
    let sent = b.sent();
    assert_eq!((shown(&sent), sent[0].under()), (vec!["match ownership/0".to_owned()], Some(renewed.etag())));
    assert_eq!((bench.owner_of(0).await.as_str(), handoff_keys(&bench, 0).await), ("b", Vec::new()));
}

pub async fn handoff_4_without_the_release_it_is_stolen(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    a.renew(&lease.acknowledging_handoff()).await.lease();
    let acknowledged = HandoffTimeouts::new(Duration::ZERO, b.store.handoff_timeouts().release);
    assert_eq!(look_with(&b, &mut handoff, &acknowledged).await, HandoffStatus::Pending);
    let stolen = look_with(&b, &mut handoff, &NONE).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
    assert_eq!(claimed(&b, stolen).await, "won");
    assert_eq!(handoff_keys(&bench, 0).await, []);
}

pub async fn handoff_4_a_steal_that_meets_a_renewal_or_the_release_is_lost_and_pursued_further(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    let lease = a.win(0).await;
    let mut handoff = ask(&b, 0).await;
    let stolen = look_with(&b, &mut handoff, &NONE).await;
    let draining = a.renew(&lease.acknowledging_handoff()).await.lease();
    assert_eq!(claimed(&b, stolen).await, "lost to a");
    let stolen = look_with(&b, &mut handoff, &NONE).await;
    a.release(&draining).await;
    assert_eq!(claimed(&b, stolen).await, "lost to nobody");
    let taken = look_with(&b, &mut handoff, &NONE).await;
    assert!(matches!(taken, HandoffStatus::Ready(_)), "{taken:?}");
    assert_eq!(claimed(&b, taken).await, "won");
}

/// As another SDK might, that replaces all keys.
pub async fn handoff_4_a_mark_that_is_erased_is_written_again_a_few_times(bench: Bench) {
    let (a, b) = (cooperative(&bench, "a").await, bench.owner("b").await);
    a.win(0).await;
    let unmarked = bench.read(&ownership(0)).await;
    let mut handoff = ask(&b, 0).await;
    for again in [true, true, false] {
        bench.put(&ownership(0), &unmarked).await;
        assert_eq!(look(&b, &mut handoff).await, HandoffStatus::Pending);
        assert_eq!(bench.read(&ownership(0)).await.contains_key("handoffto"), again);
    }
    let stolen = look_with(&b, &mut handoff, &NONE).await;
    assert!(matches!(stolen, HandoffStatus::TimedOut(_)), "{stolen:?}");
}
