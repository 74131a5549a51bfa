//! What one instance should do about what it observes.

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
    /// Its record names this instance, but the instance does not run it.
    Reclaimed,
    /// No instance has ever owned it.
    Unowned,
    /// Its last owner released it.
    Released,
    /// Its last owner released it for this instance, which had requested it.
    HandedOver,
    /// Its owner did not renew in time.
    Expired(OwnerId),
    /// Its owner owns more than its share.
    Stolen(OwnerId),
}

impl ClaimReason {
    /// Returns whether any instance may claim the partition.
    pub(crate) fn is_unowned(&self) -> bool {
        matches!(self, Self::Unowned | Self::Released | Self::Expired(_))
    }

    /// Returns the reason in metrics, as when serialized.
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

/// A partition to claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClaim {
    /// The partition.
    pub partition: PartitionId,
    /// The reason.
    pub reason: ClaimReason,
    /// The record to claim over, in the version that was seen; `None` if the partition has no record.
    pub over: Option<Ownership>,
}

/// A partition to request. Its owner is alive and cooperative, and owns more than its share.
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
    /// Returns the name in metrics and when serialized.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Shutdown => "shutdown",
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

/// A partition that this instance runs and should release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRelease {
    /// The partition.
    pub partition: PartitionId,
    /// The reason.
    pub reason: ReleaseReason,
}

/// What one instance should do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The partitions to claim.
    pub claim: Vec<PlannedClaim>,
    /// The partitions to request. Only with [`Policy::handoff`]. Does not contain requests that are under way already.
    pub handoff: Vec<PlannedHandoff>,
    /// The partitions to release. The plan does not claim any of them, and does not count the room that they leave.
    pub release: Vec<PlannedRelease>,
    /// How many unowned partitions this instance would claim, now or in the next cycles, if
    /// [`Policy::max_partitions`] allowed it. They stay unowned and are not read, unless owners below their own limits
    /// claim them once this owner counts as [idle](Policy::idle). Increase the limit or add instances.
    pub unclaimed_due_to_limit: usize,
    /// How many unowned partitions this instance would also claim now if the strategy took more than one at once. It
    /// claims them in the next cycles.
    pub left_for_later: usize,
}

impl Plan {
    /// Returns whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claim.is_empty() && self.handoff.is_empty() && self.release.is_empty()
    }

    /// Returns the partitions to claim that any instance may claim.
    pub(crate) fn unowned_to_claim(&self) -> impl Iterator<Item = &PartitionId> {
        self.claim.iter().filter(|planned| planned.reason.is_unowned()).map(|planned| &planned.partition)
    }

    /// Returns whether it takes a partition from a live owner.
    pub(crate) fn takes_over(&self) -> bool {
        !self.handoff.is_empty() || self.claim.iter().any(|planned| matches!(planned.reason, ClaimReason::Stolen(_)))
    }
}

/// Decides what to do about a view.
///
/// Post-conditions, for any view and policy:
///
/// - What this instance owns, claims and requests never exceeds the limit, and what it newly claims or requests never
///   exceeds what the strategy grants. Partitions that are recorded as its own already or reserved for it are claimed
///   in any case, within the limit: they were counted before.
/// - Neither a claim nor a request leaves another owner with less than its share. Nothing is stolen or requested while
///   there is an unowned partition to claim.
/// - A partition that is being handed over counts for the requesting instance, and not for its owner anymore. No other
///   instance takes it.
/// - Partitions to avoid are neither claimed nor requested.
/// - If every owner has its share, there is nothing to do.
pub fn plan(view: &View<'_>, policy: &Policy, rng: &mut impl Rng) -> Plan {
    // Phase 1: what this instance must not keep.
    let release = planned_releases(view, policy);

    // Phase 2: partitions that are recorded as its own or reserved for it are claimed at once, within the limit. They
    // count as its own already, so nothing moves.
    let mut room = room(view, policy);
    let mut claim = claimable(view, policy, |entry| is_own_to_claim(entry, &view.me));
    claim.truncate(room);
    room -= claim.len();

    // Phase 3: what the strategy would claim, unowned partitions first, and then those of owners with too many.
    let wanted = match &policy.strategy {
        LoadBalancingStrategy::Balanced => shares::wanted(view, policy, 1, rng),
        LoadBalancingStrategy::Greedy => shares::wanted(view, policy, usize::MAX, rng),
        LoadBalancingStrategy::Static(_) => assigned(view, policy),
        LoadBalancingStrategy::Weighted { threshold_percent } => {
            weighted::wanted(view, policy, *threshold_percent, rng)
        }
    };

    // Phase 4: as much of that as the limit allows. Partitions of cooperative owners are requested.
    let unclaimed = wanted.unowned.len().saturating_sub(room);
    let left_for_later = wanted.unowned.len().min(room).saturating_sub(wanted.at_once);
    let new = wanted.unowned.into_iter().chain(wanted.stolen).take(room.min(wanted.at_once));
    let new = new.map(|place| &view.partitions[place]);
    let (requested, claimed): (Vec<_>, Vec<_>) = new.partition(|entry| policy.handoff && entry.cooperative);
    let claimed = claim.into_iter().map(|place| &view.partitions[place]).chain(claimed);
    Plan {
        claim: claimed.filter_map(|entry| planned_claim(view, entry)).collect(),
        handoff: requested.into_iter().filter_map(|entry| planned_handoff(view, entry)).collect(),
        release,
        unclaimed_due_to_limit: unclaimed,
        left_for_later,
    }
}

