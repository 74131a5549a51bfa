//! What is wrong with a group, and the remedies: pure over what was read.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::description::{GroupDescription, GroupState, OwnershipState, PartitionDescription, RecordedPosition, Sdk};
use super::hub::HubRanges;
use super::plan::names_another_event;
use super::survey::GroupRecords;
use crate::model::PartitionId;

/// How long a checkpoint may stand still while events wait. Handlers that take longer are rare.
const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);

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
    /// Two members own one partition, under names in different letter cases.
    TwoOwners,
    /// Records exist under names in both letter cases.
    OtherNameCase,
    /// Live members use several SDKs.
    SeveralSdks,
    /// A checkpoint is before the first available event.
    ExpiredCheckpoint,
    /// A checkpoint is after the last event: the event hub was created again.
    CheckpointBeyondEnd,
    /// A checkpoint lacks its sequence number or its offset.
    IncompleteCheckpoint,
    /// A checkpoint does not advance although events wait.
    StuckPartition,
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
        Self::CheckpointBeyondEnd,
        Self::IncompleteCheckpoint,
        Self::StuckPartition,
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
            Self::CheckpointBeyondEnd => "checkpoint-beyond-end",
            Self::IncompleteCheckpoint => "incomplete-checkpoint",
            Self::StuckPartition => "stuck-partition",
            Self::OrphanRecord => "orphan-record",
            Self::MalformedRecord => "malformed-record",
            Self::IdleMembers => "idle-members",
        }
    }

    fn severity(self) -> Severity {
        match self {
            Self::NoMembers
            | Self::UnownedPartition
            | Self::ExpiredOwner
            | Self::TwoOwners
            | Self::ExpiredCheckpoint
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
                "a member takes it over within its lease duration; if none does, run `ehcp release` for the partition"
            }
            Self::TwoOwners => "stop one of the two applications, or configure one blob-name case for both",
            Self::OtherNameCase => {
                "configure one blob-name case for all applications of the group; then `ehcp delete` the other records"
            }
            Self::SeveralSdks => "finish the migration: checkpoints of other SDKs are not fenced",
            Self::ExpiredCheckpoint => {
                "events were lost: raise the retention; `ehcp reset --to-earliest` continues with the first event"
            }
            Self::CheckpointBeyondEnd => {
                "the event hub was created again: `ehcp reset --to-earliest`, or `ehcp delete --checkpoints`"
            }
            Self::IncompleteCheckpoint => "`ehcp reset --to-current` adds the missing number",
            Self::StuckPartition => {
                "look at the log of the owner; `ehcp peek` shows the next event, and `ehcp reset --shift-by 1` skips it"
            }
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
    #[must_use]
    pub fn diagnose(&self, hub: Option<&HubRanges>) -> Vec<Finding> {
        Examination { group: &self.describe(hub), records: self, hub }.findings()
    }
}

/// What is examined.
struct Examination<'a> {
    group: &'a GroupDescription,
    records: &'a GroupRecords,
    hub: Option<&'a HubRanges>,
}

