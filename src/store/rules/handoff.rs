//! Handoff: asking a cooperative owner for a partition, and waiting until it releases it.

use std::time::Duration;

use super::{Next, WriteCondition};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId};

/// How often the owner is asked, if what was written is erased.
const MAX_REQUESTS: u8 = 3;

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
pub enum HandoffView {
    /// It names another owner than the one that was asked, or none, or another incarnation.
    OtherOwner,
    /// It was released, and is reserved for the asker.
    Reserved,
    /// Another instance has asked the owner.
    RequestedByOther,
    /// The owner is asked.
    Requested { draining: bool },
    /// The owner is not asked.
    NotRequested {
        cooperative: bool,
        /// Of what keeps the record alive.
        age: Duration,
    },
}

impl HandoffView {
    /// The record as it stands for `me`, which asks the owner of this handoff.
    pub fn at(record: &OwnershipRecord, age: Duration, handoff: &Handoff, me: &OwnerId) -> Self {
        let is_for_me = record.handoff_to.as_ref() == Some(me);
        let is_its = record.owner.as_ref() == Some(&handoff.owner) && record.incarnation == handoff.incarnation;
        match &record.owner {
            None if is_for_me => Self::Reserved,
            Some(owner) if is_its && owner != me => match &record.handoff_to {
                None => Self::NotRequested { cooperative: record.cooperative, age },
                Some(_) if is_for_me => Self::Requested { draining: record.draining },
                Some(_) => Self::RequestedByOther,
            },
            _ => Self::OtherOwner,
        }
    }
}

/// What became of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoffRequestOutcome<T> {
    /// The record says who asks. Look at it every half interval, with [`pursue`](crate::store::GroupStore::poll_handoff).
    Requested(T),
    /// The partition is not that owner's any more, or was mine all the time. Plan again.
    Lost,
    /// Its owner does not hand over on request: an owner of another SDK, or one that is not
    /// [cooperative](crate::store::GroupStore::cooperative). Steal it.
    NotCooperative,
    /// Another owner has asked for it.
    AlreadyRequested,
    /// It was last renewed half an expiry ago or longer. A mark would make it look alive: wait for a renewal, or for
    /// its end.
    LeaseTooOld,
}

impl<T> HandoffRequestOutcome<T> {
    pub(crate) fn map<U>(self, standing: impl FnOnce(T) -> U) -> HandoffRequestOutcome<U> {
        match self {
            Self::Requested(mark) => HandoffRequestOutcome::Requested(standing(mark)),
            Self::Lost => HandoffRequestOutcome::Lost,
            Self::NotCooperative => HandoffRequestOutcome::NotCooperative,
            Self::AlreadyRequested => HandoffRequestOutcome::AlreadyRequested,
            Self::LeaseTooOld => HandoffRequestOutcome::LeaseTooOld,
        }
    }
}

/// Whether, and over which version, to mark a record; to be asked again after a doubtful write.
pub fn requesting_handoff<E>(looked: Option<(E, HandoffView)>, expiry: Duration) -> Next<E, HandoffRequestOutcome<()>> {
    let Some((version, looked)) = looked else { return Next::Done(HandoffRequestOutcome::Lost) };
    Next::Done(match looked {
        HandoffView::OtherOwner | HandoffView::Reserved => HandoffRequestOutcome::Lost,
        HandoffView::RequestedByOther => HandoffRequestOutcome::AlreadyRequested,
        HandoffView::Requested { .. } => HandoffRequestOutcome::Requested(()),
        HandoffView::NotRequested { cooperative: false, .. } => HandoffRequestOutcome::NotCooperative,
        HandoffView::NotRequested { age, .. } if age >= expiry / 2 => HandoffRequestOutcome::LeaseTooOld,
        HandoffView::NotRequested { .. } => return Next::Write(WriteCondition::IfMatch(version)),
    })
}

/// How long to wait for an owner that was asked, before the partition is stolen from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandoffTimeouts {
    /// From the mark until its record says that it drains. At least half the expiry and a request deadline, for an
    /// owner need not look more often. A record that is merely young says nothing: a mark makes it young.
    pub acknowledgement: Duration,
    /// From then on until it releases. Less than the expiry, and more than its time to drain.
    pub release: Duration,
}

impl HandoffTimeouts {
    /// The time until the acknowledgement, and the time from there until the release.
    #[must_use]
    pub const fn new(acknowledgement: Duration, release: Duration) -> Self {
        Self { acknowledgement, release }
    }
}

/// What to do next about a partition that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoffStatus<T> {
    /// Look again after half an interval.
    Pending,
    /// It was released for me. No event is processed twice, unless its owner could not settle its checkpoint.
    Ready(T),
    /// Its owner did not answer in time: events may be processed twice. If the claim is lost to a renewal or to the
    /// release, pursue it further.
    TimedOut(T),
    /// Another owner has it, or it is reserved for another, or for none. Plan again.
    Canceled,
}

