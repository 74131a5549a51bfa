//! Presence: an owner's blob about itself, written under its own version alone.

use std::time::Duration;

use crate::model::{LeaseTerms, Relation};

/// The presence blob under my name, as it was read after the doubtful answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present<E> {
    pub(crate) relation: Relation,
    pub(crate) etag: E,
    pub(crate) age: Duration,
    /// Somebody declared its owner dead.
    pub(crate) broken: bool,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcing<E> {
    /// Write again, under this version.
    Write(Option<E>),
    /// I was declared dead. What was written last has this version, if it is there.
    DeclaredDead(Option<E>),
    /// A later life of mine is there.
    Replaced,
}

/// After a conflict, a missing blob or a missing answer to a presence that was `attempted` under a version. A presence of
/// mine that is gone was declared dead and cleared away; one that I never saw was not created yet.
pub(crate) fn announcing<E>(attempted: Option<&E>, found: Option<Present<E>>, expiry: Duration) -> Announcing<E> {
    let Some(found) = found else {
        return if attempted.is_some() { Announcing::DeclaredDead(None) } else { Announcing::Write(None) };
    };
    match found.relation {
        Relation::LaterMe if found.age < expiry + LeaseTerms::GRACE => Announcing::Replaced,
        Relation::Mine if found.broken => Announcing::DeclaredDead(Some(found.etag)),
        _ => Announcing::Write(Some(found.etag)),
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
                Announcing::Write(Some(7))
            );
            let broken = announcing(attempted, Some(found(Relation::Mine, 0, true)), EXPIRY);
            assert_eq!(broken, Announcing::DeclaredDead(Some(7)));
        }
    }

    #[test]
    fn one_that_was_there_and_is_gone_was_declared_dead() {
        assert_eq!(announcing(Some(&6), None, EXPIRY), Announcing::DeclaredDead(None));
        assert_eq!(announcing::<u8>(None, None, EXPIRY), Announcing::Write(None));
    }

    #[test]
    fn a_fresh_later_life_replaces_me_and_any_other_is_written_over() {
        let next = |relation, age| announcing(Some(&6), Some(found(relation, age, false)), EXPIRY);
        assert_eq!(next(Relation::LaterMe, 61), Announcing::Replaced);
        assert_eq!(next(Relation::LaterMe, 62), Announcing::Write(Some(7)));
        assert_eq!(next(Relation::EarlierMe, 0), Announcing::Write(Some(7)));
    }
}