impl Examination<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<_> = self.ownership().chain(self.checkpoints()).chain(self.records()).collect();
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.check));
        findings
    }

    fn ownership(&self) -> impl Iterator<Item = Finding> {
        let group = self.group;
        let members = &group.members;
        let has_members = !members.is_empty();
        let with_state = |wanted: &'static [OwnershipState]| {
            self.partitions(move |partition| has_members && wanted.contains(&partition.state))
        };
        let waits = group.group.lag.events.is_none_or(|events| events > 0);
        let no_members = (!has_members && waits && group.group.state != GroupState::Absent).then(|| {
            let lag = group.group.lag;
            Finding::new(Check::NoMembers, Vec::new(), format!("the group is {}, lag {lag}", group.group.state))
        });
        let unowned = with_state(&[OwnershipState::Unowned, OwnershipState::Released]);
        let unowned = some(Check::UnownedPartition, unowned, |count| format!("{count} without an owner"));
        let expired = with_state(&[OwnershipState::Expired]);
        let expired = some(Check::ExpiredOwner, expired, |count| format!("{count} whose owner did not renew in time"));
        let twice = self.owned_in_both_cases();
        let twice = some(Check::TwoOwners, twice, |count| format!("{count} with an owner in each letter case"));
        let sdks: BTreeSet<_> = members.iter().map(|member| member.sdk).collect();
        let several = (sdks.len() > 1).then(|| {
            let others: Vec<_> =
                members.iter().filter(|member| member.sdk == Sdk::Other).map(|member| member.id.as_str()).collect();
            Finding::new(Check::SeveralSdks, Vec::new(), format!("of other SDKs: {}", others.join(", ")))
        });
        let idle: Vec<_> =
            members.iter().filter(|member| member.partitions.is_empty()).map(|member| member.id.as_str()).collect();
        let idle = (self.hub.is_some() && !idle.is_empty() && members.len() > group.partitions.len())
            .then(|| Finding::new(Check::IdleMembers, Vec::new(), format!("own nothing: {}", idle.join(", "))));
        [no_members, unowned, expired, twice, several, idle].into_iter().flatten()
    }

    fn checkpoints(&self) -> impl Iterator<Item = Finding> {
        let expired = self.partitions(|partition| {
            let number = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
            number.zip(partition.hub.as_ref()).is_some_and(|(number, hub)| number.saturating_add(1) < hub.first)
        });
        let expired = some(Check::ExpiredCheckpoint, expired, |count| {
            format!("{count} whose next events expired before they were processed")
        });
        let beyond = self.partitions(|partition| {
            let number = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
            number.zip(partition.hub.as_ref()).is_some_and(|(number, hub)| {
                number > hub.last.unwrap_or(-1) || (hub.last == Some(number) && is_of_another_event(partition))
            })
        });
        let beyond =
            some(Check::CheckpointBeyondEnd, beyond, |count| format!("{count} with a checkpoint after the last event"));
        let incomplete = self.partitions(is_incomplete);
        let incomplete = some(Check::IncompleteCheckpoint, incomplete, |count| {
            format!(
                "{count} without a sequence number, at which KEDA fails, or without an offset, at which other SDKs fail"
            )
        });
        let stuck = self.partitions(|partition| {
            let waits = partition.lag.events.is_some_and(|events| events > 0);
            let age = partition.checkpoint.as_ref().map(|checkpoint| self.group.taken_at - checkpoint.updated);
            partition.state == OwnershipState::Owned && waits && age.is_some_and(|age| age > STUCK_AFTER)
        });
        let stuck = some(Check::StuckPartition, stuck, |count| {
            format!("{count} whose checkpoint did not advance for {} minutes", STUCK_AFTER.as_secs() / 60)
        });
        [expired, beyond, incomplete, stuck].into_iter().flatten()
    }

    fn records(&self) -> impl Iterator<Item = Finding> {
        let orphans = self.hub.map(|hub| self.records.partitions().into_iter().filter(|id| hub.of(id).is_none()));
        let orphans = orphans.into_iter().flatten().collect();
        let orphans = some(Check::OrphanRecord, orphans, |count| {
            format!("{count} that the event hub does not have, but with records")
        });
        let other_case = self.group.group.other_name_case.then(|| {
            let case = self.group.group.blob_name_case.other();
            Finding::new(Check::OtherNameCase, Vec::new(), format!("records exist under {case} names, too"))
        });
        let malformed = self.records.malformed().filter(|malformed| !self.is_incomplete(&malformed.blob));
        let malformed = malformed.map(|malformed| {
            Finding::new(Check::MalformedRecord, Vec::new(), format!("{}: {}", malformed.blob, malformed.problem))
        });
        [orphans, other_case].into_iter().flatten().chain(malformed)
    }

    fn partitions(&self, wanted: impl Fn(&PartitionDescription) -> bool) -> Vec<PartitionId> {
        let found = self.group.partitions.iter().filter(|partition| wanted(partition));
        found.map(|partition| partition.id.clone()).collect()
    }

    /// Returns whether this blob is a checkpoint that only lacks a number. That is a finding of its own.
    fn is_incomplete(&self, blob: &str) -> bool {
        let named = blob.rsplit_once("/checkpoint/").and_then(|(_, name)| PartitionId::new(name).ok());
        named.and_then(|id| self.group.partition(&id)).is_some_and(is_incomplete)
    }

    /// Returns the partitions that two live members own.
    fn owned_in_both_cases(&self) -> Vec<PartitionId> {
        let owners =
            |id: &PartitionId| self.group.members.iter().filter(|member| member.partitions.contains(id)).count();
        self.partitions(|partition| owners(&partition.id) > 1)
    }
}

/// Returns whether the checkpoint has only one of the two numbers.
fn is_incomplete(partition: &PartitionDescription) -> bool {
    partition.checkpoint.as_ref().is_some_and(|checkpoint| {
        let RecordedPosition { sequence_number, offset } = &checkpoint.position;
        sequence_number.is_some() != offset.is_some()
    })
}

/// Returns whether the offset of the checkpoint is not that of the last event.
fn is_of_another_event(partition: &PartitionDescription) -> bool {
    let recorded = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.offset.as_deref());
    let last = partition.hub.as_ref().and_then(|hub| hub.last_offset.as_deref());
    recorded.zip(last).is_some_and(|(recorded, last)| names_another_event(recorded, last))
}

/// Returns a finding, if it concerns any partition.
fn some(check: Check, partitions: Vec<PartitionId>, detail: impl Fn(&str) -> String) -> Option<Finding> {
    let count = match partitions.len() {
        0 => return None,
        1 => "1 partition".to_owned(),
        count => format!("{count} partitions"),
    };
    Some(Finding::new(check, partitions, detail(&count)))
}
