//! What goes wrong, and how instances end.

use std::time::Duration;

use eventhubs_checkpoint::balancer::OnStall;
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use tokio::time::sleep;

use super::{CRASH, away};
use crate::application::Misdeed;
use crate::feature::{Allowed, Draw, Feature, SECOND, Settings, Sharing};
use crate::scene::{Scene, TARGET};

/// Longer than the expiry.
const OUTAGE: Duration = Duration::from_secs(100);

const THROTTLING: Duration = Duration::from_secs(90);

/// The share of requests that is throttled. With twice as much one lease in a thousand is not renewed in time.
const THROTTLED: f64 = 0.15;

/// Longer than `stall_timeout` and the expiry.
const HANGS: Duration = Duration::from_secs(300);

const STALL_AFTER: Duration = Duration::from_secs(60);

/// Two looks at the hub, up to a period before the first, and the reopening.
const FOUND_BY_PROBES: Duration = Duration::from_secs(100);

pub const FEATURES: [Feature; 8] = [
    Feature::of("stall keep", |settings, _| stalls(settings, OnStall::Keep))
        .acting(|scene| Box::pin(hang(scene)))
        .allowing(hangs),
    Feature::of("stall release", |settings, _| stalls(settings, OnStall::Release))
        .acting(|scene| Box::pin(hang(scene)))
        .allowing(hangs),
    Feature::of("silence", |_, _| ())
        .acting(|scene| Box::pin(silence(scene)))
        .allowing(|allowed, _, _| allowed.delay += FOUND_BY_PROBES),
    Feature::of("recreated hub", |_, _| ())
        .acting(|scene| Box::pin(make_anew(scene)))
        .allowing(|allowed, _, _| allowed.dark_for(FOUND_BY_PROBES)),
    Feature::of("outage", |_, _| ()).acting(|scene| Box::pin(outage(scene))).allowing(|allowed, _, _| {
        allowed.dark_for(OUTAGE + CRASH);
        (allowed.repeats, allowed.unclean_ends) = (true, true);
    }),
    Feature::of("throttling", |_, _| ())
        .acting(|scene| Box::pin(throttling(scene)))
        .allowing(|allowed, _, _| allowed.dark_for(30 * SECOND)),
    Feature::of("shutdown", |_, _| ())
        .acting(|scene| Box::pin(shutdown(scene)))
        .allowing(|allowed, settings, draw| allowed.dark_for(away(settings, draw.down))),
    Feature::of("crash", |_, _| ()).acting(|scene| Box::pin(crash(scene))).allowing(|allowed, settings, draw| {
        // No other instance may take what is assigned.
        let down = if settings.sharing == Sharing::Static { draw.down } else { Duration::ZERO };
        allowed.dark_for(down + CRASH);
        allowed.repeats = true;
    }),
];

fn stalls(settings: &mut Settings, on_stall: OnStall) {
    settings.configure_balancer(|balancer| balancer.with_stall_timeout(STALL_AFTER).with_on_stall(on_stall));
}

/// A handler that hangs is cut short where its partition moves. No other partition waits for it.
fn hangs(allowed: &mut Allowed, _: &Settings, _: &Draw) {
    allowed.dark_for(30 * SECOND);
    allowed.delay += HANGS;
    allowed.unclean_ends = true;
}

async fn hang(scene: &Scene) {
    scene.misdeeds.add(TARGET, Misdeed::Hang(HANGS));
    scene.misdeeds.done().await;
    sleep(HANGS).await;
}

async fn silence(scene: &Scene) {
    scene.reader_of(TARGET).await;
    scene.hub.silence(TARGET, true);
    sleep(FOUND_BY_PROBES).await;
}

async fn make_anew(scene: &Scene) {
    scene.make_anew();
    sleep(FOUND_BY_PROBES).await;
}

async fn outage(scene: &Scene) {
    let fault = if scene.case.draw.outage_hangs { Fault::Hang } else { Fault::Unreachable };
    let whose = if scene.case.draw.outage_for_all { None } else { Some(scene.victim().await) };
    let faults = scene.inject(whose, FaultPlan::always(fault));
    sleep(OUTAGE).await;
    scene.end_faults(faults);
}

async fn throttling(scene: &Scene) {
    let fault = Fault::Throttled { retry_after: Some(SECOND) };
    let faults = scene.inject(None, FaultPlan::default().with(THROTTLED, fault));
    sleep(THROTTLING).await;
    scene.end_faults(faults);
}

async fn shutdown(scene: &Scene) {
    let victim = scene.victim().await;
    scene.end_in_order(victim).await;
    sleep(scene.case.draw.down).await;
    scene.start(victim).await;
}

async fn crash(scene: &Scene) {
    let victim = scene.victim().await;
    scene.crash(victim).await;
    sleep(scene.case.draw.down).await;
    scene.start(victim).await;
}
