//! How events reach the application.

use tokio::time::sleep;

use crate::feature::{Feature, SECOND};
use crate::scene::{Scene, TARGET};

/// More than the prefetch, and more than may be in flight.
const BURST: usize = 5000;

/// With a prefetch of one, each event is a batch.
const SMALL_BURST: usize = 300;

pub const FEATURES: [Feature; 4] = [
    Feature::of("batch wait", |settings, draw| {
        settings.configure(|config| config.with_max_batch_size(1000).with_max_batch_wait(draw.batch_wait));
    })
    // A move restarts the wait.
    .with_allowance(|allowed, _, draw| allowed.delay += 2 * draw.batch_wait),
    Feature::of("prefetch", |settings, draw| settings.configure(|config| config.with_prefetch(draw.prefetch)))
        .with_action(|scene| Box::pin(burst(scene)))
        .with_allowance(|allowed, _, _| allowed.delay += 30 * SECOND),
    Feature::of("tracking", |settings, _| settings.tracks = true),
    Feature::of("pull", |settings, _| settings.pull = true),
];

async fn burst(scene: &Scene) {
    scene.publish(TARGET, if scene.case.draw.prefetch == 1 { SMALL_BURST } else { BURST });
    sleep(10 * SECOND).await;
}
