//! Presence: an owner's blob about itself. The owner writes it under its own version alone; whoever takes it for dead
//! breaks it before it takes over anything that lives by it.

use std::cmp::Ordering;
use std::time::Duration;

use super::{Next, Under};
use crate::model::{LeaseTerms, Relation};

/// The presence blob under my name, as it was read after the doubtful answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present<E> {
    pub relation: Relation,
    pub etag: E,
    pub age: Duration,
    /// Somebody declared its owner dead.
    pub broken: bool,
}

/// How an announcement ends by what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse<E> {
    /// I was declared dead. What was written last has this version, if it is there.
    DeclaredDead(Option<E>),
    /// A later incarnation of mine is there.
    Replaced,
}

/// After a conflict, a missing blob or a missing answer to a presence that was `attempted` under a version. One of mine
/// that is gone was declared dead and cleared away, and one that is no longer mine was written over by another life of
/// mine; one that I never wrote may be anybody's.
pub fn announcing<E>(attempted: Option<&E>, found: Option<Present<E>>, expiry: Duration) -> Next<E, Lapse<E>> {
    let stood = attempted.is_some();
    let Some(found) = found else {
        return if stood { Next::Done(Lapse::DeclaredDead(None)) } else { Next::Write(Under::Create) };
    };
    match found.relation {
        Relation::LaterMe if found.age < expiry + LeaseTerms::GRACE => Next::Done(Lapse::Replaced),
        Relation::Mine if found.broken => Next::Done(Lapse::DeclaredDead(Some(found.etag))),
        Relation::Mine => Next::Write(Under::Over(found.etag)),
        _ if stood => Next::Done(Lapse::DeclaredDead(Some(found.etag))),
        _ => Next::Write(Under::Over(found.etag)),
    }
}

/// The presence of an owner that is taken for dead, as it was listed or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains<E> {
    /// Its life, compared with the one that is taken for dead.
    pub life: Ordering,
    pub etag: E,
    pub age: Duration,
    pub broken: bool,
}

/// Whether an owner that did not renew in time is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing lives by its presence any more: claim.
    Dead,
    /// It has shown a sign of life since it was looked at: leave its partitions alone.
    Alive,
}

/// Whether, and under which version, to break a presence that was `stale` under a version, or absent; to be asked again
/// after a doubtful write. A later incarnation has taken the blob over, so that the expired one cannot renew it.
pub fn breaking<E: PartialEq>(stale: Option<&E>, found: Option<Remains<E>>, expiry: Duration) -> Next<E, Verdict> {
    let Some(found) = found else { return Next::Write(Under::Create) };
    let unchanged = stale == Some(&found.etag) || found.age >= expiry + LeaseTerms::GRACE;
    match found.life {
        Ordering::Greater => Next::Done(Verdict::Dead),
        Ordering::Equal if found.broken => Next::Done(Verdict::Dead),
        Ordering::Equal if !unchanged => Next::Done(Verdict::Alive),
        Ordering::Equal | Ordering::Less => Next::Write(Under::Over(found.etag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);

    fn found(relation: Relation, age: u64, broken: bool) -> Present<u8> {
        Present { relation, etag: 7, age: Duration::from_secs(age), broken }
    }

    #[test]
    fn mine_is_written_again_unless_somebody_broke_it() {
        for attempted in [None, Some(&6), Some(&7)] {
            assert_eq!(
                announcing(attempted, Some(found(Relation::Mine, 0, false)), EXPIRY),
                Next::Write(Under::Over(7))
            );
            let broken = announcing(attempted, Some(found(Relation::Mine, 0, true)), EXPIRY);
            assert_eq!(broken, Next::Done(Lapse::DeclaredDead(Some(7))));
        }
    }

    #[test]
    fn one_that_was_there_and_is_gone_was_declared_dead() {
        assert_eq!(announcing(Some(&6), None, EXPIRY), Next::Done(Lapse::DeclaredDead(None)));
        assert_eq!(announcing::<u8>(None, None, EXPIRY), Next::Write(Under::Create));
    }

    #[test]
    fn a_fresh_later_life_replaces_me_and_any_other_is_written_over() {
        let next = |relation, age| announcing(None, Some(found(relation, age, false)), EXPIRY);
        assert_eq!(next(Relation::LaterMe, 61), Next::Done(Lapse::Replaced));
        assert_eq!(next(Relation::LaterMe, 62), Next::Write(Under::Over(7)));
        assert_eq!(next(Relation::EarlierMe, 0), Next::Write(Under::Over(7)));
    }

    #[test]
    fn one_that_another_life_of_mine_wrote_over_did_not_stand_meanwhile() {
        for relation in [Relation::LaterMe, Relation::EarlierMe] {
            let next = announcing(Some(&6), Some(found(relation, 62, false)), EXPIRY);
            assert_eq!(next, Next::Done(Lapse::DeclaredDead(Some(7))));
        }
    }

    fn remains(life: Ordering, age: u64, broken: bool) -> Remains<u8> {
        Remains { life, etag: 7, age: Duration::from_secs(age), broken }
    }

    #[test]
    fn a_presence_is_broken_as_it_was_seen_or_as_long_as_it_is_stale() {
        assert_eq!(breaking::<u8>(None, None, EXPIRY), Next::Write(Under::Create));
        assert_eq!(breaking(Some(&7), None, EXPIRY), Next::Write(Under::Create));
        let next = |stale, age| breaking(stale, Some(remains(Ordering::Equal, age, false)), EXPIRY);
        assert_eq!(next(Some(&7), 0), Next::Write(Under::Over(7)));
        assert_eq!(next(Some(&6), 62), Next::Write(Under::Over(7)));
        assert_eq!(next(Some(&6), 61), Next::Done(Verdict::Alive));
        assert_eq!(next(None, 61), Next::Done(Verdict::Alive));
    }

    #[test]
    fn nothing_is_left_to_break_where_somebody_did_or_a_later_life_has_it() {
        assert_eq!(breaking(Some(&6), Some(remains(Ordering::Equal, 0, true)), EXPIRY), Next::Done(Verdict::Dead));
        assert_eq!(breaking(Some(&6), Some(remains(Ordering::Greater, 0, false)), EXPIRY), Next::Done(Verdict::Dead));
        let earlier = breaking(Some(&6), Some(remains(Ordering::Less, 0, true)), EXPIRY);
        assert_eq!(earlier, Next::Write(Under::Over(7)));
    }
}
