//! Where the group starts. All instances crash, a quiet partition without a checkpoint receives events, and the
//! instances return with the same settings.

use std::time::Duration;

use eventhubs_checkpoint::source::StartPosition;
use tokio::time::sleep;

use super::CRASH_RECOVERY;
use crate::feature::{Allowed, Draw, Feature, Settings, Start};
use crate::scene::{LAST_BEFORE_START, QUIET, Scene};

const DOWNTIME: Duration = Duration::from_secs(20);

pub const FEATURES: [Feature; 4] = [
    Feature::of("earliest", |settings, _| {
        settings.configure(|config| config.with_start_position(StartPosition::Earliest));
    })
    .with_action(|scene| Box::pin(crash_all(scene)))
    .with_allowance(allow_crash),
    Feature::of("latest", |settings, _| {
        settings.start = Start::Latest;
        settings.configure(|config| config.with_start_position(StartPosition::Latest));
    })
    .with_action(|scene| Box::pin(crash_all(scene)))
    .with_allowance(allow_crash),
    // The time is calculated at each start of an instance: see `Scene`.
    Feature::of("enqueued after", |settings, _| settings.start = Start::EnqueuedAfter)
        .with_action(|scene| Box::pin(crash_all(scene)))
        .with_allowance(allow_crash),
    Feature::of("after sequence number", |settings, _| {
        settings.start = Start::AfterSequenceNumber;
        settings.configure(|config| config.with_start_position(StartPosition::AfterSequenceNumber(LAST_BEFORE_START)));
    })
    .with_action(|scene| Box::pin(crash_all(scene)))
    .with_allowance(allow_crash),
];

fn allow_crash(allowed: &mut Allowed, _: &Settings, _: &Draw) {
    allowed.allow_no_handler(DOWNTIME + CRASH_RECOVERY);
    allowed.repeats = true;
}

async fn crash_all(scene: &Scene) {
    let crashed = scene.crash_all().await;
    sleep(DOWNTIME / 2).await;
    scene.publish(QUIET, 3);
    sleep(DOWNTIME / 2).await;
    for member in crashed {
        scene.start(member).await;
    }
}
