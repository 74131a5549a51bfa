//! Executes a plan.

use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, Stream};

use super::operator::{Operator, ResetOptions};
use super::outcome::{NotDone, ResetOutcome};
use super::plan::{Plan, PlannedChange};
use super::session::Order;
use super::survey::Survey;
use crate::error::Result;
use crate::model::PartitionId;
use crate::store::InitOutcome;

/// How many times a partition is reset if another owner claims it in the meantime, as processors of other SDKs do.
const MAX_RESETS: u32 = 3;

async fn reset(
    operator: &Operator,
    survey: &Survey,
    change: &PlannedChange,
    order: &Order,
    options: &ResetOptions,
) -> ResetOutcome {
    let mut outcome = operator.reset_one(survey, &change.partition, order, options).await;
    for _ in 1..MAX_RESETS {
        if !matches!(outcome, ResetOutcome::NotDone(NotDone::Lost { .. })) {
            break;
        }
        let Ok(survey) = Survey::read(operator.store()).await else { break };
        outcome = operator.reset_one(&survey, &change.partition, order, options).await;
    }
    outcome
}

impl Plan {
    /// Executes the changes that write something, concurrently, as [`Operator::reset`] does. Returns the outcome of
    /// each partition when it is known.
    ///
    /// A checkpoint that is not as it was when the reset was planned stays as it is:
    /// [`NotDone::Changed`](super::NotDone). If the partition had a live owner, that owner may have advanced it.
    ///
    /// When `stop` ends, no further checkpoint is written: partitions that are not done yet report
    /// [`NotDone::Stopped`](super::NotDone). Poll the stream to its end all the same, because the operator releases the
    /// partitions that it took over.
    ///
    /// # Errors
    ///
    /// The error of the storage, if the group could not be listed: nothing was written.
    pub async fn execute<'a>(
        &'a self,
        operator: &'a Operator,
        options: &'a ResetOptions,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<impl Stream<Item = (&'a PartitionId, ResetOutcome)> + 'a> {
        let survey = Arc::new(Survey::read(operator.store()).await?);
        let stop = stop.boxed().shared();
        let resets = self.writes().filter_map(move |change| {
            let order = Order {
                position: change.to.clone()?,
                hub_created_at: self.hub_created_at,
                expected: change.expected(),
                stop: stop.clone(),
            };
            let survey = Arc::clone(&survey);
            Some(async move { (&change.partition, reset(operator, &survey, change, &order, options).await) })
        });
        Ok(resets.collect::<FuturesUnordered<_>>())
    }

    /// Writes the planned positions as initial checkpoints, where there is no checkpoint yet. Takes no partition over:
    /// a checkpoint of an owner replaces an initial one. See
    /// [`GroupStore::init_checkpoint`](crate::store::GroupStore::init_checkpoint).
    ///
    /// # Errors
    ///
    /// Each partition has its own result, with the error of the storage. Repeat the call: it changes no checkpoint that
    /// it has written.
    pub async fn init(&self, operator: &Operator) -> Vec<(&PartitionId, Result<InitOutcome>)> {
        let store = operator.store().for_hub_created_at(self.hub_created_at);
        let mut outcomes = Vec::new();
        for PlannedChange { partition, to, .. } in self.writes().filter(|change| change.from.is_none()) {
            if let Some(to) = to {
                outcomes.push((partition, store.init_checkpoint(partition, to).await));
            }
        }
        outcomes
    }
}
