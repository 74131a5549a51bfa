//! State for each partition: `per_partition`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, OwnPosition, PartitionContext, PartitionHandler, PartitionStart, StopReason, per_partition,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;

use crate::support::{SECOND, greedy, wait_for, wait_for_checkpoint};
use crate::world::World;

/// What the handlers of all starts did, and how the next ones behave.
#[derive(Clone, Debug, Default)]
struct Scene {
    calls: Arc<Mutex<Vec<String>>>,
    failing_creations: Arc<AtomicUsize>,
    failing_starts: Arc<AtomicUsize>,
    position: Option<i64>,
}

impl Scene {
    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn record(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn handler(&self) -> impl Handler<MemoryEvent> {
        let scene = self.clone();
        per_partition(move |start: PartitionStart| {
            let scene = scene.clone();
            async move {
                if count_down(&scene.failing_creations) {
                    return Err("cannot load the state".into());
                }
                Ok(Counting { scene, partition: start.partition_id().to_string(), events: 0 })
            }
        })
    }
}

fn count_down(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn publish(world: &World, partition: u32, bodies: &[&str]) {
    for body in bodies {
        world.hub.publish(partition, *body);
    }
}

/// Counts the events of one start. Fails at "fail", hangs at "hang".
struct Counting {
    scene: Scene,
    partition: String,
    events: usize,
}

impl PartitionHandler<MemoryEvent> for Counting {
    fn start_position(&self) -> OwnPosition {
        OwnPosition::after(self.scene.position)
    }

    async fn started(&mut self, _: &PartitionContext) -> Result<(), HandlerError> {
        self.scene.record(format!("{} started", self.partition));
        if count_down(&self.scene.failing_starts) { Err("cannot start".into()) } else { Ok(()) }
    }

    async fn handle(&mut self, events: Vec<MemoryEvent>, context: &PartitionContext) -> Result<(), HandlerError> {
        for event in events {
            self.events += 1;
            match event.text().unwrap() {
                "fail" if self.scene.calls().len() < 3 => return Err("failed on request".into()),
                "hang" => sleep(Duration::MAX).await,
                _ => context.checkpoint(&event),
            }
        }
        Ok(())
    }

    async fn stopped(self, _: PartitionContext, reason: StopReason) {
        let reason = if let StopReason::Failed { .. } = reason { "failed".to_owned() } else { format!("{reason:?}") };
        self.scene.record(format!("{} stopped after {}: {reason}", self.partition, self.events));
    }
}

#[tokio::test(start_paused = true)]
async fn each_partition_has_a_state_of_its_own() {
    let world = greedy(2);
    let scene = Scene::default();
    publish(&world, 0, &["one"]);
    publish(&world, 1, &["one"; 2]);
    let instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    let handled = || instance.handle.partitions().into_iter().map(|status| status.handled).collect::<Vec<_>>();
    wait_for("both are processed", || handled() == [Some(0), Some(1)]).await;
    instance.shut_down().await.unwrap();
    let mut calls = scene.calls();
    calls.sort();
    assert_eq!(calls, ["0 started", "0 stopped after 1: Shutdown", "1 started", "1 stopped after 2: Shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_begins_with_a_new_state() {
    let world = World::new(1);
    let scene = Scene::default();
    publish(&world, 0, &["one", "fail", "two"]);
    let instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    wait_for_checkpoint(&world, 2).await;
    instance.shut_down().await.unwrap();
    let expected = ["0 started", "0 stopped after 2: failed", "0 started", "0 stopped after 2: Shutdown"];
    assert_eq!(scene.calls(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_loaded_is_loaded_again() {
    let world = World::new(1);
    let scene = Scene { failing_creations: Arc::new(AtomicUsize::new(2)), ..Scene::default() };
    world.hub.publish(0, "one");
    let instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    wait_for_checkpoint(&world, 0).await;
    assert_eq!((scene.calls(), instance.status().failures), (vec!["0 started".to_owned()], 2));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_is_stopped_and_repeated() {
    let world = World::new(1);
    let scene = Scene { failing_starts: Arc::new(AtomicUsize::new(1)), ..Scene::default() };
    world.hub.publish(0, "one");
    let instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    wait_for_checkpoint(&world, 0).await;
    assert_eq!(scene.calls(), ["0 started", "0 stopped after 0: failed", "0 started"]);
    assert_eq!(instance.status().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn its_position_precedes_the_checkpoint() {
    let world = World::new(1);
    publish(&world, 0, &["one"; 4]);
    let before = world.start_with("a", world.hub.source(), Scene::default().handler()).await;
    wait_for_checkpoint(&world, 3).await;
    before.shut_down().await.unwrap();
    let scene = Scene { position: Some(1), ..Scene::default() };
    let instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    wait_for("the events after the position", || {
        instance.handle.partitions().iter().any(|status| status.handled == Some(3))
    })
    .await;
    instance.shut_down().await.unwrap();
    assert_eq!(scene.calls(), ["0 started", "0 stopped after 2: Shutdown"]);
}

/// A call that is dropped leaves the state to `stopped`.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_does_not_keep_the_state() {
    let mut world = World::new(1);
    world.config = world.config.clone().with_handler_timeout(SECOND);
    let scene = Scene::default();
    world.hub.publish(0, "hang");
    let _instance = world.start_with("a", world.hub.source(), scene.handler()).await;
    wait_for("the stop", || scene.calls().len() >= 2).await;
    assert_eq!(scene.calls()[1], "0 stopped after 1: failed");
}
