//! Claim, renew and release: one conditional write, and the meaning of a conflict or a missing response.
//!
//! # Epochs
//!
//! Every write that begins an epoch carries it: one more than the greater of the epoch in the record that it replaces
//! and the server time, in milliseconds, of the response that showed that record. The condition of the write makes the
//! epochs a chain: of two epochs in which events are processed, the later one is greater, and no two are equal. The
//! server time continues the chain where it was broken: over a record without an epoch, or if there is no record.

use std::ops::ControlFlow;
use std::time::Duration;

use super::WriteCondition;
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

/// The ownership blob, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOwnership<V> {
    pub relation: Relation,
    pub version: V,
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

/// A claim, a renewal or a release: its goal, and its next request. `V` is a version of the ownership blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnershipOperation<V> {
    pub goal: Goal,
    pub step: OwnershipStep<V>,
}

/// The next request of an [`OwnershipOperation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnershipStep<V> {
    Write {
        under: WriteCondition<V>,
    },
    /// After a conflict, a missing blob or a missing response to the write under this condition.
    Read {
        attempted: WriteCondition<V>,
    },
    /// After a claim over a record without an epoch that was too young to begin one: the record was `written` without
    /// an epoch, in this version, and is claimed over once it is old enough. To wait before the first write would not
    /// help, because an owner of another SDK may renew its record more often than that.
    ReadOnceOld {
        written: V,
    },
}

impl<V: Clone + PartialEq> OwnershipOperation<V> {
    pub fn to_write(goal: Goal, under: WriteCondition<V>) -> Self {
        Self { goal, step: OwnershipStep::Write { under } }
    }

    /// Returns the next request when the record was written, which now has this version.
    pub fn after_write(goal: Goal, version: V, has_epoch: bool) -> ControlFlow<Settled, Self> {
        if has_epoch || goal == Goal::Release {
            return ControlFlow::Break(Settled::Applied);
        }
        ControlFlow::Continue(Self { goal, step: OwnershipStep::ReadOnceOld { written: version } })
    }

    /// Returns the next request when the record was read after the write that was `attempted`. `lease_epoch` is the
    /// epoch of the lease that is renewed or released.
    ///
    /// A claim whose record names this instance is written again before it counts: an earlier attempt may have been
    /// applied long ago, and its age would be mistaken for the age of a new lease. A renewal counts without another
    /// write while the record is young. An acknowledgment counts only if the record says that the owner drains the
    /// partition: the conflict may come from the very request that it acknowledges. A rewrite never counts without a
    /// write. A release keeps the epoch, which distinguishes it from any other release.
    pub fn after_read(
        goal: Goal,
        attempted: &WriteCondition<V>,
        lease_epoch: Option<i64>,
        found: Option<FoundOwnership<V>>,
        lease_duration: Duration,
    ) -> ControlFlow<Settled, Self> {
        let goal = goal_after(goal, lease_epoch, found.as_ref());
        let Some(found) = found else {
            return if goal == Goal::Release {
                ControlFlow::Break(Settled::Lost)
            } else {
                ControlFlow::Continue(Self::to_write(goal, WriteCondition::Create))
            };
        };
        let is_young = found.age <= lease_duration / 2;
        let over_found = WriteCondition::IfMatch(found.version);
        match (goal, found.relation) {
            (Goal::Renew, Relation::This) if is_young => ControlFlow::Break(Settled::Applied),
            (Goal::Acknowledge, Relation::This) if is_young && found.draining => ControlFlow::Break(Settled::Applied),
            (_, Relation::This) => ControlFlow::Continue(Self::to_write(goal, over_found)),
            (Goal::Release, Relation::Unowned) if found.epoch == lease_epoch => ControlFlow::Break(Settled::Applied),
            (Goal::Release, _) => ControlFlow::Break(Settled::Lost),
            // A later incarnation that has expired is an expired owner like any other.
            (_, Relation::LaterIncarnation) if found.age < found.lifetime => ControlFlow::Break(Settled::Replaced),
            _ if *attempted == over_found => ControlFlow::Continue(Self::to_write(goal, over_found)),
            _ => ControlFlow::Break(Settled::Lost),
        }
    }

