//! An operator of a consumer group.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use super::outcome::{NotDone, ResetOutcome};
use super::retries::Retries;
use super::session::Session;
use super::takeover::{Takeover, takeover};
use crate::error::{Error, Result};
use crate::model::{Heartbeat, OwnerId, Ownership, PartitionId, Position};
use crate::planner::{Observer, observe};
use crate::store::membership::DeclareDeadOutcome;
use crate::store::{Claim, ClaimOutcome, GroupStore, GroupStoreBuilder};

/// How many times a partition is claimed. A renewal between the listing and the claim costs one attempt.
const MAX_CLAIMS: u32 = 3;

/// How to reset checkpoints.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResetOptions {
    /// Whether to reset although an owner of another SDK is alive in the group. Default false. Such an owner does not
    /// detect the loss of a partition before its next listing or checkpoint, and its checkpoints are not rejected
    /// before that.
    pub allow_foreign: bool,
    /// How long the operator owns each partition before it writes the new position, so that owners of other SDKs detect
    /// that they lost it, and their last handlers end. Default 60 s: twice the longest default interval of the other
    /// SDKs. It does not help against a handler that takes longer.
    pub settle: Duration,
}

impl Default for ResetOptions {
    fn default() -> Self {
        Self { allow_foreign: false, settle: Duration::from_secs(60) }
    }
}

impl ResetOptions {
    /// Sets whether to reset although an owner of another SDK is alive. Default false.
    #[must_use]
    pub fn with_allow_foreign(mut self, allow_foreign: bool) -> Self {
        self.allow_foreign = allow_foreign;
        self
    }

    /// Sets how long the operator waits for owners of other SDKs. Default 60 s.
    #[must_use]
    pub fn with_settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }
}

/// An operator of one consumer group, for one run of an administrative program.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::admin::{Operator, ResetOptions, ResetOutcome};
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::store::GroupStore;
/// use eventhubs_checkpoint::{ConsumerGroup, OwnerId, Position};
///
/// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// let container = Arc::new(MemoryContainer::new());
/// let store = GroupStore::connect(container.clone(), group.clone(), OwnerId::new("worker-1")?).await?;
///
/// let operator = Operator::connect(GroupStore::builder(container, group, OwnerId::new("any")?)).await?;
/// let to = Position::new(41, "4100");
/// let outcomes = operator.reset(vec![(0.into(), to)], &ResetOptions::default()).await?;
/// assert!(matches!(outcomes[0].1, ResetOutcome::Done));
/// assert_eq!(store.list_checkpoints().await?.records[0].record.sequence_number, Some(41));
/// # Ok::<(), eventhubs_checkpoint::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Operator {
    store: GroupStore,
}

/// The group, as it was listed.
struct Survey {
    ownerships: Vec<Ownership>,
    other_name_case: Vec<Ownership>,
    heartbeats: Vec<Heartbeat>,
}

impl Operator {
    /// Connects with the settings of a store. Use those of the group's members, above all the lease duration and the
    /// blob-name case. The owner id is replaced by a unique one that begins with `operator-`.
    ///
    /// # Errors
    ///
    /// Those of [`GroupStoreBuilder::connect`].
    pub async fn connect(settings: GroupStoreBuilder) -> Result<Self> {
        Ok(Self { store: settings.for_operator()?.connect().await? })
    }

    /// Returns the id that this operator writes into the records that it works on.
    #[must_use]
    pub fn id(&self) -> &OwnerId {
        &self.store.identity().owner
    }

    /// Resets the checkpoints of these partitions to these positions, forward or backward. Processing continues with
    /// the event *after* the position.
    ///
    /// Works for partitions with and without an owner, and for owners of any SDK. The operator takes the partition
    /// over, so that checkpoints of the displaced owner are rejected from then on. It writes the position and releases
    /// the partition, reserved for the displaced owner, which claims it at its next listing, within half a lease
    /// duration. The handler of the displaced owner stops when that owner detects the loss: at its next checkpoint,
    /// renewal or listing. Events that it processes until then are processed again or not, depending on the new
    /// position. If the partition was paused, it is not paused anymore.
    ///
    /// If the operator crashes in between, the checkpoint is at the old position or at the new one, and its partitions
    /// have no owner until its leases expire.
    ///
    /// # Errors
    ///
    /// The error of the storage, if the group could not be listed, and [`ErrorKind::Config`](crate::ErrorKind::Config)
    /// if a partition is given two positions: nothing was written, correct the cause and reset again. The outcome of
    /// each partition is in its own [`ResetOutcome`].
    #[doc(alias = "offset reset")]
    #[doc(alias = "rewind")]
    #[doc(alias = "seek")]
    pub async fn reset(
        &self,
        resets: Vec<(PartitionId, Position)>,
        options: &ResetOptions,
    ) -> Result<Vec<(PartitionId, ResetOutcome)>> {
        let mut named = BTreeSet::new();
        if let Some((twice, _)) = resets.iter().find(|(partition, _)| !named.insert(partition)) {
            return Err(Error::config(format!(
                "partition {twice} has two new positions: pass one position per partition"
            )));
        }
        let survey = self.survey().await?;
        let resets = resets.into_iter().map(|(partition, position)| {
            let survey = &survey;
            async move {
                let outcome = self.reset_one(survey, &partition, &position, options).await;
                (partition, outcome)
            }
        });
        Ok(join_all(resets).await)
    }

