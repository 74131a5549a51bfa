//! Where the group starts. All instances die, events come to a quiet partition that has no checkpoint yet, and the
//! instances come back with the same settings.

use std::time::Duration;

use eventhubs_checkpoint::processor::StartPosition;
use tokio::time::sleep;

use super::CRASH;
use crate::feature::{Allowed, Draw, Feature, Settings, Start};
use crate::scene::{LAST_BEFORE_START, QUIET, Scene};

const AWAY: Duration = Duration::from_secs(20);

pub const FEATURES: [Feature; 4] = [
    Feature::of("earliest", |settings, _| {
        settings.configure(|config| config.with_start_position(StartPosition::Earliest));
    })
    .acting(|scene| Box::pin(all_die(scene)))
    .allowing(die),
    Feature::of("latest", |settings, _| {
        settings.start = Start::Latest;
        settings.configure(|config| config.with_start_position(StartPosition::Latest));
    })
    .acting(|scene| Box::pin(all_die(scene)))
    .allowing(die),
    // The time is calculated whenever an instance comes up: see `Scene`.
    Feature::of("enqueued after", |settings, _| settings.start = Start::EnqueuedAfter)
        .acting(|scene| Box::pin(all_die(scene)))
        .allowing(die),
    Feature::of("after sequence number", |settings, _| {
        settings.start = Start::AfterSequenceNumber;
        settings.configure(|config| config.with_start_position(StartPosition::AfterSequenceNumber(LAST_BEFORE_START)));
    })
    .acting(|scene| Box::pin(all_die(scene)))
    .allowing(die),
];

fn die(allowed: &mut Allowed, _: &Settings, _: &Draw) {
    allowed.dark_for(AWAY + CRASH);
    allowed.repeats = true;
}

async fn all_die(scene: &Scene) {
    let died = scene.crash_all().await;
    sleep(AWAY / 2).await;
    scene.publish(QUIET, 3);
    sleep(AWAY / 2).await;
    for member in died {
        scene.start(member).await;
    }
}
