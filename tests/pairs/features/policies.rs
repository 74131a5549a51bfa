//! Policies for failures, unusable checkpoints and the writing of checkpoints.

use std::time::Duration;

use eventhubs_checkpoint::processor::{CheckpointPolicy, OnFailure, OnInvalidCheckpoint};

use super::takeover_time;
use crate::feature::{Allowed, Draw, Feature, SECOND, Settings};
use crate::misbehaviors::Misbehavior;
use crate::scene::{Scene, TARGET};

const COOL_DOWN: Duration = Duration::from_secs(60);

/// Until the operator notices a parked partition and resumes it.
const PARK_TIME: Duration = Duration::from_secs(60);

/// A restart, including the wait before it.
const RESTART_TIME: Duration = Duration::from_secs(30);

pub const FEATURES: [Feature; 8] = [
    // Only a recreated hub makes a checkpoint unusable; no other feature of this table does.
    Feature::of("invalid fail", |settings, _| {
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Fail));
    }),
    Feature::of("invalid earliest", |settings, _| {
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Earliest));
    })
    .with_action(|scene| Box::pin(expire(scene)))
    .with_allowance(allow_failure),
    Feature::of("invalid latest", |settings, _| {
        settings.invalid_to_latest = true;
        settings.configure(|config| config.with_on_invalid_checkpoint(OnInvalidCheckpoint::Latest));
    })
    .with_action(|scene| Box::pin(expire(scene)))
    .with_allowance(allow_failure),
    Feature::of("failure restart", |settings, _| {
        settings.configure(|config| config.with_on_failure(OnFailure::Restart));
    })
    .with_action(|scene| Box::pin(fail(scene)))
    .with_allowance(allow_failure),
    Feature::of("failure release", |settings, _| {
        settings.configure(|config| config.with_on_failure(OnFailure::Release { cooldown: COOL_DOWN }));
    })
    .with_action(|scene| Box::pin(fail(scene)))
    .with_allowance(|allowed, settings, draw| {
        allow_failure(allowed, settings, draw);
        allowed.allow_no_handler(2 * takeover_time(settings, COOL_DOWN));
    }),
    Feature::of("failure park", |settings, _| {
        settings.resumes_parked = true;
        settings.configure(|config| config.with_on_failure(OnFailure::Park));
    })
    .with_action(|scene| Box::pin(fail(scene)))
    .with_allowance(|allowed, settings, draw| {
        allow_failure(allowed, settings, draw);
        allowed.allow_no_handler(2 * PARK_TIME);
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

/// The processor does not wait for events in flight when a handler fails.
fn allow_failure(allowed: &mut Allowed, settings: &Settings, _: &Draw) {
    allowed.allow_no_handler(RESTART_TIME);
    allowed.repeats |= settings.tracks || settings.is_concurrent();
}

async fn fail(scene: &Scene) {
    let misbehavior = if scene.case.draw.panics { Misbehavior::Panic } else { Misbehavior::Fail };
    scene.misbehaviors.add(TARGET, misbehavior);
    scene.misbehaviors.done().await;
}

/// The events around the checkpoint expire, and the handler fails.
async fn expire(scene: &Scene) {
    scene.publish(TARGET, 50);
    scene.misbehaviors.add(TARGET, Misbehavior::FailAndExpire);
    scene.misbehaviors.done().await;
    tokio::time::sleep(10 * SECOND).await;
}
