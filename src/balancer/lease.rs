//! One lease that this instance holds: when it is due for renewal, and whether it is to be released.

use std::time::Duration;

use crate::model::{LeaseScope, Moment, OwnerId};
use crate::store::Lease;

#[derive(Debug)]
pub(super) struct OwnedLease {
    lease: Lease,
    /// When it was won or last renewed, by the arrival of the answer.
    known_since: Moment,
    renewal: Renewal,
    fate: Fate,
    mark: HandoffRequest,
    record: Record,
}

/// When it is renewed.
#[derive(Debug)]
struct Renewal {
    /// A little below 1: spreads leases that were won together.
    spread: f64,
    /// Not before this moment.
    not_before: Moment,
    /// As long as no renewal succeeds, not before its turn either.
    turn: Turn,
    /// How many renewals have failed in a row.
    failures: u32,
    /// It is under way. Operations on one partition come one after another.
    under_way: bool,
}

/// Whether a renewal waits for its turn among those that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    NotNeeded,
    Awaited,
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    /// It is released when its handler has stopped, or at this moment.
    Drain {
        until: Moment,
    },
    /// It is released when the renewal that is under way has ended. Its handler had time until this moment.
    ReleaseNext {
        until: Option<Moment>,
    },
    /// It is left for the restart of this owner when the renewal that is under way has ended.
    KeepNext,
}

/// What to do with a lease whose renewal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    Release,
    Keep,
}

/// Whether another instance asked for a lease, and what its record says to that.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HandoffRequest {
    None,
    /// The record is to say that it drains.
    AcknowledgmentDue,
    /// The record says so.
    Acknowledged,
    /// The owner that asked for it has died: the mark is to be taken away, at once.
    OfDead(OwnerId),
}

/// What keeps a record alive, and whether it has to be written, whatever it says.
#[derive(Clone, Copy, Debug)]
struct Record {
    scope: LeaseScope,
    rewrite: Rewrite,
    /// It may have been taken over while this instance was not present, so that it lives by its own age until it is
    /// written again.
    doubted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rewrite {
    #[default]
    No,
    Due,
    UnderWay,
}

/// What keeps the leases of this instance alive beside their own renewals.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptAliveBy {
    /// What the records are to say.
    pub(super) scope: LeaseScope,
    pub(super) heartbeat: Option<HeartbeatSince>,
}

/// The moments at which announcements were sent that succeeded: the first one since this instance began or was declared
/// dead, and the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeartbeatSince {
    pub(super) first: Moment,
    pub(super) last: Moment,
}

/// When a lease was won or renewed, and how its next renewal is spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewed {
    pub(super) at: Moment,
    pub(super) spread: f64,
    /// Keeps a lease whose renewal stands as it was from being renewed again and again.
    pub(super) pause: Duration,
}

impl OwnedLease {
    /// A lease that was won or renewed; `before` is what is held of the partition.
    pub(super) fn new(lease: Lease, before: Option<&Self>, renewed: Renewed, live_by: KeptAliveBy) -> Self {
        let before = before.filter(|held| held.epoch() == lease.epoch());
        let mark = before.map_or(HandoffRequest::None, |held| held.mark_after(&lease));
        let is_urgent = matches!(mark, HandoffRequest::AcknowledgmentDue | HandoffRequest::OfDead(_));
        let not_before = renewed.at + if is_urgent { Duration::ZERO } else { renewed.pause };
        let record = Record::after(&lease, before.map(|held| held.record), live_by);
        let fate = match before.map(|held| held.fate) {
            Some(Fate::Drain { until }) => Fate::Drain { until },
            Some(Fate::ReleaseNext { until }) => until.map_or(Fate::Keep, |until| Fate::Drain { until }),
            Some(Fate::Keep | Fate::KeepNext) | None => Fate::Keep,
        };
        let mut held = Self {
            known_since: renewed.at,
            renewal: Renewal {
                spread: renewed.spread,
                not_before,
                turn: Turn::NotNeeded,
                failures: 0,
                under_way: false,
            },
            fate,
            record,
            lease: match mark {
                HandoffRequest::None => lease,
                HandoffRequest::OfDead(_) => lease.without_handoff_request(),
                HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged => lease.acknowledging_handoff(),
            },
            mark,
        };
        let in_vain = record.doubted && live_by.heartbeat.is_some();
        if record.rewrite == Rewrite::Due || in_vain || held.lease.record().scope != live_by.scope {
            held.owe_rewriting(live_by.scope);
        }
        held
    }

