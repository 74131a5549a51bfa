//! Describes a group by what was read: plain values, which serialize to the JSON of the tool `ehcp`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::partition_description::{Describer, OwnershipState, PartitionDescription, Sdk, sdk_of};
use super::records::{GroupRecords, HubRanges};
use crate::model::{OwnerId, PartitionId};
use crate::source::{Lag, LagState};
use crate::store::NameCase;

/// A consumer group at one moment, by its records and by the ranges of its partitions.
///
/// Its JSON has a `schema`, whose number changes when a field is removed or changes its meaning. Readers should ignore
/// fields that they do not know.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GroupDescription {
    /// The name and version of the JSON format.
    pub schema: &'static str,
    /// The server time of the listings.
    #[serde(with = "time::serde::rfc3339")]
    pub taken_at: OffsetDateTime,
    /// The group as a whole.
    pub group: GroupSummary,
    /// All partitions of the event hub, in order. Without the event hub, those that have a record.
    pub partitions: Vec<PartitionDescription>,
    /// The live members, in order of their ids.
    pub members: Vec<Member>,
}

/// A consumer group as a whole.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GroupSummary {
    /// The fully qualified namespace.
    pub namespace: String,
    /// The event hub.
    pub event_hub: String,
    /// The name of the group.
    pub consumer_group: String,
    /// The casing of its blob names.
    pub blob_name_case: NameCase,
    /// The state of the group.
    pub state: GroupState,
    /// The number of live members.
    pub members: usize,
    /// The number of partitions without a live owner.
    pub unowned: usize,
    /// The number of partitions that an operator paused.
    pub paused: usize,
    /// The number of partitions that are parked after a failure.
    pub parked: usize,
    /// How many events wait in all partitions together.
    pub lag: Lag,
    /// Whether records of the group also exist under names in the other casing.
    pub other_name_case: bool,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupState {
    /// There is no record of the group.
    Absent,
    /// There is no live member. The last one shut down, or there never was one.
    Empty,
    /// There is no live member, and some did not release their partitions: they crashed, or cannot reach the storage.
    Dead,
    /// Every partition has a live owner, and none is being handed over.
    Stable,
    /// Some partitions have no live owner, or are being handed over.
    Moving,
    /// There are live members of this crate and of other SDKs, whose checkpoints are not fenced.
    Mixed,
}

impl GroupState {
    /// Returns the name, as it is serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Empty => "empty",
            Self::Dead => "dead",
            Self::Stable => "stable",
            Self::Moving => "moving",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A live member of the group.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its id.
    pub id: OwnerId,
    /// The SDK that it uses.
    pub sdk: Sdk,
    /// The partitions that it owns. Empty if only its heartbeat shows that it is alive.
    pub partitions: Vec<PartitionId>,
    /// How much work they are, as measured by the member.
    pub load: Option<u64>,
    /// When it claimed the first of its partitions, by the server's clock.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// When it last renewed a lease or sent a heartbeat, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub renewed: OffsetDateTime,
}

impl GroupDescription {
    pub(super) const SCHEMA: &'static str = "ehcp.group/1";

    /// Returns the partition with this id.
    #[must_use]
    pub fn partition(&self, id: &PartitionId) -> Option<&PartitionDescription> {
        self.partitions.iter().find(|partition| partition.id == *id)
    }
}

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
            None => self.partitions_with_records().union(named).cloned().collect(),
        };
        let view = self.survey.operator_view(&self.store, &partitions, self.read_at);
        Describer { records: self, view: &view, hub }.describe_group()
    }
}

fn count_pauses(partitions: &[PartitionDescription], parked: bool) -> usize {
    partitions.iter().filter_map(PartitionDescription::active_pause).filter(|pause| pause.parked == parked).count()
}

