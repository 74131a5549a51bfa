//! One lease of this instance: when to renew it, and whether to release it.

use std::time::Duration;

use super::lease_record::{KeptAliveBy, LeaseRecord};
use crate::model::{LeaseScope, Moment, OwnerId};
use crate::planner::ReleaseReason;
use crate::store::Lease;

#[derive(Debug)]
pub(super) struct OwnedLease {
    lease: Lease,
    /// When the response arrived that won or last renewed the lease.
    known_since: Moment,
    /// When the partition was won, until its processing has started.
    pub(super) not_started_since: Option<Moment>,
    renewal: Renewal,
    disposition: Disposition,
    handoff_request: HandoffRequest,
    record: LeaseRecord,
}

/// When to renew a lease.
#[derive(Debug)]
struct Renewal {
    /// A factor a little below 1, which spreads leases that were won together.
    spread: f64,
    /// No renewal begins before this moment.
    not_before: Moment,
    /// While all renewals fail, a renewal that has failed also waits for its turn.
    turn: RenewalTurn,
    /// How many renewals have failed in a row.
    failures: u32,
    /// Whether a renewal is under way. Operations on one partition run one after another.
    under_way: bool,
}

/// Whether a renewal waits for its turn among those that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalTurn {
    NotNeeded,
    Awaited,
}

/// What to do with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    /// Process the partition.
    Process,
    /// Release it when its handler has stopped, or at this moment.
    Drain { until: Moment, reason: ReleaseReason },
    /// Release it when the current renewal has ended. Its handler had time until this moment.
    ReleaseNext { until: Option<Moment>, reason: ReleaseReason },
    /// Keep it for the restart of this owner when the current renewal has ended.
    KeepNext,
}

/// What to do with a lease when its renewal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRenewal {
    Nothing,
    Release(ReleaseReason),
    Keep,
}

/// Whether another instance requested the partition, and what the record says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HandoffRequest {
    None,
    /// The next renewal must write that the owner drains the partition.
    AcknowledgmentDue,
    /// The record says that the owner drains the partition.
    Acknowledged,
    /// The requesting instance has expired: the next renewal must remove its request, at once.
    FromDead(OwnerId),
}

impl HandoffRequest {
    /// Returns whether the next renewal must write what follows from it, at once.
    fn is_write_due(&self) -> bool {
        matches!(self, Self::AcknowledgmentDue | Self::FromDead(_))
    }
}

/// When a lease was won or renewed, and how its next renewal is spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewed {
    pub(super) at: Moment,
    pub(super) spread: f64,
    /// The least time until the next renewal. It prevents repeated renewals of a lease that a renewal left unchanged.
    pub(super) pause: Duration,
}

impl OwnedLease {
    /// Creates a lease that was won or renewed. `before` is the lease of the partition until now.
    pub(super) fn new(lease: Lease, before: Option<&Self>, renewed: Renewed, kept_alive_by: KeptAliveBy) -> Self {
        let before = before.filter(|owned| owned.epoch() == lease.epoch());
        let handoff_request = before.map_or(HandoffRequest::None, |owned| owned.handoff_request_after(&lease));
        let record = LeaseRecord::new(&lease, before.map(|owned| owned.record), kept_alive_by);
        let disposition = match before.map(|owned| owned.disposition) {
            Some(Disposition::Drain { until, reason } | Disposition::ReleaseNext { until: Some(until), reason }) => {
                Disposition::Drain { until, reason }
            }
            Some(Disposition::Process | Disposition::KeepNext | Disposition::ReleaseNext { until: None, .. })
            | None => Disposition::Process,
        };
        let mut owned = Self {
            known_since: renewed.at,
            not_started_since: before.map_or(Some(renewed.at), |owned| owned.not_started_since),
            renewal: Renewal {
                spread: renewed.spread,
                not_before: renewed.at + if handoff_request.is_write_due() { Duration::ZERO } else { renewed.pause },
                turn: RenewalTurn::NotNeeded,
                failures: 0,
                under_way: false,
            },
            disposition,
            record,
            lease: match handoff_request {
                HandoffRequest::None => lease,
                HandoffRequest::FromDead(_) => lease.without_handoff_request(),
                HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged => lease.acknowledging_handoff(),
            },
            handoff_request,
        };
        if record.must_be_rewritten(kept_alive_by) {
            owned.require_rewrite(kept_alive_by.scope);
        }
        owned
    }

