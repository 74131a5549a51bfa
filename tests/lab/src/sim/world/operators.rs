//! Operators that reset checkpoints.

use std::time::Duration;

use eventhubs_checkpoint::admin::{Operator, OperatorBuilder, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use eventhubs_checkpoint::{OwnerId, PartitionId, Position, Result};
use time::OffsetDateTime;
use tokio::time::timeout;

use super::incarnations::seed_of;
use super::{Action, World};
use crate::sim::bounds::{Bounds, CLOCK_ERROR};
use crate::sim::crate_processor::{lease_clock, shared_terms};
use crate::sim::observer::{NewIncarnation, Observer, Wanted};
use crate::sim::plan::Reset;

/// Distinguishes the seeds of operators from those of members.
const OPERATORS: u32 = u32::MAX;

impl World<'_> {
    /// Starts an operator with its own access to the storage. It ends when it has reported, or is killed.
    pub(super) fn reset(&mut self, reset: &Reset) {
        let Ok(owner) = OwnerId::new("operator") else { return };
        let wanted = self.wanted(reset);
        let bounds = Bounds::of(&self.plan.settings);
        let new = NewIncarnation { member: None, owner: owner.clone(), crate_processor: true, bounds };
        let undisturbed = reset.is_undisturbed() && reset.paused_for.is_none() && !self.plan.moves_in_calm();
        let incarnation = {
            let mut observer = self.observer.lock();
            let incarnation = observer.register(new);
            observer.operates(incarnation, wanted.clone(), undisturbed, self.hub.now());
            incarnation
        };
        let seed = seed_of(self.plan.seed, OPERATORS, u32::try_from(incarnation).unwrap_or(OPERATORS));
        let faulty = FaultyContainer::new(self.recording_container(incarnation), seed);
        let latency = self.plan.settings.latency;
        faulty.set_plan(
            reset.storage_fault.map_or_else(|| self.usual_faults(), |storage_fault| storage_fault.faults(latency)),
        );
        let builder = Operator::builder(faulty, self.group.clone())
            .with_config(shared_terms(&self.plan.settings))
            .with_lease_clock(lease_clock())
            .with_seed(seed);
        let options = ResetOptions::default()
            .with_allow_foreign(reset.with_foreign)
            .with_allow_own_positions(true)
            .with_settle(reset.settle);
        let until = reset.paused_for.map(|lasts| self.hub.now() + lasts);
        if let Some(lasts) = reset.paused_for {
            self.pausing += 1;
            self.after(lasts + CLOCK_ERROR, Action::PauseEnded);
        }
        let operating = operate(self.observer.clone(), incarnation, builder, wanted, until, options);
        self.operators.push(tokio::spawn(killed_after(
            reset.killed_after,
            self.observer.clone(),
            incarnation,
            operating,
        )));
    }

    /// Returns a position between the oldest and the last event of each partition, relatively different in each.
    fn wanted(&self, reset: &Reset) -> Wanted {
        let observer = self.observer.lock();
        let partitions = u32::try_from(observer.partition_count()).unwrap_or(u32::MAX);
        let named = (0..reset.count.min(partitions)).map(|index| (index, (reset.partition + index) % partitions));
        let to = |(index, partition): (u32, u32)| {
            let partition = partition as usize;
            let (oldest, end) = observer.range_of(partition)?;
            let share = i64::from((reset.per_mille + 389 * index) % 1001);
            Some((partition, oldest - 1 + (end - oldest) * share / 1000))
        };
        named.filter_map(to).collect()
    }
}

async fn killed_after(
    time: Option<Duration>,
    observer: Observer,
    incarnation: usize,
    operating: impl Future<Output = ()>,
) {
    match time {
        Some(time) => {
            let _ = timeout(time, operating).await;
        }
        None => operating.await,
    }
    observer.lock().operator_ends(incarnation);
}

/// Writes nothing if it cannot connect or its listing is empty.
async fn operate(
    observer: Observer,
    incarnation: usize,
    builder: OperatorBuilder,
    wanted: Wanted,
    paused_until: Option<OffsetDateTime>,
    options: ResetOptions,
) {
    let Ok(outcomes) = outcomes(builder, &wanted, paused_until, &options).await else { return };
    let mut observer = observer.lock();
    for ((partition, _), (_, outcome)) in wanted.iter().zip(&outcomes) {
        observer.reported(incarnation, *partition, outcome);
    }
}

async fn outcomes(
    builder: OperatorBuilder,
    wanted: &Wanted,
    paused_until: Option<OffsetDateTime>,
    options: &ResetOptions,
) -> Result<Vec<(PartitionId, ResetOutcome)>> {
    let position = |number: i64| {
        let offset = if number < 0 { "-1".to_owned() } else { (number * 10).to_string() };
        Position::new(number, offset)
    };
    let named = |partition: usize| PartitionId::from(u32::try_from(partition).unwrap_or(u32::MAX));
    let resets = wanted.iter().map(|(partition, to)| (named(*partition), position(*to))).collect();
    let operator = builder.connect().await?;
    if paused_until.is_some() {
        let partitions = wanted.keys().map(|partition| named(*partition)).collect();
        operator.pause(partitions, paused_until, Some("a reset"), options).await?;
    }
    operator.reset(resets, options).await
}
