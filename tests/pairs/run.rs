//! One run, from the start of the group to its end.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::feature::{Case, SECOND};
use crate::scene::{GUEST, MEMBERS, QUIET, Scene};

/// How often the group is looked at.
const TICK: Duration = Duration::from_secs(5);

/// When the group must have settled for good, counted from the end of all disturbances: an expiry, the longest time
/// between two cycles, claims one by one, the longest wait after failures, and two looks at the hub.
const SETTLED_WITHIN: Duration = Duration::from_secs(62 + 35 + 30 + 30 + 90);

/// How long a settled group is watched: two looks at the hub.
const WATCHED: Duration = Duration::from_secs(65);

/// What is not as promised.
pub fn run(case: &Case) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut scene = Scene::new(case.clone());
        scene.history().await;
        scene.start(0).await;
        scene.start(1).await;
        tokio::select! {
            biased;
            () = play(&scene) => {}
            () = watch(&scene) => {}
            () = scene.resume_parked() => {}
        }
        scene.ledger.lock().violations().to_vec()
    })
}

async fn play(scene: &Scene) {
    tokio::select! {
        biased;
        () = disturb(scene) => {}
        () = scene.publish_steadily() => {}
    }
    catch_up(scene).await;
    scene.end_all().await;
    let missing = scene.ledger.lock().missing(true);
    if let Some(missing) = missing {
        scene.ledger.lock().violated(&format!("at the end {missing}"));
    }
}

/// Until the group has settled.
async fn disturb(scene: &Scene) {
    sleep(30 * SECOND).await;
    scene.start(2).await;
    sleep(40 * SECOND).await;
    let mut acting = Vec::new();
    for (turn, feature) in (0u32..).zip(&scene.case.features) {
        acting.push(async move {
            sleep(scene.case.draw.gap * turn).await;
            scene.publish(QUIET, turn as usize);
            (feature.act)(scene).await;
        });
    }
    futures::future::join_all(acting).await;
    scene.end_in_order(GUEST).await;
    for member in 0..MEMBERS {
        scene.start(member).await;
    }
    scene.publish(QUIET, 1);
    settle(scene).await;
}

async fn settle(scene: &Scene) {
    let last = Instant::now() + SETTLED_WITHIN;
    let mut since = Instant::now();
    while since.elapsed() < WATCHED {
        if let Some(amiss) = scene.amiss() {
            since = Instant::now();
            if since > last {
                return scene.ledger.lock().violated(&format!("the group has not settled: {amiss}"));
            }
        }
        sleep(TICK).await;
    }
}

/// When nothing is published any more.
async fn catch_up(scene: &Scene) {
    let (since, by_time) = (Instant::now(), scene.case.settings.checkpoints_by_time);
    let bound = scene.case.settings.config.max_batch_wait + 60 * SECOND;
    loop {
        let missing = scene.ledger.lock().missing(by_time);
        let Some(missing) = missing else { return };
        if since.elapsed() > bound {
            return scene.ledger.lock().violated(&format!("{bound:?} after the last event {missing}"));
        }
        sleep(TICK).await;
    }
}

async fn watch(scene: &Scene) {
    loop {
        sleep(TICK).await;
        scene.ledger.lock().look_at_the_time();
        scene.must_run();
    }
}
