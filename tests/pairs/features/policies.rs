//! What follows a failure, an unusable checkpoint, a marked position.

use std::time::Duration;

use eventhubs_checkpoint::processor::{CheckpointPolicy, OnFailure, OnInvalidCheckpoint};

use super::away;
use crate::application::Misdeed;
use crate::feature::{Allowed, Draw, Feature, SECOND, Settings};
use crate::scene::{Scene, TARGET};

const COOL_DOWN: Duration = Duration::from_secs(60);

/// Until the operator sees a parked partition, and resumes it.
const PARKED: Duration = Duration::from_secs(60);

/// A restart, with the wait before it.
const RESTART: Duration = Duration::from_secs(30);

pub const FEATURES: [Feature; 8] = [
    // No feature of this table but a hub that is made again has a checkpoint that is not usable.
    Feature::of("invalid fail", |settings, _| {
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail));
    }),
    Feature::of("invalid earliest", |settings, _| {
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Earliest));
    })
    .acting(|scene| Box::pin(expire(scene)))
    .allowing(fails),
    Feature::of("invalid latest", |settings, _| {
        settings.invalid_to_latest = true;
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest));
    })
    .acting(|scene| Box::pin(expire(scene)))
    .allowing(fails),
    Feature::of("failure restart", |settings, _| {
        settings.configure(|config| config.with_on_failure(OnFailure::Restart));
    })
    .acting(|scene| Box::pin(fail(scene)))
    .allowing(fails),
    Feature::of("failure release", |settings, _| {
        settings.configure(|config| config.with_on_failure(OnFailure::Release { cooldown: COOL_DOWN }));
    })
    .acting(|scene| Box::pin(fail(scene)))
    .allowing(|allowed, settings, draw| {
        fails(allowed, settings, draw);
        allowed.dark_for(2 * away(settings, COOL_DOWN));
    }),
    Feature::of("failure stop", |settings, _| {
        settings.resumes_parked = true;
        settings.configure(|config| config.with_on_failure(OnFailure::Park));
    })
    .acting(|scene| Box::pin(fail(scene)))
    .allowing(|allowed, settings, draw| {
        fails(allowed, settings, draw);
        allowed.dark_for(2 * PARKED);
    }),
    Feature::of("checkpoint by count", |settings, _| {
        let policy = CheckpointPolicy::default().without_interval().with_max_events(10);
        settings.checkpoints_by_time = false;
        settings.configure(|config| config.with_checkpoint_policy(policy));
    }),
    Feature::of("checkpoint at close", |settings, _| {
        settings.checkpoints_by_time = false;
        settings.configure(|config| config.with_checkpoint_policy(CheckpointPolicy::default().without_interval()));
    }),
];

/// Events in flight are not waited for when a handler fails.
fn fails(allowed: &mut Allowed, settings: &Settings, _: &Draw) {
    allowed.dark_for(RESTART);
    allowed.repeats |= settings.tracks;
}

async fn fail(scene: &Scene) {
    let misdeed = if scene.case.draw.panics { Misdeed::Panic } else { Misdeed::Fail };
    scene.misdeeds.add(TARGET, misdeed);
    scene.misdeeds.done().await;
}

/// What the checkpoint is before expires, and the handler fails.
async fn expire(scene: &Scene) {
    scene.publish(TARGET, 50);
    scene.misdeeds.add(TARGET, Misdeed::FailAndExpire);
    scene.misdeeds.done().await;
    tokio::time::sleep(10 * SECOND).await;
}
