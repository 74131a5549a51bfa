//! Claim, renew and release: one conditional write, and the meaning of a conflict or a missing response.
//!
//! # Epochs
//!
//! Every write that begins an epoch carries it: one more than the greater of the epoch in the record that it replaces
//! and the server time, in milliseconds, of the response that showed that record. The condition of the write makes the
//! epochs a chain: of two epochs in which events are processed, the later one is greater, and no two are equal. The
//! server time continues the chain where it was broken: over a record without an epoch, or if there is no record.

use std::time::Duration;

use super::{SettleStep, WriteCondition};
use crate::model::Relation;

/// The goal of an ownership write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// To own a partition that this instance does not run.
    Claim,
    /// To keep a partition that this instance runs.
    Renew,
    /// Like `Renew`, and to acknowledge a handoff request.
    Acknowledge,
    /// Like `Renew`, with a new record: a takeover of the previous one must fail.
    Rewrite,
    /// To release a partition.
    Release,
}

/// The ownership blob, as it was read after the ambiguous write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOwnership<E> {
    pub relation: Relation,
    pub etag: E,
    pub age: Duration,
    /// The age at which it expires.
    pub lifetime: Duration,
    pub epoch: Option<i64>,
    pub draining: bool,
}

/// A record without an epoch may be claimed over once it is this old. Its writer may have erased an epoch of the same
/// second, and `Date` and `Last-Modified` may come from two machines that show different seconds.
const OLD_ENOUGH: Duration = Duration::from_secs(2);

/// Returns how much older a record must be before it may be claimed over.
pub fn too_young_by(epoch: Option<i64>, age: Duration) -> Option<Duration> {
    let missing = OLD_ENOUGH.saturating_sub(age);
    (epoch.is_none() && !missing.is_zero()).then_some(missing)
}

/// Returns the epoch that a write begins, over a record with the epoch `before`, if it had one. `server_time` is the
/// time of the response that showed the record and its age, in milliseconds.
pub fn next_epoch(before: Option<i64>, server_time: i64) -> i64 {
    before.map_or(server_time, |before| before.max(server_time)).saturating_add(1)
}

/// How a claim, a renewal or a release ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// The goal is reached.
    Applied,
    /// Another owner has the partition, or had it and released it. For a release: this instance did not own it anymore.
    Lost,
    /// A later incarnation of this owner has the partition.
    Replaced,
}

/// Returns the goal after a read. `epoch` is the epoch of the lease that is renewed.
///
/// A renewal that finds no record becomes a claim, because another instance may have owned the partition in between. So
/// does one that finds a reclaimable record: a record of this incarnation with another epoch, from a write of an
/// operation that was given up.
pub fn goal_after<E>(goal: Goal, epoch: Option<i64>, found: Option<&FoundOwnership<E>>) -> Goal {
    let is_reclaimable = found.is_none_or(|found| found.relation == Relation::This && found.epoch != epoch);
    match goal {
        Goal::Renew | Goal::Acknowledge | Goal::Rewrite if is_reclaimable => Goal::Claim,
        goal => goal,
    }
}

