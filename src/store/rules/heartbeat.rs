//! Heartbeats: an owner's blob about itself. The owner writes it only under its own version. An instance that considers
//! the owner dead changes the blob before it claims any of the partitions that the heartbeat keeps alive.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::time::Duration;

use super::WriteCondition;
use crate::model::Relation;

/// The heartbeat blob of this owner, as it was read after the ambiguous write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundHeartbeat<V> {
    pub relation: Relation,
    pub version: V,
    pub age: Duration,
    /// The age at which it expires.
    pub lifetime: Duration,
    /// Whether another instance has declared this owner dead.
    pub declared_dead: bool,
    /// Whether this owner has ended it. Then it may be written again.
    pub ended: bool,
}

/// How a heartbeat ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatLoss<V> {
    /// This owner was declared dead. The blob has this version, if it exists.
    DeclaredDead(Option<V>),
    /// A later incarnation of this owner is running.
    Replaced,
}

/// Decides after a conflict, a missing blob or a missing response to a heartbeat that was `attempted` under a version.
/// A heartbeat of this incarnation that has vanished was declared dead and deleted. One that was overwritten was
/// overwritten by another incarnation of this owner. If this incarnation never wrote a heartbeat, the blob may belong
/// to any of them.
pub fn decide_heartbeat<V>(
    attempted: Option<&V>,
    found: Option<FoundHeartbeat<V>>,
) -> ControlFlow<HeartbeatLoss<V>, WriteCondition<V>> {
    let was_written = attempted.is_some();
    let Some(found) = found else {
        return if was_written {
            ControlFlow::Break(HeartbeatLoss::DeclaredDead(None))
        } else {
            ControlFlow::Continue(WriteCondition::Create)
        };
    };
    match found.relation {
        Relation::LaterIncarnation if found.age < found.lifetime => ControlFlow::Break(HeartbeatLoss::Replaced),
        Relation::This if found.declared_dead => ControlFlow::Break(HeartbeatLoss::DeclaredDead(Some(found.version))),
        Relation::This => ControlFlow::Continue(WriteCondition::IfMatch(found.version)),
        _ if was_written => ControlFlow::Break(HeartbeatLoss::DeclaredDead(Some(found.version))),
        _ => ControlFlow::Continue(WriteCondition::IfMatch(found.version)),
    }
}

/// Decides how to end the heartbeat of this owner after a conflict, a missing blob or a missing response. Returns the
/// version to delete when no instance counts it anymore; `None` if the blob is gone, or belongs to another incarnation.
pub fn decide_heartbeat_end<V>(found: Option<FoundHeartbeat<V>>) -> ControlFlow<Option<V>, WriteCondition<V>> {
    let Some(own) = found.filter(|found| found.relation == Relation::This) else { return ControlFlow::Break(None) };
    if own.declared_dead || own.ended {
        return ControlFlow::Break(Some(own.version));
    }
    ControlFlow::Continue(WriteCondition::IfMatch(own.version))
}

/// The heartbeat of an owner that is considered dead, as it was listed or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatState<V> {
    /// Its incarnation, compared with the incarnation of the owner that is considered dead.
    pub incarnation: Ordering,
    pub version: V,
    pub age: Duration,
    /// The age at which it expires.
    pub lifetime: Duration,
    pub declared_dead: bool,
}

/// Whether an owner that did not renew in time is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the owner may be alive"]
pub enum DeclareDeadOutcome {
    /// The heartbeat does not keep any lease alive anymore: claim its partitions.
    Declared,
    /// The owner has sent a heartbeat since it was listed: do not touch its partitions.
    StillAlive,
}

