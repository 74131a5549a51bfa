//! Two processors of two groups in one process, in paused time, with the load-balancing loop on the application's
//! runtime.

use std::sync::atomic::Ordering;

use eventhubs_checkpoint::balancer::BalancerConfig;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::processor::OnFailure;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;
use tracing::Level;

use crate::scoped::Record;
use crate::{Group, SECOND, capture, ownerships};

/// What the log of the group with faults contains. Each is logged by another task.
const EXPECTED: &[&str] = &[
    "malformed record; unreadable fields are ignored",
    "partition claimed",
    "processing started",
    "handler failed",
    "partition failed; retrying",
    "outcome of storage operation unknown; retrying",
    "load-balancing cycle failed; retrying",
    "checkpoint was not written and stays pending",
    "storage reachable again; other owners get one lease duration to renew",
    "tracked event dropped unfinished; the checkpoint stays before it",
    "event tracked too late to hold back the checkpoint",
    "handoff requested by another instance; draining partition",
    "processing stopped",
    "partition released",
    "failed to list partitions; using the last known list",
    "failed to read partition properties; lag is stale",
    "failed to close event source cleanly",
    "shutdown requested",
    "processor shut down uncleanly",
];

#[tokio::test(start_paused = true)]
async fn every_event_names_its_instance() {
    let (log, _guard) = capture();
    let (orders, bills) = (Group::new("orders", "$Default", 2), Group::new("bills", "audit", 3));
    orders.world.container.overwrite(&bad_record(), &Metadata::new()).await.unwrap();
    let (mut a, of_a) = orders.start("a").await;
    let (mut b, of_b) = bills.start("b").await;
    a.wait_until_it_holds(2).await;
    b.wait_until_it_holds(3).await;
    orders.world.hub.publish(0, "fail");
    bills.world.hub.publish(2, "x");
    of_a.wait_for("fail", 2).await;
    of_b.wait_for("x", 1).await;

    orders.world.hub.break_link(1);
    orders.world.faulty.set_plan(FaultPlan::always(Fault::RequestLost));
    orders.world.hub.publish(1, "y");
    orders.hub_fails.store(true, Ordering::Relaxed);
    sleep(100 * SECOND).await;
    orders.world.faulty.set_plan(FaultPlan::default());
    orders.hub_fails.store(false, Ordering::Relaxed);
    sleep(60 * SECOND).await;

    let (a2, _) = orders.start("a2").await;
    a.wait_until_it_holds(1).await;
    // Until the other partition has moved.
    sleep(10 * SECOND).await;
    orders.world.hub.publish(0, "z");
    orders.world.hub.publish(1, "z");
    of_a.wait_for("z", 1).await;
    sleep(10 * SECOND).await;
    let context = of_a.context();
    // A task of the application, without a span.
    let outside = tokio::spawn(async move {
        drop(context.track(&MemoryEvent::new(1000, "never delivered")));
        context.track(&MemoryEvent::new(0, "long ago")).finish();
    });
    outside.await.unwrap();
    orders.world.faulty.set_plan(FaultPlan::default().with_on(1.0, ownerships(), Fault::Unreachable));
    for instance in [&a, &a2, &b] {
        instance.handle.shutdown();
    }
    sleep(5 * SECOND).await;
    orders.world.faulty.set_plan(FaultPlan::default());
    for instance in [a, a2, b] {
        instance.ended().await.unwrap();
    }

    let instances = [orders.instance("a"), orders.instance("a2"), bills.instance("b")];
    log.check(&instances);
    for message in EXPECTED {
        assert!(log.count(&instances[0], message) > 0, "never logged: {message}");
    }
    let is_release = |record: &Record| record.fields.get("operation") == "release";
    assert!(log.of(&instances[0]).iter().any(is_release), "a release is retried by a task of its own");
    assert_eq!(log.count(&instances[2], "partition claimed"), 3);
    let troubles: Vec<_> = log.of(&instances[2]).into_iter().filter(|record| record.level <= Level::WARN).collect();
    assert!(troubles.is_empty(), "the group without faults has: {troubles:?}");
    for record in log.of(&instances[0]) {
        let is_in_task = ["processing started", "processing stopped", "handler failed"].contains(&record.message());
        assert!(!is_in_task || record.is_in("partition"), "{record:?}");
    }
    for callback in ["started", "handle", "handle, after a wait", "stopped"] {
        assert!(log.records().iter().any(|record| record.fields.get("callback") == callback), "{callback}");
    }
}

fn bad_record() -> String {
    "ns.servicebus.windows.net/orders/$default/ownership/0".to_owned()
}

/// A processor whose handler parks its partition at the first failure.
#[tokio::test(start_paused = true)]
async fn failures_that_nothing_retries_are_errors() {
    let (log, _guard) = capture();
    let mut group = Group::new("orders", "$Default", 1);
    group.world.config = group.world.config.clone().with_on_failure(OnFailure::Park);
    let (mut a, of_a) = group.start("a").await;
    a.wait_until_it_holds(1).await;
    group.world.hub.publish(0, "fail");
    of_a.wait_for("fail", 1).await;
    sleep(SECOND).await;
    let (later, _) = group.start("a").await;
    a.ended().await.unwrap_err();
    later.crash().await;
    let level = |message: &str| log.records().into_iter().find(|record| record.message() == message).unwrap().level;
    assert_eq!(level("handler failed"), Level::ERROR);
    assert_eq!(level("processor stopped unexpectedly"), Level::ERROR);
}

#[tokio::test(start_paused = true)]
async fn an_expired_checkpoint_is_an_error() {
    let (log, _guard) = capture();
    let group = Group::new("orders", "$Default", 1);
    group.world.hub.publish_many(0, 5, "x");
    let (a, of_a) = group.start("a").await;
    of_a.wait_for("x", 5).await;
    a.shut_down().await.unwrap();
    group.world.hub.publish_many(0, 5, "y");
    group.world.hub.expire_before(0, 8);
    let (a, of_a) = group.start("a").await;
    of_a.wait_for("y", 2).await;
    a.shut_down().await.unwrap();
    let unusable = "invalid checkpoint; starting from another position";
    let record = log.records().into_iter().find(|record| record.message() == unusable).unwrap();
    assert_eq!((record.level, record.fields.get("partition_id")), (Level::ERROR, "0"));
    assert!(record.fields.get("checkpoint").contains("sequence number 4"), "{record:?}");
}

/// A balancer on its own, without a processor.
#[tokio::test(start_paused = true)]
async fn a_balancer_has_the_span_of_its_store() {
    let (log, _guard) = capture();
    let group = Group::new("orders", "$Default", 2);
    let store = group.builder("a").connect().await.unwrap();
    let (_hub, partitions) = tokio::sync::watch::channel([0.into(), 1.into()].into());
    let config = BalancerConfig::default();
    let (balancer, handle) = eventhubs_checkpoint::balancer::Balancer::new(store, config, partitions).unwrap();
    let running = tokio::spawn(balancer.run());
    handle.snapshots().wait_for(|snapshot| snapshot.owned.len() == 2).await.unwrap();
    group.world.faulty.set_plan(FaultPlan::default().with_on(1.0, ownerships(), Fault::Unreachable));
    sleep(60 * SECOND).await;
    group.world.faulty.set_plan(FaultPlan::default());
    handle.shutdown().await;
    running.await.unwrap().unwrap();
    log.check(&[group.instance("a")]);
    assert!(log.count(&group.instance("a"), "outcome of storage operation unknown; retrying") > 0);
}