/// Decides whether the goal is reached, after a conflict, a missing blob or a missing response to a write that was
/// `attempted` over a version. `goal` is the one [after](goal_after) the read, `epoch` the epoch of the lease that is
/// renewed or released.
///
/// A claim whose record names this instance is written again before it counts: an earlier attempt may have been applied
/// long ago, and its age would be mistaken for the age of a new lease. A renewal counts without another write while the
/// record is young. An acknowledgment counts only if the record says that the owner drains the partition: the conflict
/// may come from the very request that it acknowledges. A rewrite never counts without a write. A release keeps the
/// epoch, which distinguishes it from any other release.
pub fn decide_ownership<E: PartialEq>(
    goal: Goal,
    attempted: Option<&E>,
    epoch: Option<i64>,
    found: Option<FoundOwnership<E>>,
    lease_duration: Duration,
) -> SettleStep<E, Settled> {
    let Some(found) = found else {
        return if goal == Goal::Release {
            SettleStep::Done(Settled::Lost)
        } else {
            SettleStep::Write(WriteCondition::Create)
        };
    };
    let is_young = found.age <= lease_duration / 2;
    match (goal, found.relation) {
        (Goal::Renew, Relation::This) if is_young => SettleStep::Done(Settled::Applied),
        (Goal::Acknowledge, Relation::This) if is_young && found.draining => SettleStep::Done(Settled::Applied),
        (_, Relation::This) => SettleStep::Write(WriteCondition::IfMatch(found.etag)),
        (Goal::Release, Relation::Unowned) if found.epoch == epoch => SettleStep::Done(Settled::Applied),
        (Goal::Release, _) => SettleStep::Done(Settled::Lost),
        // A later incarnation that has expired is an expired owner like any other.
        (_, Relation::LaterIncarnation) if found.age < found.lifetime => SettleStep::Done(Settled::Replaced),
        _ if attempted == Some(&found.etag) => SettleStep::Write(WriteCondition::IfMatch(found.etag)),
        _ => SettleStep::Done(Settled::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const WRITE_OVER_2: SettleStep<u8, Settled> = SettleStep::Write(WriteCondition::IfMatch(2));

    fn found(relation: Relation, etag: u8, age: u64) -> FoundOwnership<u8> {
        let lifetime = LEASE + Duration::from_secs(2);
        FoundOwnership { relation, etag, age: Duration::from_secs(age), lifetime, epoch: Some(7), draining: false }
    }

    mod ambiguous_writes {
        use super::*;

        #[test]
        fn an_own_claim_is_rewritten_before_it_counts() {
            let next = decide_ownership(Goal::Claim, None, Some(7), Some(found(Relation::This, 2, 0)), LEASE);
            assert_eq!(next, WRITE_OVER_2);
        }

        #[test]
        fn an_own_renewal_counts_while_it_is_young() {
            let next =
                |age| decide_ownership(Goal::Renew, Some(&1), Some(7), Some(found(Relation::This, 2, age)), LEASE);
            assert_eq!(next(30), SettleStep::Done(Settled::Applied));
            assert_eq!(next(31), WRITE_OVER_2);
        }

        #[test]
        fn an_acknowledgment_counts_only_if_recorded() {
            let next = |draining, age| {
                let found = FoundOwnership { draining, ..found(Relation::This, 2, age) };
                decide_ownership(Goal::Acknowledge, Some(&1), Some(7), Some(found), LEASE)
            };
            assert_eq!(next(true, 30), SettleStep::Done(Settled::Applied));
            assert_eq!(next(true, 31), WRITE_OVER_2);
            assert_eq!(next(false, 0), WRITE_OVER_2);
            let stolen =
                decide_ownership(Goal::Acknowledge, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), LEASE);
            assert_eq!(stolen, SettleStep::Done(Settled::Lost));
        }

        #[test]
        fn a_rewrite_counts_only_if_written() {
            let next = decide_ownership(Goal::Rewrite, Some(&1), Some(7), Some(found(Relation::This, 2, 0)), LEASE);
            assert_eq!(next, WRITE_OVER_2);
            let stolen = decide_ownership(Goal::Rewrite, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), LEASE);
            assert_eq!(stolen, SettleStep::Done(Settled::Lost));
        }

        #[test]
        fn an_unchanged_record_is_written_again() {
            for relation in [Relation::Other, Relation::EarlierIncarnation, Relation::Unowned] {
                let next = |goal| decide_ownership(goal, Some(&1), Some(7), Some(found(relation, 1, 0)), LEASE);
                assert_eq!(next(Goal::Claim), SettleStep::Write(WriteCondition::IfMatch(1)), "{relation:?}");
                assert_eq!(next(Goal::Renew), SettleStep::Write(WriteCondition::IfMatch(1)), "{relation:?}");
            }
        }

        #[test]
        fn a_changed_record_of_another_owner_is_lost() {
            for goal in [Goal::Claim, Goal::Renew] {
                let next = decide_ownership(goal, Some(&1), Some(7), Some(found(Relation::Other, 2, 0)), LEASE);
                assert_eq!(next, SettleStep::Done(Settled::Lost));
                let released = decide_ownership(goal, Some(&1), Some(7), Some(found(Relation::Unowned, 2, 0)), LEASE);
                assert_eq!(released, SettleStep::Done(Settled::Lost));
            }
            let create = decide_ownership(Goal::Claim, None, Some(7), Some(found(Relation::Other, 2, 0)), LEASE);
            assert_eq!(create, SettleStep::Done(Settled::Lost));
        }

        /// An expired one counts like any other owner.
        #[test]
        fn only_a_live_later_incarnation_replaces() {
            let next = |age| {
                decide_ownership(Goal::Renew, Some(&1), Some(7), Some(found(Relation::LaterIncarnation, 2, age)), LEASE)
            };
            assert_eq!(next(61), SettleStep::Done(Settled::Replaced));
            assert_eq!(next(62), SettleStep::Done(Settled::Lost));
        }

        #[test]
        fn a_missing_record_is_created() {
            assert_eq!(
                decide_ownership(Goal::Renew, Some(&1), Some(7), None, LEASE),
                SettleStep::Write(WriteCondition::Create)
            );
            assert_eq!(
                decide_ownership(Goal::Claim, Some(&1), Some(7), None, LEASE),
                SettleStep::Write(WriteCondition::Create)
            );
        }

        #[test]
        fn a_release_counts_if_the_record_shows_it() {
            let next = |found| decide_ownership(Goal::Release, Some(&1), Some(7), found, LEASE);
            assert_eq!(next(Some(found(Relation::This, 2, 0))), WRITE_OVER_2);
            assert_eq!(next(Some(found(Relation::Unowned, 2, 0))), SettleStep::Done(Settled::Applied));
            let of_another = FoundOwnership { epoch: Some(8), ..found(Relation::Unowned, 2, 0) };
            for lost in [Some(of_another), Some(found(Relation::Other, 2, 0)), None] {
                assert_eq!(next(lost), SettleStep::Done(Settled::Lost), "{lost:?}");
            }
        }
    }

    /// If the record is reclaimable or missing.
    #[test]
    fn a_renewal_of_no_own_record_becomes_a_claim() {
        for goal in [Goal::Renew, Goal::Acknowledge, Goal::Rewrite] {
            for epoch in [None, Some(8)] {
                let reclaimable = FoundOwnership { epoch, ..found(Relation::This, 2, 0) };
                assert_eq!(goal_after(goal, Some(7), Some(&reclaimable)), Goal::Claim, "{goal:?}");
            }
            assert_eq!(goal_after::<u8>(goal, Some(7), None), Goal::Claim, "{goal:?}");
            for relation in [Relation::This, Relation::Other, Relation::Unowned] {
                assert_eq!(goal_after(goal, Some(7), Some(&found(relation, 2, 0))), goal, "{goal:?}");
            }
        }
        let reclaimable = FoundOwnership { epoch: Some(8), ..found(Relation::This, 2, 0) };
        assert_eq!(goal_after(Goal::Release, Some(7), Some(&reclaimable)), Goal::Release);
        assert_eq!(decide_ownership(Goal::Release, Some(&1), Some(7), Some(reclaimable), LEASE), WRITE_OVER_2);
    }

    mod epochs {
        use super::*;

        #[test]
        fn an_epoch_exceeds_the_previous_one_and_the_time() {
            assert_eq!(next_epoch(None, 5000), 5001);
            assert_eq!(next_epoch(Some(4000), 5000), 5001);
            assert_eq!(next_epoch(Some(5001), 5000), 5002);
            assert_eq!(next_epoch(Some(i64::MAX), 5000), i64::MAX);
        }

        #[test]
        fn records_without_epoch_must_be_two_seconds_old() {
            let wait = |epoch, millis| too_young_by(epoch, Duration::from_millis(millis)).map(|wait| wait.as_millis());
            assert_eq!(
                [0, 500, 1999, 2000, 9000].map(|age| wait(None, age)),
                [Some(2000), Some(1500), Some(1), None, None]
            );
            assert_eq!(wait(Some(i64::MIN), 0), None);
        }
    }
}