impl<T> HandoffStatus<T> {
    pub(crate) fn map<U>(self, claim: impl FnOnce(T) -> U) -> HandoffStatus<U> {
        match self {
            Self::Pending => HandoffStatus::Pending,
            Self::Ready(seen) => HandoffStatus::Ready(claim(seen)),
            Self::TimedOut(seen) => HandoffStatus::TimedOut(claim(seen)),
            Self::Canceled => HandoffStatus::Canceled,
        }
    }
}

impl Handoff {
    /// The owner of this record is asked. `None` if it has none.
    #[doc(hidden)]
    pub fn requested(partition: PartitionId, record: &OwnershipRecord, now: Duration) -> Option<Self> {
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
    /// [looked at](crate::store::GroupStore::poll_handoff).
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// How often the mark was written.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn requests(&self) -> u8 {
        self.marks
    }

    /// The mark stands, for the first time or again: the owner has its time from now on.
    #[doc(hidden)]
    pub fn renewed(&mut self, now: Duration) {
        (self.marked, self.acknowledged, self.marks) = (now, None, self.marks + 1);
    }

    /// After the record was read, at this moment.
    #[doc(hidden)]
    pub fn poll<E>(
        &mut self,
        looked: Option<(E, HandoffView)>,
        now: Duration,
        patience: &HandoffTimeouts,
    ) -> HandoffStatus<E> {
        let version = match looked {
            None | Some((_, HandoffView::OtherOwner | HandoffView::RequestedByOther)) => {
                return HandoffStatus::Canceled;
            }
            Some((version, HandoffView::Reserved)) => return HandoffStatus::Ready(version),
            Some((version, HandoffView::Requested { draining: true })) => {
                self.acknowledged.get_or_insert(now);
                version
            }
            Some((version, HandoffView::Requested { .. } | HandoffView::NotRequested { .. })) => version,
        };
        let (since, limit) = match self.acknowledged {
            Some(acknowledged) => (acknowledged, patience.release),
            None => (self.marked, patience.acknowledgement),
        };
        if now.saturating_sub(since) >= limit { HandoffStatus::TimedOut(version) } else { HandoffStatus::Pending }
    }