impl Describer<'_> {
    fn describe_group(&self) -> GroupDescription {
        let group = self.records.store.group();
        let checkpoints: BTreeMap<_, _> =
            self.records.checkpoints.records.iter().map(|checkpoint| (&checkpoint.partition, checkpoint)).collect();
        let partitions: Vec<_> = self
            .view
            .partitions
            .iter()
            .map(|entry| self.describe_partition(entry, checkpoints.get(&entry.partition).copied()))
            .collect();
        let members = self.live_members();
        // The sum is unknown if the lag of one partition is.
        let mut lags = partitions.iter().map(|partition| partition.lag.events);
        let events = lags.try_fold(0, |sum: u64, events| Some(sum.saturating_add(events?)));
        GroupDescription {
            schema: GroupDescription::SCHEMA,
            taken_at: self.records.taken_at,
            group: GroupSummary {
                namespace: group.namespace().to_owned(),
                event_hub: group.event_hub().to_owned(),
                consumer_group: group.name().to_owned(),
                blob_name_case: self.records.store.name_case(),
                state: self.group_state(&partitions, &members),
                members: members.len(),
                unowned: partitions.iter().filter(|partition| !partition.state.is_live()).count(),
                paused: count_pauses(&partitions, false),
                parked: count_pauses(&partitions, true),
                lag: Lag { events, state: if events.is_some() { LagState::Known } else { LagState::Unknown } },
                other_name_case: !self.records.other.is_empty(),
            },
            partitions,
            members,
        }
    }

    /// Returns the live members: the owners of live records, and owners with a live heartbeat. An operator is not a
    /// member.
    fn live_members(&self) -> Vec<Member> {
        let mut members = BTreeMap::<OwnerId, Member>::new();
        let survey = &self.records.survey;
        for seen in &survey.ownerships.records {
            let age = self.time_since_renewal(seen);
            let is_operated = seen.record.operator.is_some() && seen.record.operator == seen.record.owner;
            if is_operated || !self.lease_durations().counts_as_live(&seen.record, age) {
                continue;
            }
            let Some(owner) = &seen.record.owner else { continue };
            let member =
                members.entry(owner.clone()).or_insert_with(|| self.new_member(owner, sdk_of(&seen.record), age));
            member.renewed = member.renewed.max(self.records.taken_at - age);
            member.partitions.push(seen.partition.clone());
            member.load = [member.load, seen.record.load].into_iter().flatten().reduce(u64::saturating_add);
            member.since = [member.since, seen.record.claimed_at].into_iter().flatten().min();
        }
        for heartbeat in &survey.heartbeats.records {
            let age = heartbeat.age_at(self.records.read_at);
            if !self.lease_durations().counts_as_present(&heartbeat.record, age) {
                continue;
            }
            let owner = &heartbeat.record.owner;
            let member = members.entry(owner.clone()).or_insert_with(|| self.new_member(owner, Sdk::ThisCrate, age));
            member.renewed = member.renewed.max(self.records.taken_at - age);
        }
        let mut members: Vec<_> = members.into_values().collect();
        for member in &mut members {
            member.partitions.sort();
        }
        members
    }

    fn new_member(&self, id: &OwnerId, sdk: Sdk, age: Duration) -> Member {
        Member {
            id: id.clone(),
            sdk,
            partitions: Vec::new(),
            load: None,
            since: None,
            renewed: self.records.taken_at - age,
        }
    }

    fn group_state(&self, partitions: &[PartitionDescription], members: &[Member]) -> GroupState {
        if members.is_empty() {
            let heartbeats = &self.records.survey.heartbeats.records;
            return if self.records.partitions_with_records().is_empty() && heartbeats.is_empty() {
                GroupState::Absent
            } else if partitions.iter().any(|partition| partition.state == OwnershipState::Expired) {
                GroupState::Dead
            } else {
                GroupState::Empty
            };
        }
        let sdks: BTreeSet<_> = members.iter().map(|member| member.sdk).collect();
        if sdks.len() > 1 {
            return GroupState::Mixed;
        }
        let is_stable = !partitions.is_empty()
            && partitions.iter().all(|it| matches!(it.state, OwnershipState::Owned | OwnershipState::Away));
        if is_stable { GroupState::Stable } else { GroupState::Moving }
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::samples::{NOW, foreign, hub, operated, owned, owner};
    use super::*;
    use crate::model::OwnershipRecord;

    fn state_of_group(records: &GroupRecords) -> GroupState {
        records.describe(Some(&hub(&[(0, 9), (0, 9)]))).group.state
    }

    /// Returns the state of partition 0, and its owner.
    fn state_of_partition(records: &GroupRecords) -> (OwnershipState, Option<String>) {
        let described = records.describe(Some(&hub(&[(0, 9)]))).partitions.remove(0);
        (described.state, described.owner.map(|owner| owner.id.to_string()))
    }

    fn shown(records: &GroupRecords, first: i64, last: i64) -> String {
        records.describe(Some(&hub(&[(first, last)]))).partitions[0].lag.to_string()
    }

    fn wants(record: OwnershipRecord, to: &str) -> OwnershipRecord {
        OwnershipRecord { handoff_to: Some(owner(to)), cooperative: true, ..record }
    }

    mod group_states {
        use super::*;

        #[test]
        fn a_group_without_records_is_absent() {
            assert_eq!(state_of_group(&GroupRecords::empty()), GroupState::Absent);
            assert_eq!(GroupRecords::empty().describe(None).group.state, GroupState::Absent);
        }

        #[test]
        fn without_members_it_is_empty_or_dead() {
            let released = || GroupRecords::empty().with(0, OwnershipRecord::default(), 5);
            assert_eq!(state_of_group(&released()), GroupState::Empty);
            assert_eq!(state_of_group(&GroupRecords::empty().with_checkpoint(0, 3, "30", 1)), GroupState::Empty);
            assert_eq!(state_of_group(&GroupRecords::empty().with_heartbeat("a", 62)), GroupState::Empty);
            assert_eq!(state_of_group(&released().with(1, owned("a"), 62)), GroupState::Dead);
            assert_eq!(state_of_group(&released().with(1, owned("a"), 61)), GroupState::Moving);
            assert_eq!(state_of_group(&released().with(1, foreign("python"), 182)), GroupState::Dead);
            assert_eq!(state_of_group(&released().with(1, foreign("python"), 181)), GroupState::Moving);
        }

        #[test]
        fn it_is_stable_if_every_partition_has_an_owner() {
            let stable = || GroupRecords::empty().with(0, owned("a"), 0).with(1, owned("b"), 30);
            assert_eq!(state_of_group(&stable()), GroupState::Stable);
            let away = OwnershipRecord { away: true, ..owned("b") };
            assert_eq!(
                state_of_group(&GroupRecords::empty().with(0, owned("a"), 0).with(1, away, 0)),
                GroupState::Stable
            );
            let others = GroupRecords::empty().with(0, foreign("p"), 0).with(1, foreign("q"), 0);
            assert_eq!(state_of_group(&others), GroupState::Stable);
        }

        #[test]
        fn it_is_moving_while_a_partition_has_no_owner() {
            let with = |record, age| GroupRecords::empty().with(0, owned("a"), 0).with(1, record, age);
            for (case, records) in [
                ("unowned", GroupRecords::empty().with(0, owned("a"), 0)),
                ("released", with(OwnershipRecord::default(), 0)),
                ("expired", with(owned("b"), 62)),
                ("handed over", with(wants(owned("b"), "a"), 0)),
                ("held by an operator", with(operated("operator-1", "a"), 0)),
                ("only heartbeats", GroupRecords::empty().with_heartbeat("a", 0)),
            ] {
                assert_eq!(state_of_group(&records), GroupState::Moving, "{case}");
            }
        }

        #[test]
        fn several_sdks_are_mixed() {
            let sdks = GroupRecords::empty().with(0, owned("a"), 0).with(1, foreign("python"), 100);
            assert_eq!(state_of_group(&sdks), GroupState::Mixed);
            let expired = GroupRecords::empty().with(0, owned("a"), 0).with(1, foreign("python"), 182);
            assert_eq!(state_of_group(&expired), GroupState::Moving);
        }

        #[test]
        fn records_in_the_other_name_case_are_noted() {
            let described = GroupRecords::empty().with_other_name_case(0, foreign("go"), 0).describe(None);
            assert!(described.group.other_name_case);
            assert_eq!((described.group.state, described.members.len()), (GroupState::Absent, 0));
            assert!(!GroupRecords::empty().describe(None).group.other_name_case);
        }
    }

    mod partition_states {
        use super::*;

        #[test]
        fn a_partition_is_in_one_state() {
            let a = || Some("a".to_owned());
            let with = |record, age| GroupRecords::empty().with(0, record, age);
            let away = OwnershipRecord { away: true, ..owned("a") };
            let reserved = wants(OwnershipRecord::default(), "b");
            for (case, records, expected) in [
                ("without a record", GroupRecords::empty(), (OwnershipState::Unowned, None)),
                ("released", with(OwnershipRecord::default(), 0), (OwnershipState::Released, None)),
                ("reserved", with(reserved, 0), (OwnershipState::Released, None)),
                ("owned", with(owned("a"), 61), (OwnershipState::Owned, a())),
                ("expired", with(owned("a"), 62), (OwnershipState::Expired, a())),
                ("away", with(away, 0), (OwnershipState::Away, a())),
                ("of another SDK", with(foreign("a"), 181), (OwnershipState::Owned, a())),
                ("of another SDK, expired", with(foreign("a"), 182), (OwnershipState::Expired, a())),
                ("requested by a dead owner", with(wants(owned("a"), "b"), 0), (OwnershipState::Owned, a())),
                (
                    "requested",
                    with(wants(owned("a"), "b"), 0).with_heartbeat("b", 0),
                    (OwnershipState::HandingOver, a()),
                ),
                (
                    "held by another operator",
                    with(operated("operator-1", "a"), 0),
                    (OwnershipState::Operator, Some("operator-1".to_owned())),
                ),
                (
                    "left by another operator",
                    with(operated("operator-1", "a"), 62),
                    (OwnershipState::Expired, Some("operator-1".to_owned())),
                ),
            ] {
                assert_eq!(state_of_partition(&records), expected, "{case}");
            }
        }

        #[test]
        fn a_released_partition_shows_since_when() {
            let released_at =
                |record| GroupRecords::empty().with(0, record, 5).describe(None).partitions[0].released_at;
            assert_eq!(released_at(OwnershipRecord::default()), Some(NOW - Duration::from_secs(5)));
            assert_eq!(released_at(owned("a")), None);
        }

        #[test]
        fn a_partition_held_by_the_observer_is_operated() {
            let records = GroupRecords::empty();
            let id = records.id().to_string();
            let records = records.with(0, operated(&id, "a"), 0);
            assert_eq!(state_of_partition(&records), (OwnershipState::Operator, Some(id)));
            assert_eq!(state_of_group(&records), GroupState::Empty);
        }

        #[test]
        fn a_heartbeat_keeps_instance_leases_alive() {
            let record = OwnershipRecord { scope: crate::model::LeaseScope::Instance, ..owned("a") };
            let old = |age| GroupRecords::empty().with(0, record.clone(), 500).with_heartbeat("a", age);
            let described = old(20).describe(None);
            let by = described.partitions[0].owner.clone().unwrap();
            assert_eq!((by.expires_in, by.renewed), (Duration::from_secs(42), NOW - Duration::from_secs(20)));
            assert_eq!(described.partitions[0].state, OwnershipState::Owned);
            let expired = old(62).describe(None).partitions.remove(0);
            assert_eq!((expired.state, expired.owner.unwrap().expires_in), (OwnershipState::Expired, Duration::ZERO));
        }
    }

    mod members {
        use super::*;

        fn ids(records: &GroupRecords) -> Vec<String> {
            let described = records.describe(None);
            assert_eq!(described.group.members, described.members.len());
            described.members.into_iter().map(|member| member.id.to_string()).collect()
        }

        #[test]
        fn operators_are_none() {
            let records = GroupRecords::empty().with(0, operated("operator-1", "a"), 0).with(1, owned("b"), 0);
            let own = records.id().to_string();
            assert_eq!(ids(&records.with(2, operated(&own, "a"), 0)), ["b"]);
        }

        #[test]
        fn expired_owners_and_heartbeats_are_none() {
            let records = GroupRecords::empty().with(0, owned("a"), 62).with(1, foreign("python"), 182);
            let mut records = records.with_heartbeat("b", 62).with_heartbeat("c", 61).with_heartbeat("dead", 0);
            records.survey.heartbeats.records[2].record.declared_dead_by = Some(owner("c"));
            assert_eq!(ids(&records), ["c"]);
        }

        #[test]
        fn a_heartbeat_alone_makes_a_member() {
            let records = GroupRecords::empty().with(0, owned("a"), 40).with_heartbeat("a", 10).with_heartbeat("b", 20);
            let described = records.describe(None).members;
            assert_eq!(described[0].renewed, NOW - Duration::from_secs(10), "the younger of the two");
            let b = &described[1];
            assert_eq!((b.id.as_str(), b.sdk, b.partitions.len(), b.load), ("b", Sdk::ThisCrate, 0, None));
            assert_eq!((b.renewed, b.since), (NOW - Duration::from_secs(20), None));
        }

        #[test]
        fn partitions_and_loads_add_up() {
            let loaded = |load, hour: u8| {
                let claimed_at = NOW.replace_hour(hour).ok();
                OwnershipRecord { claimed_at, load, ..owned("a") }
            };
            let records = GroupRecords::empty().with(10, loaded(Some(3), 9), 9).with(2, loaded(None, 8), 3);
            let described = records.with(1, loaded(Some(u64::MAX), 10), 7).describe(None).members.remove(0);
            let partitions: Vec<_> = described.partitions.iter().map(PartitionId::as_str).collect();
            assert_eq!((partitions, described.load), (vec!["1", "2", "10"], Some(u64::MAX)));
            assert_eq!(described.since, NOW.replace_hour(8).ok());
            assert_eq!(described.renewed, NOW - Duration::from_secs(3));
        }
    }

    mod lags {
        use super::*;

        #[test]
        fn a_record_with_only_an_offset_has_an_unknown_lag() {
            let with = |offset| GroupRecords::empty().with_checkpoint(0, None, offset, 1);
            assert_eq!(shown(&with("1200"), 100, 199), "unknown");
            assert_eq!(shown(&with("a:1990"), 100, 199), "unknown");
            assert_eq!(shown(&with("1990"), 100, 199), "0", "it is the last event");
            assert_eq!(shown(&with("-1"), 100, 199), "100", "it is before the first one");
            assert_eq!(shown(&with("1200"), 200, 199), "0 (empty)");
            assert_eq!(with("1200").describe(None).partitions[0].lag.to_string(), "unknown");
        }

        #[test]
        fn the_extremes_are_counted() {
            let with = |number| GroupRecords::empty().with_checkpoint(0, number, "x", 1);
            assert_eq!(shown(&GroupRecords::empty(), 100, 199), "100 (no checkpoint)");
            for (number, lag) in [(i64::MIN, "100"), (-1, "100"), (99, "100"), (199, "0"), (i64::MAX, "0")] {
                assert_eq!(shown(&with(number), 100, 199), lag, "{number}");
            }
            assert_eq!(shown(&with(-1), 0, i64::MAX), "9223372036854775807");
        }

        #[test]
        fn the_sum_is_unknown_if_one_lag_is() {
            let two = hub(&[(0, 9), (0, 9)]);
            let records = GroupRecords::empty().with_checkpoint(0, 4, "40", 1);
            assert_eq!(records.describe(Some(&two)).group.lag.to_string(), "15");
            let records = records.with_checkpoint(1, None, "20", 1);
            assert_eq!(records.describe(Some(&two)).group.lag.to_string(), "unknown");
            assert_eq!(records.describe(None).group.lag.to_string(), "unknown");
        }
    }

    mod partitions {
        use super::*;

        fn ids(described: &GroupDescription) -> Vec<&str> {
            described.partitions.iter().map(|partition| partition.id.as_str()).collect()
        }

        #[test]
        fn those_of_the_event_hub_are_described() {
            let records = GroupRecords::empty().with(1, owned("a"), 0).with(7, owned("a"), 0);
            let described = records.with_checkpoint(9, 3, "30", 1).describe(Some(&hub(&[(0, 9), (0, 9)])));
            assert_eq!(ids(&described), ["0", "1"]);
            assert!(described.partitions.iter().all(|partition| partition.hub.is_some()));
            assert_eq!(described.group.unowned, 1);
        }

        #[test]
        fn without_the_event_hub_those_with_a_record_are() {
            let records = GroupRecords::empty().with(10, owned("a"), 0).with_checkpoint(2, 3, "30", 1);
            let records = records.with_other_name_case(5, foreign("go"), 0);
            assert_eq!(ids(&records.describe(None)), ["2", "10"]);
            let named = BTreeSet::from([PartitionId::from(4), 2.into()]);
            assert_eq!(ids(&records.describe_with(None, &named)), ["2", "4", "10"]);
        }

        #[test]
        fn an_emptied_partition_has_no_event() {
            let described = GroupRecords::empty().describe(Some(&hub(&[(200, 199)]))).partitions.remove(0);
            let range = described.hub.unwrap();
            assert_eq!((range.first, range.last, range.is_empty), (200, Some(199), true));
            assert_eq!(described.lag.to_string(), "0 (empty)");
        }
    }
}
