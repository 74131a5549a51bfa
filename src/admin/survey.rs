//! Everything that a container contains about a group, listed at about the same time.

use std::collections::BTreeSet;

use time::OffsetDateTime;

use crate::error::Result;
use crate::model::{Heartbeat, Moment, Ownership, PartitionId};
use crate::planner::{Observer, View, observe};
use crate::store::{Checkpoint, GroupStore, Listing, MalformedRecord};

/// The ownerships and heartbeats of a group.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) ownerships: Listing<Ownership>,
    pub(super) other_name_case: Listing<Ownership>,
    pub(super) heartbeats: Listing<Heartbeat>,
}

/// All records of a group, read at about the same time by [`Operator::read`](super::Operator::read).
#[derive(Debug)]
pub struct GroupRecords {
    pub(super) store: GroupStore,
    pub(super) survey: Survey,
    pub(super) checkpoints: Listing<Checkpoint>,
    pub(super) other_checkpoints: Listing<Checkpoint>,
    /// When they were read.
    pub(super) read_at: Moment,
    pub(super) taken_at: OffsetDateTime,
}

impl Survey {
    pub(super) async fn read(store: &GroupStore) -> Result<Self> {
        let ownerships = store.list_ownerships().await?;
        let other_name_case = store.list_other_name_case().await?;
        let heartbeats = store.list_heartbeats().await?;
        Ok(Self { ownerships, other_name_case, heartbeats })
    }

    /// Returns the group as an operator sees it at this moment.
    pub(super) fn view(&self, store: &GroupStore, partitions: &[PartitionId], now: Moment) -> View<'_> {
        let observer = Observer {
            this: store.identity(),
            lease_durations: store.lease_durations(),
            running: &BTreeSet::new(),
            other_name_case: &self.other_name_case.records,
            heartbeats: &self.heartbeats.records,
            interval: store.lease_durations().own / 6,
            outage_ended: None,
        };
        observe(&self.ownerships.records, partitions, &observer, now)
    }
}

impl GroupRecords {
    pub(super) async fn read(store: &GroupStore) -> Result<Self> {
        // The checkpoints come last, so that they are not older than the owners that advance them.
        let survey = Survey::read(store).await?;
        let checkpoints = store.list_checkpoints().await?;
        let other_checkpoints = store.list_other_checkpoints().await?;
        let (read_at, taken_at) = (store.lease_clock_now(), store.server_time());
        Ok(Self { store: store.clone(), survey, checkpoints, other_checkpoints, read_at, taken_at })
    }

    /// Returns the partitions that have a record in this name case.
    pub(super) fn partitions(&self) -> BTreeSet<PartitionId> {
        let owned = self.survey.ownerships.records.iter().map(|seen| &seen.partition);
        let processed = self.checkpoints.records.iter().map(|seen| &seen.partition);
        owned.chain(processed).cloned().collect()
    }

    pub(super) fn malformed(&self) -> impl Iterator<Item = &MalformedRecord> {
        let Self { survey, checkpoints, .. } = self;
        let lists = [&survey.ownerships.malformed, &survey.heartbeats.malformed, &checkpoints.malformed];
        lists.into_iter().flatten()
    }
}
