//! Moves that were asked for, and what is told when one could not go as it should.

use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::balancer::{DuplicateCause, Event};
use eventhubs_checkpoint::processor::Processor;
use eventhubs_checkpoint::store::{Claim, ClaimOutcome, GroupStore, Lease};
use tokio::sync::broadcast::Receiver;
use tokio::time::{sleep, timeout};

use crate::world::{PATIENCE, Recorder, World};

/// Why the next move is not without duplicates.
async fn told(mut events: Receiver<Event>) -> DuplicateCause {
    let waiting = async {
        loop {
            if let Event::DuplicatesPossible { cause, .. } = events.recv().await.unwrap() {
                return cause;
            }
        }
    };
    timeout(PATIENCE, waiting).await.expect("nothing was told")
}

#[tokio::test(start_paused = true)]
async fn who_hands_over_what_its_handler_does_not_let_go_says_that_events_may_come_twice() {
    let world = World::new(2);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.hub.publish(0, "hang");
    world.hub.publish(1, "hang");
    world.log.wait_for("both", |log| log.times("hang") == 2).await;
    let events = a.handle.events();
    let b = world.start("b").await;
    assert_eq!(told(events).await, DuplicateCause::NotSettled);
    world.log.wait_for("it again", |log| log.times("hang") == 3).await;
    b.crash().await;
    a.crash().await;
}

/// Renews, says that it hands over on request, and never does.
async fn deaf(store: GroupStore, mut leases: Vec<Lease>) {
    loop {
        sleep(Duration::from_secs(10)).await;
        let renewed = store.renew(leases).await;
        leases = renewed.into_iter().filter_map(|(_, outcome)| won(outcome)).collect();
    }
}

fn won(outcome: ClaimOutcome) -> Option<Lease> {
    match outcome {
        ClaimOutcome::Won(lease) => Some(lease),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_does_not_answer_is_stolen_from_in_the_end_and_that_is_told() {
    let world = World::new(2);
    let store = world.store("deaf").await.cooperative(true);
    let claims = vec![Claim::unowned(0.into()), Claim::unowned(1.into())];
    let leases: Vec<_> = store.claim(claims).await.into_iter().filter_map(|(_, outcome)| won(outcome)).collect();
    assert_eq!(leases.len(), 2);
    let renewing = tokio::spawn(deaf(store, leases));
    let mut b = world.start("b").await;
    let events = b.handle.events();
    b.wait_until("a request", |snapshot| !snapshot.asked.is_empty()).await;
    assert_eq!(told(events).await, DuplicateCause::NotAnswered);
    b.wait_until_it_holds(1).await;
    renewing.abort();
    b.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handoff_that_cannot_end_in_time_is_refused_before_anything_starts() {
    for handoff in [true, false] {
        let mut world = World::new(1);
        world.config.balancer =
            world.config.balancer.with_handoff(handoff).with_handoff_timeout(Duration::from_secs(20));
        let handler = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let builder = Processor::builder(world.hub.source(), world.store("a").await, handler);
        match builder.config(world.config.clone()).build() {
            Ok(_) => assert!(!handoff, "it was taken"),
            Err(error) => {
                assert!(handoff && error.kind() == ErrorKind::Config, "{error}");
                assert!(
                    error.to_string().contains("20s") && error.to_string().contains("with_handoff(false)"),
                    "{error}"
                );
            }
        }
    }
}