/// Decides whether to declare an owner dead, and over which version of its heartbeat. `stale` is the version that was
/// listed, if there was one. Decide again after an ambiguous write. If a later incarnation has overwritten the blob,
/// the expired one cannot renew it.
pub fn decide_declaration<V: PartialEq>(
    stale: Option<&V>,
    found: Option<HeartbeatState<V>>,
) -> ControlFlow<DeclareDeadOutcome, WriteCondition<V>> {
    let Some(found) = found else { return ControlFlow::Continue(WriteCondition::Create) };
    let unchanged = stale == Some(&found.version) || found.age >= found.lifetime;
    match found.incarnation {
        Ordering::Greater => ControlFlow::Break(DeclareDeadOutcome::Declared),
        Ordering::Equal if found.declared_dead => ControlFlow::Break(DeclareDeadOutcome::Declared),
        Ordering::Equal if !unchanged => ControlFlow::Break(DeclareDeadOutcome::StillAlive),
        Ordering::Equal | Ordering::Less => ControlFlow::Continue(WriteCondition::IfMatch(found.version)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(62);

    fn found(relation: Relation, age: u64, declared_dead: bool) -> FoundHeartbeat<u8> {
        let age = Duration::from_secs(age);
        FoundHeartbeat { relation, version: 7, age, lifetime: LIFETIME, declared_dead, ended: false }
    }

    mod sending {
        use super::*;

        #[test]
        fn own_heartbeat_is_rewritten_unless_declared_dead() {
            for attempted in [None, Some(&6), Some(&7)] {
                assert_eq!(
                    decide_heartbeat(attempted, Some(found(Relation::This, 0, false))),
                    ControlFlow::Continue(WriteCondition::IfMatch(7))
                );
                let declared_dead = decide_heartbeat(attempted, Some(found(Relation::This, 0, true)));
                assert_eq!(declared_dead, ControlFlow::Break(HeartbeatLoss::DeclaredDead(Some(7))));
            }
        }

        #[test]
        fn a_vanished_heartbeat_means_declared_dead() {
            assert_eq!(decide_heartbeat(Some(&6), None), ControlFlow::Break(HeartbeatLoss::DeclaredDead(None)));
            assert_eq!(decide_heartbeat::<u8>(None, None), ControlFlow::Continue(WriteCondition::Create));
        }

        /// Any other one is overwritten.
        #[test]
        fn only_a_live_later_incarnation_replaces() {
            let next = |relation, age| decide_heartbeat(None, Some(found(relation, age, false)));
            assert_eq!(next(Relation::LaterIncarnation, 61), ControlFlow::Break(HeartbeatLoss::Replaced));
            assert_eq!(next(Relation::LaterIncarnation, 62), ControlFlow::Continue(WriteCondition::IfMatch(7)));
            assert_eq!(next(Relation::EarlierIncarnation, 0), ControlFlow::Continue(WriteCondition::IfMatch(7)));
        }

        /// Another incarnation overwrote it, so that it kept nothing alive in the meantime.
        #[test]
        fn an_overwritten_heartbeat_means_declared_dead() {
            for relation in [Relation::LaterIncarnation, Relation::EarlierIncarnation] {
                let next = decide_heartbeat(Some(&6), Some(found(relation, 62, false)));
                assert_eq!(next, ControlFlow::Break(HeartbeatLoss::DeclaredDead(Some(7))));
            }
        }
    }

    mod ending {
        use super::*;

        #[test]
        fn an_own_heartbeat_is_ended_once() {
            let own = found(Relation::This, 0, false);
            assert_eq!(decide_heartbeat_end(Some(own)), ControlFlow::Continue(WriteCondition::IfMatch(7)));
            let ended = FoundHeartbeat { ended: true, ..own };
            for over in [ended, found(Relation::This, 0, true)] {
                assert_eq!(decide_heartbeat_end(Some(over)), ControlFlow::Break(Some(7)));
            }
            assert_eq!(
                decide_heartbeat(None, Some(ended)),
                ControlFlow::Continue(WriteCondition::IfMatch(7)),
                "it may continue"
            );
        }

        #[test]
        fn a_heartbeat_of_another_incarnation_stays() {
            for relation in [Relation::LaterIncarnation, Relation::EarlierIncarnation] {
                assert_eq!(decide_heartbeat_end(Some(found(relation, 0, false))), ControlFlow::Break(None));
            }
            assert_eq!(decide_heartbeat_end::<u8>(None), ControlFlow::Break(None));
        }
    }

    fn state(incarnation: Ordering, age: u64, declared_dead: bool) -> HeartbeatState<u8> {
        HeartbeatState { incarnation, version: 7, age: Duration::from_secs(age), lifetime: LIFETIME, declared_dead }
    }

    mod declaring_dead_of_others {
        use super::*;

        #[test]
        fn only_unchanged_or_stale_heartbeats_are_replaced() {
            assert_eq!(decide_declaration::<u8>(None, None), ControlFlow::Continue(WriteCondition::Create));
            assert_eq!(decide_declaration(Some(&7), None), ControlFlow::Continue(WriteCondition::Create));
            let next = |stale, age| decide_declaration(stale, Some(state(Ordering::Equal, age, false)));
            assert_eq!(next(Some(&7), 0), ControlFlow::Continue(WriteCondition::IfMatch(7)));
            assert_eq!(next(Some(&6), 62), ControlFlow::Continue(WriteCondition::IfMatch(7)));
            assert_eq!(next(Some(&6), 61), ControlFlow::Break(DeclareDeadOutcome::StillAlive));
            assert_eq!(next(None, 61), ControlFlow::Break(DeclareDeadOutcome::StillAlive));
        }

        /// The owner was declared dead already, or a later incarnation has the blob.
        #[test]
        fn nothing_to_declare_if_dead_or_replaced() {
            assert_eq!(
                decide_declaration(Some(&6), Some(state(Ordering::Equal, 0, true))),
                ControlFlow::Break(DeclareDeadOutcome::Declared)
            );
            assert_eq!(
                decide_declaration(Some(&6), Some(state(Ordering::Greater, 0, false))),
                ControlFlow::Break(DeclareDeadOutcome::Declared)
            );
            let earlier = decide_declaration(Some(&6), Some(state(Ordering::Less, 0, true)));
            assert_eq!(earlier, ControlFlow::Continue(WriteCondition::IfMatch(7)));
        }
    }
}