    async fn survey(&self) -> Result<Survey> {
        let ownerships = self.store.list_ownerships().await?.records;
        let other_name_case = self.store.list_other_name_case().await?.records;
        let heartbeats = self.store.list_heartbeats().await?.records;
        Ok(Survey { ownerships, other_name_case, heartbeats })
    }

    async fn reset_one(
        &self,
        first: &Survey,
        partition: &PartitionId,
        position: &Position,
        options: &ResetOptions,
    ) -> ResetOutcome {
        match self.take_over(first, partition, options).await {
            Ok(session) => session.reset(position).await,
            Err(reason) => ResetOutcome::NotDone(reason),
        }
    }

    /// Takes the partition over. Lists the group again if another owner wrote the record first, or if the claim failed:
    /// the record may be this operator's already.
    async fn take_over(
        &self,
        first: &Survey,
        partition: &PartitionId,
        options: &ResetOptions,
    ) -> Result<Session, NotDone> {
        let mut retries = Retries::new(&self.store, MAX_CLAIMS);
        let mut taken = self.take_over_once(first, partition, options).await;
        loop {
            let goes_on = match &taken {
                Err(NotDone::Lost { .. }) => retries.again(),
                Err(NotDone::Failed(error)) => retries.again_after(error).await,
                _ => false,
            };
            if !goes_on {
                return taken;
            }
            taken = match self.survey().await {
                Ok(survey) => self.take_over_once(&survey, partition, options).await,
                Err(error) => Err(NotDone::Failed(error)),
            };
        }
    }

    async fn take_over_once(
        &self,
        survey: &Survey,
        partition: &PartitionId,
        options: &ResetOptions,
    ) -> Result<Session, NotDone> {
        let takeover = self.decide(survey, partition, options)?;
        let settle = takeover.settle.then_some(options.settle);
        match self.claim(survey, partition, takeover).await {
            ClaimOutcome::Won(lease) => Ok(Session::new(self.store.clone(), lease, settle)),
            ClaimOutcome::Lost { by } => Err(NotDone::Lost { by }),
            ClaimOutcome::Replaced { .. } => Err(NotDone::Lost { by: Some(self.id().clone()) }),
            ClaimOutcome::Indeterminate(error) => Err(NotDone::Failed(error)),
        }
    }

    fn decide(&self, survey: &Survey, partition: &PartitionId, options: &ResetOptions) -> Result<Takeover, NotDone> {
        let hub: BTreeSet<_> = survey.ownerships.iter().map(|seen| &seen.partition).chain([partition]).collect();
        let hub: Vec<_> = hub.into_iter().cloned().collect();
        let observer = Observer {
            this: self.store.identity(),
            lease_durations: self.store.lease_durations(),
            running: &BTreeSet::new(),
            other_name_case: &survey.other_name_case,
            heartbeats: &survey.heartbeats,
            interval: self.store.lease_durations().own / 6,
            outage_ended: None,
        };
        let view = observe(&survey.ownerships, &hub, &observer, self.store.lease_clock_now());
        takeover(&view, partition, options.allow_foreign)
    }

    async fn claim(&self, survey: &Survey, partition: &PartitionId, takeover: Takeover) -> ClaimOutcome {
        let Some(seen) = takeover.over else {
            return self.store.claim(&Claim::unowned(partition.clone())).await;
        };
        if takeover.declare_dead && seen.is_kept_alive_by_heartbeat(self.store.identity()) {
            let owner = seen.record.owner.as_ref();
            let heartbeat = survey.heartbeats.iter().find(|heartbeat| Some(&heartbeat.record.owner) == owner);
            match self.store.declare_dead(&seen, heartbeat).await {
                Ok(DeclareDeadOutcome::Declared) => {}
                Ok(DeclareDeadOutcome::StillAlive) => return ClaimOutcome::Lost { by: seen.record.owner },
                Err(error) => return ClaimOutcome::Indeterminate(error),
            }
        }
        let claim = Claim::over(&seen);
        self.store.claim(&claim.with_handoff_to(takeover.return_to)).await
    }
}
