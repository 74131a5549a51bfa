//! What is wrong with a group, and the remedies: pure over what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::group_description::{GroupDescription, GroupState, Member};
use super::partition_description::{OwnershipState, PartitionDescription, RecordedPosition, Sdk};
use super::records::{GroupRecords, HubRanges};
use crate::model::{PartitionId, Pause};
use crate::source::names_another_event;

/// How urgent a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// Nothing is wrong, but worth knowing.
    Info,
    /// Something may go wrong, or another program cannot read the records.
    Warning,
    /// Events are not processed, were lost, or are processed twice.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Check {
    /// Events wait, and the group has no live member.
    NoMembers,
    /// A partition has no live owner, although the group has members.
    UnownedPartition,
    /// An owner did not renew in time.
    ExpiredOwner,
    /// Two members own one partition, under names in different blob-name casings.
    TwoOwners,
    /// Records exist under names in both blob-name casings.
    OtherNameCase,
    /// Live members use several SDKs.
    SeveralSdks,
    /// A checkpoint is before the first available event.
    ExpiredCheckpoint,
    /// A checkpoint was written before the event hub was recreated.
    CheckpointOfFormerHub,
    /// A checkpoint is after the last event.
    CheckpointBeyondEnd,
    /// A checkpoint lacks its sequence number or its offset.
    IncompleteCheckpoint,
    /// A checkpoint does not advance although events wait.
    StuckPartition,
    /// A partition is paused, or parked after a failure.
    PausedPartition,
    /// A record belongs to a partition that the event hub does not have.
    OrphanRecord,
    /// A blob is not readable as a record.
    MalformedRecord,
    /// Members own nothing, because there are more of them than partitions.
    IdleMembers,
}

