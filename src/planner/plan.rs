//! What one instance should do about what it sees.

use rand::Rng;
use serde::Serialize;

use super::candidates::{Wanted, claimable, is_unowned};
use super::policy::{LoadBalancingStrategy, Policy};
use super::view::{PartitionOwner, PartitionView, View};
use super::{shares, weighted};
use crate::model::{OwnerId, Ownership, PartitionId};

/// Why a partition is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ClaimReason {
    /// It is recorded as mine, but I do not run it.
    Reclaimed,
    /// Nobody has ever owned it.
    Unowned,
    /// Its last owner gave it back.
    Released,
    /// Its last owner gave it back for me: I had asked for it.
    HandedOver,
    /// Its owner has not renewed in time.
    Expired(OwnerId),
    /// Its owner holds more than its share.
    Stolen(OwnerId),
}

impl ClaimReason {
    /// The reason in metrics, as when serialized.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Reclaimed => "reclaimed",
            Self::Unowned => "unowned",
            Self::Released => "released",
            Self::HandedOver => "handed_over",
            Self::Expired(_) => "expired",
            Self::Stolen(_) => "stolen",
        }
    }

    /// Returns the owner that the partition is taken from, if it did not release the partition.
    pub(crate) fn previous_owner(&self) -> Option<&OwnerId> {
        match self {
            Self::Expired(owner) | Self::Stolen(owner) => Some(owner),
            Self::Reclaimed | Self::Unowned | Self::Released | Self::HandedOver => None,
        }
    }
}

/// A partition to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClaim {
    /// The partition.
    pub partition: PartitionId,
    /// Why.
    pub reason: ClaimReason,
    /// The record that it is over, in the version that was seen; `None` if the partition has no record.
    pub over: Option<Ownership>,
}

/// A partition that is to be asked for: its owner is alive and cooperative, and holds more than its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedHandoff {
    /// The partition.
    pub partition: PartitionId,
    /// Its owner.
    pub from: OwnerId,
    /// Its record, as it was seen.
    pub seen: Option<Ownership>,
}

/// Why a partition is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum ReleaseReason {
    /// The application requested it.
    Requested,
    /// The instance shuts down.
    Shutdown,
    /// The application stalled.
    Stalled,
    /// Another instance requested a handoff.
    HandedOver,
    /// The event hub no longer has the partition.
    PartitionRemoved,
    /// The partition is not assigned to this instance.
    NotAssigned,
    /// This instance owns more than `max_partitions`.
    OverLimit,
}

impl ReleaseReason {
    /// The name in metrics and when serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Shutdown => "shutdown",
            Self::Stalled => "stalled",
            Self::HandedOver => "handed_over",
            Self::PartitionRemoved => "partition_removed",
            Self::NotAssigned => "not_assigned",
            Self::OverLimit => "over_limit",
        }
    }
}

impl From<ReleaseReason> for &'static str {
    fn from(reason: ReleaseReason) -> Self {
        reason.as_str()
    }
}

/// A partition that I run and should give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRelease {
    /// The partition.
    pub partition: PartitionId,
    /// Why.
    pub reason: ReleaseReason,
}

/// What one instance should do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The partitions to be claimed.
    pub claim: Vec<PlannedClaim>,
    /// The partitions to be asked for: each record is to be marked. Only with [`Policy::handoff`]. What is under way
    /// already is not among them.
    pub handoff: Vec<PlannedHandoff>,
    /// The partitions to be given back. None of them is claimed by the same plan, nor does any make room in it.
    pub release: Vec<PlannedRelease>,
    /// How many partitions that nobody owns would be for me to take, now or in the next intervals, if
    /// [`Policy::max_partitions`] did not forbid it. Above zero they stay unowned, and are not read, unless owners
    /// below their own caps take them once this owner counts as [idle](Policy::idle): raise the cap or add instances.
    pub unclaimed_due_to_limit: usize,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claim.is_empty() && self.handoff.is_empty() && self.release.is_empty()
    }
}

