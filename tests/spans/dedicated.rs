//! Two processors of two groups in one process, each with its load-balancing loop on a dedicated thread.

use std::sync::LazyLock;

use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use tokio::time::{sleep, timeout};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::scoped::Scoped;
use crate::world::TIMEOUT;
use crate::{Group, SECOND, ownerships};

/// What all threads log that have no subscriber of their own: only those of this file.
static LOG: LazyLock<Scoped> = LazyLock::new(|| {
    let scoped = Scoped::default();
    tracing_subscriber::registry().with(scoped.clone()).init();
    scoped
});

pub fn of_the_process() -> &'static Scoped {
    &LOG
}

fn group(event_hub: &str, name: &str, partitions: u32) -> Group {
    let mut group = Group::new(event_hub, name, partitions);
    group.world.expiry = 4 * SECOND;
    group.world.config =
        ProcessorConfig::default().with_balancer(|balancer| balancer.with_load_balancing_interval(SECOND));
    group
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_dedicated_thread_name_the_instance() {
    let log = of_the_process();
    let (orders, bills) = (group("orders", "$Default", 2), group("bills", "audit", 3));
    let (mut a, of_a) = orders.start("a").await;
    let (mut b, of_b) = bills.start("b").await;
    a.wait_until_it_holds(2).await;
    b.wait_until_it_holds(3).await;
    orders.world.hub.publish(0, "fail");
    bills.world.hub.publish(2, "x");
    of_a.wait_for("fail", 2).await;
    of_b.wait_for("x", 1).await;
    orders.world.faulty.set_plan(FaultPlan::default().with_on(1.0, ownerships(), Fault::Unreachable));
    let failure = "load-balancing cycle failed; retrying";
    let failing = async {
        while log.count(&orders.instance("a"), failure) == 0 {
            sleep(SECOND / 20).await;
        }
    };
    timeout(TIMEOUT, failing).await.expect("no cycle fails");
    orders.world.faulty.set_plan(FaultPlan::default());
    let cycles = a.snapshots.borrow().cycles;
    a.wait_until("a cycle that succeeds", |snapshot| snapshot.cycles > cycles + 1).await;
    for instance in [a, b] {
        instance.handle.shutdown();
        instance.ended().await.unwrap();
    }
    let instances = [orders.instance("a"), bills.instance("b")];
    log.check(&instances);
    assert_eq!(log.count(&instances[1], failure), 0);
    assert_eq!(log.count(&instances[0], "partition released"), 2);
    assert_eq!(log.count(&instances[1], "partition released"), 3);
}
