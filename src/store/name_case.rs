//! The case of the blob names of a group. If the name of a group contains capitals, some SDKs use blob names in lower
//! case, and others the names as given. `$Default` is such a name.
//!
//! Instances that use different cases do not see each other's records. So a group has one case: a store that connects
//! finds out which one has records, and does not connect if the other one has a live owner. Two instances that connect at
//! the same time may still choose different cases. So an instance that has just written a live ownership, and had none
//! before, looks once more. Each writes first and looks afterwards, so at least one of the two sees the other.

use super::rules::{CaseConflict, CaseFacts, LiveOwner};
use super::{GroupStore, Records};
use crate::error::{Error, Result};
use crate::model::{LeaseDurations, Moment, NameCase, Ownership, Relation};

impl GroupStore {
    /// Returns whether the names of the group differ in the other case.
    pub(crate) fn has_other_name_case(&self) -> bool {
        self.inner.other_names.is_some()
    }

    /// Returns the other case, if the group had records in it when this store connected.
    pub(crate) fn other_case_with_records(&self) -> Option<NameCase> {
        self.inner.other_case_is_used.then(|| self.inner.name_case.other())
    }

    /// Looks for a live owner in the other name case: one listing, unless the names contain no capitals.
    ///
    /// # Errors
    ///
    /// Those of [`BlobContainer`](crate::blob::BlobContainer).
    pub(crate) async fn find_case_conflict(&self) -> Result<Option<CaseConflict>> {
        let records = self.list_other_records().await?;
        let live = records.live(self.lease_durations(), self.lease_clock_now());
        let others = live.filter(|seen| seen.record.relation_to(self.identity()) != Relation::This);
        // An owner of another SDK does not give way.
        let live = others.filter_map(LiveOwner::of).min_by_key(|live| live.is_of_this_crate);
        Ok(live.map(|live| CaseConflict::Other { used: self.inner.name_case, live }))
    }
}

impl Records {
    /// Returns what the records show about the case of their names.
    pub(crate) fn facts(&self, durations: LeaseDurations, now: Moment) -> CaseFacts {
        let positions = self.checkpoints.records.iter().filter(|checkpoint| checkpoint.record.has_position());
        let written = positions.map(|checkpoint| checkpoint.record.updated_at.unwrap_or(checkpoint.last_modified));
        CaseFacts {
            live: self.live(durations, now).find_map(LiveOwner::of),
            newest_checkpoint: written.max(),
            has_records: !self.is_empty(),
        }
    }

    /// Returns the ownerships whose owners are alive. A heartbeat of these records may keep them alive.
    pub(crate) fn live(&self, durations: LeaseDurations, now: Moment) -> impl Iterator<Item = &Ownership> {
        self.ownerships.records.iter().filter(move |seen| {
            let age = seen.time_since_renewal(&self.heartbeats.records, now);
            durations.counts_as_live(&seen.record, age)
        })
    }
}

impl From<CaseConflict> for Error {
    fn from(conflict: CaseConflict) -> Self {
        Self::config(format!(
            "{conflict}, and neither would see the partitions of the other: stop one of the applications, copy its \
             checkpoints with `ehcp copy --to-case` if it is ahead, and start this instance again"
        ))
    }
}
