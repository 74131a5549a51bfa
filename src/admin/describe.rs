//! Describes a group by what was read: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::description::{
    CheckpointDescription, GroupDescription, GroupState, GroupSummary, Member, OwnerDescription, OwnershipState,
    PartitionDescription, Sdk,
};
use super::hub::HubRanges;
use super::plan::BEFORE_EVERYTHING;
use super::survey::GroupRecords;
use crate::model::{CheckpointRecord, Heartbeat, LeaseDurations, OwnerId, Ownership, OwnershipRecord, PartitionId};
use crate::planner::{PartitionOwner, PartitionView, View};
use crate::processor::source::PartitionProperties;
use crate::processor::{Lag, LagState};
use crate::store::{BlobNameCase, Checkpoint};

impl GroupRecords {
    /// Describes the group by its records and, if the event hub was read, by the ranges of its partitions. Read the
    /// event hub after the records: then no checkpoint is newer than the range.
    ///
    /// Without the event hub, the group has the partitions that have a record.
    #[must_use]
    pub fn describe(&self, hub: Option<&HubRanges>) -> GroupDescription {
        self.describe_with(hub, &BTreeSet::new())
    }

    /// Describes the group as if these partitions had a record.
    pub(super) fn describe_with(&self, hub: Option<&HubRanges>, named: &BTreeSet<PartitionId>) -> GroupDescription {
        let partitions: Vec<_> = match hub {
            Some(hub) => hub.partitions().cloned().collect(),
            None => self.partitions().union(named).cloned().collect(),
        };
        let view = self.survey.view(&self.store, &partitions, self.read_at);
        Description { records: self, view: &view, hub }.of_group()
    }
}

/// What a description is made of.
struct Description<'a> {
    records: &'a GroupRecords,
    /// All partitions, as the operator sees them.
    view: &'a View<'a>,
    hub: Option<&'a HubRanges>,
}

impl Description<'_> {
    fn of_group(&self) -> GroupDescription {
        let group = self.records.store.group();
        let checkpoints: BTreeMap<_, _> =
            self.records.checkpoints.records.iter().map(|checkpoint| (&checkpoint.partition, checkpoint)).collect();
        let described = |entry: &PartitionView| self.partition(entry, checkpoints.get(&entry.partition).copied());
        let partitions: Vec<_> = self.view.partitions.iter().map(described).collect();
        let members = self.members();
        let summary = GroupSummary {
            namespace: group.namespace().to_owned(),
            event_hub: group.event_hub().to_owned(),
            consumer_group: group.name().to_owned(),
            blob_name_case: self.blob_name_case(),
            state: self.state(&partitions, &members),
            members: members.len(),
            unowned: partitions.iter().filter(|partition| !partition.state.is_live()).count(),
            lag: total(partitions.iter().map(|partition| partition.lag)),
            other_name_case: self.has_other_name_case(),
        };
        let schema = GroupDescription::SCHEMA;
        GroupDescription { schema, taken_at: self.records.taken_at, group: summary, partitions, members }
    }

    fn blob_name_case(&self) -> BlobNameCase {
        self.records.store.blob_name_case()
    }

    fn lease_durations(&self) -> LeaseDurations {
        self.records.store.lease_durations()
    }

    fn partition(&self, entry: &PartitionView, checkpoint: Option<&Checkpoint>) -> PartitionDescription {
        let id = &entry.partition;
        let properties = self.hub.and_then(|hub| hub.of(id));
        let record = match entry.owner {
            PartitionOwner::OtherNameCase(_) => self.in_other_name_case(id),
            _ => self.view.record(id),
        };
        PartitionDescription {
            id: id.clone(),
            checkpoint: checkpoint.map(checkpoint_description),
            hub: properties.map(Into::into),
            lag: lag_of(checkpoint.map(|checkpoint| &checkpoint.record), properties),
            state: state_of(entry),
            owner: record.and_then(|seen| self.owner(seen)),
        }
    }

    fn in_other_name_case(&self, partition: &PartitionId) -> Option<&Ownership> {
        self.records.survey.other_name_case.records.iter().find(|seen| seen.partition == *partition)
    }

    fn owner(&self, seen: &Ownership) -> Option<OwnerDescription> {
        let record = &seen.record;
        let age = self.time_since_renewal(seen);
        Some(OwnerDescription {
            id: record.owner.clone()?,
            sdk: sdk(record),
            since: record.claimed_at,
            renewed: self.records.taken_at - age,
            expires_in: self.lease_durations().lifetime(record).saturating_sub(age),
            epoch: record.epoch,
            load: record.load,
            handoff_to: record.handoff_to.clone(),
        })
    }

    fn time_since_renewal(&self, seen: &Ownership) -> Duration {
        seen.time_since_renewal(&self.records.survey.heartbeats.records, self.records.read_at)
    }

    /// Returns the live members: the owners of live records in both name cases, and owners with a live heartbeat. An
    /// operator is not a member.
    fn members(&self) -> Vec<Member> {
        let mut members = BTreeMap::<OwnerId, Member>::new();
        let survey = &self.records.survey;
        let here = survey.ownerships.records.iter().map(|seen| (seen, self.blob_name_case()));
        let there = survey.other_name_case.records.iter().map(|seen| (seen, self.blob_name_case().other()));
        for (seen, blob_name_case) in here.chain(there) {
            let age = self.time_since_renewal(seen);
            let is_operated = seen.record.operator.is_some() && seen.record.operator == seen.record.owner;
            if is_operated || !self.lease_durations().counts_as_live(&seen.record, age) {
                continue;
            }
            let Some(owner) = &seen.record.owner else { continue };
            let member = members
                .entry(owner.clone())
                .or_insert_with(|| self.member(owner, sdk(&seen.record), blob_name_case, age));
            member.renewed = member.renewed.max(self.records.taken_at - age);
            // Its earlier incarnation may have used the other name case.
            if member.partitions.contains(&seen.partition) {
                continue;
            }
            member.partitions.push(seen.partition.clone());
            member.load = [member.load, seen.record.load].into_iter().flatten().reduce(u64::saturating_add);
            member.since = [member.since, seen.record.claimed_at].into_iter().flatten().min();
        }
        for heartbeat in survey.heartbeats.records.iter().filter(|heartbeat| self.is_live(heartbeat)) {
            let (owner, age) = (&heartbeat.record.owner, heartbeat.age_at(self.records.read_at));
            let member = members
                .entry(owner.clone())
                .or_insert_with(|| self.member(owner, Sdk::ThisCrate, self.blob_name_case(), age));
            member.renewed = member.renewed.max(self.records.taken_at - age);
        }
        members.into_values().map(sorted).collect()
    }

    fn is_live(&self, heartbeat: &Heartbeat) -> bool {
        let limit = self.lease_durations().own + LeaseDurations::GRACE;
        heartbeat.record.declared_dead_by.is_none() && heartbeat.age_at(self.records.read_at) < limit
    }

    fn member(&self, id: &OwnerId, sdk: Sdk, blob_name_case: BlobNameCase, age: Duration) -> Member {
        let (id, renewed) = (id.clone(), self.records.taken_at - age);
        Member { id, sdk, blob_name_case, partitions: Vec::new(), load: None, since: None, renewed }
    }

    fn has_other_name_case(&self) -> bool {
        !self.records.survey.other_name_case.records.is_empty() || !self.records.other_checkpoints.records.is_empty()
    }

    fn state(&self, partitions: &[PartitionDescription], members: &[Member]) -> GroupState {
        let has_record = !self.records.partitions().is_empty() || !self.records.survey.heartbeats.records.is_empty();
        let kinds: BTreeSet<_> =
            members.iter().map(|member| (member.sdk, member.blob_name_case == self.blob_name_case())).collect();
        let is_settled =
            |state| matches!(state, OwnershipState::Owned | OwnershipState::Away | OwnershipState::OtherNameCase);
        if !has_record && members.is_empty() {
            GroupState::Absent
        } else if members.is_empty() {
            let crashed = partitions.iter().any(|partition| partition.state == OwnershipState::Expired);
            if crashed { GroupState::Dead } else { GroupState::Empty }
        } else if kinds.len() > 1 {
            GroupState::Mixed
        } else if partitions.iter().all(|partition| is_settled(partition.state)) {
            GroupState::Stable
        } else {
            GroupState::Moving
        }
    }
}

