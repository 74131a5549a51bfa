//! Handoff: asking a cooperative owner for a partition, and waiting until it releases it.

use std::time::Duration;

use super::{Next, Under};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId};

/// How often the owner is asked, if what was written is erased.
const MAX_MARKS: u8 = 3;

/// A partition that was asked for, and how far that got. The moments are of any one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    partition: PartitionId,
    owner: OwnerId,
    incarnation: Option<Incarnation>,
    marked: Duration,
    acknowledged: Option<Duration>,
    marks: u8,
}

/// The record, to the instance that asks for its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Looked {
    /// It names another owner than the one that was asked, or none, or another incarnation.
    Elsewhere,
    /// It was released, and is reserved for the asker.
    Reserved,
    /// Another instance has asked the owner.
    AskedByAnother,
    /// The owner is asked.
    Asked { draining: bool },
    /// The owner is not asked.
    NotAsked {
        cooperative: bool,
        /// Of what keeps the record alive.
        age: Duration,
    },
}

impl Looked {
    /// The record as it stands for `me`, which asks the owner of this handoff.
    pub fn at(record: &OwnershipRecord, age: Duration, handoff: &Handoff, me: &OwnerId) -> Self {
        let is_for_me = record.handoff_to.as_ref() == Some(me);
        let is_its = record.owner.as_ref() == Some(&handoff.owner) && record.incarnation == handoff.incarnation;
        match &record.owner {
            None if is_for_me => Self::Reserved,
            Some(owner) if is_its && owner != me => match &record.handoff_to {
                None => Self::NotAsked { cooperative: record.cooperative, age },
                Some(_) if is_for_me => Self::Asked { draining: record.draining },
                Some(_) => Self::AskedByAnother,
            },
            _ => Self::Elsewhere,
        }
    }
}

/// What became of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MarkOutcome<T> {
    /// The record says who asks. Look at it every half interval, with [`pursue`](crate::store::GroupStore::pursue).
    Standing(T),
    /// The partition is not that owner's any more, or was mine all the time. Plan again.
    Lost,
    /// Its owner does not hand over on request: an owner of another SDK, or one that is not
    /// [cooperative](crate::store::GroupStore::cooperative). Steal it.
    NotCooperative,
    /// Another owner has asked for it.
    Taken,
    /// It was last renewed half an expiry ago or longer. A mark would make it look alive: wait for a renewal, or for
    /// its end.
    TooOld,
}

impl<T> MarkOutcome<T> {
    pub(crate) fn map<U>(self, standing: impl FnOnce(T) -> U) -> MarkOutcome<U> {
        match self {
            Self::Standing(mark) => MarkOutcome::Standing(standing(mark)),
            Self::Lost => MarkOutcome::Lost,
            Self::NotCooperative => MarkOutcome::NotCooperative,
            Self::Taken => MarkOutcome::Taken,
            Self::TooOld => MarkOutcome::TooOld,
        }
    }
}

/// Whether, and over which version, to mark a record; to be asked again after a doubtful write.
pub fn marking<E>(looked: Option<(E, Looked)>, expiry: Duration) -> Next<E, MarkOutcome<()>> {
    let Some((version, looked)) = looked else { return Next::Done(MarkOutcome::Lost) };
    Next::Done(match looked {
        Looked::Elsewhere | Looked::Reserved => MarkOutcome::Lost,
        Looked::AskedByAnother => MarkOutcome::Taken,
        Looked::Asked { .. } => MarkOutcome::Standing(()),
        Looked::NotAsked { cooperative: false, .. } => MarkOutcome::NotCooperative,
        Looked::NotAsked { age, .. } if age >= expiry / 2 => MarkOutcome::TooOld,
        Looked::NotAsked { .. } => return Next::Write(Under::Over(version)),
    })
}

/// How long to wait for an owner that was asked, before the partition is stolen from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// From the mark until its record says that it drains. At least half the expiry and a request deadline, for an
    /// owner need not look more often. A record that is merely young says nothing: a mark makes it young.
    pub acknowledgement: Duration,
    /// From then on until it releases. Less than the expiry, and more than its time to drain.
    pub release: Duration,
}

impl Patience {
    /// The time until the acknowledgement, and the time from there until the release.
    #[must_use]
    pub const fn new(acknowledgement: Duration, release: Duration) -> Self {
        Self { acknowledgement, release }
    }
}

/// What to do next about a partition that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pursuit<T> {
    /// Look again after half an interval.
    Wait,
    /// It was released for me. No event is processed twice, unless its owner could not settle its checkpoint.
    Take(T),
    /// Its owner did not answer in time: events may be processed twice. If the claim is lost to a renewal or to the
    /// release, pursue it further.
    Steal(T),
    /// Another owner has it, or it is reserved for another, or for none. Plan again.
    Over,
}