/// Decides what to do about a view.
///
/// Post-conditions, for any view and policy:
///
/// - What I hold, what I claim and what I ask for together never exceed the cap, nor, by what is new, what the strategy
///   grants me. What is recorded as mine already, and what is reserved for me, comes in any case: it was counted
///   before.
/// - Neither a claim nor a handoff leaves its victim with less than its share, and nothing is stolen or asked for while
///   there is something unowned to take.
/// - What is being handed over counts for the one who gets it, and for its victim no more. Nobody else takes it.
/// - What is to be avoided is neither claimed nor asked for.
/// - A group in which everybody holds its share plans nothing.
pub fn plan(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Plan {
    // Phase 1: what I must not keep.
    let release = given_back(view, policy);

    // Phase 2: what is recorded as mine or reserved for me comes at once, as far as I may hold it. It is counted as
    // mine already, so nothing moves by it.
    let mut room = room(view, policy);
    let mut claim = claimable(view, policy, |entry| is_mine_to_claim(entry, &view.me));
    claim.truncate(room);
    room -= claim.len();

    // Phase 3: what the strategy would take, from nobody first, then from those who hold too much.
    let wanted = match &policy.strategy {
        LoadBalancingStrategy::Balanced => shares::wanted(view, policy, 1, rng),
        LoadBalancingStrategy::Greedy => shares::wanted(view, policy, usize::MAX, rng),
        LoadBalancingStrategy::Static(_) => assigned(view, policy),
        LoadBalancingStrategy::Weighted { threshold_percent } => {
            weighted::wanted(view, policy, *threshold_percent, rng)
        }
    };

    // Phase 4: as much of it as I may; from those who hand over on request, by asking.
    let unclaimed_for_cap = wanted.unowned.len().saturating_sub(room);
    let new = wanted.unowned.into_iter().chain(wanted.stolen).take(room.min(wanted.at_once));
    let new = new.map(|place| &view.partitions[place]);
    let (asked, claimed): (Vec<_>, Vec<_>) = new.partition(|entry| policy.handoff && entry.cooperative);
    let claimed = claim.into_iter().map(|place| &view.partitions[place]).chain(claimed);
    Plan {
        claim: claimed.filter_map(|entry| planned_claim(view, entry)).collect(),
        handoff: asked.into_iter().filter_map(|entry| planned_handoff(view, entry)).collect(),
        release,
        unclaimed_due_to_limit: unclaimed_for_cap,
    }
}

/// What the hub no longer has, what is not assigned to me, and the last ones of what is above the cap. What is being
/// handed over goes by itself.
fn given_back(view: &View<'_>, policy: &Policy) -> Vec<PlannedRelease> {
    let planned = |partition: &PartitionId, reason| PlannedRelease { partition: partition.clone(), reason };
    let mut release: Vec<_> = view.removed.iter().map(|gone| planned(gone, ReleaseReason::PartitionRemoved)).collect();
    let mut kept = Vec::new();
    for (ordinal, entry) in view.partitions.iter().enumerate().filter(|(_, entry)| entry.owner == PartitionOwner::This)
    {
        if !policy.strategy.admits(ordinal, &entry.partition) {
            release.push(planned(&entry.partition, ReleaseReason::NotAssigned));
        } else if entry.counts_for(&view.me) == Some(&view.me) {
            kept.push(&entry.partition);
        }
    }
    let above = kept.iter().skip(policy.max_partitions.unwrap_or(usize::MAX));
    release.extend(above.map(|partition| planned(partition, ReleaseReason::OverLimit)));
    release
}

/// How many more I may hold. What I have not given back yet counts, and so does what I have asked for, and what is
/// recorded as mine or reserved for me but not to be claimed now: a claim of mine may be under way.
fn room(view: &View<'_>, policy: &Policy) -> usize {
    let Some(max) = policy.max_partitions else { return usize::MAX };
    let counts = |entry: &&PartitionView| match entry.owner {
        PartitionOwner::This => true,
        _ if is_mine_to_claim(entry, &view.me) => policy.avoid.contains(&entry.partition),
        _ => entry.counts_for(&view.me) == Some(&view.me),
    };
    max.saturating_sub(view.removed.len() + view.partitions.iter().filter(counts).count())
}

/// Everything that is assigned to me and that nobody owns.
fn assigned(view: &View<'_>, policy: &Policy) -> Wanted {
    let unowned = claimable(view, policy, is_unowned);
    Wanted { unowned, stolen: Vec::new(), at_once: usize::MAX }
}

/// Whether it is recorded as mine and not run, or reserved for me.
fn is_mine_to_claim(entry: &PartitionView, me: &OwnerId) -> bool {
    matches!(entry.owner, PartitionOwner::Reclaimable | PartitionOwner::Released) && entry.counts_for(me) == Some(me)
}

fn planned_claim(view: &View<'_>, entry: &PartitionView) -> Option<PlannedClaim> {
    let reason = match &entry.owner {
        PartitionOwner::Reclaimable => ClaimReason::Reclaimed,
        PartitionOwner::Unowned => ClaimReason::Unowned,
        PartitionOwner::Released if entry.handoff_to.is_some() => ClaimReason::HandedOver,
        PartitionOwner::Released => ClaimReason::Released,
        PartitionOwner::Expired(owner) => ClaimReason::Expired(owner.clone()),
        PartitionOwner::Other(owner) => ClaimReason::Stolen(owner.clone()),
        PartitionOwner::This | PartitionOwner::OtherNameCase(_) => return None,
    };
    Some(PlannedClaim { partition: entry.partition.clone(), reason, over: view.record(&entry.partition).cloned() })
}

fn planned_handoff(view: &View<'_>, entry: &PartitionView) -> Option<PlannedHandoff> {
    let PartitionOwner::Other(from) = &entry.owner else { return None };
    let (partition, seen) = (entry.partition.clone(), view.record(&entry.partition).cloned());
    Some(PlannedHandoff { partition, from: from.clone(), seen })
}
