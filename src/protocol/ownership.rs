//! Claim, renew, release: one conditional write, and what a conflict or a missing answer means.

use std::time::Duration;

use crate::model::{LeaseTerms, Relation};

/// What an ownership write is to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// To own a partition that I do not run.
    Claim,
    /// To stay the owner of one that I run.
    Renew,
    /// The same, and to tell whoever asked for it that I drain.
    Acknowledge,
    /// The same, by a record of now: whoever takes it over by the one before is to fail.
    Rewrite,
    /// To own it no longer.
    Release,
}

/// The ownership blob as it was read after the doubtful answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<E> {
    pub relation: Relation,
    pub etag: E,
    pub age: Duration,
    pub draining: bool,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next<E> {
    /// What I wanted is so, by the record that was read.
    Stands,
    /// Write again, under this version.
    Write(Option<E>),
    /// Somebody else has it, or had it and gave it back.
    Lost,
    /// A later life of mine has it.
    Replaced,
}

/// After a conflict, a missing blob or a missing answer to a write that was `attempted` under a version: is what I
/// wanted so?
///
/// A claim whose record turns out to be mine is written again before it counts: an earlier attempt of mine may have
/// been applied long ago, and its age would be mistaken for that of a lease just taken. A renewal may stand as it is
/// while it is young. One that acknowledges may not unless it says so: the conflict may come from the very mark that it
/// answers. One that was to write the record anew may never.
pub fn after_doubt<E: PartialEq>(
    goal: Goal,
    attempted: Option<&E>,
    found: Option<Found<E>>,
    expiry: Duration,
) -> Next<E> {
    let Some(found) = found else {
        return if goal == Goal::Release { Next::Stands } else { Next::Write(None) };
    };
    if found.relation == Relation::Mine {
        return match goal {
            Goal::Renew if found.age <= expiry / 2 => Next::Stands,
            Goal::Acknowledge if found.draining && found.age <= expiry / 2 => Next::Stands,
            Goal::Claim | Goal::Renew | Goal::Acknowledge | Goal::Rewrite | Goal::Release => {
                Next::Write(Some(found.etag))
            }
        };
    }
    if goal == Goal::Release {
        return Next::Stands;
    }
    // One that has expired is an expired owner like any other.
    if found.relation == Relation::LaterMe && found.age < expiry + LeaseTerms::GRACE {
        return Next::Replaced;
    }
    let unchanged = attempted == Some(&found.etag);
    if unchanged { Next::Write(Some(found.etag)) } else { Next::Lost }
}

/// Whether success begins a new tenure, so that the partition must be adopted: after every win; and after a renewal
/// since whose tenure began the record was once found gone, for another instance may have owned it in between.
pub fn begins_tenure(goal: Goal, vanished: bool) -> bool {
    goal == Goal::Claim || vanished
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);

    fn found(relation: Relation, etag: u8, age: u64) -> Found<u8> {
        Found { relation, etag, age: Duration::from_secs(age), draining: false }
    }

    #[test]
    fn a_claim_found_to_be_mine_is_written_again_before_it_counts() {
        let next = after_doubt(Goal::Claim, None, Some(found(Relation::Mine, 2, 0)), EXPIRY);
        assert_eq!(next, Next::Write(Some(2)));
    }

    #[test]
    fn a_renewal_found_to_be_mine_stands_while_it_is_young() {
        let next = |age| after_doubt(Goal::Renew, Some(&1), Some(found(Relation::Mine, 2, age)), EXPIRY);
        assert_eq!(next(30), Next::Stands);
        assert_eq!(next(31), Next::Write(Some(2)));
    }

    #[test]
    fn an_acknowledgement_stands_only_where_the_record_says_that_it_drains() {
        let next = |draining, age| {
            let found = Found { draining, ..found(Relation::Mine, 2, age) };
            after_doubt(Goal::Acknowledge, Some(&1), Some(found), EXPIRY)
        };
        assert_eq!(next(true, 30), Next::Stands);
        assert_eq!(next(true, 31), Next::Write(Some(2)));
        assert_eq!(next(false, 0), Next::Write(Some(2)));
        let stolen = after_doubt(Goal::Acknowledge, Some(&1), Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(stolen, Next::Lost);
    }

    #[test]
    fn a_record_that_was_to_be_written_anew_never_stands_by_being_read() {
        let next = after_doubt(Goal::Rewrite, Some(&1), Some(found(Relation::Mine, 2, 0)), EXPIRY);
        assert_eq!(next, Next::Write(Some(2)));
        let stolen = after_doubt(Goal::Rewrite, Some(&1), Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(stolen, Next::Lost);
    }

    #[test]
    fn an_unchanged_record_was_not_written_and_is_tried_again() {
        for relation in [Relation::Other, Relation::EarlierMe, Relation::Nobody] {
            let next = after_doubt(Goal::Claim, Some(&1), Some(found(relation, 1, 0)), EXPIRY);
            assert_eq!(next, Next::Write(Some(1)), "{relation:?}");
        }
    }

    #[test]
    fn a_changed_record_of_somebody_else_is_lost_to_them() {
        for goal in [Goal::Claim, Goal::Renew] {
            let next = after_doubt(goal, Some(&1), Some(found(Relation::Other, 2, 0)), EXPIRY);
            assert_eq!(next, Next::Lost);
            let released = after_doubt(goal, Some(&1), Some(found(Relation::Nobody, 2, 0)), EXPIRY);
            assert_eq!(released, Next::Lost);
        }
        let create = after_doubt(Goal::Claim, None, Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(create, Next::Lost);
    }

    #[test]
    fn a_fresh_later_life_of_mine_replaces_me_and_an_expired_one_is_like_any_other_owner() {
        let next = |age| after_doubt(Goal::Renew, Some(&1), Some(found(Relation::LaterMe, 2, age)), EXPIRY);
        assert_eq!(next(61), Next::Replaced);
        assert_eq!(next(62), Next::Lost);
    }

    #[test]
    fn a_missing_record_is_created_or_was_released() {
        assert_eq!(after_doubt(Goal::Renew, Some(&1), None, EXPIRY), Next::Write(None));
        assert_eq!(after_doubt(Goal::Release, Some(&1), None, EXPIRY), Next::Stands);
    }

    #[test]
    fn a_release_stands_once_the_record_is_no_longer_mine() {
        let next = |relation| after_doubt(Goal::Release, Some(&1), Some(found(relation, 2, 0)), EXPIRY);
        assert_eq!(next(Relation::Mine), Next::Write(Some(2)));
        assert_eq!(next(Relation::Nobody), Next::Stands);
        assert_eq!(next(Relation::Other), Next::Stands);
    }

    #[test]
    fn a_win_and_a_renewal_of_what_had_vanished_begin_a_tenure() {
        assert!(begins_tenure(Goal::Claim, false));
        assert!(begins_tenure(Goal::Renew, true));
        assert!(!begins_tenure(Goal::Renew, false));
    }
}