/// Returns the partitions that the event hub no longer has, those that are not assigned to this instance, and the last
/// ones of those above the limit. Partitions that are being handed over are released anyway.
fn planned_releases(view: &View<'_>, policy: &Policy) -> Vec<PlannedRelease> {
    let planned = |partition: &PartitionId, reason| PlannedRelease { partition: partition.clone(), reason };
    let mut release: Vec<_> =
        view.removed.iter().map(|removed| planned(removed, ReleaseReason::PartitionRemoved)).collect();
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

/// Returns how many more partitions this instance may own. Partitions that it has not released yet count, and so do
/// those that it has requested, and those that are recorded as its own or reserved for it but not to be claimed now,
/// because a claim may be under way.
fn room(view: &View<'_>, policy: &Policy) -> usize {
    let Some(max) = policy.max_partitions else { return usize::MAX };
    let counts = |entry: &&PartitionView| match entry.owner {
        PartitionOwner::This => true,
        _ if is_own_to_claim(entry, &view.me) => policy.avoid.contains(&entry.partition),
        _ => entry.counts_for(&view.me) == Some(&view.me),
    };
    max.saturating_sub(view.removed.len() + view.partitions.iter().filter(counts).count())
}

/// Returns all unowned partitions that are assigned to this instance.
fn assigned(view: &View<'_>, policy: &Policy) -> Wanted {
    let unowned = claimable(view, policy, is_unowned);
    Wanted { unowned, stolen: Vec::new(), at_once: usize::MAX }
}

/// Returns whether it is recorded as this instance's own but not run, or reserved for this instance.
fn is_own_to_claim(entry: &PartitionView, this: &OwnerId) -> bool {
    matches!(entry.owner, PartitionOwner::Reclaimable | PartitionOwner::Released)
        && entry.counts_for(this) == Some(this)
}

fn planned_claim(view: &View<'_>, entry: &PartitionView) -> Option<PlannedClaim> {
    let reason = match &entry.owner {
        PartitionOwner::Reclaimable => ClaimReason::Reclaimed,
        PartitionOwner::Unowned => ClaimReason::Unowned,
        PartitionOwner::Released if entry.handoff_to.is_some() => ClaimReason::HandedOver,
        PartitionOwner::Released => ClaimReason::Released,
        PartitionOwner::Expired(owner) => ClaimReason::Expired(owner.clone()),
        PartitionOwner::Other(owner) => ClaimReason::Stolen(owner.clone()),
        PartitionOwner::This => return None,
    };
    Some(PlannedClaim { partition: entry.partition.clone(), reason, over: view.record(&entry.partition).cloned() })
}

fn planned_handoff(view: &View<'_>, entry: &PartitionView) -> Option<PlannedHandoff> {
    let PartitionOwner::Other(from) = &entry.owner else { return None };
    let (partition, seen) = (entry.partition.clone(), view.record(&entry.partition).cloned());
    Some(PlannedHandoff { partition, from: from.clone(), seen })
}