    fn mark_after(&self, renewed: &Lease) -> HandoffRequest {
        match &self.mark {
            HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged if renewed.record().draining => {
                HandoffRequest::Acknowledged
            }
            HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged => HandoffRequest::AcknowledgmentDue,
            HandoffRequest::OfDead(dead) if renewed.handoff_requested_by() == Some(dead) => {
                HandoffRequest::OfDead(dead.clone())
            }
            HandoffRequest::OfDead(_) | HandoffRequest::None => HandoffRequest::None,
        }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn epoch(&self) -> i64 {
        self.lease.epoch()
    }

    /// Whether a listing that was asked for at `asked` may know less: the lease is being renewed, or its last answer
    /// came since. The write that was answered took effect before that, but perhaps after the listing was made.
    pub(super) fn is_newer_than(&self, asked: Moment) -> bool {
        self.renewal.under_way || self.known_since >= asked
    }

    /// The moment from which the expiry counts.
    pub(super) fn valid_from(&self, live_by: KeptAliveBy) -> Moment {
        let presence = live_by.heartbeat.filter(|_| self.is_by_heartbeat() && !self.record.doubted);
        presence.map_or(self.lease.valid_from(), |presence| presence.last.max(self.lease.valid_from()))
    }

    /// Whether its record says that it lives by the presence of this instance.
    pub(super) fn is_by_heartbeat(&self) -> bool {
        self.record.scope == LeaseScope::Instance
    }
}

/// Renewing.
impl OwnedLease {
    /// When it is due, if each is due at this age; `None` if it is not. A lease that lives by the presence of this
    /// instance is not renewed by itself; one that an instance asked for, or that others may be about to take over, is
    /// written at once.
    pub(super) fn due(&self, age: Duration) -> Option<Moment> {
        if self.renewal.under_way {
            return None;
        }
        let is_urgent = matches!(self.mark, HandoffRequest::AcknowledgmentDue | HandoffRequest::OfDead(_))
            || self.record.rewrite == Rewrite::Due;
        let by_age = || (!self.is_by_heartbeat()).then(|| self.lease.valid_from() + age.mul_f64(self.renewal.spread));
        let due = if is_urgent { Some(Moment::ZERO) } else { by_age() };
        due.map(|due| due.max(self.renewal.not_before))
    }

    pub(super) fn awaits_turn(&self) -> bool {
        self.renewal.turn == Turn::Awaited
    }

    /// It need not wait for its turn any more.
    pub(super) fn has_turn(&mut self) {
        self.renewal.turn = Turn::NotNeeded;
    }

    /// How many of its renewals have failed in a row.
    pub(super) fn failures(&self) -> u32 {
        self.renewal.failures
    }

    pub(super) fn is_renewing(&self) -> bool {
        self.renewal.under_way
    }

    /// It is being renewed from here on.
    pub(super) fn start_renewal(&mut self) -> Lease {
        self.renewal.under_way = true;
        if self.record.rewrite == Rewrite::Due {
            self.record.rewrite = Rewrite::UnderWay;
        }
        self.lease.clone()
    }

    /// Its renewal has ended, whatever its outcome.
    pub(super) fn end_renewal(&mut self) -> Next {
        self.renewal.under_way = false;
        match self.fate {
            Fate::Keep | Fate::Drain { .. } => Next::Nothing,
            Fate::ReleaseNext { .. } => Next::Release,
            Fate::KeepNext => Next::Keep,
        }
    }

    /// Its renewal has failed.
    pub(super) fn postpone(&mut self, not_before: Moment) {
        self.renewal.not_before = not_before;
        self.renewal.failures = self.renewal.failures.saturating_add(1);
        self.renewal.turn = Turn::Awaited;
        if self.record.rewrite == Rewrite::UnderWay {
            self.record.rewrite = Rewrite::Due;
        }
    }

