//! What an operator or the application orders for a running partition: a pause, a release, a restart.

use std::time::Duration;

use eventhubs_checkpoint::admin::{Operator, ResetError, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::{ErrorKind, PartitionId, Result};
use tokio::time::{Instant, sleep};

use super::takeover_time;
use crate::feature::{Feature, SECOND};
use crate::scene::{PARTITIONS, QUIET, Scene, TARGET};

const COOL_DOWN: Duration = Duration::from_secs(60);

/// How long a pause of an operator lasts. Longer than any owner needs to detect that it lost the partition.
const STORED_PAUSE: Duration = Duration::from_secs(400);

/// How long the operator tries to pause or to resume.
const OPERATOR_PATIENCE: Duration = Duration::from_secs(300);

/// A restart, including the adoption of the checkpoint.
const RESTART_TIME: Duration = Duration::from_secs(30);

pub const FEATURES: [Feature; 4] = [
    Feature::of("pause", |_, _| ())
        .with_action(|scene| Box::pin(pause(scene)))
        .with_allowance(|allowed, _, draw| allowed.delay += draw.pause),
    Feature::of("stored pause", |_, _| ()).with_action(|scene| Box::pin(stored_pause(scene))).with_allowance(
        |allowed, settings, _| {
            allowed.allow_no_handler(STORED_PAUSE + 2 * takeover_time(settings, Duration::ZERO));
            // The displaced owner goes on until it detects the loss, and cannot write its last checkpoint.
            (allowed.repeats, allowed.unclean_ends) = (true, true);
        },
    ),
    Feature::of("release", |_, _| ())
        .with_action(|scene| Box::pin(release(scene)))
        .with_allowance(|allowed, settings, _| allowed.allow_no_handler(takeover_time(settings, COOL_DOWN))),
    Feature::of("restart", |_, _| ())
        .with_action(|scene| Box::pin(restart(scene)))
        .with_allowance(|allowed, _, _| allowed.allow_no_handler(RESTART_TIME)),
];

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

async fn restart(scene: &Scene) {
    for _ in 0..3 {
        let reader = scene.reader_of(TARGET).await;
        scene.publish(TARGET, 50);
        // The handler has begun, and has not finished.
        sleep(SECOND / 50).await;
        scene.control(reader, |handle| {
            let _ = handle.restart(&TARGET.into());
        });
        sleep(10 * SECOND).await;
    }
}

/// An operator pauses one partition, or the group, and resumes it.
async fn stored_pause(scene: &Scene) {
    let operator = scene.operator().await;
    let partitions = if scene.case.draw.pauses_group { 0..PARTITIONS } else { TARGET..TARGET + 1 };
    let mut paused = Vec::new();
    repeat_until_done(scene, partitions.map(PartitionId::from).collect(), async |partitions| {
        let outcomes = operator.pause(partitions, None, Some("a migration"), &ResetOptions::default()).await?;
        let mut left = Vec::new();
        for (partition, outcome) in outcomes {
            match outcome {
                ResetOutcome::Done => {
                    scene.ledger.lock().paused(&partition);
                    paused.push(partition);
                }
                // It may have no checkpoint yet.
                ResetOutcome::NotDone(ResetError::Failed(error))
                    if error.kind() == ErrorKind::NotFound && partition == QUIET.into() => {}
                _ => left.push(partition),
            }
        }
        Ok(left)
    })
    .await;
    sleep(STORED_PAUSE).await;
    for partition in &paused {
        scene.ledger.lock().resumed(partition);
    }
    repeat_until_done(scene, paused, async |partitions| resume(&operator, partitions).await).await;
}

/// Returns the partitions that are not resumed.
async fn resume(operator: &Operator, partitions: Vec<PartitionId>) -> Result<Vec<PartitionId>> {
    let outcomes = operator.resume(partitions, &ResetOptions::default()).await?;
    let left = outcomes.into_iter().filter(|(_, outcome)| !matches!(outcome, ResetOutcome::Done));
    Ok(left.map(|(partition, _)| partition).collect())
}

/// Orders something for partitions, again and again for those that are left.
async fn repeat_until_done(
    scene: &Scene,
    mut partitions: Vec<PartitionId>,
    mut order: impl AsyncFnMut(Vec<PartitionId>) -> Result<Vec<PartitionId>>,
) {
    let began = Instant::now();
    loop {
        partitions = order(partitions).await.unwrap();
        if partitions.is_empty() {
            return;
        }
        if began.elapsed() > OPERATOR_PATIENCE {
            return scene.ledger.lock().add_violation(&format!("an operator has failed at {partitions:?}"));
        }
        sleep(5 * SECOND).await;
    }
}