    fn handoff_request_after(&self, renewed: &Lease) -> HandoffRequest {
        match &self.handoff_request {
            HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged if renewed.record().draining => {
                HandoffRequest::Acknowledged
            }
            HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged => HandoffRequest::AcknowledgmentDue,
            HandoffRequest::FromDead(requester) if renewed.handoff_requested_by() == Some(requester) => {
                HandoffRequest::FromDead(requester.clone())
            }
            HandoffRequest::FromDead(_) | HandoffRequest::None => HandoffRequest::None,
        }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn epoch(&self) -> i64 {
        self.lease.epoch()
    }

    /// Returns whether a listing that was sent at `listing_sent` may be older than this lease: a renewal is under way,
    /// or its response arrived after that. The write took effect before its response, but perhaps after the listing.
    pub(super) fn is_newer_than(&self, listing_sent: Moment) -> bool {
        self.renewal.under_way || self.known_since >= listing_sent
    }

    /// Returns the moment from which the lease duration counts.
    pub(super) fn valid_from(&self, kept_alive_by: KeptAliveBy) -> Moment {
        self.record.last_heartbeat(kept_alive_by).unwrap_or_default().max(self.lease.valid_from())
    }

    /// Returns whether its record says that the heartbeat of this instance keeps it alive.
    pub(super) fn is_kept_alive_by_heartbeat(&self) -> bool {
        self.record.is_kept_alive_by_heartbeat()
    }
}

/// Renewals.
impl OwnedLease {
    /// Returns when to renew it, if each lease is renewed at this age; `None` if it is not renewed. A lease that the
    /// heartbeat keeps alive is not renewed individually. A lease whose record must change is renewed at once: another
    /// instance requested the partition, or may be about to take it over.
    pub(super) fn renewal_due_at(&self, age: Duration) -> Option<Moment> {
        if self.renewal.under_way {
            return None;
        }
        if self.handoff_request.is_write_due() || self.record.is_rewrite_due() {
            return Some(self.renewal.not_before);
        }
        if self.is_kept_alive_by_heartbeat() {
            return None;
        }
        Some((self.lease.valid_from() + age.mul_f64(self.renewal.spread)).max(self.renewal.not_before))
    }

    pub(super) fn awaits_turn(&self) -> bool {
        self.renewal.turn == RenewalTurn::Awaited
    }

    /// Ends the wait for its turn.
    pub(super) fn stop_awaiting_turn(&mut self) {
        self.renewal.turn = RenewalTurn::NotNeeded;
    }

    /// Returns how many renewals have failed in a row.
    pub(super) fn renewal_failures(&self) -> u32 {
        self.renewal.failures
    }

    pub(super) fn is_renewing(&self) -> bool {
        self.renewal.under_way
    }

    /// Records that a renewal begins, and returns the lease to renew.
    pub(super) fn start_renewal(&mut self, kept_alive_by: KeptAliveBy) -> Lease {
        self.renewal.under_way = true;
        self.record.start_write(self.lease.record().scope, kept_alive_by);
        self.lease.clone()
    }

    /// Records that the renewal has ended with any outcome, and returns what to do next.
    pub(super) fn end_renewal(&mut self) -> AfterRenewal {
        self.renewal.under_way = false;
        match self.disposition {
            Disposition::Process | Disposition::Drain { .. } => AfterRenewal::Nothing,
            Disposition::ReleaseNext { reason, .. } => AfterRenewal::Release(reason),
            Disposition::KeepNext => AfterRenewal::Keep,
        }
    }

    /// Records that the renewal has failed.
    pub(super) fn postpone_renewal(&mut self, not_before: Moment) {
        self.renewal.not_before = not_before;
        self.renewal.failures = self.renewal.failures.saturating_add(1);
        self.renewal.turn = RenewalTurn::Awaited;
        self.record.fail_write();
    }