    fn is_due_at_once(&mut self) {
        (self.renewal.not_before, self.renewal.turn) = (Moment::ZERO, Turn::NotNeeded);
    }
}

/// Handing over.
impl OwnedLease {
    /// Another instance asked for it: its record is to say at once that it drains. Returns whether that is news.
    pub(super) fn acknowledge(&mut self) -> bool {
        if self.is_handed_over() {
            return false;
        }
        self.mark = HandoffRequest::AcknowledgmentDue;
        self.is_due_at_once();
        self.lease = self.lease.clone().acknowledging_handoff();
        true
    }

    /// The owner that asked for it has died: renewals take that mark away, the first of them at once. One that does not
    /// know the mark yet meets it, and the next one writes without it.
    pub(super) fn drop_handoff_request(&mut self, dead: &OwnerId) {
        if !self.is_handed_over() {
            self.lease = self.lease.clone().without_handoff_request();
            self.mark = HandoffRequest::OfDead(dead.clone());
            self.is_due_at_once();
        }
    }

    /// Whether it is released because another instance asked for it.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.mark, HandoffRequest::AcknowledgmentDue | HandoffRequest::Acknowledged)
    }
}

/// Releasing.
impl OwnedLease {
    /// It is released when its handler has stopped, or at this moment. Returns whether that is news.
    pub(super) fn drain(&mut self, until: Moment) -> bool {
        let is_news = self.fate == Fate::Keep;
        if is_news {
            self.fate = Fate::Drain { until };
        }
        is_news
    }

    /// It is released when the renewal that is under way has ended.
    pub(super) fn release_next(&mut self) {
        self.fate = Fate::ReleaseNext { until: self.drains_until() };
    }

    /// It is left for the restart of this owner when the renewal that is under way has ended.
    pub(super) fn keep_next(&mut self) {
        self.fate = Fate::KeepNext;
    }

    /// Whether it is to be processed.
    pub(super) fn is_kept(&self) -> bool {
        self.fate == Fate::Keep
    }

    /// Whether it waits for its handler to stop, or for its renewal after that.
    pub(super) fn is_draining(&self) -> bool {
        self.drains_until().is_some()
    }

    /// When it is released although its handler has not stopped.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        match self.fate {
            Fate::Drain { until } => Some(until),
            Fate::Keep | Fate::ReleaseNext { .. } | Fate::KeepNext => None,
        }
    }

    pub(super) fn is_released_next(&self) -> bool {
        matches!(self.fate, Fate::ReleaseNext { .. })
    }

    /// Until when its handler may take to stop.
    pub(super) fn drains_until(&self) -> Option<Moment> {
        match self.fate {
            Fate::Keep | Fate::KeepNext => None,
            Fate::Drain { until } => Some(until),
            Fate::ReleaseNext { until } => until,
        }
    }
}

/// Living by the presence of this instance.
impl OwnedLease {
    /// Its record is to say from here on what keeps it alive.
    pub(super) fn set_scope(&mut self, scope: LeaseScope) {
        if self.lease.record().scope != scope {
            self.owe_rewriting(scope);
        }
    }

    /// This instance was declared dead.
    pub(super) fn doubt(&mut self) {
        self.record.doubted |= self.is_by_heartbeat();
    }

    /// This instance is present. Only now it is worth while to write the record of a lease in doubt: before, it could
    /// have been taken over again.
    pub(super) fn owe_rewriting_if_doubted(&mut self, scope: LeaseScope) {
        if self.record.doubted {
            self.owe_rewriting(scope);
        }
    }

    fn owe_rewriting(&mut self, scope: LeaseScope) {
        self.lease = self.lease.clone().forcing_rewrite(scope);
        self.record.rewrite = Rewrite::Due;
        self.is_due_at_once();
    }
}

impl Record {
    fn after(lease: &Lease, before: Option<Self>, live_by: KeptAliveBy) -> Self {
        let scope = lease.record().scope;
        let is_covered = live_by.heartbeat.is_some_and(|presence| presence.first <= lease.valid_from());
        let rewrite = before.map(|record| record.rewrite).unwrap_or_default();
        // What was written before, and found to stand, is no better than it was.
        let doubted = match before {
            Some(record) if rewrite != Rewrite::UnderWay => record.doubted,
            _ => !is_covered,
        };
        let rewrite = if rewrite == Rewrite::Due { Rewrite::Due } else { Rewrite::No };
        Self { scope, rewrite, doubted: doubted && scope == LeaseScope::Instance }
    }
}
