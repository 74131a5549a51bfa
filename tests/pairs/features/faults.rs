//! Faults, shutdowns and crashes.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use tokio::time::sleep;

use super::{CRASH_RECOVERY, takeover_time};
use crate::feature::{Feature, SECOND, Sharing};
use crate::misbehaviors::Misbehavior;
use crate::scene::{Scene, TARGET};

/// Longer than the lease duration.
const OUTAGE: Duration = Duration::from_secs(100);

const THROTTLING: Duration = Duration::from_secs(90);

/// The share of throttled requests. With twice as many, one lease in a thousand is not renewed in time.
const THROTTLED_SHARE: f64 = 0.15;

/// Longer than `stall_timeout` and the lease duration.
const HANG_TIME: Duration = Duration::from_secs(300);

const STALL_AFTER: Duration = Duration::from_secs(60);

/// Two probes of the hub, up to one interval before the first, and the new connection.
const PROBE_DETECTION: Duration = Duration::from_secs(100);

pub const FEATURES: [Feature; 7] = [
    Feature::of("stall", |settings, _| settings.balance(|balancer| balancer.with_stall_timeout(STALL_AFTER)))
        .with_action(|scene| Box::pin(hang(scene)))
        .with_allowance(|allowed, settings, _| {
            // A hanging handler is cancelled if its partition moves. No other partition waits for it.
            allowed.allow_no_handler(30 * SECOND);
            allowed.delay += HANG_TIME;
            allowed.unclean_ends = true;
            // Events after the one that hangs are finished.
            allowed.repeats |= settings.is_concurrent();
        }),
    Feature::of("stalled link", |_, _| ())
        .with_action(|scene| Box::pin(stall_link(scene)))
        .with_allowance(|allowed, _, _| allowed.delay += PROBE_DETECTION),
    Feature::of("recreated hub", |_, _| ())
        .with_action(|scene| Box::pin(recreate_hub(scene)))
        .with_allowance(|allowed, _, _| allowed.allow_no_handler(PROBE_DETECTION)),
    Feature::of("outage", |_, _| ()).with_action(|scene| Box::pin(outage(scene))).with_allowance(|allowed, _, _| {
        allowed.allow_no_handler(OUTAGE + CRASH_RECOVERY);
        allowed.pause_detection += OUTAGE;
        (allowed.repeats, allowed.unclean_ends) = (true, true);
    }),
    Feature::of("throttling", |_, _| ())
        .with_action(|scene| Box::pin(throttling(scene)))
        .with_allowance(|allowed, _, _| allowed.allow_no_handler(30 * SECOND)),
    Feature::of("shutdown", |_, _| ())
        .with_action(|scene| Box::pin(shutdown(scene)))
        .with_allowance(|allowed, settings, draw| allowed.allow_no_handler(takeover_time(settings, draw.downtime))),
    Feature::of("crash", |_, _| ()).with_action(|scene| Box::pin(crash(scene))).with_allowance(
        |allowed, settings, draw| {
            // No other instance may take an assigned partition.
            let downtime = if settings.sharing == Sharing::Static { draw.downtime } else { Duration::ZERO };
            allowed.allow_no_handler(downtime + CRASH_RECOVERY);
            allowed.repeats = true;
        },
    ),
];

async fn hang(scene: &Scene) {
    scene.misbehaviors.add(TARGET, Misbehavior::Hang(HANG_TIME));
    scene.misbehaviors.done().await;
    sleep(HANG_TIME).await;
}

async fn stall_link(scene: &Scene) {
    scene.reader_of(TARGET).await;
    scene.hub.stall_link(TARGET, true);
    sleep(PROBE_DETECTION).await;
}

async fn recreate_hub(scene: &Scene) {
    scene.recreate_hub();
    sleep(PROBE_DETECTION).await;
}

async fn outage(scene: &Scene) {
    let fault = if scene.case.draw.outage_hangs { Fault::Hang } else { Fault::Unreachable };
    let target = if scene.case.draw.outage_for_all { None } else { Some(scene.victim().await) };
    let faults = scene.inject(target, FaultPlan::always(fault));
    sleep(OUTAGE).await;
    scene.end_faults(faults);
}

async fn throttling(scene: &Scene) {
    let fault = Fault::Throttled { retry_after: Some(SECOND) };
    let faults = scene.inject(None, FaultPlan::default().with(THROTTLED_SHARE, fault));
    sleep(THROTTLING).await;
    scene.end_faults(faults);
}

async fn shutdown(scene: &Scene) {
    let victim = scene.victim().await;
    scene.shut_down(victim).await;
    sleep(scene.case.draw.downtime).await;
    scene.start(victim).await;
}

async fn crash(scene: &Scene) {
    let victim = scene.victim().await;
    scene.crash(victim).await;
    sleep(scene.case.draw.downtime).await;
    scene.start(victim).await;
}