impl Check {
    /// All checks, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::NoMembers,
        Self::UnownedPartition,
        Self::ExpiredOwner,
        Self::TwoOwners,
        Self::OtherNameCase,
        Self::SeveralSdks,
        Self::ExpiredCheckpoint,
        Self::CheckpointOfFormerHub,
        Self::CheckpointBeyondEnd,
        Self::IncompleteCheckpoint,
        Self::StuckPartition,
        Self::PausedPartition,
        Self::OrphanRecord,
        Self::MalformedRecord,
        Self::IdleMembers,
    ];

    /// Returns the name, as it is serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoMembers => "no-members",
            Self::UnownedPartition => "unowned-partition",
            Self::ExpiredOwner => "expired-owner",
            Self::TwoOwners => "two-owners",
            Self::OtherNameCase => "other-name-case",
            Self::SeveralSdks => "several-sdks",
            Self::ExpiredCheckpoint => "expired-checkpoint",
            Self::CheckpointOfFormerHub => "checkpoint-of-former-hub",
            Self::CheckpointBeyondEnd => "checkpoint-beyond-end",
            Self::IncompleteCheckpoint => "incomplete-checkpoint",
            Self::StuckPartition => "stuck-partition",
            Self::PausedPartition => "paused-partition",
            Self::OrphanRecord => "orphan-record",
            Self::MalformedRecord => "malformed-record",
            Self::IdleMembers => "idle-members",
        }
    }

    /// Returns how urgent a finding is.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::NoMembers
            | Self::UnownedPartition
            | Self::ExpiredOwner
            | Self::TwoOwners
            | Self::ExpiredCheckpoint
            | Self::CheckpointOfFormerHub
            | Self::CheckpointBeyondEnd => Severity::Error,
            Self::IdleMembers => Severity::Info,
            _ => Severity::Warning,
        }
    }

    /// Returns what to do.
    fn remedy(self) -> &'static str {
        match self {
            Self::NoMembers => "start the application, and look at its log if it is running",
            Self::UnownedPartition => {
                "wait one load-balancing interval; if it stays unowned, look at the logs of the members"
            }
            Self::ExpiredOwner => {
                "another member takes it over, at the latest after one more lease duration; if none does: `ehcp release --execute`"
            }
            Self::TwoOwners => "stop one of the two applications, or configure one blob-name casing for both",
            Self::OtherNameCase => {
                "configure one blob-name casing for all applications of the group; then `ehcp delete` the other records"
            }
            Self::SeveralSdks => "finish the migration: checkpoints of other SDKs are not fenced",
            Self::ExpiredCheckpoint => {
                "events were lost: raise the retention; `ehcp reset --to-earliest` continues with the first event"
            }
            Self::CheckpointOfFormerHub => {
                "processors of this crate start as `on_invalid_checkpoint` says; for others, `ehcp reset --to-earliest`"
            }
            Self::CheckpointBeyondEnd => {
                "events were lost, or the checkpoint is of another event hub, or was set wrongly: `ehcp reset --to-earliest`, or \
                 `ehcp import` a backup; a running processor of this crate corrects it, as `on_invalid_checkpoint` says"
            }
            Self::IncompleteCheckpoint => "`ehcp reset --to-current` adds the missing number",
            Self::StuckPartition => {
                "look at the log of the owner; with another consumer group to read through (--read-group), `ehcp peek` shows the \
                 next event, and `ehcp reset --shift-by 1 --live` skips it"
            }
            Self::PausedPartition => "once the reason is gone: `ehcp resume --live --execute`",
            Self::OrphanRecord => "`ehcp delete` the records of the partition",
            Self::MalformedRecord => "find the program that wrote the blob; delete the blob if it is not a record",
            Self::IdleMembers => "run at most one member per partition, or add partitions",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that is wrong with a group.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// How urgent it is.
    pub severity: Severity,
    /// The partitions that it concerns.
    pub partitions: Vec<PartitionId>,
    /// What was found.
    pub detail: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Finding {
    fn new(check: Check, partitions: Vec<PartitionId>, detail: impl Into<String>) -> Self {
        Self { check, severity: check.severity(), partitions, detail: detail.into(), remedy: check.remedy() }
    }
}

impl GroupRecords {
    /// Finds what is wrong with the group, the most urgent first. Read the event hub after the records, as for
    /// [`describe`](Self::describe). Without it, the checks that compare records with the partitions are left out.
    ///
    /// A partition counts as [stuck](Check::StuckPartition) if it has made
    /// [no progress](PartitionDescription::time_without_progress) for longer than `stuck_after`. `ehcp doctor` uses 3
    /// min; handlers that take longer for one batch need more.
    ///
    /// Events may have arrived just now, after a long time without any, or an operator may have just resumed the
    /// partition. So if a partition is stuck, read the group again, and [diagnose it again](Self::diagnose_again). Wait
    /// longer than the next checkpoint takes: the interval of checkpoints and the time that the handler needs for one
    /// batch. If the wait is shorter, such a partition counts as stuck. `ehcp doctor` waits 7 s, for the default
    /// interval of 5 s.
    #[must_use]
    pub fn diagnose(&self, hub: Option<&HubRanges>, stuck_after: Duration) -> Vec<Finding> {
        self.find_problems(hub, stuck_after, None)
    }

    /// As [`diagnose`](Self::diagnose), but a partition counts as stuck only if it already was in this earlier
    /// description, and has made no progress since then.
    #[must_use]
    pub fn diagnose_again(
        &self,
        earlier: &GroupDescription,
        hub: Option<&HubRanges>,
        stuck_after: Duration,
    ) -> Vec<Finding> {
        self.find_problems(hub, stuck_after, Some(earlier))
    }

    fn find_problems(
        &self,
        hub: Option<&HubRanges>,
        stuck_after: Duration,
        earlier: Option<&GroupDescription>,
    ) -> Vec<Finding> {
        let examination = Examination { group: &self.describe(hub), earlier, records: self, hub, stuck_after };
        let mut findings: Vec<_> = examination.check_owners().collect();
        findings.extend(examination.check_checkpoints());
        findings.extend(examination.check_records());
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.check));
        findings
    }
}

/// What is examined.
struct Examination<'a> {
    group: &'a GroupDescription,
    /// An earlier look at the group, if there was one.
    earlier: Option<&'a GroupDescription>,
    records: &'a GroupRecords,
    hub: Option<&'a HubRanges>,
    stuck_after: Duration,
}

