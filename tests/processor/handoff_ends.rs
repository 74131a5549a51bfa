//! Whoever asked, or was asked, dies or ends before the partition has moved.

use std::time::Duration;

use eventhubs_checkpoint::blob::{BlobContainer, Condition};
use eventhubs_checkpoint::store::HandoffRequestOutcome;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use tokio::time::{Instant, sleep};

use crate::told::{Told, asking, owner_of_all, publish, record, repeated};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// From the acknowledgement on the default is three quarters of the expiry; the thief looks every half interval.
const STOLEN_WITHIN: Duration = Duration::from_secs(45 + 5 + 5);

/// What is released for one that asked is kept for it for an interval and the grace of a record's age.
const RESERVED: Duration = Duration::from_secs(10 + 2);

/// An interval and its jitter.
const CYCLE: Duration = Duration::from_secs(10 + 1);

/// As long as the presence of one that has died counts, and a cycle of who takes its share.
const GONE_WITHIN: Duration = Duration::from_secs(60 + 2 + 10 + 1);

#[tokio::test(start_paused = true)]
async fn an_owner_that_answers_and_dies_is_stolen_from_before_its_record_expires() {
    let world = World::new(2);
    let a = owner_of_all(&world, 2, 10 * SECOND).await;
    let mut by_a = Told::by(&a);
    publish(&world, 2, "before");
    let (mut b, asked) = asking(&world).await;
    let mut by_b = Told::by(&b);
    by_a.wait_for("releasing: HandedOver").await;
    sleep(SECOND).await;
    assert_eq!(record(&world, &format!("ownership/{asked}")).await.unwrap()["draining"], "1");
    a.crash().await;
    let died = Instant::now();
    publish(&world, 2, "after");
    by_b.wait_for("claimed: Stolen(a)").await;
    assert!(died.elapsed() <= STOLEN_WITHIN, "{:?}", died.elapsed());
    b.wait_until_it_holds(2).await;
    assert_eq!(by_b.so_far(), ["duplicates: NotReleased", "claimed: Stolen(a)", "claimed: Expired(a)"]);
    repeated(&world, 2, &["before", "after"]).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_answers_and_loses_the_storage_is_stolen_from_and_learns_of_it() {
    // What it is not asked for it does not lose meanwhile.
    let mut world = World { expiry: 120 * SECOND, ..World::new(2) };
    world.config = world.config.clone().with_handoff_timeout(30 * SECOND);
    world.config.drain_timeout = Some(8 * SECOND);
    let apart = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let mut a = owner_of_all(&apart, 2, 7 * SECOND).await;
    let mut by_a = Told::by(&a);
    let (b, asked) = asking(&world).await;
    let mut by_b = Told::by(&b);
    by_a.wait_for("releasing: HandedOver").await;
    sleep(SECOND).await;
    apart.faulty.set_plan(FaultPlan::always(Fault::Hang));
    publish(&world, 2, "meanwhile");
    by_b.wait_for("claimed: Stolen(a)").await;
    apart.faulty.set_plan(FaultPlan::default());
    a.wait_until("it knows", |snapshot| snapshot.other_owner(&asked).is_some()).await;
    repeated(&world, 2, &["meanwhile"]).await;
    sleep(60 * SECOND).await;
    assert_eq!((a.held(), b.held()), (1, 1));
    // Its release is repeated until it finds out that the partition is not its own any more.
    assert_eq!(by_a.so_far(), ["asked by b", "releasing: HandedOver", "lost to Some(b)"]);
    assert_eq!(by_b.so_far(), ["duplicates: NotReleased", "claimed: Stolen(a)"]);
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_dies_before_it_answers_is_stolen_from_and_nothing_is_lost() {
    let world = World::new(2);
    let a = owner_of_all(&world, 2, Duration::ZERO).await;
    publish(&world, 2, "before");
    let (mut b, _) = asking(&world).await;
    let mut by_b = Told::by(&b);
    a.crash().await;
    publish(&world, 2, "after");
    b.wait_until_it_holds(2).await;
    assert_eq!(by_b.so_far(), ["duplicates: NotAcknowledged", "claimed: Stolen(a)", "claimed: Expired(a)"]);
    repeated(&world, 2, &["before", "after"]).await;
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_released_for_one_that_has_died_comes_back_when_the_reservation_has_lapsed() {
    let world = World::new(2);
    let mut a = owner_of_all(&world, 2, SECOND).await;
    let mut by_a = Told::by(&a);
    publish(&world, 2, "before");
    let (b, _) = asking(&world).await;
    b.crash().await;
    by_a.wait_for("released").await;
    let dark = Instant::now();
    publish(&world, 2, "meanwhile");
    a.wait_until_it_holds(2).await;
    assert!(dark.elapsed() <= GONE_WITHIN, "{:?}", dark.elapsed());
    assert_eq!(by_a.so_far(), ["asked by b", "releasing: HandedOver", "released", "claimed: Released"]);
    assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_one_that_is_gone_is_taken_away_and_processing_goes_on() {
    let world = World::new(1);
    let mut a = owner_of_all(&world, 1, Duration::ZERO).await;
    let mut by_a = Told::by(&a);
    sleep(300 * SECOND).await;
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles).await;
    // Before the next one, which comes after 27 s at the earliest, for a renewal that meets the mark would not know
    // that it is a dead one's.
    sleep(SECOND.mul_f64(26.9)).await;
    let ghost = world.store("ghost").await;
    let seen = ghost.list_ownerships().await.unwrap().records.remove(0);
    assert!(matches!(ghost.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
    for _ in 0..60 {
        publish(&world, 1, "meanwhile");
        sleep(SECOND).await;
    }
    assert!(!record(&world, "ownership/0").await.unwrap().contains_key("handoffto"));
    assert_eq!((by_a.so_far(), world.log.times("meanwhile 0")), (Vec::new(), 60));
    a.shut_down().await.unwrap();
}

/// It takes part no more, and the next cycle of the owner sees that.
#[tokio::test(start_paused = true)]
async fn one_that_asks_and_ends_before_the_owner_saw_it_interrupts_nothing() {
    let world = World::new(2);
    let mut a = owner_of_all(&world, 2, Duration::ZERO).await;
    let mut by_a = Told::by(&a);
    let (b, asked) = asking(&world).await;
    assert!(by_a.so_far().is_empty(), "choose another seed: the owner saw it at once");
    b.shut_down().await.unwrap();
    let record_of = format!("ownership/{asked}");
    assert_eq!(record(&world, &record_of).await.unwrap()["handoffto"], "b", "a mark cannot be taken back");
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("a cycle", |snapshot| snapshot.cycles > cycles + 1).await;
    sleep(40 * SECOND).await;
    assert!(!record(&world, &record_of).await.unwrap().contains_key("handoffto"));
    assert_eq!(by_a.so_far(), [""; 0]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_asks_and_ends_while_the_owner_drains_leaves_a_reservation_that_lapses() {
    let world = World::new(2);
    let mut a = owner_of_all(&world, 2, 3 * SECOND).await;
    let mut by_a = Told::by(&a);
    publish(&world, 2, "before");
    let (b, _) = asking(&world).await;
    by_a.wait_for("releasing: HandedOver").await;
    assert!(b.shut_down().await.unwrap().is_clean());
    publish(&world, 2, "meanwhile");
    by_a.wait_for("released").await;
    let dark = Instant::now();
    a.wait_until_it_holds(2).await;
    assert!(dark.elapsed() >= RESERVED && dark.elapsed() <= RESERVED + CYCLE, "{:?}", dark.elapsed());
    assert_eq!(by_a.so_far(), ["asked by b", "releasing: HandedOver", "released", "claimed: Released"]);
    assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0]);
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_ends_before_or_while_it_answers_hands_over_all_the_same() {
    for answers in [false, true] {
        let world = World::new(2);
        let a = owner_of_all(&world, 2, 3 * SECOND).await;
        let mut by_a = Told::by(&a);
        publish(&world, 2, "before");
        let (mut b, _) = asking(&world).await;
        let mut by_b = Told::by(&b);
        if answers {
            by_a.wait_for("releasing: HandedOver").await;
        }
        publish(&world, 2, "meanwhile");
        assert!(a.shut_down().await.unwrap().is_clean());
        b.wait_until_it_holds(2).await;
        assert_eq!(by_b.so_far(), ["claimed: HandedOver", "claimed: Released"], "{answers}");
        let told = by_a.so_far();
        assert_eq!(told.contains(&"releasing: HandedOver".to_owned()), answers, "{told:?}");
        assert_eq!(told[told.len() - 2..], ["released", "released"]);
        assert_eq!(repeated(&world, 2, &["before", "meanwhile"]).await, [""; 0], "{answers}");
        b.shut_down().await.unwrap();
    }
}

/// The acknowledgement finds that the record was deleted and creates it again, which begins another tenure. That one is
/// to be given back, too.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_deleted_in_the_middle_of_a_handoff_does_not_hold_it_up() {
    let world = World::new(2);
    let apart = World { faulty: FaultyContainer::new(world.container.clone(), 3), ..world.clone() };
    let a = owner_of_all(&apart, 2, 14 * SECOND).await;
    let mut by_a = Told::by(&a);
    publish(&world, 2, "before");
    let (mut b, asked) = asking(&world).await;
    let name = format!("ns.servicebus.windows.net/hub/$default/ownership/{asked}");
    let writes = Target::from(BlobOperation::Write).named(&name);
    apart.faulty.set_plan(FaultPlan::default().with_on(1.0, writes, Fault::Latency(2 * SECOND)));
    by_a.wait_for("releasing: HandedOver").await;
    let asked_to_stop = Instant::now();
    sleep(SECOND).await;
    world.container.delete(&name, &Condition::Unconditional).await.unwrap();
    by_a.wait_for("released").await;
    assert!(asked_to_stop.elapsed() < 14 * SECOND, "{:?}", asked_to_stop.elapsed());
    b.wait_until_it_holds(1).await;
    assert!(asked_to_stop.elapsed() < 14 * SECOND + CYCLE, "{:?}", asked_to_stop.elapsed());
    publish(&world, 2, "after");
    repeated(&world, 2, &["before", "after"]).await;
    assert!(!by_a.so_far().iter().any(|told| told.contains("HandlerStillRunning")));
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}
