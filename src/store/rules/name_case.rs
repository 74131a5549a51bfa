//! Which casing of the blob names an instance uses, by what the records under each casing show. If the name of a group
//! contains capitals, some SDKs use blob names in lower case, and others the names as given. `$Default` is such a name.
//!
//! Instances that use different casings do not see each other's records. So a group has one casing: a store that
//! connects finds out which one has records, and does not connect if the other one has a live owner. Two instances that
//! connect at the same time may still choose different casings. So an instance that has just written a live ownership,
//! and had none before, looks once more. Each writes first and looks afterwards, so at least one of the two sees the
//! other.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;

use crate::error::Error;
use crate::model::{BlobNameCase, NameCase, OwnerId, Ownership, PartitionId};

/// What the records of a group under the names of one casing show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseFacts {
    /// A live owner, if there is one.
    pub live: Option<LiveOwner>,
    /// When the newest checkpoint was written.
    pub newest_checkpoint: Option<OffsetDateTime>,
    /// Whether there is any record.
    pub has_records: bool,
}

/// An owner with a live ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOwner {
    pub owner: OwnerId,
    /// A partition that it owns.
    pub partition: PartitionId,
    /// Whether this crate wrote its record. Other SDKs do not look at the other casing.
    pub is_of_this_crate: bool,
}

impl LiveOwner {
    /// Returns the owner in a record; `None` if the partition was released.
    pub fn from_ownership(seen: &Ownership) -> Option<Self> {
        Some(Self {
            owner: seen.record.owner.clone()?,
            partition: seen.partition.clone(),
            is_of_this_crate: seen.record.incarnation.is_some(),
        })
    }
}

/// The casing to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub case: NameCase,
    /// Why the records in the other casing may matter.
    pub warning: Option<CaseWarning>,
}

/// What is wrong with the records in the casing that is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseWarning {
    /// They also exist, but only the casing in use has a live owner.
    Idle,
    /// They also exist, but their newest checkpoint is not the newest one.
    Older,
    /// The configured casing is used, although their newest checkpoint is newer.
    Newer,
}

/// Why an instance must not begin or continue: another one would own the same partitions in the other casing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseConflict {
    /// There are live owners in both casings.
    Both { lower: LiveOwner, verbatim: LiveOwner },
    /// This instance uses one casing, and there is a live owner in the other.
    Other { used: NameCase, live: LiveOwner },
}

impl CaseConflict {
    /// Returns whether the other instance should give way, so that this one only ends if that takes too long: of two
    /// instances of this crate that run, the one that uses names as given does. If neither waited, two applications
    /// with different settings would end each other at every start.
    pub fn other_should_give_way(&self) -> bool {
        matches!(self, Self::Other { used: NameCase::Lower, live: LiveOwner { is_of_this_crate: true, .. } })
    }
}

/// How many lease durations lie between two looks at the other casing without a special reason.
const LEASES_BETWEEN_LOOKS: u32 = 10;

/// The second look comes after the lease duration divided by this: later than the first claim of an instance that has
/// connected at the same time.
const SECOND_LOOK_AFTER: u32 = 4;

/// Returns the wait before the other blob-name casing is listed again, after a listing without a conflict. The second
/// listing comes early: the first one may have missed an owner that started at the same time.
pub fn time_to_next_look(is_second: bool, lease_duration: Duration) -> Duration {
    if is_second { lease_duration / SECOND_LOOK_AFTER } else { lease_duration * LEASES_BETWEEN_LOOKS }
}

/// Decides which casing to use.
///
/// Without any record the answer is the same for all instances, so that those that start together choose alike.
///
/// # Errors
///
/// If another live owner would not see this instance.
pub fn choose_case(wanted: BlobNameCase, lower: &CaseFacts, verbatim: &CaseFacts) -> Result<Choice, CaseConflict> {
    match wanted.explicit() {
        Some(case @ NameCase::Lower) => choose_explicit(case, lower, verbatim),
        Some(case @ NameCase::Verbatim) => choose_explicit(case, verbatim, lower),
        None => choose_by_records(lower, verbatim),
    }
}

fn choose_explicit(case: NameCase, this: &CaseFacts, other: &CaseFacts) -> Result<Choice, CaseConflict> {
    match &other.live {
        Some(live) => Err(CaseConflict::Other { used: case, live: live.clone() }),
        None => Ok(Choice { case, warning: is_newer(other, this).then_some(CaseWarning::Newer) }),
    }
}

fn choose_by_records(lower: &CaseFacts, verbatim: &CaseFacts) -> Result<Choice, CaseConflict> {
    let (case, warning) = match (&lower.live, &verbatim.live) {
        (Some(lower), Some(verbatim)) => {
            return Err(CaseConflict::Both { lower: lower.clone(), verbatim: verbatim.clone() });
        }
        _ if !verbatim.has_records => (NameCase::Lower, None),
        _ if !lower.has_records => (NameCase::Verbatim, None),
        (Some(_), None) => (NameCase::Lower, Some(CaseWarning::Idle)),
        (None, Some(_)) => (NameCase::Verbatim, Some(CaseWarning::Idle)),
        (None, None) if is_newer(verbatim, lower) => (NameCase::Verbatim, Some(CaseWarning::Older)),
        (None, None) => (NameCase::Lower, Some(CaseWarning::Older)),
    };
    Ok(Choice { case, warning })
}

