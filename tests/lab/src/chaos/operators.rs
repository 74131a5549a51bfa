//! Operators: they reset checkpoints from outside of the group while it runs. The runner executes them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::admin::{Operator, ResetError, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::{ConsumerGroup, PartitionId, Position};
use tokio::time::timeout;

use crate::chaos::Failure;
use crate::chaos::extents::extents;
use crate::chaos::fleet::Orders;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::proxy::{Proxy, ProxyShared};
use crate::chaos::resets::{Extent, Reset};
use crate::chaos::worker::GROUP;
use crate::history::Positions;

/// The reset of one partition by one operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub by: IncarnationId,
    pub partition: String,
    pub to: i64,
    pub outcome: Outcome,
}

/// What the operator reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Done,
    /// Another owner took the partition at the same time.
    Lost,
    /// Another operator is working on it.
    Busy,
    /// The storage failed, and the position was not written.
    Failed,
    /// For a reason that no run causes.
    Refused,
    /// The position is written, but the partition was not released as planned.
    IndeterminateButWritten,
    Unsure,
    /// The operator could not list the group, or not connect.
    NotBegun,
    /// The operator was killed before it reported.
    Killed,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Lost => "not done: lost",
            Self::Busy => "not done: busy",
            Self::Failed => "not done: failed",
            Self::Refused => "not done: refused",
            Self::IndeterminateButWritten => "indeterminate, written",
            Self::Unsure => "indeterminate",
            Self::NotBegun => "not begun",
            Self::Killed => "killed",
        }
    }
}

impl From<&ResetOutcome> for Outcome {
    fn from(outcome: &ResetOutcome) -> Self {
        match outcome {
            ResetOutcome::Done => Self::Done,
            ResetOutcome::NotDone(ResetError::Lost { .. }) => Self::Lost,
            ResetOutcome::NotDone(ResetError::Busy { .. }) => Self::Busy,
            ResetOutcome::NotDone(ResetError::Failed(_)) => Self::Failed,
            ResetOutcome::Indeterminate { written: true, .. } => Self::IndeterminateButWritten,
            ResetOutcome::Indeterminate { .. } => Self::Unsure,
            _ => Self::Refused,
        }
    }
}

/// The operators of a run, one after another.
pub struct Operators {
    orders: Orders,
    shared: Arc<ProxyShared>,
    partitions: u16,
    /// How many events a partition keeps.
    retention: u32,
    attempts: Mutex<Vec<Attempt>>,
    /// The number of operators until now.
    count: AtomicU32,
}

/// The target of one partition.
struct Goal {
    partition: u16,
    to: Position,
}

impl Operators {
    pub fn new(orders: Orders, shared: Arc<ProxyShared>, (partitions, retention): (u16, u32)) -> Self {
        Self { orders, shared, partitions, retention, attempts: Mutex::default(), count: AtomicU32::new(0) }
    }

    pub fn attempts(&self) -> Vec<Attempt> {
        lock(&self.attempts).clone()
    }

    /// Runs one operator with its own access to the storage, from its start to its report or until it is killed. It
    /// resets the partitions that have a checkpoint.
    pub async fn run(&self, reset: &Reset, checkpoints: &Positions) -> Result<(), Failure> {
        let goals = self.goals(reset, checkpoints).await?;
        if goals.is_empty() {
            return Ok(());
        }
        let by = IncarnationId::of_operator(self.count.fetch_add(1, Ordering::Relaxed) + 1);
        let first = self.note(by, &goals);
        let proxy = Proxy::open(self.shared.clone(), by).await?;
        let operating = self.operate(&proxy, &goals);
        let outcomes = match timeout(reset.killed_after.unwrap_or(Duration::MAX), operating).await {
            Ok(Ok(outcomes)) => outcomes.iter().map(|(_, outcome)| outcome.into()).collect(),
            Ok(Err(error)) => {
                eprintln!("{by}: {error}");
                vec![Outcome::NotBegun; goals.len()]
            }
            Err(_) => vec![Outcome::Killed; goals.len()],
        };
        for (attempt, outcome) in lock(&self.attempts)[first..].iter_mut().zip(outcomes) {
            attempt.outcome = outcome;
        }
        Ok(())
    }

    /// Records the attempts as killed, which remains if the user interrupts the faults. Returns the index of the first
    /// one.
    fn note(&self, by: IncarnationId, goals: &[Goal]) -> usize {
        let mut attempts = lock(&self.attempts);
        let first = attempts.len();
        attempts.extend(goals.iter().map(|goal| Attempt {
            by,
            partition: goal.partition.to_string(),
            to: goal.to.sequence_number,
            outcome: Outcome::Killed,
        }));
        first
    }

    async fn operate(&self, proxy: &Proxy, goals: &[Goal]) -> Result<Vec<(PartitionId, ResetOutcome)>, Failure> {
        let Orders { container, hub, lease_duration, .. } = &self.orders;
        let container = AzureContainer::builder(Access::connection_string(proxy.connection_string(), container));
        let group = ConsumerGroup::from_connection_string(&hub.connection_string, GROUP)?;
        let config = StoreConfig::default().with_lease_duration(*lease_duration);
        let operator = Operator::builder(container.build()?, group).with_config(config).connect().await?;
        let resets = goals.iter().map(|goal| (u32::from(goal.partition).into(), goal.to.clone())).collect();
        Ok(operator.reset(resets, &ResetOptions::default()).await?)
    }

    async fn goals(&self, reset: &Reset, checkpoints: &Positions) -> Result<Vec<Goal>, Failure> {
        let named: Vec<_> = reset.partitions(self.partitions).collect();
        let extents = extents(self.orders.hub.clone(), named).await?;
        let goals = extents.into_iter().filter_map(|(partition, (oldest, last))| {
            let checkpoint = *checkpoints.get(&partition.to_string())?;
            // Retention must not remove the events before they are redelivered.
            let oldest = oldest.max(last - i64::from(self.retention) / 2);
            let to = reset.position(partition, Extent { oldest, last, checkpoint })?;
            // Reading continues by the sequence number.
            Some(Goal { partition, to: Position::new(to, to.to_string()) })
        });
        Ok(goals.collect())
    }
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::OwnerId;

    use super::*;

    #[test]
    fn a_report_is_kept_as_its_outcome() {
        let lost = ResetError::Lost { by: None };
        let busy = ResetError::Busy { operator: OwnerId::new("operator-1").unwrap() };
        let foreign = ResetError::Foreign { owner: OwnerId::new("python").unwrap() };
        for (report, outcome) in [
            (ResetOutcome::Done, Outcome::Done),
            (ResetOutcome::NotDone(lost), Outcome::Lost),
            (ResetOutcome::NotDone(busy), Outcome::Busy),
            (ResetOutcome::NotDone(foreign), Outcome::Refused),
            (ResetOutcome::Indeterminate { written: true, error: None }, Outcome::IndeterminateButWritten),
            (ResetOutcome::Indeterminate { written: false, error: None }, Outcome::Unsure),
        ] {
            assert_eq!(Outcome::from(&report), outcome, "{report:?}");
        }
    }
}
