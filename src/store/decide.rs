//! What a conflict or a missing answer means: decided over plain values, so that it can be tested without a store.

use std::time::Duration;

use crate::blob::{Condition, ETag};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, Relation};

/// What an ownership write was to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// To own a partition that I do not run.
    Claim,
    /// To stay the owner of one that I run.
    Renew,
    /// To own it no longer.
    Release,
}

/// The ownership blob as it was read after the doubtful answer.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) relation: Relation,
    pub(super) record: OwnershipRecord,
    pub(super) etag: ETag,
    pub(super) age: Duration,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// What I wanted is so, by the record that was read.
    Stands,
    /// Write again, under this condition.
    Write(Condition),
    /// Somebody else has it, or had it and gave it back.
    Lost(Option<OwnerId>),
    /// A later life of mine has it.
    Replaced(Incarnation),
}

/// After [`Conflict`](crate::ErrorKind::Conflict) or [`Unknown`](crate::ErrorKind::Unknown): is what I wanted so?
///
/// A claim whose record turns out to be mine is written again before it counts: an earlier attempt of mine may have been
/// applied long ago, and its age would be mistaken for that of a lease just taken. A renewal may stand as it is while it
/// is young.
pub(super) fn after_doubt(goal: Goal, attempted: &Condition, found: Option<&Found>, expiry: Duration) -> Next {
    let Some(found) = found else {
        return if goal == Goal::Release { Next::Stands } else { Next::Write(Condition::Create) };
    };
    let again = || Next::Write(Condition::Match(found.etag.clone()));
    if found.relation == Relation::Mine {
        return match goal {
            Goal::Renew if found.age <= expiry / 2 => Next::Stands,
            Goal::Claim | Goal::Renew | Goal::Release => again(),
        };
    }
    if goal == Goal::Release {
        return Next::Stands;
    }
    // One that has expired is an expired owner like any other.
    if let (Relation::LaterMe, Some(life), true) = (found.relation, &found.record.incarnation, found.age < expiry) {
        return Next::Replaced(life.clone());
    }
    let unchanged = matches!(attempted, Condition::Match(etag) if *etag == found.etag);
    if unchanged { again() } else { Next::Lost(found.record.owner.clone()) }
}

/// What to do about a checkpoint write after a conflict, a missing answer or a missing blob, once the ownership has been
/// seen to be mine after the checkpoint was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointNext {
    /// The stored position is the one I wanted to write.
    Written,
    /// The stored position is ahead; it becomes the last written one.
    Superseded,
    /// Write again under the ETag just read, or create the blob if there is none.
    Write,
}

/// Compares the stored position with mine. A stored one without a sequence number is neither ahead nor behind: mine
/// replaces it.
pub(super) fn after_checkpoint_doubt(mine: i64, stored: Option<i64>) -> CheckpointNext {
    match stored {
        Some(stored) if stored == mine => CheckpointNext::Written,
        Some(stored) if stored > mine => CheckpointNext::Superseded,
        Some(_) | None => CheckpointNext::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);

    fn found(relation: Relation, etag: &str, age: u64) -> Found {
        let owner = (relation != Relation::Nobody).then(|| OwnerId::new("x").unwrap());
        let record = OwnershipRecord { owner, incarnation: Some(life()), ..OwnershipRecord::default() };
        Found { relation, record, etag: ETag::new(etag), age: Duration::from_secs(age) }
    }

    fn life() -> Incarnation {
        Incarnation::new(time::macros::datetime!(2026-01-01 00:00:00 UTC), 0)
    }

    fn under(etag: &str) -> Condition {
        Condition::Match(ETag::new(etag))
    }

    #[test]
    fn a_claim_found_to_be_mine_is_written_again_before_it_counts() {
        let next = after_doubt(Goal::Claim, &Condition::Create, Some(&found(Relation::Mine, "2", 0)), EXPIRY);
        assert_eq!(next, Next::Write(under("2")));
    }

    #[test]
    fn a_renewal_found_to_be_mine_stands_while_it_is_young() {
        let next = |age| after_doubt(Goal::Renew, &under("1"), Some(&found(Relation::Mine, "2", age)), EXPIRY);
        assert_eq!(next(30), Next::Stands);
        assert_eq!(next(31), Next::Write(under("2")));
    }

    #[test]
    fn an_unchanged_record_was_not_written_and_is_tried_again() {
        for relation in [Relation::Other, Relation::EarlierMe, Relation::Nobody] {
            let next = after_doubt(Goal::Claim, &under("1"), Some(&found(relation, "1", 0)), EXPIRY);
            assert_eq!(next, Next::Write(under("1")), "{relation:?}");
        }
    }

    #[test]
    fn a_changed_record_of_somebody_else_is_lost_to_them() {
        for goal in [Goal::Claim, Goal::Renew] {
            let next = after_doubt(goal, &under("1"), Some(&found(Relation::Other, "2", 0)), EXPIRY);
            assert_eq!(next, Next::Lost(Some(OwnerId::new("x").unwrap())));
            let released = after_doubt(goal, &under("1"), Some(&found(Relation::Nobody, "2", 0)), EXPIRY);
            assert_eq!(released, Next::Lost(None));
        }
        let create = after_doubt(Goal::Claim, &Condition::Create, Some(&found(Relation::Other, "2", 0)), EXPIRY);
        assert_eq!(create, Next::Lost(Some(OwnerId::new("x").unwrap())));
    }

    #[test]
    fn a_fresh_later_life_of_mine_replaces_me_and_an_expired_one_is_like_any_other_owner() {
        let next = |age| after_doubt(Goal::Renew, &under("1"), Some(&found(Relation::LaterMe, "2", age)), EXPIRY);
        assert_eq!(next(59), Next::Replaced(life()));
        assert_eq!(next(60), Next::Lost(Some(OwnerId::new("x").unwrap())));
    }

    #[test]
    fn a_missing_record_is_created_or_was_released() {
        assert_eq!(after_doubt(Goal::Renew, &under("1"), None, EXPIRY), Next::Write(Condition::Create));
        assert_eq!(after_doubt(Goal::Release, &under("1"), None, EXPIRY), Next::Stands);
    }

    #[test]
    fn a_release_stands_once_the_record_is_no_longer_mine() {
        let next = |relation| after_doubt(Goal::Release, &under("1"), Some(&found(relation, "2", 0)), EXPIRY);
        assert_eq!(next(Relation::Mine), Next::Write(under("2")));
        assert_eq!(next(Relation::Nobody), Next::Stands);
        assert_eq!(next(Relation::Other), Next::Stands);
    }

    #[test]
    fn a_stored_position_decides_by_its_sequence_number() {
        assert_eq!(after_checkpoint_doubt(5, Some(5)), CheckpointNext::Written);
        assert_eq!(after_checkpoint_doubt(5, Some(6)), CheckpointNext::Superseded);
        assert_eq!(after_checkpoint_doubt(5, Some(4)), CheckpointNext::Write);
        assert_eq!(after_checkpoint_doubt(5, None), CheckpointNext::Write);
    }
}