impl Examination<'_> {
    fn check_owners(&self) -> impl Iterator<Item = Finding> {
        let summary = &self.group.group;
        let members = &self.group.members;
        let has_members = !members.is_empty();
        let waits = summary.lag.events.map_or(summary.state == GroupState::Dead, |events| events > 0);
        let sdks: BTreeSet<_> = members.iter().map(|member| member.sdk).collect();
        let idle = join_ids(members, |member| member.partitions.is_empty());
        let has_too_many = self.hub.is_some() && members.len() > self.group.partitions.len();
        let findings = [
            (!has_members && waits && summary.state != GroupState::Absent).then(|| {
                let detail = format!("the group is {}, lag {}", summary.state, summary.lag);
                Finding::new(Check::NoMembers, Vec::new(), detail)
            }),
            finding_about(
                Check::UnownedPartition,
                self.partitions_where(|partition| {
                    has_members && matches!(partition.state, OwnershipState::Unowned | OwnershipState::Released)
                }),
                |count| format!("{count} without an owner"),
            ),
            finding_about(
                Check::ExpiredOwner,
                self.partitions_where(|partition| has_members && partition.state == OwnershipState::Expired),
                |count| format!("{count} whose owner did not renew in time"),
            ),
            finding_about(Check::TwoOwners, self.partitions_with_two_owners(), |count| {
                format!("{count} with an owner in each blob-name casing")
            }),
            (sdks.len() > 1).then(|| {
                let others = join_ids(members, |member| member.sdk == Sdk::Other);
                Finding::new(Check::SeveralSdks, Vec::new(), format!("of other SDKs: {others}"))
            }),
            (has_too_many && !idle.is_empty())
                .then(|| Finding::new(Check::IdleMembers, Vec::new(), format!("own nothing: {idle}"))),
        ];
        findings.into_iter().flatten()
    }

    fn check_checkpoints(&self) -> impl Iterator<Item = Finding> {
        let findings = [
            finding_about(Check::CheckpointOfFormerHub, self.partitions_where(is_of_former_hub), |count| {
                format!("{count} whose checkpoint was written before the event hub was recreated")
            }),
            finding_about(Check::ExpiredCheckpoint, self.partitions_of_this_hub_where(has_lost_events), |count| {
                format!("{count} whose next events expired before they were processed")
            }),
            finding_about(Check::CheckpointBeyondEnd, self.partitions_of_this_hub_where(is_beyond_end), |count| {
                format!("{count} with a checkpoint after the last event")
            }),
            finding_about(Check::IncompleteCheckpoint, self.partitions_where(is_incomplete), |count| {
                format!(
                    "{count} whose checkpoint has no sequence number (breaks KEDA) or no offset (breaks other SDKs)"
                )
            }),
            finding_about(
                Check::StuckPartition,
                self.partitions_where(|partition| self.is_stuck(partition)),
                |count| {
                    let limit = format_limit(self.stuck_after);
                    format!("{count} whose checkpoint did not advance for more than {limit}, although events wait")
                },
            ),
            finding_about(
                Check::PausedPartition,
                self.partitions_where(|partition| partition.active_pause().is_some()),
                |_| {
                    let partitions = self.group.partitions.iter();
                    describe_pauses(&partitions.filter_map(PartitionDescription::active_pause).collect::<Vec<_>>())
                },
            ),
        ];
        findings.into_iter().flatten()
    }

    fn check_records(&self) -> impl Iterator<Item = Finding> {
        let mut orphans: Vec<_> = self.records.partitions_with_records().into_iter().collect();
        orphans.retain(|id| self.hub.is_some_and(|hub| hub.get(id).is_none()));
        let findings = [
            finding_about(Check::OrphanRecord, orphans, |count| {
                format!("records exist for {count} that the event hub does not have")
            }),
            self.group.group.other_name_case.then(|| {
                let case = self.group.group.blob_name_case.other();
                Finding::new(Check::OtherNameCase, Vec::new(), format!("records also exist under {case} names"))
            }),
        ];
        let malformed = self.records.malformed_records().filter(|record| !self.is_incomplete_checkpoint(&record.blob));
        findings.into_iter().flatten().chain(malformed.map(|record| {
            Finding::new(Check::MalformedRecord, Vec::new(), format!("{}: {}", record.blob, record.problem))
        }))
    }

    /// A pause is a finding of its own.
    fn is_stuck(&self, partition: &PartitionDescription) -> bool {
        let was_stuck = self.earlier.is_none_or(|earlier| {
            earlier.partition(&partition.id).is_some_and(|before| self.stands_still(before, earlier.taken_at))
        });
        was_stuck && partition.active_pause().is_none() && self.stands_still(partition, self.group.taken_at)
    }

    fn stands_still(&self, partition: &PartitionDescription, at: OffsetDateTime) -> bool {
        partition.time_without_progress(at).is_some_and(|time| time > self.stuck_after)
    }

    fn partitions_where(&self, wanted: impl Fn(&PartitionDescription) -> bool) -> Vec<PartitionId> {
        let partitions = self.group.partitions.iter();
        partitions.filter(|partition| wanted(partition)).map(|partition| partition.id.clone()).collect()
    }

    /// Returns those whose checkpoint is a position in this event hub.
    fn partitions_of_this_hub_where(&self, wanted: impl Fn(&PartitionDescription) -> bool) -> Vec<PartitionId> {
        self.partitions_where(|partition| !is_of_former_hub(partition) && wanted(partition))
    }

    /// Returns whether this blob is a checkpoint that only lacks a number. That is a finding of its own.
    fn is_incomplete_checkpoint(&self, blob: &str) -> bool {
        let partition = blob.rsplit_once("/checkpoint/").and_then(|(_, name)| PartitionId::new(name).ok());
        partition.and_then(|id| self.group.partition(&id)).is_some_and(is_incomplete)
    }

    /// Returns the partitions that two live members own.
    fn partitions_with_two_owners(&self) -> Vec<PartitionId> {
        let live: BTreeMap<_, _> = self
            .records
            .other
            .live_ownerships(self.records.store.lease_durations(), self.records.read_at)
            .map(|seen| (&seen.partition, seen.record.owner.as_ref()))
            .collect();
        self.partitions_where(|partition| {
            let owner = partition.owner.as_ref().filter(|_| partition.state.is_live()).map(|owner| &owner.id);
            owner.is_some() && live.get(&partition.id).is_some_and(|other| *other != owner)
        })
    }
}