impl<T> Pursuit<T> {
    pub(crate) fn map<U>(self, claim: impl FnOnce(T) -> U) -> Pursuit<U> {
        match self {
            Self::Wait => Pursuit::Wait,
            Self::Take(seen) => Pursuit::Take(claim(seen)),
            Self::Steal(seen) => Pursuit::Steal(claim(seen)),
            Self::Over => Pursuit::Over,
        }
    }
}

impl Handoff {
    /// The owner of this record is asked. `None` if it has none.
    #[doc(hidden)]
    pub fn asking(partition: PartitionId, record: &OwnershipRecord, now: Duration) -> Option<Self> {
        let (owner, incarnation) = (record.owner.clone()?, record.incarnation.clone());
        Some(Self { partition, owner, incarnation, marked: now, acknowledged: None, marks: 0 })
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The owner that was asked.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.owner
    }

    /// Whether that owner has answered that it drains, as far as it was
    /// [looked at](crate::store::GroupStore::pursue).
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// How often the mark was written.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn marks(&self) -> u8 {
        self.marks
    }

    /// The mark stands, for the first time or again: the owner has its time from now on.
    #[doc(hidden)]
    pub fn stands(&mut self, now: Duration) {
        (self.marked, self.acknowledged, self.marks) = (now, None, self.marks + 1);
    }

    /// After the record was read, at this moment.
    #[doc(hidden)]
    pub fn look<E>(&mut self, looked: Option<(E, Looked)>, now: Duration, patience: &Patience) -> Pursuit<E> {
        let version = match looked {
            None | Some((_, Looked::Elsewhere | Looked::AskedByAnother)) => return Pursuit::Over,
            Some((version, Looked::Reserved)) => return Pursuit::Take(version),
            Some((version, Looked::Asked { draining: true })) => {
                self.acknowledged.get_or_insert(now);
                version
            }
            Some((version, Looked::Asked { .. } | Looked::NotAsked { .. })) => version,
        };
        let (since, limit) = match self.acknowledged {
            Some(acknowledged) => (acknowledged, patience.release),
            None => (self.marked, patience.acknowledgement),
        };
        if now.saturating_sub(since) >= limit { Pursuit::Steal(version) } else { Pursuit::Wait }
    }

    /// Whether the mark was erased, and is to be written again.
    #[doc(hidden)]
    #[must_use]
    pub fn is_erased(&self, looked: Looked, expiry: Duration) -> bool {
        self.marks < MAX_MARKS && matches!(marking(Some(((), looked)), expiry), Next::Write(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);
    const PATIENCE: Patience = Patience::new(Duration::from_secs(35), Duration::from_secs(45));
    const ASKED: Looked = Looked::Asked { draining: false };
    const DRAINING: Looked = Looked::Asked { draining: true };
    const NOT_ASKED: Looked = Looked::NotAsked { cooperative: true, age: Duration::ZERO };

    fn record(owner: &str) -> OwnershipRecord {
        let owner = (!owner.is_empty()).then(|| OwnerId::recorded(owner));
        OwnershipRecord { owner, cooperative: true, ..OwnershipRecord::default() }
    }

    fn since(second: u64) -> Handoff {
        let mut handoff = Handoff::asking(0.into(), &record("a"), Duration::ZERO).unwrap();
        handoff.stands(Duration::from_secs(second));
        handoff
    }

    fn look(handoff: &mut Handoff, looked: Looked, second: u64) -> Pursuit<u8> {
        handoff.look(Some((7, looked)), Duration::from_secs(second), &PATIENCE)
    }

    #[test]
    fn a_record_is_looked_at_from_the_askers_side() {
        let me = OwnerId::recorded("me");
        let (handoff, age) = (since(0), Duration::from_secs(3));
        let asked_by = |owner: &str, by: Option<&str>, draining| {
            let handoff_to = by.map(OwnerId::recorded);
            Looked::at(&OwnershipRecord { handoff_to, draining, ..record(owner) }, age, &handoff, &me)
        };
        assert_eq!(asked_by("a", None, false), Looked::NotAsked { cooperative: true, age });
        assert_eq!(asked_by("a", Some("me"), false), ASKED);
        assert_eq!(asked_by("a", Some("me"), true), DRAINING);
        assert_eq!(asked_by("a", Some("b"), true), Looked::AskedByAnother);
        assert_eq!(asked_by("", Some("me"), false), Looked::Reserved);
        for (owner, by) in [("", None), ("", Some("b")), ("b", Some("me")), ("me", None)] {
            assert_eq!(asked_by(owner, by, false), Looked::Elsewhere, "{owner} {by:?}");
        }
        let restarted = OwnershipRecord { incarnation: Some(Incarnation::recorded("2")), ..record("a") };
        assert_eq!(Looked::at(&restarted, age, &handoff, &me), Looked::Elsewhere);
        let mine = Handoff::asking(0.into(), &record("me"), Duration::ZERO).unwrap();
        assert_eq!(Looked::at(&record("me"), age, &mine, &me), Looked::Elsewhere, "it was mine all the time");
    }

    #[test]
    fn only_young_unmarked_cooperative_records_are_marked() {
        let next = |looked| marking(Some((7, looked)), EXPIRY);
        let aged = |seconds| Looked::NotAsked { cooperative: true, age: Duration::from_secs(seconds) };
        assert_eq!(next(aged(29)), Next::Write(Under::Over(7)));
        assert_eq!(next(aged(30)), Next::Done(MarkOutcome::TooOld));
        let deaf = Looked::NotAsked { cooperative: false, age: Duration::ZERO };
        assert_eq!(next(deaf), Next::Done(MarkOutcome::NotCooperative));
        assert_eq!(next(Looked::AskedByAnother), Next::Done(MarkOutcome::Taken));
        for looked in [Looked::Elsewhere, Looked::Reserved] {
            assert_eq!(next(looked), Next::Done(MarkOutcome::Lost));
        }
        assert_eq!(marking::<u8>(None, EXPIRY), Next::Done(MarkOutcome::Lost));
    }

    #[test]
    fn a_mark_found_on_the_record_of_the_same_owner_stands() {
        for looked in [ASKED, DRAINING] {
            assert_eq!(marking(Some((7, looked)), EXPIRY), Next::Done(MarkOutcome::Standing(())));
        }
    }

    #[test]
    fn what_was_released_for_me_is_taken() {
        assert_eq!(look(&mut since(0), Looked::Reserved, 1), Pursuit::Take(7));
    }

    #[test]
    fn once_the_owner_changed_or_another_asked_it_is_over() {
        assert_eq!(look(&mut since(0), Looked::Elsewhere, 1), Pursuit::Over);
        assert_eq!(look(&mut since(0), Looked::AskedByAnother, 1), Pursuit::Over);
        assert_eq!(since(0).look::<u8>(None, Duration::ZERO, &PATIENCE), Pursuit::Over);
    }

    #[test]
    fn a_young_record_that_does_not_drain_is_no_acknowledgement() {
        let mut handoff = since(100);
        assert_eq!(look(&mut handoff, ASKED, 134), Pursuit::Wait);
        assert!(!handoff.is_acknowledged());
        assert_eq!(look(&mut handoff, ASKED, 135), Pursuit::Steal(7));
    }

    #[test]
    fn an_owner_that_drains_has_time_from_the_acknowledgement_on() {
        let mut handoff = since(0);
        assert_eq!(look(&mut handoff, DRAINING, 34), Pursuit::Wait);
        assert!(handoff.is_acknowledged());
        assert_eq!(look(&mut handoff, DRAINING, 78), Pursuit::Wait);
        assert_eq!(look(&mut handoff, DRAINING, 79), Pursuit::Steal(7));
    }

    #[test]
    fn an_erased_mark_is_added_again_a_few_times() {
        let mut handoff = since(0);
        for mark in 1..u64::from(MAX_MARKS) {
            assert_eq!(look(&mut handoff, DRAINING, 30 * mark - 1), Pursuit::Wait);
            assert_eq!(look(&mut handoff, NOT_ASKED, 30 * mark), Pursuit::Wait);
            assert!(handoff.is_erased(NOT_ASKED, EXPIRY));
            handoff.stands(Duration::from_secs(30 * mark));
            assert!(!handoff.is_acknowledged());
        }
        assert_eq!(look(&mut handoff, NOT_ASKED, 94), Pursuit::Wait);
        assert!(!handoff.is_erased(NOT_ASKED, EXPIRY));
        assert_eq!(look(&mut handoff, NOT_ASKED, 95), Pursuit::Steal(7));
        for looked in [ASKED, Looked::NotAsked { cooperative: true, age: EXPIRY / 2 }] {
            assert!(!since(0).is_erased(looked, EXPIRY), "{looked:?}");
        }
        assert!(!since(0).is_erased(Looked::NotAsked { cooperative: false, age: Duration::ZERO }, EXPIRY));
    }
}