    fn make_due_at_once(&mut self) {
        self.renewal.not_before = Moment::ZERO;
        self.renewal.turn = RenewalTurn::NotNeeded;
    }
}

/// Handoffs.
impl OwnedLease {
    /// Records that another instance requested the partition: the record must say at once that the owner drains it.
    /// Returns whether the request is new.
    pub(super) fn acknowledge_handoff(&mut self) -> bool {
        if self.is_handed_over() {
            return false;
        }
        self.handoff_request = HandoffRequest::AcknowledgmentDue;
        self.make_due_at_once();
        self.lease = self.lease.clone().acknowledging_handoff();
        true
    }

    /// Records that the requesting instance has expired: renewals remove its request, and the first one is due at once.
    /// A renewal under an older version finds the request in a conflict, and the next one removes it.
    pub(super) fn drop_handoff_request(&mut self, requester: &OwnerId) {
        if !self.is_handed_over() {
            self.lease = self.lease.clone().without_handoff_request();
            self.handoff_request = HandoffRequest::FromDead(requester.clone());
            self.make_due_at_once();
        }
    }

    /// Returns whether the partition is released because another instance requested it.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.handoff_request, HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged)
    }
}

/// Releases.
impl OwnedLease {
    /// Plans the release for when the handler has stopped, or for this moment. Returns whether that is new.
    pub(super) fn plan_drain(&mut self, until: Moment, reason: ReleaseReason) -> bool {
        let is_new = self.disposition == Disposition::Process;
        if is_new {
            self.disposition = Disposition::Drain { until, reason };
        }
        is_new
    }

    /// Plans the release for when the current renewal has ended.
    pub(super) fn release_next(&mut self, reason: ReleaseReason) {
        self.disposition = Disposition::ReleaseNext { until: self.drains_until(), reason };
    }

    /// Plans to keep the lease for the restart of this owner when the current renewal has ended.
    pub(super) fn keep_next(&mut self) {
        self.disposition = Disposition::KeepNext;
    }

    /// Returns whether the partition is to be processed.
    pub(super) fn is_processed(&self) -> bool {
        self.disposition == Disposition::Process
    }

    /// Returns why it is to be released, if it is.
    pub(super) fn release_reason(&self) -> Option<ReleaseReason> {
        match self.disposition {
            Disposition::Process | Disposition::KeepNext => None,
            Disposition::Drain { reason, .. } | Disposition::ReleaseNext { reason, .. } => Some(reason),
        }
    }

    /// Returns why it is to be released, if it waits for its handler to stop, or for a renewal after that.
    pub(super) fn drained_for(&self) -> Option<ReleaseReason> {
        self.release_reason().filter(|_| self.drains_until().is_some())
    }

    /// Returns when to release it although its handler has not stopped.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        match self.disposition {
            Disposition::Drain { until, .. } => Some(until),
            Disposition::Process | Disposition::ReleaseNext { .. } | Disposition::KeepNext => None,
        }
    }

    pub(super) fn is_released_next(&self) -> bool {
        matches!(self.disposition, Disposition::ReleaseNext { .. })
    }

    /// Returns how long its handler may take to stop.
    fn drains_until(&self) -> Option<Moment> {
        match self.disposition {
            Disposition::Process | Disposition::KeepNext => None,
            Disposition::Drain { until, .. } => Some(until),
            Disposition::ReleaseNext { until, .. } => until,
        }
    }
}

/// Leases that the heartbeat of this instance keeps alive.
impl OwnedLease {
    /// Sets what keeps the record alive from now on.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        if self.lease.record().scope != scope {
            self.require_rewrite(scope);
        }
    }

    /// Records that this instance was declared dead.
    pub(super) fn set_ambiguous(&mut self) {
        self.record.set_ambiguous();
    }

    /// Records that this instance has a heartbeat again. An ambiguous lease is rewritten only now: without a heartbeat,
    /// another instance could take it over again.
    pub(super) fn require_rewrite_if_ambiguous(&mut self, scope: LeaseScope) {
        if self.record.is_ambiguous() {
            self.require_rewrite(scope);
        }
    }

    fn require_rewrite(&mut self, scope: LeaseScope) {
        self.lease = self.lease.clone().forcing_rewrite(scope);
        self.record.require_rewrite();
        self.make_due_at_once();
    }
}