fn is_of_former_hub(partition: &PartitionDescription) -> bool {
    partition.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.of_former_hub)
}

/// Returns whether events expired that were not processed. A start position is valid before the first event, too.
fn has_lost_events(partition: &PartitionDescription) -> bool {
    let checkpoint = partition.checkpoint.as_ref().filter(|checkpoint| !checkpoint.initial);
    checkpoint
        .and_then(|checkpoint| checkpoint.position.sequence_number)
        .filter(|number| *number >= 0)
        .zip(partition.hub.as_ref())
        .is_some_and(|(number, hub)| number.saturating_add(1) < hub.first)
}

/// Returns whether the checkpoint is after the last event, or has its number and the offset of another event.
fn is_beyond_end(partition: &PartitionDescription) -> bool {
    let Some(position) = partition.checkpoint.as_ref().map(|checkpoint| &checkpoint.position) else { return false };
    let offsets = position.offset.as_deref().zip(partition.hub.as_ref().and_then(|hub| hub.last_offset.as_deref()));
    let is_of_another_event = offsets.is_some_and(|(recorded, last)| names_another_event(recorded, last));
    position.sequence_number.zip(partition.hub.as_ref()).is_some_and(|(number, hub)| {
        number > hub.last.unwrap_or(-1) || (hub.last == Some(number) && is_of_another_event)
    })
}

/// Returns whether the checkpoint has only one of the two numbers.
fn is_incomplete(partition: &PartitionDescription) -> bool {
    partition.checkpoint.as_ref().is_some_and(|checkpoint| {
        let RecordedPosition { sequence_number, offset } = &checkpoint.position;
        sequence_number.is_some() != offset.is_some()
    })
}

/// Returns how many partitions are paused and how many are parked, and the end and the reason if all have the same.
fn describe_pauses(pauses: &[&Pause]) -> String {
    let parked = pauses.iter().filter(|pause| pause.parked).count();
    let counts = [(pauses.len() - parked, "paused"), (parked, "parked after a failure")];
    let counts: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    let end = shared_value(pauses, |pause| pause.until?.format(&Rfc3339).ok());
    let end = end.map(|end| format!(" until {end}")).unwrap_or_default();
    let reason = shared_value(pauses, |pause| pause.reason.clone());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{}, no events are delivered{end}{reason}", counts.join(" and "))
}

fn shared_value<T: PartialEq>(pauses: &[&Pause], value_of: impl Fn(&Pause) -> Option<T>) -> Option<T> {
    let mut values = pauses.iter().map(|pause| value_of(pause));
    let first = values.next().flatten()?;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}

