//! Handoff: requesting a partition from a cooperative owner, and waiting until the owner releases it.

use std::ops::ControlFlow;
use std::time::Duration;

use super::WriteCondition;
use crate::model::{Incarnation, LeaseDurations, OwnerId, OwnershipRecord, PartitionId};

/// How many times the owner is requested if the request is erased.
const MAX_REQUESTS: u8 = 3;

/// A requested handoff and its progress. All moments are of the same clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    partition: PartitionId,
    owner: OwnerId,
    incarnation: Option<Incarnation>,
    /// The epoch of the owner. In a later one it has released the partition, and won it again.
    epoch: Option<i64>,
    /// The lease duration of the owner.
    lease_duration: Duration,
    /// Since when the owner owes an acknowledgment: since the request, or since the record last contained one.
    since: Duration,
    requests: u8,
}

/// The record as the requesting instance sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoffView {
    /// It names an owner other than the requested one, or none, or another incarnation or epoch.
    OtherOwner,
    /// It was released, and is reserved for the requesting instance.
    Reserved,
    /// Another instance has requested the partition.
    RequestedByOther,
    /// This instance has requested the partition.
    Requested { draining: bool },
    /// No instance has requested the partition.
    NotRequested {
        cooperative: bool,
        /// The age of what keeps the record alive.
        age: Duration,
    },
}

impl HandoffView {
    /// Returns how `this`, the requesting instance of this handoff, sees the record.
    pub fn from_record(record: &OwnershipRecord, age: Duration, handoff: &Handoff, this: &OwnerId) -> Self {
        let is_for_this = record.handoff_to.as_ref() == Some(this);
        let is_same_owner = record.owner.as_ref() == Some(&handoff.owner)
            && record.incarnation == handoff.incarnation
            && record.epoch == handoff.epoch;
        match &record.owner {
            None if is_for_this => Self::Reserved,
            Some(owner) if is_same_owner && owner != this => match &record.handoff_to {
                None => Self::NotRequested { cooperative: record.cooperative, age },
                Some(_) if is_for_this => Self::Requested { draining: record.draining },
                Some(_) => Self::RequestedByOther,
            },
            _ => Self::OtherOwner,
        }
    }
}

/// The outcome of a handoff request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoffRequestOutcome<T> {
    /// The record contains the request. [Poll](crate::store::GroupStore::poll_handoff) it every second.
    Requested(T),
    /// The partition does not belong to that owner anymore, or belonged to this instance all along. Plan again.
    Lost,
    /// The owner does not hand over on request: an owner of another SDK, or one that is not
    /// [cooperative](crate::store::Claim::with_cooperative). Steal the partition.
    NotCooperative,
    /// Another instance has requested the partition.
    AlreadyRequested,
    /// The record was last renewed half a lease duration ago or more. A request would make it look alive: wait until it
    /// is renewed, or until it expires.
    LeaseTooOld,
}

impl<T> HandoffRequestOutcome<T> {
    pub(crate) fn map<U>(self, requested: impl FnOnce(T) -> U) -> HandoffRequestOutcome<U> {
        match self {
            Self::Requested(handoff) => HandoffRequestOutcome::Requested(requested(handoff)),
            Self::Lost => HandoffRequestOutcome::Lost,
            Self::NotCooperative => HandoffRequestOutcome::NotCooperative,
            Self::AlreadyRequested => HandoffRequestOutcome::AlreadyRequested,
            Self::LeaseTooOld => HandoffRequestOutcome::LeaseTooOld,
        }
    }
}