/// Any checkpoint is newer than none.
fn is_newer(this: &CaseFacts, other: &CaseFacts) -> bool {
    this.newest_checkpoint > other.newest_checkpoint
}

impl fmt::Display for LiveOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (partition {})", self.owner, self.partition)
    }
}

impl fmt::Display for CaseConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both { lower, verbatim } => {
                write!(f, "owner {lower} is live under lower-case blob names, and owner {verbatim} under verbatim ones")
            }
            Self::Other { used, live } => {
                write!(f, "owner {live} is live under {} blob names, but this instance uses {used} ones", used.other())
            }
        }
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

impl fmt::Display for CaseWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "only the casing in use has live owners",
            Self::Older => "the casing in use has the newest checkpoint, or neither has one",
            Self::Newer => "they have the newest checkpoint, but the settings choose the casing in use",
        })
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn live(id: &str) -> CaseFacts {
        let owner = LiveOwner { owner: OwnerId::new(id).unwrap(), partition: 0.into(), is_of_this_crate: true };
        CaseFacts { live: Some(owner), has_records: true, ..CaseFacts::default() }
    }

    /// Records without a live owner, with a checkpoint of this minute if there is one.
    fn idle(minute: impl Into<Option<i64>>) -> CaseFacts {
        let at = |minute| datetime!(2026-11-20 13:00 UTC) + time::Duration::minutes(minute);
        CaseFacts { newest_checkpoint: minute.into().map(at), has_records: true, ..CaseFacts::default() }
    }

    fn none() -> CaseFacts {
        CaseFacts::default()
    }

    #[test]
    fn the_second_look_at_the_other_case_comes_early() {
        let lease_duration = Duration::from_secs(60);
        assert_eq!(time_to_next_look(true, lease_duration), Duration::from_secs(15));
        assert_eq!(time_to_next_look(false, lease_duration), Duration::from_secs(600));
    }

    #[test]
    fn a_warning_says_what_decided() {
        let texts = [CaseWarning::Idle, CaseWarning::Older, CaseWarning::Newer].map(|warning| warning.to_string());
        assert_eq!(
            texts,
            [
                "only the casing in use has live owners",
                "the casing in use has the newest checkpoint, or neither has one",
                "they have the newest checkpoint, but the settings choose the casing in use",
            ]
        );
    }

    #[test]
    fn auto_uses_the_case_that_has_records() {
        use CaseWarning::{Idle, Older};
        use NameCase::{Lower, Verbatim};
        for (lower, verbatim, case, warning) in [
            (none(), none(), Lower, None),
            (idle(1), none(), Lower, None),
            (none(), idle(None), Verbatim, None),
            (none(), live("go"), Verbatim, None),
            (live("a"), none(), Lower, None),
            (live("a"), idle(9), Lower, Some(Idle)),
            (idle(9), live("go"), Verbatim, Some(Idle)),
            (idle(1), idle(2), Verbatim, Some(Older)),
            (idle(2), idle(1), Lower, Some(Older)),
            (idle(None), idle(1), Verbatim, Some(Older)),
            (idle(1), idle(1), Lower, Some(Older)),
            (idle(None), idle(None), Lower, Some(Older)),
        ] {
            let chosen = choose_case(BlobNameCase::Auto, &lower, &verbatim);
            assert_eq!(chosen, Ok(Choice { case, warning }), "{lower:?} {verbatim:?}");
        }
    }

    #[test]
    fn live_owners_in_both_cases_are_a_conflict() {
        let conflict = choose_case(BlobNameCase::Auto, &live("a"), &live("go")).unwrap_err();
        let text = conflict.to_string();
        assert!(text.contains("a (partition 0)") && text.contains("go (partition 0)"), "{text}");
    }

    #[test]
    fn a_live_owner_in_the_other_case_is_a_conflict() {
        for (wanted, used) in [(BlobNameCase::Lower, NameCase::Lower), (BlobNameCase::Verbatim, NameCase::Verbatim)] {
            for this in [none(), idle(1), live("a")] {
                let facts = [this.clone(), live("b")];
                let [lower, verbatim] = if used == NameCase::Lower { facts } else { [live("b"), this] };
                let conflict = choose_case(wanted, &lower, &verbatim).unwrap_err();
                assert!(matches!(conflict, CaseConflict::Other { used: case, .. } if case == used), "{conflict:?}");
            }
        }
    }

    #[test]
    fn an_explicit_case_warns_of_newer_checkpoints() {
        for (this, other, warning) in [
            (none(), none(), None),
            (idle(2), idle(1), None),
            (none(), idle(None), None),
            (idle(1), idle(1), None),
            (none(), idle(1), Some(CaseWarning::Newer)),
            (idle(1), idle(2), Some(CaseWarning::Newer)),
            (live("a"), idle(1), Some(CaseWarning::Newer)),
        ] {
            let lower = choose_case(BlobNameCase::Lower, &this, &other);
            assert_eq!(lower, Ok(Choice { case: NameCase::Lower, warning }), "{this:?} {other:?}");
            let verbatim = choose_case(BlobNameCase::Verbatim, &other, &this);
            assert_eq!(verbatim, Ok(Choice { case: NameCase::Verbatim, warning }), "{this:?} {other:?}");
        }
    }
}