fn format_limit(limit: Duration) -> String {
    match limit.as_secs() {
        seconds if seconds > 0 && limit == Duration::from_secs(seconds / 60 * 60) => format!("{} min", seconds / 60),
        _ => format!("{limit:?}"),
    }
}

fn join_ids(members: &[Member], is_selected: impl Fn(&Member) -> bool) -> String {
    let ids: Vec<_> = members.iter().filter(|member| is_selected(member)).map(|member| member.id.as_str()).collect();
    ids.join(", ")
}

/// Returns a finding, if it concerns any partition.
fn finding_about(check: Check, partitions: Vec<PartitionId>, detail: impl Fn(&str) -> String) -> Option<Finding> {
    let count = match partitions.len() {
        0 => return None,
        1 => "1 partition".to_owned(),
        count => format!("{count} partitions"),
    };
    Some(Finding::new(check, partitions, detail(&count)))
}

#[cfg(test)]
mod tests {
    use super::super::records::samples::{NOW, foreign, hub, operated, owned};
    use super::*;
    use crate::model::{CheckpointRecord, OwnershipRecord, Position};
    use crate::source::PartitionProperties;
    use crate::store::MalformedRecord;

    const STUCK_AFTER: Duration = Duration::from_secs(3 * 60);
    const MINUTE: time::Duration = time::Duration::MINUTE;