/// Decides whether to write a request into a record, and over which version. Decide again after an ambiguous write.
pub fn decide_handoff_request<V>(
    view: Option<(V, HandoffView)>,
    lease_duration: Duration,
) -> ControlFlow<HandoffRequestOutcome<()>, WriteCondition<V>> {
    let Some((version, view)) = view else { return ControlFlow::Break(HandoffRequestOutcome::Lost) };
    ControlFlow::Break(match view {
        HandoffView::OtherOwner | HandoffView::Reserved => HandoffRequestOutcome::Lost,
        HandoffView::RequestedByOther => HandoffRequestOutcome::AlreadyRequested,
        HandoffView::Requested { .. } => HandoffRequestOutcome::Requested(()),
        HandoffView::NotRequested { cooperative: false, .. } => HandoffRequestOutcome::NotCooperative,
        HandoffView::NotRequested { age, .. } if age >= lease_duration / 2 => HandoffRequestOutcome::LeaseTooOld,
        HandoffView::NotRequested { .. } => return ControlFlow::Continue(WriteCondition::IfMatch(version)),
    })
}

/// What to do next about a requested handoff.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandoffStatus<T> {
    /// Poll again after a second.
    Pending,
    /// The owner released the partition for this instance: claim it. No event is processed twice, unless the owner
    /// could not write its checkpoint.
    Ready(T),
    /// The owner did not acknowledge the request in time: claim the partition. Events may be processed twice. If the
    /// claim is lost to a renewal or to the release, keep polling.
    TimedOut(T),
    /// Another instance owns the partition, or it is reserved for another, or for none. Plan again.
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
    /// Creates a handoff that is requested from the owner of this record. Returns `None` if there is no owner.
    #[doc(hidden)]
    pub fn requested(
        partition: PartitionId,
        record: &OwnershipRecord,
        lease_durations: LeaseDurations,
        now: Duration,
    ) -> Option<Self> {
        Some(Self {
            partition,
            owner: record.owner.clone()?,
            incarnation: record.incarnation.clone(),
            epoch: record.epoch,
            lease_duration: lease_durations.of(record),
            since: now,
            requests: 0,
        })
    }

    /// Returns the partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// Returns the owner that the handoff is requested from.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.owner
    }

    /// Returns the lease duration of that owner.
    #[must_use]
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// Returns how long the owner may take until the record shows the acknowledgment: half its lease duration, because
    /// an owner need not check its record more often, and one request. A young record is no acknowledgment: the request
    /// itself makes it young.
    #[doc(hidden)]
    #[must_use]
    pub fn time_to_acknowledge(&self, request_timeout: Duration) -> Duration {
        self.lease_duration / 2 + request_timeout
    }

    /// Returns how many times the request was written.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn requests(&self) -> u8 {
        self.requests
    }

    /// Records that the record contains the request, for the first time or again: the owner has the whole time to
    /// acknowledge it from now on.
    #[doc(hidden)]
    pub fn renewed(&mut self, now: Duration) {
        self.since = now;
        self.requests += 1;
    }

    /// Decides by the record that was read at this moment. An owner that drains the partition has all the time that it
    /// needs: if it stops renewing its lease, the next listing shows that it has expired.
    #[doc(hidden)]
    pub fn poll<V>(
        &mut self,
        view: Option<(V, HandoffView)>,
        now: Duration,
        request_timeout: Duration,
    ) -> HandoffStatus<V> {
        let Some((version, view)) = view else { return HandoffStatus::Canceled };
        match view {
            HandoffView::OtherOwner | HandoffView::RequestedByOther => HandoffStatus::Canceled,
            HandoffView::Reserved => HandoffStatus::Ready(version),
            HandoffView::Requested { draining: true } => {
                self.since = now;
                HandoffStatus::Pending
            }
            HandoffView::Requested { .. } | HandoffView::NotRequested { .. }
                if now.saturating_sub(self.since) >= self.time_to_acknowledge(request_timeout) =>
            {
                HandoffStatus::TimedOut(version)
            }
            HandoffView::Requested { .. } | HandoffView::NotRequested { .. } => HandoffStatus::Pending,
        }
    }

    /// Returns whether the request was erased and must be written again.
    #[doc(hidden)]
    #[must_use]
    pub fn is_erased(&self, view: HandoffView) -> bool {
        self.requests < MAX_REQUESTS
            && matches!(decide_handoff_request(Some(((), view)), self.lease_duration), ControlFlow::Continue(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const DURATIONS: LeaseDurations = LeaseDurations::new(Duration::from_secs(14), Duration::from_secs(180));
    const REQUESTED: HandoffView = HandoffView::Requested { draining: false };
    const DRAINING: HandoffView = HandoffView::Requested { draining: true };
    const NOT_REQUESTED: HandoffView = HandoffView::NotRequested { cooperative: true, age: Duration::ZERO };

    fn record(owner: &str) -> OwnershipRecord {
        let owner = (!owner.is_empty()).then(|| OwnerId::from_record(owner));
        OwnershipRecord { owner, cooperative: true, lease_duration: Some(LEASE), ..OwnershipRecord::default() }
    }

    fn since(second: u64) -> Handoff {
        let mut handoff = Handoff::requested(0.into(), &record("a"), DURATIONS, Duration::ZERO).unwrap();
        handoff.renewed(Duration::from_secs(second));
        handoff
    }

    fn look(handoff: &mut Handoff, view: HandoffView, second: u64) -> HandoffStatus<u8> {
        handoff.poll(Some((7, view)), Duration::from_secs(second), Duration::from_secs(5))
    }

    #[test]
    fn a_handoff_knows_the_lease_duration_of_its_owner() {
        let handoff = since(0);
        assert_eq!((handoff.owner().as_str(), handoff.lease_duration()), ("a", LEASE));
        assert_eq!(handoff.time_to_acknowledge(Duration::from_secs(5)), Duration::from_secs(35));
    }

    #[test]
    fn a_record_is_judged_by_the_requesting_instance() {
        let me = OwnerId::from_record("me");
        let handoff = since(0);
        let age = Duration::from_secs(3);
        let requested_by = |owner: &str, by: Option<&str>, draining| {
            let handoff_to = by.map(OwnerId::from_record);
            HandoffView::from_record(&OwnershipRecord { handoff_to, draining, ..record(owner) }, age, &handoff, &me)
        };
        assert_eq!(requested_by("a", None, false), HandoffView::NotRequested { cooperative: true, age });
        for draining in [false, true] {
            assert_eq!(requested_by("a", Some("me"), draining), HandoffView::Requested { draining });
        }
        assert_eq!(requested_by("a", Some("b"), true), HandoffView::RequestedByOther);
        assert_eq!(requested_by("", Some("me"), false), HandoffView::Reserved);
        for (owner, by) in [("", None), ("", Some("b")), ("b", Some("me")), ("me", None)] {
            assert_eq!(requested_by(owner, by, false), HandoffView::OtherOwner, "{owner} {by:?}");
        }
        let restarted = OwnershipRecord { incarnation: Some(Incarnation::from_record("2")), ..record("a") };
        let won_again = OwnershipRecord { epoch: Some(8), ..record("a") };
        for later in [restarted, won_again] {
            assert_eq!(HandoffView::from_record(&later, age, &handoff, &me), HandoffView::OtherOwner, "{later:?}");
        }
        let own = Handoff::requested(0.into(), &record("me"), DURATIONS, Duration::ZERO).unwrap();
        assert_eq!(
            HandoffView::from_record(&record("me"), age, &own, &me),
            HandoffView::OtherOwner,
            "this instance owned it all along"
        );
    }

    /// Those without a request.
    #[test]
    fn only_young_cooperative_records_are_eligible() {
        let next = |view| decide_handoff_request(Some((7, view)), LEASE);
        let aged = |seconds| HandoffView::NotRequested { cooperative: true, age: Duration::from_secs(seconds) };
        assert_eq!(next(aged(29)), ControlFlow::Continue(WriteCondition::IfMatch(7)));
        assert_eq!(next(aged(30)), ControlFlow::Break(HandoffRequestOutcome::LeaseTooOld));
        let uncooperative = HandoffView::NotRequested { cooperative: false, age: Duration::ZERO };
        assert_eq!(next(uncooperative), ControlFlow::Break(HandoffRequestOutcome::NotCooperative));
        assert_eq!(next(HandoffView::RequestedByOther), ControlFlow::Break(HandoffRequestOutcome::AlreadyRequested));
        for view in [HandoffView::OtherOwner, HandoffView::Reserved] {
            assert_eq!(next(view), ControlFlow::Break(HandoffRequestOutcome::Lost));
        }
        assert_eq!(decide_handoff_request::<u8>(None, LEASE), ControlFlow::Break(HandoffRequestOutcome::Lost));
    }

    #[test]
    fn a_request_found_in_the_record_is_not_repeated() {
        for view in [REQUESTED, DRAINING] {
            assert_eq!(
                decide_handoff_request(Some((7, view)), LEASE),
                ControlFlow::Break(HandoffRequestOutcome::Requested(()))
            );
        }
    }

    #[test]
    fn a_reserved_partition_is_ready() {
        assert_eq!(look(&mut since(0), HandoffView::Reserved, 1), HandoffStatus::Ready(7));
    }

    #[test]
    fn another_owner_or_requester_cancels_the_handoff() {
        assert_eq!(look(&mut since(0), HandoffView::OtherOwner, 1), HandoffStatus::Canceled);
        assert_eq!(look(&mut since(0), HandoffView::RequestedByOther, 1), HandoffStatus::Canceled);
        assert_eq!(since(0).poll::<u8>(None, Duration::ZERO, Duration::ZERO), HandoffStatus::Canceled);
    }

    #[test]
    fn a_young_record_is_no_acknowledgment() {
        let mut handoff = since(100);
        assert_eq!(look(&mut handoff, REQUESTED, 134), HandoffStatus::Pending);
        assert_eq!(look(&mut handoff, REQUESTED, 135), HandoffStatus::TimedOut(7));
    }

    #[test]
    fn a_draining_owner_has_the_time_that_it_needs() {
        let mut handoff = since(0);
        for second in [1, 35, 600, 6000] {
            assert_eq!(look(&mut handoff, DRAINING, second), HandoffStatus::Pending, "{second}");
        }
        assert_eq!(look(&mut handoff, REQUESTED, 6034), HandoffStatus::Pending);
        assert_eq!(look(&mut handoff, REQUESTED, 6035), HandoffStatus::TimedOut(7));
    }

    /// An earlier version of the owner may have written over it.
    #[test]
    fn a_request_erased_while_draining_is_repeated() {
        let mut handoff = since(0);
        assert_eq!(look(&mut handoff, DRAINING, 600), HandoffStatus::Pending);
        assert_eq!(look(&mut handoff, NOT_REQUESTED, 634), HandoffStatus::Pending);
        assert!(handoff.is_erased(NOT_REQUESTED));
    }

    #[test]
    fn an_erased_request_is_repeated_a_few_times() {
        let mut handoff = since(0);
        for request in 1..u64::from(MAX_REQUESTS) {
            assert_eq!(look(&mut handoff, DRAINING, 30 * request - 1), HandoffStatus::Pending);
            assert_eq!(look(&mut handoff, NOT_REQUESTED, 30 * request), HandoffStatus::Pending);
            assert!(handoff.is_erased(NOT_REQUESTED));
            handoff.renewed(Duration::from_secs(30 * request));
        }
        assert_eq!(look(&mut handoff, NOT_REQUESTED, 94), HandoffStatus::Pending);
        assert!(!handoff.is_erased(NOT_REQUESTED));
        assert_eq!(look(&mut handoff, NOT_REQUESTED, 95), HandoffStatus::TimedOut(7));
        for view in [REQUESTED, HandoffView::NotRequested { cooperative: true, age: LEASE / 2 }] {
            assert!(!since(0).is_erased(view), "{view:?}");
        }
        assert!(!since(0).is_erased(HandoffView::NotRequested { cooperative: false, age: Duration::ZERO }));
    }
}
