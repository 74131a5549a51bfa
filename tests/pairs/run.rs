//! One run, from the start of the group to its shutdown.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::feature::{Case, SECOND};
use crate::scene::{GUEST, MEMBERS, QUIET, Scene};

/// The interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The group must settle within this time after the last disturbance: a lease duration, the longest time between two
/// cycles, sequential claims, the longest wait after failures, and two probes of the hub.
const SETTLED_WITHIN: Duration = Duration::from_secs(62 + 35 + 30 + 30 + 90);

/// How long the group must stay settled: two probes of the hub.
const SETTLED_FOR: Duration = Duration::from_secs(65);

/// Runs the case and returns the violations.
pub fn run(case: &Case) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::new(case.clone());
        scene.publish_history().await;
        scene.start(0).await;
        scene.start(1).await;
        tokio::select! {
            biased;
            () = execute(&scene) => {}
            () = watch(&scene) => {}
            () = scene.resume_parked() => {}
        }
        scene.ledger.lock().violations().to_vec()
    })
}

async fn execute(scene: &Scene) {
    tokio::select! {
        biased;
        () = disturb(scene) => {}
        () = scene.publish_steadily() => {}
    }
    catch_up(scene).await;
    scene.shut_down_all().await;
    let missing = scene.ledger.lock().missing(true);
    if let Some(missing) = missing {
        scene.ledger.lock().add_violation(&format!("after the shutdown {missing}"));
    }
}

/// Runs the actions, and waits until the group has settled.
async fn disturb(scene: &Scene) {
    sleep(30 * SECOND).await;
    scene.start(2).await;
    sleep(40 * SECOND).await;
    let mut actions = Vec::new();
    for (turn, feature) in (0u32..).zip(&scene.case.features) {
        actions.push(async move {
            sleep(scene.case.draw.gap * turn).await;
            scene.publish(QUIET, turn as usize);
            (feature.act)(scene).await;
        });
    }
    futures::future::join_all(actions).await;
    scene.shut_down(GUEST).await;
    for member in 0..MEMBERS {
        scene.start(member).await;
    }
    scene.publish(QUIET, 1);
    settle(scene).await;
}

async fn settle(scene: &Scene) {
    let last = Instant::now() + SETTLED_WITHIN;
    let mut since = Instant::now();
    while since.elapsed() < SETTLED_FOR {
        if let Some(problem) = scene.problem() {
            since = Instant::now();
            if since > last {
                return scene.ledger.lock().add_violation(&format!("the group has not settled: {problem}"));
            }
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Waits until all events are handled. Nothing is published anymore.
async fn catch_up(scene: &Scene) {
    let (since, by_time) = (Instant::now(), scene.case.settings.checkpoints_by_time);
    let bound = scene.case.settings.config.max_batch_wait + 60 * SECOND;
    loop {
        let missing = scene.ledger.lock().missing(by_time);
        let Some(missing) = missing else { return };
        if since.elapsed() > bound {
            return scene.ledger.lock().add_violation(&format!("{bound:?} after the last event {missing}"));
        }
        sleep(CHECK_INTERVAL).await;
    }
}

async fn watch(scene: &Scene) {
    loop {
        sleep(CHECK_INTERVAL).await;
        scene.ledger.lock().check_deadlines();
        scene.check_running();
    }
}