    /// Returns the next request when the record that was `written` without an epoch was read for its version and age.
    pub fn after_wait(written: V, found: Option<(V, Duration)>) -> ControlFlow<Settled, Self> {
        match found {
            Some((version, age)) if version == written => ControlFlow::Continue(if too_young_by(None, age).is_none() {
                Self::to_write(Goal::Claim, WriteCondition::IfMatch(written))
            } else {
                Self { goal: Goal::Claim, step: OwnershipStep::ReadOnceOld { written } }
            }),
            _ => ControlFlow::Break(Settled::Lost),
        }
    }
}

/// Returns the goal after a read.
///
/// A renewal that finds no record becomes a claim, because another instance may have owned the partition in between. So
/// does one that finds a reclaimable record: a record of this incarnation with another epoch, from a write of an
/// operation that was given up.
fn goal_after<V>(goal: Goal, lease_epoch: Option<i64>, found: Option<&FoundOwnership<V>>) -> Goal {
    let is_reclaimable = found.is_none_or(|found| found.relation == Relation::This && found.epoch != lease_epoch);
    match goal {
        Goal::Renew | Goal::Acknowledge | Goal::Rewrite if is_reclaimable => Goal::Claim,
        goal => goal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    type Next = ControlFlow<Settled, OwnershipOperation<u8>>;

    fn found(relation: Relation, version: u8, age: u64) -> FoundOwnership<u8> {
        let lifetime = LEASE + Duration::from_secs(2);
        FoundOwnership { relation, version, age: Duration::from_secs(age), lifetime, epoch: Some(7), draining: false }
    }

    /// After a write over version 1, with a lease of epoch 7.
    fn after(goal: Goal, found: Option<FoundOwnership<u8>>) -> Next {
        OwnershipOperation::after_read(goal, &WriteCondition::IfMatch(1), Some(7), found, LEASE)
    }

    fn after_creation(goal: Goal, found: FoundOwnership<u8>) -> Next {
        OwnershipOperation::after_read(goal, &WriteCondition::Create, Some(7), Some(found), LEASE)
    }

    fn written(goal: Goal, over: u8) -> Next {
        ControlFlow::Continue(OwnershipOperation::to_write(goal, WriteCondition::IfMatch(over)))
    }

    fn created(goal: Goal) -> Next {
        ControlFlow::Continue(OwnershipOperation::to_write(goal, WriteCondition::Create))
    }

    fn ended(settled: Settled) -> Next {
        ControlFlow::Break(settled)
    }

    /// A record without an epoch is younger than the clock can tell: the claim waits until it is older.
    #[test]
    fn only_a_record_without_an_epoch_is_awaited() {
        let once_old = OwnershipOperation { goal: Goal::Claim, step: OwnershipStep::ReadOnceOld { written: 2 } };
        assert_eq!(OwnershipOperation::after_write(Goal::Claim, 2, false), ControlFlow::Continue(once_old));
        for (goal, has_epoch) in [(Goal::Claim, true), (Goal::Renew, true), (Goal::Release, false)] {
            let next = OwnershipOperation::after_write(goal, 2, has_epoch);
            assert_eq!(next, ended(Settled::Applied), "{goal:?} {has_epoch}");
        }
    }

    #[test]
    fn a_release_never_replaces_another_owner() {
        for relation in [Relation::Other, Relation::EarlierIncarnation, Relation::LaterIncarnation] {
            assert_eq!(after(Goal::Release, Some(found(relation, 1, 99))), ended(Settled::Lost), "{relation:?}");
        }
    }

    mod ambiguous_writes {
        use super::*;

        #[test]
        fn an_own_claim_is_rewritten_before_it_counts() {
            let next = after_creation(Goal::Claim, found(Relation::This, 2, 0));
            assert_eq!(next, written(Goal::Claim, 2));
        }

        #[test]
        fn an_own_renewal_counts_while_it_is_young() {
            let next = |age| after(Goal::Renew, Some(found(Relation::This, 2, age)));
            assert_eq!(next(30), ended(Settled::Applied));
            assert_eq!(next(31), written(Goal::Renew, 2));
        }

        #[test]
        fn an_acknowledgment_counts_only_if_recorded() {
            let next = |draining, age| {
                after(Goal::Acknowledge, Some(FoundOwnership { draining, ..found(Relation::This, 2, age) }))
            };
            assert_eq!(next(true, 30), ended(Settled::Applied));
            assert_eq!(next(true, 31), written(Goal::Acknowledge, 2));
            assert_eq!(next(false, 0), written(Goal::Acknowledge, 2));
            let stolen = after(Goal::Acknowledge, Some(found(Relation::Other, 2, 0)));
            assert_eq!(stolen, ended(Settled::Lost));
        }

        #[test]
        fn a_rewrite_counts_only_if_written() {
            let next = after(Goal::Rewrite, Some(found(Relation::This, 2, 0)));
            assert_eq!(next, written(Goal::Rewrite, 2));
            let stolen = after(Goal::Rewrite, Some(found(Relation::Other, 2, 0)));
            assert_eq!(stolen, ended(Settled::Lost));
        }

        #[test]
        fn an_unchanged_record_is_written_again() {
            for relation in [Relation::Other, Relation::EarlierIncarnation, Relation::Unowned] {
                for goal in [Goal::Claim, Goal::Renew] {
                    assert_eq!(after(goal, Some(found(relation, 1, 0))), written(goal, 1), "{relation:?}");
                }
            }
        }

        #[test]
        fn a_changed_record_of_another_owner_is_lost() {
            for goal in [Goal::Claim, Goal::Renew] {
                assert_eq!(after(goal, Some(found(Relation::Other, 2, 0))), ended(Settled::Lost));
                assert_eq!(after(goal, Some(found(Relation::Unowned, 2, 0))), ended(Settled::Lost));
            }
            assert_eq!(after_creation(Goal::Claim, found(Relation::Other, 2, 0)), ended(Settled::Lost));
        }

        /// An expired one counts like any other owner.
        #[test]
        fn only_a_live_later_incarnation_replaces() {
            let next = |age| after(Goal::Renew, Some(found(Relation::LaterIncarnation, 2, age)));
            assert_eq!(next(61), ended(Settled::Replaced));
            assert_eq!(next(62), ended(Settled::Lost));
        }

        #[test]
        fn a_missing_record_is_claimed() {
            for goal in [Goal::Claim, Goal::Renew, Goal::Acknowledge, Goal::Rewrite] {
                assert_eq!(after(goal, None), created(Goal::Claim), "{goal:?}");
            }
        }

        #[test]
        fn a_release_counts_if_the_record_shows_it() {
            let next = |found| after(Goal::Release, found);
            assert_eq!(next(Some(found(Relation::This, 2, 0))), written(Goal::Release, 2));
            assert_eq!(next(Some(found(Relation::Unowned, 2, 0))), ended(Settled::Applied));
            let of_another = FoundOwnership { epoch: Some(8), ..found(Relation::Unowned, 2, 0) };
            for lost in [Some(of_another), Some(found(Relation::Other, 2, 0)), None] {
                assert_eq!(next(lost), ended(Settled::Lost), "{lost:?}");
            }
        }

        /// A record of this incarnation with another epoch than the lease, from a write that was given up.
        #[test]
        fn a_renewal_that_finds_a_reclaimable_record_claims() {
            for epoch in [None, Some(8)] {
                let reclaimable = FoundOwnership { epoch, ..found(Relation::This, 2, 0) };
                for goal in [Goal::Renew, Goal::Acknowledge, Goal::Rewrite] {
                    assert_eq!(after(goal, Some(reclaimable)), written(Goal::Claim, 2), "{goal:?}");
                }
                assert_eq!(after(Goal::Release, Some(reclaimable)), written(Goal::Release, 2));
            }
        }
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

        #[test]
        fn a_record_without_epoch_is_claimed_over_when_old() {
            let next =
                |version, millis| OwnershipOperation::after_wait(2, Some((version, Duration::from_millis(millis))));
            assert_eq!(next(2, 2000), written(Goal::Claim, 2));
            let wait = OwnershipOperation { goal: Goal::Claim, step: OwnershipStep::ReadOnceOld { written: 2 } };
            assert_eq!(next(2, 1999), ControlFlow::Continue(wait));
            assert_eq!(next(3, 9000), ended(Settled::Lost), "another writer was faster");
            assert_eq!(OwnershipOperation::after_wait(2, None), ended(Settled::Lost));
        }
    }
}
