//! Claim, renew, release: one conditional write, and what a conflict or a missing answer means.
//!
//! # Epochs
//!
//! Every write that begins a tenure carries an epoch: one more than the greater of the epoch of the record that it is
//! over and the server's time, in milliseconds, of the answer that showed that record. The condition of the write makes
//! the epochs a chain: of two tenures that process the later has the greater one, and no two have the same. The time
//! continues the chain where it broke: over a record without an epoch, or where there is none.

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
    pub epoch: Option<i64>,
    pub draining: bool,
}

/// A record without an epoch is claimed over once it is this old. Whoever wrote it may have erased an epoch of the same
/// second, and `Date` and `Last-Modified` may come from two machines that show different seconds.
const OLD_ENOUGH: Duration = Duration::from_secs(2);

/// How much older a record must be before it is claimed over.
pub fn too_young_by(epoch: Option<i64>, age: Duration) -> Option<Duration> {
    let missing = OLD_ENOUGH.saturating_sub(age);
    (epoch.is_none() && !missing.is_zero()).then_some(missing)
}

/// The epoch of the tenure that a write begins, over a record with the epoch `before`, if it had one. `server_time` is
/// that of the answer that showed the record and its age, in milliseconds.
pub fn next_epoch(before: Option<i64>, server_time: i64) -> i64 {
    before.map_or(server_time, |before| before.max(server_time)).saturating_add(1)
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next<E> {
    /// What I wanted is so, by the record that was read.
    Stands,
    /// Write again, over this version.
    Write(E),
    /// Claim the partition: over this version, or create the record. With success another tenure begins, so that the
    /// write needs an epoch of its own, and the partition must be adopted.
    Claim(Option<E>),
    /// Somebody else has it, or had it and gave it back.
    Lost,
    /// A later life of mine has it.
    Replaced,
}

/// After a conflict, a missing blob or a missing answer to a write that was `attempted` under a version: is what I
/// wanted so? `tenure` is the epoch of the lease that goes on or ends; a claim has none yet.
///
/// A renewal that finds no record becomes a claim, for another instance may have owned the partition in between. So does
/// one that finds a record of mine with another epoch than its own: an orphan, which a write brought that was given up.
///
/// A claim whose record turns out to be mine is written again before it counts: an earlier attempt of mine may have
/// been applied long ago, and its age would be mistaken for that of a lease just taken. A renewal may stand as it is
/// while it is young. One that acknowledges may not unless it says so: the conflict may come from the very mark that it
/// answers. One that was to write the record anew may never.
pub fn after_doubt<E: PartialEq>(
    goal: Goal,
    attempted: Option<&E>,
    tenure: Option<i64>,
    found: Option<Found<E>>,
    expiry: Duration,
) -> Next<E> {
    let Some(found) = found else {
        return if goal == Goal::Release { Next::Stands } else { Next::Claim(None) };
    };
    if found.relation == Relation::Mine {
        let (is_young, is_orphan) = (found.age <= expiry / 2, found.epoch != tenure);
        return match goal {
            Goal::Claim => Next::Claim(Some(found.etag)),
            Goal::Renew | Goal::Acknowledge | Goal::Rewrite if is_orphan => Next::Claim(Some(found.etag)),
            Goal::Renew if is_young => Next::Stands,
            Goal::Acknowledge if found.draining && is_young => Next::Stands,
            Goal::Renew | Goal::Acknowledge | Goal::Rewrite | Goal::Release => Next::Write(found.etag),
        };
    }
    if goal == Goal::Release {
        return Next::Stands;
    }
    // One that has expired is an expired owner like any other.
    if found.relation == Relation::LaterMe && found.age < expiry + LeaseTerms::GRACE {
        return Next::Replaced;
    }
    match attempted == Some(&found.etag) {
        false => Next::Lost,
        true if goal == Goal::Claim => Next::Claim(Some(found.etag)),
        true => Next::Write(found.etag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);

    fn found(relation: Relation, etag: u8, age: u64) -> Found<u8> {
        Found { relation, etag, age: Duration::from_secs(age), epoch: Some(7), draining: false }
    }

    #[test]
    fn a_claim_found_to_be_mine_is_written_again_before_it_counts() {
        let next = after_doubt(Goal::Claim, None, None, Some(found(Relation::Mine, 2, 0)), EXPIRY);
        assert_eq!(next, Next::Claim(Some(2)));
    }

    #[test]
    fn a_renewal_found_to_be_mine_stands_while_it_is_young() {
        let next = |age| after_doubt(Goal::Renew, Some(&1), Some(7), Some(found(Relation::Mine, 2, age)), EXPIRY);
        assert_eq!(next(30), Next::Stands);
        assert_eq!(next(31), Next::Write(2));
    }

    #[test]
    fn an_acknowledgement_stands_only_where_the_record_says_that_it_drains() {
        let next = |draining, age| {
            let found = Found { draining, ..found(Relation::Mine, 2, age) };
            after_doubt(Goal::Acknowledge, Some(&1), Some(7), Some(found), EXPIRY)
        };
        assert_eq!(next(true, 30), Next::Stands);
        assert_eq!(next(true, 31), Next::Write(2));
        assert_eq!(next(false, 0), Next::Write(2));
        let stolen = after_doubt(Goal::Acknowledge, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(stolen, Next::Lost);
    }

    #[test]
    fn a_record_that_was_to_be_written_anew_never_stands_by_being_read() {
        let next = after_doubt(Goal::Rewrite, Some(&1), Some(7), Some(found(Relation::Mine, 2, 0)), EXPIRY);
        assert_eq!(next, Next::Write(2));
        let stolen = after_doubt(Goal::Rewrite, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(stolen, Next::Lost);
    }

    #[test]
    fn an_unchanged_record_was_not_written_and_is_tried_again() {
        for relation in [Relation::Other, Relation::EarlierMe, Relation::Nobody] {
            let next = |goal, tenure| after_doubt(goal, Some(&1), tenure, Some(found(relation, 1, 0)), EXPIRY);
            assert_eq!(next(Goal::Claim, None), Next::Claim(Some(1)), "{relation:?}");
            assert_eq!(next(Goal::Renew, Some(7)), Next::Write(1), "{relation:?}");
        }
    }

    #[test]
    fn a_changed_record_of_somebody_else_is_lost_to_them() {
        for goal in [Goal::Claim, Goal::Renew] {
            let next = after_doubt(goal, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), EXPIRY);
            assert_eq!(next, Next::Lost);
            let released = after_doubt(goal, Some(&1), Some(7), Some(found(Relation::Nobody, 2, 0)), EXPIRY);
            assert_eq!(released, Next::Lost);
        }
        let create = after_doubt(Goal::Claim, None, Some(7), Some(found(Relation::Other, 2, 0)), EXPIRY);
        assert_eq!(create, Next::Lost);
    }

    #[test]
    fn a_fresh_later_life_of_mine_replaces_me_and_an_expired_one_is_like_any_other_owner() {
        let next = |age| after_doubt(Goal::Renew, Some(&1), Some(7), Some(found(Relation::LaterMe, 2, age)), EXPIRY);
        assert_eq!(next(61), Next::Replaced);
        assert_eq!(next(62), Next::Lost);
    }

    #[test]
    fn a_missing_record_is_created_or_was_released() {
        assert_eq!(after_doubt(Goal::Renew, Some(&1), Some(7), None, EXPIRY), Next::Claim(None));
        assert_eq!(after_doubt(Goal::Claim, Some(&1), None, None, EXPIRY), Next::Claim(None));
        assert_eq!(after_doubt(Goal::Release, Some(&1), Some(7), None, EXPIRY), Next::Stands);
    }

    #[test]
    fn a_release_stands_once_the_record_is_no_longer_mine() {
        let next = |relation| after_doubt(Goal::Release, Some(&1), Some(7), Some(found(relation, 2, 0)), EXPIRY);
        assert_eq!(next(Relation::Mine), Next::Write(2));
        assert_eq!(next(Relation::Nobody), Next::Stands);
        assert_eq!(next(Relation::Other), Next::Stands);
    }

    #[test]
    fn an_orphan_is_claimed_or_released() {
        for epoch in [None, Some(8)] {
            let next = |goal, tenure| {
                let orphan = Found { epoch, ..found(Relation::Mine, 2, 0) };
                after_doubt(goal, Some(&1), tenure, Some(orphan), EXPIRY)
            };
            for goal in [Goal::Renew, Goal::Acknowledge, Goal::Rewrite] {
                assert_eq!(next(goal, Some(7)), Next::Claim(Some(2)), "{goal:?}");
            }
            assert_eq!(next(Goal::Claim, None), Next::Claim(Some(2)));
            assert_eq!(next(Goal::Release, Some(7)), Next::Write(2));
        }
    }

    #[test]
    fn an_epoch_is_greater_than_the_one_before_and_than_the_time() {
        assert_eq!(next_epoch(None, 5000), 5001);
        assert_eq!(next_epoch(Some(4000), 5000), 5001);
        assert_eq!(next_epoch(Some(5001), 5000), 5002);
        assert_eq!(next_epoch(Some(i64::MAX), 5000), i64::MAX);
    }

    #[test]
    fn a_record_without_an_epoch_is_claimed_over_once_it_is_two_seconds_old() {
        let wait = |epoch, millis| too_young_by(epoch, Duration::from_millis(millis)).map(|wait| wait.as_millis());
        assert_eq!(
            [0, 500, 1999, 2000, 9000].map(|age| wait(None, age)),
            [Some(2000), Some(1500), Some(1), None, None]
        );
        assert_eq!(wait(Some(i64::MIN), 0), None);
    }
}
