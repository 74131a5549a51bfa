//! A plan: what one instance should claim, request and release, and why.

use serde::Serialize;

use crate::model::{OwnerId, Ownership, PartitionId};

/// Why a partition is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ClaimReason {
    /// Its record names this instance, but was left over from an earlier run, or this instance no longer runs it.
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
    /// The partitions to request. Only with [`Policy::handoff`](super::Policy::handoff). Does not contain requests that
    /// are under way already.
    pub handoff: Vec<PlannedHandoff>,
    /// The partitions to release. The plan does not claim any of them, and does not count the room that they leave.
    pub release: Vec<PlannedRelease>,
    /// How many unowned partitions this instance would claim, now or in the next cycles, if
    /// [`Policy::max_partitions`](super::Policy::max_partitions) allowed it. They stay unowned and are not read, unless
    /// owners below their own limits claim them once this owner counts as [idle](super::Policy::idle). Increase the
    /// limit or add instances.
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

    /// Returns whether it takes a partition from a live owner.
    pub(crate) fn takes_over(&self) -> bool {
        !self.handoff.is_empty() || self.claim.iter().any(|planned| matches!(planned.reason, ClaimReason::Stolen(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As documented, and the same in metrics and when serialized.
    #[test]
    fn reasons_have_their_documented_names() {
        let owner = || OwnerId::from_record("b");
        let claims = [
            (ClaimReason::Reclaimed, "reclaimed"),
            (ClaimReason::Unowned, "unowned"),
            (ClaimReason::Released, "released"),
            (ClaimReason::HandedOver, "handed_over"),
            (ClaimReason::Expired(owner()), "expired"),
            (ClaimReason::Stolen(owner()), "stolen"),
        ];
        for (reason, name) in claims {
            assert_eq!(reason.as_str(), name);
            let serialized = serde_json::to_string(&reason).unwrap();
            assert!(serialized.contains(&format!("\"{name}\"")), "{serialized}");
        }
        let releases = [
            (ReleaseReason::Requested, "requested"),
            (ReleaseReason::Shutdown, "shutdown"),
            (ReleaseReason::HandedOver, "handed_over"),
            (ReleaseReason::PartitionRemoved, "partition_removed"),
            (ReleaseReason::NotAssigned, "not_assigned"),
            (ReleaseReason::OverLimit, "over_limit"),
        ];
        for (reason, name) in releases {
            assert_eq!(reason.as_str(), name);
            assert_eq!(serde_json::to_value(reason).unwrap(), name);
        }
    }

    #[test]
    fn a_claim_of_an_owned_partition_names_the_owner() {
        let owner = OwnerId::from_record("b");
        for reason in [ClaimReason::Expired(owner.clone()), ClaimReason::Stolen(owner.clone())] {
            assert_eq!(reason.previous_owner(), Some(&owner));
        }
        for reason in [ClaimReason::Reclaimed, ClaimReason::Unowned, ClaimReason::Released, ClaimReason::HandedOver] {
            assert_eq!(reason.previous_owner(), None);
        }
    }

    #[test]
    fn only_unowned_partitions_are_anybodys() {
        let owner = || OwnerId::from_record("b");
        for (reason, is_anybodys) in [
            (ClaimReason::Unowned, true),
            (ClaimReason::Released, true),
            (ClaimReason::Expired(owner()), true),
            (ClaimReason::Reclaimed, false),
            (ClaimReason::HandedOver, false),
            (ClaimReason::Stolen(owner()), false),
        ] {
            assert_eq!(reason.is_unowned(), is_anybodys, "{reason:?}");
        }
    }

    #[test]
    fn only_requests_and_steals_take_from_live_owners() {
        let owner = || OwnerId::from_record("b");
        let claim =
            |reason| Plan { claim: vec![PlannedClaim { partition: 0.into(), reason, over: None }], ..nothing() };
        let request = PlannedHandoff { partition: 0.into(), from: owner(), seen: None };
        let release = PlannedRelease { partition: 0.into(), reason: ReleaseReason::OverLimit };
        for (plan, is_empty, takes_over) in [
            (nothing(), true, false),
            (claim(ClaimReason::Expired(owner())), false, false),
            (claim(ClaimReason::Stolen(owner())), false, true),
            (Plan { handoff: vec![request], ..nothing() }, false, true),
            (Plan { release: vec![release], ..nothing() }, false, false),
        ] {
            assert_eq!(plan.is_empty(), is_empty, "{plan:?}");
            assert_eq!(plan.takes_over(), takes_over, "{plan:?}");
        }
    }

    /// Partitions that stay unowned are nothing to do.
    fn nothing() -> Plan {
        Plan { unclaimed_due_to_limit: 1, left_for_later: 1, ..Plan::default() }
    }
}