    /// Returns the names of the findings in a group whose partitions have events 100 to 199.
    fn found(records: &GroupRecords, partitions: usize) -> Vec<&'static str> {
        names(&records.diagnose(Some(&hub(&vec![(100, 199); partitions])), STUCK_AFTER))
    }

    fn names(findings: &[Finding]) -> Vec<&'static str> {
        findings.iter().map(|finding| finding.check.as_str()).collect()
    }

    /// A group of one member, which has processed everything.
    fn healthy() -> GroupRecords {
        GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, 199, "1990", 1000)
    }

    /// A group with this checkpoint, which was written just now.
    fn at(number: impl Into<Option<i64>>, offset: impl Into<Option<&'static str>>) -> GroupRecords {
        GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, number, offset, 0)
    }

    #[test]
    fn a_healthy_group_has_no_findings() {
        assert_eq!(found(&healthy(), 1), [""; 0]);
        assert_eq!(names(&healthy().diagnose(None, STUCK_AFTER)), [""; 0]);
        assert_eq!(found(&GroupRecords::empty(), 1), [""; 0], "there is no group");
        assert_eq!(found(&healthy().with_heartbeat("a", 0), 1), [""; 0]);
    }

    mod ownerships {
        use super::*;

        #[test]
        fn a_group_without_members() {
            let none = |number| GroupRecords::empty().with_checkpoint(0, number, "x", 0);
            assert_eq!(found(&none(198), 1), ["no-members"]);
            assert_eq!(found(&none(199), 1), [""; 0], "no event waits");
            let crashed = none(150).with(0, owned("a"), 62);
            assert_eq!(found(&crashed, 1), ["no-members"]);
            assert_eq!(found(&none(150).with_heartbeat("a", 0), 1), ["unowned-partition"]);
            let emptied = none(199).diagnose(Some(&hub(&[(200, 199)])), STUCK_AFTER);
            assert_eq!(names(&emptied), [""; 0]);
        }

        #[test]
        fn a_partition_without_an_owner() {
            assert_eq!(found(&healthy(), 2), ["unowned-partition"]);
            let with = |record, age| healthy().with(1, record, age);
            assert_eq!(found(&with(OwnershipRecord::default(), 0), 2), ["unowned-partition"]);
            let held = with(operated("operator-1", "a"), 0);
            assert_eq!(found(&held, 2), [""; 0], "an operator works on it");
            let away = with(OwnershipRecord { away: true, ..owned("b") }, 0);
            assert_eq!(found(&away, 2), [""; 0], "its owner will be back");
        }

        #[test]
        fn an_expired_owner() {
            assert_eq!(found(&healthy().with(1, owned("b"), 62), 2), ["expired-owner"]);
            assert_eq!(found(&healthy().with(1, owned("b"), 61), 2), [""; 0]);
            assert_eq!(found(&healthy().with(1, operated("operator-1", "a"), 62), 2), ["expired-owner"]);
        }

        #[test]
        fn two_owners_in_different_name_cases() {
            let both = healthy().with_other_name_case(0, foreign("go"), 0);
            assert_eq!(found(&both, 1), ["two-owners", "other-name-case"]);
            let expired = healthy().with_other_name_case(0, foreign("go"), 182);
            assert_eq!(found(&expired, 1), ["other-name-case"]);
            let restarted = healthy().with_other_name_case(0, owned("a"), 0);
            assert_eq!(found(&restarted, 1), ["other-name-case"], "it is one owner");
            let elsewhere = healthy().with_other_name_case(1, owned("b"), 0);
            assert_eq!(found(&elsewhere, 2), ["unowned-partition", "other-name-case"]);
        }

        #[test]
        fn several_sdks() {
            let findings = healthy().with(1, foreign("python"), 0).diagnose(Some(&hub(&[(100, 199); 2])), STUCK_AFTER);
            assert_eq!(names(&findings), ["several-sdks"]);
            assert_eq!(findings[0].detail, "of other SDKs: python");
            assert_eq!(found(&GroupRecords::empty().with(0, foreign("python"), 0), 1), [""; 0]);
            assert_eq!(found(&healthy().with(1, foreign("python"), 182), 2), ["expired-owner"]);
        }

        #[test]
        fn idle_members() {
            let idle = || healthy().with_heartbeat("a", 0).with_heartbeat("b", 0);
            assert_eq!(found(&idle(), 1), ["idle-members"]);
            assert_eq!(found(&idle().with(1, owned("b"), 0), 2), [""; 0]);
            assert_eq!(found(&idle(), 2), ["unowned-partition"], "there is one for it");
            assert_eq!(names(&idle().diagnose(None, STUCK_AFTER)), [""; 0], "the number of partitions is unknown");
            assert_eq!(found(&healthy().with_heartbeat("b", 62), 1), [""; 0]);
        }
    }

    mod checkpoints {
        use super::*;

        #[test]
        fn expired() {
            for (number, expected) in
                [(i64::MIN, false), (-1, false), (98, true), (99, false), (150, false), (199, false)]
            {
                assert_eq!(found(&at(number, "x"), 1).contains(&"expired-checkpoint"), expected, "{number}");
            }
            let emptied = |number| names(&at(number, "x").diagnose(Some(&hub(&[(200, 199)])), STUCK_AFTER));
            assert_eq!(emptied(198), ["expired-checkpoint"]);
            assert_eq!(emptied(199), [""; 0]);
            assert_eq!(names(&at(3, "30").diagnose(None, STUCK_AFTER)), [""; 0]);
        }

        #[test]
        fn beyond_the_end() {
            for (number, offset, expected) in [
                (199, "1990", false),
                (199, "1994", true),
                (199, "a:1994", false),
                (199, "-1", false),
                (200, "2000", true),
                (i64::MAX, "x", true),
            ] {
                let is_found = found(&at(number, offset), 1).contains(&"checkpoint-beyond-end");
                assert_eq!(is_found, expected, "{number}, {offset}");
            }
            let unused = |number| names(&at(number, "-1").diagnose(Some(&hub(&[(0, -1)])), STUCK_AFTER));
            assert_eq!((unused(-1), unused(0)), (vec![], vec!["checkpoint-beyond-end"]));
        }

        #[test]
        fn of_a_former_event_hub() {
            let created = |minutes: i64| hub(&[(100, 199)]).with_created_at(NOW - time::Duration::minutes(minutes));
            let written = GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, 199, "1990", 100);
            assert_eq!(names(&written.diagnose(Some(&created(200)), STUCK_AFTER)), [""; 0]);
            assert_eq!(names(&written.diagnose(Some(&created(100)), STUCK_AFTER)), [""; 0]);
            let described = written.describe(Some(&created(99)));
            assert_eq!(described.group.lag.events, Some(100), "none of the events was processed");
            let found = written.diagnose(Some(&created(99)), STUCK_AFTER);
            assert_eq!(names(&found), ["checkpoint-of-former-hub", "stuck-partition"]);
            let beyond = at(500, "5000").diagnose(Some(&created(200)), STUCK_AFTER);
            assert_eq!(names(&beyond), ["checkpoint-beyond-end"]);
        }

        #[test]
        fn incomplete() {
            assert_eq!(found(&at(150, None), 1), ["incomplete-checkpoint"]);
            assert_eq!(found(&at(None, "1500"), 1), ["incomplete-checkpoint"]);
            assert_eq!(found(&at(150, "1500"), 1), [""; 0]);
        }

        /// A blob without a position is another finding, which `--to-current` does not repair.
        #[test]
        fn an_incomplete_one_is_found_once() {
            let with = |mut records: GroupRecords| {
                let blob = "ns/hub/$default/checkpoint/0".to_owned();
                let problem = "offset (absent) is not a position".to_owned();
                records.checkpoints.malformed.push(MalformedRecord { blob, problem });
                found(&records, 1)
            };
            assert_eq!(with(at(150, None)), ["incomplete-checkpoint"]);
            assert_eq!(with(at(None, None)), ["malformed-record"]);
        }

        #[test]
        fn stuck() {
            let old = |minutes, number| {
                let records = GroupRecords::empty().with(0, owned("a"), 0);
                found(&records.with_checkpoint(0, number, "x", minutes), 1)
            };
            assert_eq!(old(4, 150), ["stuck-partition"]);
            assert_eq!(
                [180_000, 90_000, 500, 0].map(|limit| format_limit(Duration::from_millis(limit))),
                ["3 min", "90s", "500ms", "0ns"]
            );
            assert_eq!(old(3, 150), [""; 0], "not long enough");
            assert_eq!(old(4, 199), [""; 0], "no event waits");
            let rare = |number, minutes: i64| {
                let properties = PartitionProperties::new(100, Some(Position::new(199, "1990")), false);
                let properties = properties.with_last_enqueued_at(NOW - time::Duration::minutes(minutes));
                let records = GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, number, "x", 60);
                names(&records.diagnose(Some(&[(0.into(), properties)].into_iter().collect()), STUCK_AFTER))
            };
            assert_eq!(rare(198, 1), [""; 0], "the last event is new");
            assert_eq!(rare(198, 4), ["stuck-partition"]);
            assert_eq!(rare(197, 1), ["stuck-partition"], "the event before may be old");
            let without_owner = GroupRecords::empty().with_heartbeat("a", 0).with_checkpoint(0, 150, "x", 4);
            assert_eq!(found(&without_owner, 1), ["unowned-partition"]);
            let away = OwnershipRecord { away: true, ..owned("a") };
            let away = GroupRecords::empty().with(0, away, 0).with_checkpoint(0, 150, "x", 4);
            assert_eq!(found(&away, 1), [""; 0]);
        }

        /// Its checkpoint is 60 min old.
        fn standing_still(change: impl FnOnce(&mut OwnershipRecord, &mut CheckpointRecord)) -> GroupRecords {
            let mut records = GroupRecords::empty().with(0, owned("a"), 0).with_checkpoint(0, 150, "x", 60);
            change(&mut records.survey.ownerships.records[0].record, &mut records.checkpoints.records[0].record);
            records
        }

        #[test]
        fn a_start_is_no_progress() {
            let claimed = standing_still(|ownership, _| ownership.claimed_at = Some(NOW));
            assert_eq!(found(&claimed, 1), ["stuck-partition"], "its owner may fail again and again");
            let mut adopted = standing_still(|_, checkpoint| checkpoint.updated_at = Some(NOW - 4 * MINUTE));
            adopted.checkpoints.records[0].last_modified = NOW;
            assert_eq!(found(&adopted, 1), ["stuck-partition"]);
            let written = standing_still(|_, checkpoint| checkpoint.updated_at = Some(NOW - 3 * MINUTE));
            assert_eq!(found(&written, 1), [""; 0]);
        }

        #[test]
        fn without_a_checkpoint_the_claim_counts() {
            let claimed = |minutes| {
                let claimed_at = Some(NOW - minutes * MINUTE);
                found(&GroupRecords::empty().with(0, OwnershipRecord { claimed_at, ..owned("a") }, 0), 1)
            };
            assert_eq!((claimed(3), claimed(4)), (vec![], vec!["stuck-partition"]));
        }

        #[test]
        fn a_pause_is_not_stuck_and_ends_now() {
            let paused = |until| standing_still(|_, checkpoint| checkpoint.paused = Some(Pause::new(NOW, until, None)));
            assert_eq!(found(&paused(None), 1), ["paused-partition"]);
            assert_eq!(found(&paused(Some(NOW - 3 * MINUTE)), 1), [""; 0], "it ended a moment ago");
            assert_eq!(found(&paused(Some(NOW - 4 * MINUTE)), 1), ["stuck-partition"]);
            let parked = standing_still(|_, checkpoint| checkpoint.paused = Some(Pause::after_failure(NOW, "x")));
            assert_eq!(found(&parked, 1), ["paused-partition"]);
            let parked = parked.describe(Some(&hub(&[(100, 199)]))).partitions.remove(0);
            assert_eq!(parked.time_without_progress(NOW), Some(Duration::from_secs(60 * 60)));
        }

        #[test]
        fn pauses_show_what_they_have_in_common() {
            let until = Some(NOW + time::Duration::HOUR);
            let a = Pause::new(NOW, until, Some("a migration"));
            let b = Pause::new(NOW - MINUTE, until, Some("a migration"));
            let parked = Pause::after_failure(NOW, "no database");
            assert_eq!(
                describe_pauses(&[&a, &b]),
                "2 paused, no events are delivered until 2026-01-01T13:00:00Z: a migration"
            );
            assert_eq!(
                describe_pauses(&[&a, &parked]),
                "1 paused and 1 parked after a failure, no events are delivered"
            );
            let other = Pause::new(NOW, None, Some("a migration"));
            assert_eq!(describe_pauses(&[&a, &other]), "2 paused, no events are delivered: a migration");
        }

        #[test]
        fn a_burst_is_not_stuck_at_the_second_look() {
            let hub = hub(&[(100, 199)]);
            let again = |earlier: &GroupRecords, records: &GroupRecords| {
                names(&records.diagnose_again(&earlier.describe(Some(&hub)), Some(&hub), STUCK_AFTER))
            };
            let stuck = || standing_still(|_, _| {});
            let progressed = standing_still(|_, checkpoint| checkpoint.updated_at = Some(NOW));
            assert_eq!(again(&stuck(), &stuck()), ["stuck-partition"]);
            assert_eq!(again(&stuck(), &progressed), [""; 0]);
            let without_events = standing_still(|_, checkpoint| checkpoint.sequence_number = Some(199));
            assert_eq!(again(&without_events, &stuck()), [""; 0], "the events arrived between the looks");
        }
    }

    mod records {
        use super::*;

        #[test]
        fn orphans() {
            let records = healthy().with(7, owned("a"), 0).with(9, owned("a"), 0).with_checkpoint(9, 3, "30", 0);
            let findings = records.diagnose(Some(&hub(&[(100, 199)])), STUCK_AFTER);
            assert_eq!(names(&findings), ["orphan-record"]);
            assert_eq!(findings[0].partitions, [7.into(), 9.into()]);
            assert_eq!(names(&records.diagnose(None, STUCK_AFTER)), [""; 0], "the partitions are unknown");
        }

        #[test]
        fn malformed_ones() {
            let mut records = healthy();
            let blob = || "ns/hub/$default/ownership/x/y".to_owned();
            let malformed = || MalformedRecord { blob: blob(), problem: "is no record".to_owned() };
            records.survey.ownerships.malformed.push(malformed());
            records.survey.heartbeats.malformed.push(malformed());
            records.checkpoints.malformed.push(malformed());
            assert_eq!(found(&records, 1), ["malformed-record"; 3]);
            let mut elsewhere = healthy();
            elsewhere.other.ownerships.malformed.push(malformed());
            assert_eq!(found(&elsewhere, 1), ["other-name-case"], "they concern the users of that casing");
        }

        #[test]
        fn in_the_other_name_case() {
            let mut records = healthy();
            records.other.checkpoints.records.append(&mut at(3, "30").checkpoints.records);
            assert_eq!(found(&records, 1), ["other-name-case"]);
        }
    }

    #[test]
    fn the_most_urgent_findings_come_first() {
        let records = at(3, "30").with_heartbeat("a", 0).with_heartbeat("b", 0).with_heartbeat("c", 0);
        let findings = records.with(1, foreign("python"), 0).diagnose(Some(&hub(&[(100, 199); 2])), STUCK_AFTER);
        assert_eq!(names(&findings), ["expired-checkpoint", "several-sdks", "idle-members"]);
        let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Error, Severity::Warning, Severity::Info]);
        assert_eq!(findings[0].detail, "1 partition whose next events expired before they were processed");
    }
}
