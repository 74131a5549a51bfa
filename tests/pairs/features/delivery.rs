//! How events reach the application.

use std::time::Duration;

use tokio::time::sleep;

use super::takeover_time;
use crate::feature::{Feature, SECOND};
use crate::scene::{Scene, TARGET};

/// More than the prefetch, and more than may be in flight.
const BURST: usize = 5000;

/// With a prefetch of one, each event is a batch.
const SMALL_BURST: usize = 300;

const COOL_DOWN: Duration = Duration::from_secs(60);

pub const FEATURES: [Feature; 6] = [
    Feature::of("batch wait", |settings, draw| {
        settings.configure(|config| config.with_max_batch_size(1000).with_max_batch_wait(draw.batch_wait));
    })
    // A move restarts the wait.
    .with_allowance(|allowed, _, draw| allowed.delay += 2 * draw.batch_wait),
    Feature::of("prefetch", |settings, draw| settings.configure(|config| config.with_prefetch(draw.prefetch)))
        .with_action(|scene| Box::pin(burst(scene)))
        .with_allowance(|allowed, _, _| allowed.delay += 30 * SECOND),
    Feature::of("tracking", |settings, _| settings.tracks = true),
    Feature::of("pause", |_, _| ())
        .with_action(|scene| Box::pin(pause(scene)))
        .with_allowance(|allowed, _, draw| allowed.delay += draw.pause),
    Feature::of("release", |_, _| ())
        .with_action(|scene| Box::pin(release(scene)))
        .with_allowance(|allowed, settings, _| allowed.allow_no_handler(takeover_time(settings, COOL_DOWN))),
    Feature::of("pull", |settings, _| settings.pull = true),
];

async fn burst(scene: &Scene) {
    scene.publish(TARGET, if scene.case.draw.prefetch == 1 { SMALL_BURST } else { BURST });
    sleep(10 * SECOND).await;
}

async fn pause(scene: &Scene) {
    let reader = scene.reader_of(TARGET).await;
    scene.control(reader, |handle| {
        let _ = handle.pause(&TARGET.into());
    });
    sleep(scene.case.draw.pause).await;
    scene.resume(TARGET);
}

async fn release(scene: &Scene) {
    let reader = scene.reader_of(TARGET).await;
    scene.control(reader, |handle| {
        let _ = handle.release(&TARGET.into(), COOL_DOWN);
    });
    sleep(COOL_DOWN).await;
}
