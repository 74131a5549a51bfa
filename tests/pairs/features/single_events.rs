//! How the application processes single events.

use std::time::Duration;

use eventhubs_checkpoint::processor::RetryPolicy;
use tokio::time::sleep;

use crate::feature::{Allowed, Draw, Feature, SECOND, Settings};
use crate::misbehaviors::Misbehavior;
use crate::scene::{Scene, TARGET};
use crate::single_events::Order;

/// So few that a recreated hub does not reach the numbers of the previous one.
const BURST: usize = 150;

/// How many events fail, each so often, with the waits of `retries`: 14 s in all.
const FAILING_EVENTS: usize = 3;
const FAILED_ATTEMPTS: u32 = 3;

/// More than the failures of one event take until the partition fails, and more than all failing events take.
const FAILING_TIME: Duration = Duration::from_secs(120);

pub const FEATURES: [Feature; 4] = [
    Feature::of("concurrency", |settings, _| settings.single_events().order = Order::None)
        .with_action(|scene| Box::pin(burst(scene)))
        .with_allowance(|allowed, _, _| allowed.delay += 60 * SECOND),
    Feature::of("order by key", |settings, _| settings.single_events().order = Order::Key)
        .with_action(|scene| Box::pin(burst(scene)))
        .with_allowance(|allowed, _, _| allowed.delay += 60 * SECOND),
    Feature::of("retries", |settings, _| settings.single_events().retries = retries())
        .with_action(|scene| Box::pin(misbehave(scene, Misbehavior::FailAttempts(FAILED_ATTEMPTS))))
        .with_allowance(allow_failures),
    Feature::of("dead letters", |settings, _| settings.single_events().dead_letters = true)
        .with_action(|scene| Box::pin(misbehave(scene, Misbehavior::Bad)))
        .with_allowance(allow_failures),
];

fn retries() -> RetryPolicy {
    RetryPolicy::default().with_max_attempts(8).with_first_wait(2 * SECOND).with_longest_wait(10 * SECOND)
}

/// An event that fails while its partition is stopping is left to the next owner, with the events after it.
fn allow_failures(allowed: &mut Allowed, settings: &Settings, _: &Draw) {
    allowed.delay += FAILING_TIME;
    allowed.repeats |= settings.is_concurrent();
    allowed.unclean_ends |= settings.is_concurrent();
}

async fn burst(scene: &Scene) {
    scene.publish(TARGET, BURST);
    sleep(20 * SECOND).await;
}

async fn misbehave(scene: &Scene, misbehavior: Misbehavior) {
    for _ in 0..FAILING_EVENTS {
        scene.misbehaviors.add(TARGET, misbehavior);
    }
    scene.publish(TARGET, 50);
    scene.misbehaviors.done().await;
    sleep(30 * SECOND).await;
}
