//! Presence: an owner's blob about itself. The owner writes it under its own version alone; whoever takes it for dead
//! breaks it before it takes over anything that lives by it.

use std::cmp::Ordering;
use std::time::Duration;

use super::{Next, WriteCondition};
use crate::model::{LeaseDurations, Relation};

/// The presence blob under my name, as it was read after the doubtful answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnHeartbeat<E> {
    pub relation: Relation,
    pub etag: E,
    pub age: Duration,
    /// Somebody declared its owner dead.
    pub declared_dead: bool,
}

/// How an announcement ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatLoss<E> {
    /// I was declared dead. What was written last has this version, if it is there.
    DeclaredDead(Option<E>),
    /// A later incarnation of mine is there.
    Replaced,
}

/// After a conflict, a missing blob or a missing answer to a presence that was `attempted` under a version. One of mine
/// that is gone was declared dead and cleared away, and one that is no longer mine was written over by another life of
/// mine; one that I never wrote may be anybody's.
pub fn sending_heartbeat<E>(
    attempted: Option<&E>,
    found: Option<OwnHeartbeat<E>>,
    expiry: Duration,
) -> Next<E, HeartbeatLoss<E>> {
    let stood = attempted.is_some();
    let Some(found) = found else {
        return if stood { Next::Done(HeartbeatLoss::DeclaredDead(None)) } else { Next::Write(WriteCondition::Create) };
    };
    match found.relation {
        Relation::LaterIncarnation if found.age < expiry + LeaseDurations::GRACE => Next::Done(HeartbeatLoss::Replaced),
        Relation::This if found.declared_dead => Next::Done(HeartbeatLoss::DeclaredDead(Some(found.etag))),
        Relation::This => Next::Write(WriteCondition::IfMatch(found.etag)),
        _ if stood => Next::Done(HeartbeatLoss::DeclaredDead(Some(found.etag))),
        _ => Next::Write(WriteCondition::IfMatch(found.etag)),
    }
}

/// The presence of an owner that is taken for dead, as it was listed or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatState<E> {
    /// Its life, compared with the one that is taken for dead.
    pub incarnation: Ordering,
    pub etag: E,
    pub age: Duration,
    pub declared_dead: bool,
}

/// Whether an owner that did not renew in time is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeclareDeadOutcome {
    /// Nothing lives by its presence any more: claim.
    Declared,
    /// It has shown a sign of life since it was looked at: leave its partitions alone.
    StillAlive,
}

/// Whether, and under which version, to break a presence that was `stale` under a version, or absent; to be asked again
/// after a doubtful write. A later incarnation has taken the blob over, so that the expired one cannot renew it.
pub fn declaring_dead<E: PartialEq>(
    stale: Option<&E>,
    found: Option<HeartbeatState<E>>,
    expiry: Duration,
) -> Next<E, DeclareDeadOutcome> {
    let Some(found) = found else { return Next::Write(WriteCondition::Create) };
    let unchanged = stale == Some(&found.etag) || found.age >= expiry + LeaseDurations::GRACE;
    match found.incarnation {
        Ordering::Greater => Next::Done(DeclareDeadOutcome::Declared),
        Ordering::Equal if found.declared_dead => Next::Done(DeclareDeadOutcome::Declared),
        Ordering::Equal if !unchanged => Next::Done(DeclareDeadOutcome::StillAlive),
        Ordering::Equal | Ordering::Less => Next::Write(WriteCondition::IfMatch(found.etag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);

    fn found(relation: Relation, age: u64, broken: bool) -> OwnHeartbeat<u8> {
        OwnHeartbeat { relation, etag: 7, age: Duration::from_secs(age), declared_dead: broken }
    }

    #[test]
    fn mine_is_written_again_unless_somebody_broke_it() {
        for attempted in [None, Some(&6), Some(&7)] {
            assert_eq!(
                sending_heartbeat(attempted, Some(found(Relation::This, 0, false)), EXPIRY),
                Next::Write(WriteCondition::IfMatch(7))
            );
            let broken = sending_heartbeat(attempted, Some(found(Relation::This, 0, true)), EXPIRY);
            assert_eq!(broken, Next::Done(HeartbeatLoss::DeclaredDead(Some(7))));
        }
    }

    #[test]
    fn one_that_was_there_and_is_gone_was_declared_dead() {
        assert_eq!(sending_heartbeat(Some(&6), None, EXPIRY), Next::Done(HeartbeatLoss::DeclaredDead(None)));
        assert_eq!(sending_heartbeat::<u8>(None, None, EXPIRY), Next::Write(WriteCondition::Create));
    }

    #[test]
    fn a_fresh_later_life_replaces_me_and_any_other_is_written_over() {
        let next = |relation, age| sending_heartbeat(None, Some(found(relation, age, false)), EXPIRY);
        assert_eq!(next(Relation::LaterIncarnation, 61), Next::Done(HeartbeatLoss::Replaced));
        assert_eq!(next(Relation::LaterIncarnation, 62), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(next(Relation::EarlierIncarnation, 0), Next::Write(WriteCondition::IfMatch(7)));
    }

    #[test]
    fn one_that_another_life_of_mine_wrote_over_did_not_stand_meanwhile() {
        for relation in [Relation::LaterIncarnation, Relation::EarlierIncarnation] {
            let next = sending_heartbeat(Some(&6), Some(found(relation, 62, false)), EXPIRY);
            assert_eq!(next, Next::Done(HeartbeatLoss::DeclaredDead(Some(7))));
        }
    }

    fn remains(life: Ordering, age: u64, broken: bool) -> HeartbeatState<u8> {
        HeartbeatState { incarnation: life, etag: 7, age: Duration::from_secs(age), declared_dead: broken }
    }

    #[test]
    fn a_presence_is_broken_as_it_was_seen_or_as_long_as_it_is_stale() {
        assert_eq!(declaring_dead::<u8>(None, None, EXPIRY), Next::Write(WriteCondition::Create));
        assert_eq!(declaring_dead(Some(&7), None, EXPIRY), Next::Write(WriteCondition::Create));
        let next = |stale, age| declaring_dead(stale, Some(remains(Ordering::Equal, age, false)), EXPIRY);
        assert_eq!(next(Some(&7), 0), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(next(Some(&6), 62), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(next(Some(&6), 61), Next::Done(DeclareDeadOutcome::StillAlive));
        assert_eq!(next(None, 61), Next::Done(DeclareDeadOutcome::StillAlive));
    }

    #[test]
    fn nothing_is_left_to_break_where_somebody_did_or_a_later_life_has_it() {
        assert_eq!(
            declaring_dead(Some(&6), Some(remains(Ordering::Equal, 0, true)), EXPIRY),
            Next::Done(DeclareDeadOutcome::Declared)
        );
        assert_eq!(
            declaring_dead(Some(&6), Some(remains(Ordering::Greater, 0, false)), EXPIRY),
            Next::Done(DeclareDeadOutcome::Declared)
        );
        let earlier = declaring_dead(Some(&6), Some(remains(Ordering::Less, 0, true)), EXPIRY);
        assert_eq!(earlier, Next::Write(WriteCondition::IfMatch(7)));
    }
}
