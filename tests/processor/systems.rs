//! The requirements of the systems that preceded this crate, as far as they concern processing.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::processor::PartitionState;
use tokio::time::sleep;

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// 18 partitions, three instances, and a fourth that joins: moved partitions continue after their last checkpoint.
#[tokio::test(start_paused = true)]
async fn a_joining_instance_resumes_from_the_checkpoint() {
    let world = World::new(18);
    let mut instances = vec![world.start("a").await, world.start("b").await, world.start("c").await];
    for instance in &mut instances {
        instance.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 18).await;
    }
    sleep(60 * SECOND).await;
    for partition in 0..18 {
        world.hub.publish(partition, format!("before {partition}"));
    }
    world.log.wait_for("18", |log| log.bodies().len() == 18).await;
    sleep(2 * SECOND).await;
    let mut d = world.start("d").await;
    d.wait_until_it_holds(4).await;
    // Until the previous owner of the last partition has detected the loss: both may read it until then.
    sleep(30 * SECOND).await;
    for partition in 0..18 {
        world.hub.publish(partition, format!("after {partition}"));
    }
    world.log.wait_for("18 more", |log| log.bodies().len() == 36).await;
    sleep(60 * SECOND).await;
    let bodies = world.log.bodies();
    assert_eq!(bodies.len(), 36, "checkpointed events were redelivered");
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), 36);
    instances.push(d);
    let mut held: Vec<_> = instances.iter().map(crate::world::Instance::held).collect();
    held.sort_unstable();
    assert_eq!(held, [4, 4, 5, 5]);
    for instance in instances {
        instance.shut_down().await.unwrap();
    }
}

/// Work is marked as done only after it was processed: if an instance crashes or its handler panics, the next one
/// processes it.
#[tokio::test(start_paused = true)]
async fn unfinished_work_is_processed_by_the_next_owner() {
    let world = World::new(1);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.hub.publish(0, "done");
    world.log.wait_for("done", |log| log.times("done") == 1).await;
    sleep(2 * SECOND).await;
    world.hub.publish(0, "hang");
    world.log.wait_for("hang", |log| log.times("hang") == 1).await;
    a.crash().await;
    let b = world.start("b").await;
    world.log.wait_for("hang again", |log| log.times("hang") == 2).await;
    assert_eq!(world.log.times("done"), 1);
    b.crash().await;
    let world = World::new(1);
    world.hub.publish(0, "panic");
    let c = world.start("c").await;
    world.log.wait_for("panic again", |log| log.times("panic") == 2).await;
    c.shut_down().await.unwrap();
}

/// One visible record per unit of work: its id, start, end, state and owner.
#[tokio::test(start_paused = true)]
async fn every_partition_shows_its_owner_and_state() {
    let world = World::new(3);
    let mut a = world.start("a").await;
    let mut b = world.start("b").await;
    a.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 3).await;
    b.wait_until("all owned", |snapshot| snapshot.counts().values().sum::<usize>() == 3).await;
    sleep(60 * SECOND).await;
    let snapshot = a.snapshots.borrow().clone();
    assert_eq!(snapshot.partitions.len(), 3);
    for view in &snapshot.partitions {
        assert!(matches!(&view.owner, PartitionOwner::This | PartitionOwner::Other(_)), "{view:?}");
        let record = snapshot.leases[&view.partition];
        assert!(record.claimed_at.is_some() && record.age < 60 * SECOND, "{record:?}");
    }
    let statuses = a.handle.partitions();
    assert_eq!(statuses.len(), snapshot.owned.len());
    assert!(statuses.iter().all(|status| status.state == PartitionState::Idle && status.state_for > 20 * SECOND));
    let shown = serde_json::to_value((&*snapshot, &statuses, a.handle.health())).unwrap();
    assert!(shown.to_string().contains(r#""state":"idle""#), "{shown}");
    a.shut_down().await.unwrap();
    b.shut_down().await.unwrap();
}