    /// Whether the mark was erased, and is to be written again.
    #[doc(hidden)]
    #[must_use]
    pub fn is_erased(&self, looked: HandoffView, expiry: Duration) -> bool {
        self.marks < MAX_REQUESTS && matches!(requesting_handoff(Some(((), looked)), expiry), Next::Write(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);
    const PATIENCE: HandoffTimeouts = HandoffTimeouts::new(Duration::from_secs(35), Duration::from_secs(45));
    const ASKED: HandoffView = HandoffView::Requested { draining: false };
    const DRAINING: HandoffView = HandoffView::Requested { draining: true };
    const NOT_ASKED: HandoffView = HandoffView::NotRequested { cooperative: true, age: Duration::ZERO };

    fn record(owner: &str) -> OwnershipRecord {
        let owner = (!owner.is_empty()).then(|| OwnerId::recorded(owner));
        OwnershipRecord { owner, cooperative: true, ..OwnershipRecord::default() }
    }

    fn since(second: u64) -> Handoff {
        let mut handoff = Handoff::requested(0.into(), &record("a"), Duration::ZERO).unwrap();
        handoff.renewed(Duration::from_secs(second));
        handoff
    }

    fn look(handoff: &mut Handoff, looked: HandoffView, second: u64) -> HandoffStatus<u8> {
        handoff.poll(Some((7, looked)), Duration::from_secs(second), &PATIENCE)
    }

    #[test]
    fn a_record_is_looked_at_from_the_askers_side() {
        let me = OwnerId::recorded("me");
        let (handoff, age) = (since(0), Duration::from_secs(3));
        let asked_by = |owner: &str, by: Option<&str>, draining| {
            let handoff_to = by.map(OwnerId::recorded);
            HandoffView::at(&OwnershipRecord { handoff_to, draining, ..record(owner) }, age, &handoff, &me)
        };
        assert_eq!(asked_by("a", None, false), HandoffView::NotRequested { cooperative: true, age });
        assert_eq!(asked_by("a", Some("me"), false), ASKED);
        assert_eq!(asked_by("a", Some("me"), true), DRAINING);
        assert_eq!(asked_by("a", Some("b"), true), HandoffView::RequestedByOther);
        assert_eq!(asked_by("", Some("me"), false), HandoffView::Reserved);
        for (owner, by) in [("", None), ("", Some("b")), ("b", Some("me")), ("me", None)] {
            assert_eq!(asked_by(owner, by, false), HandoffView::OtherOwner, "{owner} {by:?}");
        }
        let restarted = OwnershipRecord { incarnation: Some(Incarnation::recorded("2")), ..record("a") };
        assert_eq!(HandoffView::at(&restarted, age, &handoff, &me), HandoffView::OtherOwner);
        let mine = Handoff::requested(0.into(), &record("me"), Duration::ZERO).unwrap();
        assert_eq!(
            HandoffView::at(&record("me"), age, &mine, &me),
            HandoffView::OtherOwner,
            "it was mine all the time"
        );
    }

    #[test]
    fn only_young_unmarked_cooperative_records_are_marked() {
        let next = |looked| requesting_handoff(Some((7, looked)), EXPIRY);
        let aged = |seconds| HandoffView::NotRequested { cooperative: true, age: Duration::from_secs(seconds) };
        assert_eq!(next(aged(29)), Next::Write(WriteCondition::IfMatch(7)));
        assert_eq!(next(aged(30)), Next::Done(HandoffRequestOutcome::LeaseTooOld));
        let deaf = HandoffView::NotRequested { cooperative: false, age: Duration::ZERO };
        assert_eq!(next(deaf), Next::Done(HandoffRequestOutcome::NotCooperative));
        assert_eq!(next(HandoffView::RequestedByOther), Next::Done(HandoffRequestOutcome::AlreadyRequested));
        for looked in [HandoffView::OtherOwner, HandoffView::Reserved] {
            assert_eq!(next(looked), Next::Done(HandoffRequestOutcome::Lost));
        }
        assert_eq!(requesting_handoff::<u8>(None, EXPIRY), Next::Done(HandoffRequestOutcome::Lost));
    }

    #[test]
    fn a_mark_found_on_the_record_of_the_same_owner_stands() {
        for looked in [ASKED, DRAINING] {
            assert_eq!(requesting_handoff(Some((7, looked)), EXPIRY), Next::Done(HandoffRequestOutcome::Requested(())));
        }
    }

    #[test]
    fn what_was_released_for_me_is_taken() {
        assert_eq!(look(&mut since(0), HandoffView::Reserved, 1), HandoffStatus::Ready(7));
    }

    #[test]
    fn once_the_owner_changed_or_another_asked_it_is_over() {
        assert_eq!(look(&mut since(0), HandoffView::OtherOwner, 1), HandoffStatus::Canceled);
        assert_eq!(look(&mut since(0), HandoffView::RequestedByOther, 1), HandoffStatus::Canceled);
        assert_eq!(since(0).poll::<u8>(None, Duration::ZERO, &PATIENCE), HandoffStatus::Canceled);
    }

    #[test]
    fn a_young_record_that_does_not_drain_is_no_acknowledgement() {
        let mut handoff = since(100);
        assert_eq!(look(&mut handoff, ASKED, 134), HandoffStatus::Pending);
        assert!(!handoff.is_acknowledged());
        assert_eq!(look(&mut handoff, ASKED, 135), HandoffStatus::TimedOut(7));
    }

    #[test]
    fn an_owner_that_drains_has_time_from_the_acknowledgement_on() {
        let mut handoff = since(0);
        assert_eq!(look(&mut handoff, DRAINING, 34), HandoffStatus::Pending);
        assert!(handoff.is_acknowledged());
        assert_eq!(look(&mut handoff, DRAINING, 78), HandoffStatus::Pending);
        assert_eq!(look(&mut handoff, DRAINING, 79), HandoffStatus::TimedOut(7));
    }

    #[test]
    fn an_erased_mark_is_added_again_a_few_times() {
        let mut handoff = since(0);
        for mark in 1..u64::from(MAX_REQUESTS) {
            assert_eq!(look(&mut handoff, DRAINING, 30 * mark - 1), HandoffStatus::Pending);
            assert_eq!(look(&mut handoff, NOT_ASKED, 30 * mark), HandoffStatus::Pending);
            assert!(handoff.is_erased(NOT_ASKED, EXPIRY));
            handoff.renewed(Duration::from_secs(30 * mark));
            assert!(!handoff.is_acknowledged());
        }
        assert_eq!(look(&mut handoff, NOT_ASKED, 94), HandoffStatus::Pending);
        assert!(!handoff.is_erased(NOT_ASKED, EXPIRY));
        assert_eq!(look(&mut handoff, NOT_ASKED, 95), HandoffStatus::TimedOut(7));
        for looked in [ASKED, HandoffView::NotRequested { cooperative: true, age: EXPIRY / 2 }] {
            assert!(!since(0).is_erased(looked, EXPIRY), "{looked:?}");
        }
        assert!(!since(0).is_erased(HandoffView::NotRequested { cooperative: false, age: Duration::ZERO }, EXPIRY));
    }
}