fn state_of(entry: &PartitionView) -> OwnershipState {
    match &entry.owner {
        _ if entry.is_owned_by_operator() => OwnershipState::Operator,
        // The observer is an operator itself.
        PartitionOwner::This | PartitionOwner::Reclaimable => OwnershipState::Operator,
        PartitionOwner::OtherNameCase(_) => OwnershipState::OtherNameCase,
        PartitionOwner::Unowned => OwnershipState::Unowned,
        PartitionOwner::Released => OwnershipState::Released,
        PartitionOwner::Expired(_) => OwnershipState::Expired,
        _ if entry.away => OwnershipState::Away,
        _ if entry.handoff_to.is_some() => OwnershipState::HandingOver,
        PartitionOwner::Other(_) => OwnershipState::Owned,
    }
}

/// Returns the lag of a checkpoint. It is unknown if the record has only an offset, unless that is one whose number the
/// range shows.
fn lag_of(record: Option<&CheckpointRecord>, properties: Option<&PartitionProperties>) -> Lag {
    let between = |number| Lag::between(number, properties, Duration::ZERO, Duration::MAX);
    let number = record.and_then(|record| record.sequence_number);
    let Some(offset) = record.filter(|_| number.is_none()).and_then(|record| record.offset.as_deref()) else {
        return between(number);
    };
    let Some(properties) = properties.filter(|properties| !properties.is_empty()) else { return between(None) };
    match properties.last_enqueued() {
        Some(last) if last.offset == offset => between(Some(last.sequence_number)),
        _ if offset == BEFORE_EVERYTHING => between(Some(properties.beginning_sequence_number().saturating_sub(1))),
        _ => Lag { events: None, state: LagState::Unknown },
    }
}

fn sdk(record: &OwnershipRecord) -> Sdk {
    if record.incarnation.is_some() { Sdk::ThisCrate } else { Sdk::Other }
}

fn checkpoint_description(checkpoint: &Checkpoint) -> CheckpointDescription {
    let record = &checkpoint.record;
    CheckpointDescription {
        position: record.into(),
        initial: record.initial,
        owner: record.owner.clone(),
        updated: checkpoint.last_modified,
        etag: checkpoint.etag.clone(),
    }
}

/// Returns the sum; unknown if one is unknown.
fn total(lags: impl Iterator<Item = Lag>) -> Lag {
    let events = lags.map(|lag| lag.events).try_fold(0, |sum: u64, events| Some(sum.saturating_add(events?)));
    Lag { events, state: if events.is_some() { LagState::Known } else { LagState::Unknown } }
}

fn sorted(mut member: Member) -> Member {
    member.partitions.sort();
    member
}
