//! A real state of a balancer, brought into a condition and fed with inputs.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{BalancerConfig, OwnershipEvent, Snapshot};
use eventhubs_checkpoint::internal::balancer::{
    Action, BalancerState, Beacon, Done, Happened, Lit, LoopCommand, LoopSettings, ProcessingEnd, StorageRequest,
};
use eventhubs_checkpoint::internal::planner::{ETag, Heartbeat, Ownership};
use eventhubs_checkpoint::internal::recorded as names;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};
use eventhubs_checkpoint::store::protocol::membership::{HeartbeatOutcome, HeartbeatRecord};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome, Lease, LeaseDurations, ReleaseOutcome};
use eventhubs_checkpoint::{Error, ErrorKind, Identity, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::balancer::{
    Chance, Condition, Emitted, HandoffRequest, Listing, Outcome, Reaction, Renewal, RequestOutcome, Stimulus,
};
use super::listing::{TERMS, old, owned_by, recorded, seen};
use super::scenario::Member;
use super::state::{Keys, Owner};

/// Past every expiry.
const LONG_AGO: Duration = Duration::from_secs(1000);
const STEP: Duration = Duration::from_secs(1);
/// The epoch of the first ownership, and of the next one.
const EPOCH: i64 = 7;
const NEXT_EPOCH: i64 = 8;
/// The owners that request the partition: the first one, and a later one.
const REQUESTER: &str = "asking";
const OTHER_REQUESTER: &str = "also asking";

/// A state, and what it has decided until now.
pub(super) struct Driven {
    state: BalancerState,
    now: Duration,
    lie: Lie,
    members: &'static [Member],
    this: Identity,
    snapshot: Option<Arc<Snapshot>>,
    /// The request for the partition in progress.
    sent: Option<Sent>,
    /// The listing in progress.
    lists: Option<Lists>,
    /// The current or the last lease.
    lease: Option<Lease>,
    handoff: Option<Handoff>,
    handing_over: bool,
    /// The last poll of the requested partition.
    chance: Option<Chance>,
    over: bool,
    emitted: Emitted,
}

/// A request for the partition.
#[derive(Debug)]
enum Sent {
    Claim,
    Renew(Lease),
    Release,
    HandoffRequest(Ownership),
    Poll,
}

/// What the beacon of the group shows instead of the truth. No reaction may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    /// It does not exist, and cannot be created.
    Missing,
    NotReadable,
    /// It never shows a change, and looks young.
    Frozen,
    /// Each read shows a change.
    AlwaysNew,
    /// Another program has written it.
    Foreign,
    /// It shows earlier changes than before.
    Backwards,
}

impl Lie {
    pub(super) const ALL: [Self; 6] =
        [Self::Missing, Self::NotReadable, Self::Frozen, Self::AlwaysNew, Self::Foreign, Self::Backwards];

    /// Returns the answer to a request about the beacon, or about another owner, which seems to be alive.
    fn about(self, request: &StorageRequest, now: Duration) -> Option<Done> {
        let shown = |change| Beacon { change, version: ETag::new("beacon"), age: Duration::ZERO, received: now };
        let now = i64::try_from(now.as_millis()).unwrap();
        let beacon = match self {
            Self::Missing => Ok(None),
            Self::NotReadable => Err(failure()),
            Self::Frozen => Ok(Some(shown(7))),
            Self::AlwaysNew => Ok(Some(shown(now))),
            Self::Foreign => Ok(Some(shown(0))),
            Self::Backwards => Ok(Some(shown(-now))),
        };
        match request {
            StorageRequest::ReadBeacon => Some(Done::BeaconRead(beacon)),
            StorageRequest::RefreshBeacon(_) => Some(Done::BeaconRefreshed(beacon)),
            StorageRequest::LightBeacon(_) => {
                let lit = beacon.map(|beacon| beacon.map(|beacon| Lit { beacon, replaced: None }));
                Some(Done::BeaconLit(if self == Self::Missing { Err(failure()) } else { lit }))
            }
            StorageRequest::CheckOwner { owner, .. } => {
                Some(Done::OwnerChecked { owner: owner.clone(), since_renewal: Ok(Some(STEP)) })
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    Ownerships,
    Heartbeats,
}

fn the_partition() -> PartitionId {
    PartitionId::from(0)
}

fn failure() -> Error {
    Error::new(ErrorKind::Unavailable, "no response")
}

impl Driven {
    /// Returns a state in this condition that can receive this stimulus.
    pub(super) fn into_condition(
        members: &'static [Member],
        number: usize,
        ignores_requests: bool,
        lie: Lie,
        condition: Condition,
        next: Stimulus,
    ) -> Self {
        let holds = matches!(condition, Condition::Held { .. } | Condition::Leaving { .. } | Condition::HandingOver);
        let mut this = Self::begun(members, number, lie, !(ignores_requests && holds));
        match condition {
            // A lease that was given up while its renewal was in progress.
            Condition::Idle if matches!(next, Stimulus::Renewed(_)) => {
                this.holds(false);
                this.until(|this| matches!(this.sent, Some(Sent::Renew(_))));
                this.feed(Stimulus::MarkedLost);
            }
            Condition::Idle => {}
            Condition::Claiming => this.claims(),
            Condition::Held { knows_request } => this.holds(knows_request),
            Condition::Leaving { knows_request } => {
                this.holds(knows_request);
                this.leaves();
            }
            Condition::HandingOver => {
                this.holds(false);
                this.lists_own_with_request();
            }
            Condition::Releasing => {
                this.holds(false);
                this.leaves();
                this.feed(Stimulus::Stopped { settled: true });
            }
            Condition::Requesting => this.requests(),
            Condition::Pending => this.has_requested_it(),
            Condition::Taking => this.claims_after_request(Chance::Take),
            Condition::Stealing => this.claims_after_request(Chance::Steal),
            Condition::Over => unreachable!("it gets no more inputs"),
        }
        assert_eq!(this.condition(), condition, "for {next:?}");
        this
    }

    /// Feeds this stimulus, too.
    pub(super) fn then(mut self, stimulus: Stimulus) -> Self {
        self.prepare(stimulus);
        self.feed(stimulus);
        self
    }

    /// Feeds this stimulus and returns the reaction.
    pub(super) fn reaction(mut self, stimulus: Stimulus) -> Reaction {
        self = self.then(stimulus);
        let renews = match &self.sent {
            Some(Sent::Renew(lease)) if lease.record().draining => Some(Renewal::Draining),
            Some(Sent::Renew(_)) => Some(Renewal::Plain),
            _ => None,
        };
        Reaction {
            after: self.condition(),
            renews,
            epoch: self.snapshot.as_ref().and_then(|snapshot| snapshot.owned.get(&the_partition()).copied()),
            emitted: self.emitted,
        }
    }

    /// Returns the condition, derived from its requests and its snapshot.
    pub(super) fn condition(&self) -> Condition {
        let partition = the_partition();
        let shows = |show: fn(&Snapshot, &PartitionId) -> bool| {
            self.snapshot.as_ref().is_some_and(|snapshot| show(snapshot, &partition))
        };
        let is_asked = shows(|snapshot, partition| snapshot.requested_handoffs.contains_key(partition));
        let is_released = shows(|snapshot, partition| snapshot.releasing.contains_key(partition));
        let knows_request = self.lease.as_ref().is_some_and(|lease| lease.handoff_requested_by().is_some());
        match &self.sent {
            _ if self.over => Condition::Over,
            Some(Sent::Claim) if !is_asked => Condition::Claiming,
            Some(Sent::Claim) if self.chance == Some(Chance::Steal) => Condition::Stealing,
            Some(Sent::Claim) => Condition::Taking,
            Some(Sent::Release) => Condition::Releasing,
            Some(Sent::HandoffRequest(_)) => Condition::Requesting,
            _ if shows(|snapshot, partition| snapshot.owned.contains_key(partition)) => {
                Condition::Held { knows_request }
            }
            _ if is_released && self.handing_over => Condition::HandingOver,
            _ if is_released => Condition::Leaving { knows_request },
            _ if is_asked => Condition::Pending,
            _ => Condition::Idle,
        }
    }
}

/// Inputs.
impl Driven {
    /// Returns a state that has listed the group once: the partition had another owner.
    fn begun(members: &'static [Member], number: usize, lie: Lie, hands_over: bool) -> Self {
        let this = members[number].identity();
        let config = BalancerConfig::default().with_handoff(hands_over);
        let settings = LoopSettings {
            this: this.clone(),
            lease_durations: members[number].lease_durations(),
            request_timeout: 5 * STEP,
            // Enough time for renewals before it expires.
            drain_timeout: members[number].lease_durations().own,
            reports_starts: false,
            has_other_name_case: false,
            config,
        };
        let mut begun = Self {
            state: BalancerState::new(settings, StdRng::seed_from_u64(0)),
            now: LONG_AGO,
            lie,
            members,
            this,
            snapshot: None,
            sent: None,
            lists: None,
            lease: None,
            handoff: None,
            handing_over: false,
            chance: None,
            over: false,
            emitted: Emitted::default(),
        };
        begun.step(Happened::Began([the_partition()].into()));
        begun.until(|begun| begun.lists.is_some());
        begun.list(vec![begun.seen_of_another(0, Duration::ZERO)], Vec::new());
        begun
    }

    fn step(&mut self, happened: Happened) {
        let (mut sends_heartbeat, mut withdraws) = (false, false);
        let mut answers = Vec::new();
        for action in self.state.step(happened, self.now) {
            match action {
                Action::Publish(snapshot) => self.snapshot = Some(snapshot),
                Action::Emit(event) => self.note(&event),
                Action::Request(StorageRequest::List) => self.lists = Some(Lists::Ownerships),
                Action::Request(StorageRequest::ListHeartbeats) => self.lists = Some(Lists::Heartbeats),
                Action::Request(StorageRequest::SendHeartbeat) => sends_heartbeat = true,
                Action::Request(StorageRequest::EndHeartbeat { .. }) => withdraws = true,
                Action::Request(request) => match self.lie.about(&request, self.now) {
                    Some(answer) => answers.push(answer),
                    None => self.send(request),
                },
                Action::Replaced(_) | Action::Ended(_) | Action::Refused(..) => self.over = true,
                Action::Measure { .. } | Action::Note(_) => {}
            }
        }
        if sends_heartbeat {
            self.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        }
        if withdraws {
            self.done(Done::HeartbeatEnded(Ok(())));
        }
        for answer in answers {
            self.done(answer);
        }
    }

    fn done(&mut self, done: Done) {
        self.step(Happened::Done(done));
    }

    fn note(&mut self, event: &OwnershipEvent) {
        match event {
            OwnershipEvent::Claimed { .. } => self.emitted.claimed = true,
            OwnershipEvent::Lost { .. } => self.emitted.lost = true,
            OwnershipEvent::Released { .. } => self.emitted.released = true,
            OwnershipEvent::HandoffReceived { .. } => self.emitted.asked_for = true,
            OwnershipEvent::DuplicatesPossible { .. } => self.emitted.duplicates = true,
            _ => {}
        }
        self.handing_over |= matches!(event, OwnershipEvent::HandoffReceived { .. });
    }

    fn send(&mut self, request: StorageRequest) {
        let sent = match request {
            StorageRequest::Claim(claim) if *claim.partition() != the_partition() => return,
            StorageRequest::Claim(_) => Sent::Claim,
            StorageRequest::Renew(lease) => Sent::Renew(lease),
            StorageRequest::Release { .. } => Sent::Release,
            StorageRequest::RequestHandoff(seen) if seen.partition == the_partition() => Sent::HandoffRequest(seen),
            StorageRequest::PollHandoff { .. } => Sent::Poll,
            other => panic!("nothing led to {other:?}"),
        };
        let before = self.sent.replace(sent);
        assert!(before.is_none(), "operations on one partition come one after another: {before:?}");
    }

    /// Wakes the state repeatedly until the condition holds. Earlier renewals succeed, and earlier listings change
    /// nothing.
    fn until(&mut self, is_reached: impl Fn(&Self) -> bool) {
        for _ in 0..100 {
            if is_reached(self) {
                return;
            }
            match self.sent {
                Some(Sent::Renew(_)) => {
                    self.feed(Stimulus::Renewed(Outcome::Won { again: false, handoff_request: HandoffRequest::Known }));
                }
                Some(Sent::Poll) => self.feed(Stimulus::Polled(Some(Chance::Wait))),
                _ => {}
            }
            self.now = self.now.max(self.state.next_wake().expect("it waits for something"));
            self.step(Happened::Woke);
        }
        panic!("the condition is never reached");
    }

    /// Responds to the listing in progress, and to that of the heartbeats.
    fn list(&mut self, records: Vec<Ownership>, heartbeats: Vec<Heartbeat>) {
        self.lists = None;
        self.done(Done::Listed(Ok(records)));
        if self.lists.take() == Some(Lists::Heartbeats) {
            self.done(Done::HeartbeatsListed(Ok(heartbeats)));
        }
    }

    /// Prepares the request that must precede this stimulus.
    fn prepare(&mut self, stimulus: Stimulus) {
        match stimulus {
            Stimulus::Listed(listing) => {
                if listing.above_share {
                    self.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
                }
                self.until_next_listing();
            }
            Stimulus::StopRequested => {
                self.step(Happened::Hub([].into()));
                self.until_next_listing();
            }
            Stimulus::Renewed(_) => self.until(|this| matches!(this.sent, Some(Sent::Renew(_)))),
            Stimulus::Polled(_) => self.until(|this| matches!(this.sent, Some(Sent::Poll))),
            _ => {}
        }
        self.emitted = Emitted::default();
    }

    /// A listing older than the last change decides nothing.
    fn until_next_listing(&mut self) {
        if self.lists.take().is_some() {
            self.done(Done::Listed(Err(failure())));
        }
        self.until(|this| this.lists.is_some() && this.sent.is_none());
    }

    fn feed(&mut self, stimulus: Stimulus) {
        let partition = the_partition();
        let epoch = self.lease.as_ref().map_or(EPOCH, Lease::epoch);
        let command = |this: &mut Self, command| this.step(Happened::Commanded(command));
        match stimulus {
            Stimulus::Listed(listing) => self.listed(listing),
            Stimulus::RenewalDue => self.until(|this| matches!(this.sent, Some(Sent::Renew(_)))),
            Stimulus::TimeOver => self.until(|this| matches!(this.sent, Some(Sent::Release))),
            Stimulus::Claimed(outcome) => {
                self.sent = None;
                let outcome = self.outcome(outcome, EPOCH);
                self.done(Done::Claimed { partition, outcome });
            }
            Stimulus::Renewed(outcome) => {
                let outcome = self.outcome(outcome, epoch);
                self.sent = None;
                self.done(Done::Renewed { partition, epoch, outcome });
            }
            Stimulus::Released(outcome) => {
                self.sent = None;
                let outcome = match outcome {
                    Outcome::Won { .. } => ReleaseOutcome::Released,
                    Outcome::Lost | Outcome::Replaced => ReleaseOutcome::Lost { by: Some(names::owner("another")) },
                    Outcome::Indeterminate => ReleaseOutcome::Indeterminate(failure()),
                };
                self.done(Done::Released { partition, outcome });
            }
            Stimulus::Requested(requester) => self.requested(requester),
            Stimulus::Polled(chance) => self.polled(chance),
            Stimulus::MarkedLost => {
                let end = ProcessingEnd::Lost { by: None };
                command(self, LoopCommand::ProcessingEnded { partition, epoch, end });
            }
            Stimulus::Stopped { settled } => {
                let end = ProcessingEnd::Stopped { settled, cooldown: Duration::ZERO };
                command(self, LoopCommand::ProcessingEnded { partition, epoch, end });
            }
            Stimulus::ShutDown => command(self, LoopCommand::Shutdown),
            // The event hub does not have the partition for a moment.
            Stimulus::StopRequested => {
                self.list(Vec::new(), Vec::new());
                self.step(Happened::Hub([the_partition()].into()));
            }
        }
    }

    fn listed(&mut self, Listing { owner, live, handoff_request, above_share }: Listing) {
        let record = |owner, handoff_request| {
            recorded(self.members, owner, Keys { handoff_to: handoff_request, ..Keys::default() })
        };
        // A live record may be about to expire, and a reservation to end, unless the record is to be requested.
        let age = |record: &OwnershipRecord| match live {
            false => LONG_AGO,
            true if above_share => Duration::ZERO,
            true if record.owner.is_none() => (TERMS.own + LeaseDurations::GRACE).saturating_sub(STEP),
            true => TERMS.lifetime(record).saturating_sub(STEP),
        };
        let mut records = Vec::new();
        if let Some(owner) = owner {
            let record = record(owner, handoff_request);
            let age = age(&record);
            records.push(seen(the_partition(), record, age, self.now));
        }
        if let Some(owner) = owner.filter(|_| above_share) {
            let others = [1, 2].map(|number| (PartitionId::from(number), record(owner, None)));
            records.extend(others.map(|(partition, record)| {
                let too_old = old(&record);
                seen(partition, record, too_old, self.now)
            }));
        }
        // Whether others are live matters to a requested owner, and to those for whom a release is not reserved.
        let is_own = owner.is_some_and(|owner| record(owner, None).owner.as_ref() == Some(&self.this.owner));
        let requester = handoff_request.filter(|_| is_own || owner == Some(Owner::Unowned));
        let requester = requester.map(|requester| &self.members[requester as usize]);
        let heartbeats = requester.map(|requester| self.present(requester.identity())).into_iter().collect();
        self.list(records, heartbeats);
    }

    fn present(&self, Identity { owner, incarnation, .. }: Identity) -> Heartbeat {
        Heartbeat::new(
            HeartbeatRecord::new(owner, incarnation, TERMS.own),
            ETag::new("there"),
            Duration::ZERO,
            self.now,
        )
    }

    /// Returns the record of another instance.
    fn seen_of_another(&self, partition: u32, age: Duration) -> Ownership {
        let another = Identity::new(names::owner("another"), names::incarnation("0"));
        seen(PartitionId::from(partition), owned_by(another), age, self.now)
    }

    fn outcome(&mut self, outcome: Outcome, epoch: i64) -> ClaimOutcome {
        match outcome {
            Outcome::Won { again, handoff_request } => {
                let lease = self.won(if again { NEXT_EPOCH } else { epoch }, handoff_request);
                self.lease = Some(lease.clone());
                ClaimOutcome::Won(lease)
            }
            Outcome::Lost => ClaimOutcome::Lost { by: Some(names::owner("another")) },
            Outcome::Replaced => ClaimOutcome::Replaced { by: names::incarnation("9") },
            Outcome::Indeterminate => ClaimOutcome::Indeterminate(failure()),
        }
    }

    fn won(&self, epoch: i64, handoff_request: HandoffRequest) -> Lease {
        let known = self.lease.as_ref().and_then(|lease| lease.handoff_requested_by()).cloned();
        let mut record = owned_by(self.this.clone());
        record.draining = matches!(&self.sent, Some(Sent::Renew(lease)) if lease.record().draining);
        record.handoff_to = match handoff_request {
            HandoffRequest::None => None,
            HandoffRequest::Known => known,
            HandoffRequest::New if known.is_some() => Some(names::owner(OTHER_REQUESTER)),
            HandoffRequest::New => Some(names::owner(REQUESTER)),
        };
        Lease::of(the_partition(), record, ETag::new("won"), self.now, epoch)
    }

    fn requested(&mut self, requester: Option<RequestOutcome>) {
        let Some(Sent::HandoffRequest(seen)) = self.sent.take() else { panic!("no request was sent") };
        let outcome = match requester {
            Some(RequestOutcome::Stands) => {
                let handoff = Handoff::requested(the_partition(), &seen.record, TERMS, self.now);
                let mut handoff = handoff.expect("it has an owner");
                handoff.renewed(self.now);
                self.handoff = Some(handoff.clone());
                Ok(HandoffRequestOutcome::Requested(handoff))
            }
            Some(RequestOutcome::Lost) => Ok(HandoffRequestOutcome::Lost),
            Some(RequestOutcome::TooOld) => Ok(HandoffRequestOutcome::LeaseTooOld),
            Some(RequestOutcome::Refused) => Ok(HandoffRequestOutcome::AlreadyRequested),
            None => Err(failure()),
        };
        self.done(Done::HandoffRequested { partition: the_partition(), outcome });
    }

    fn polled(&mut self, chance: Option<Chance>) {
        self.sent = None;
        let handoff = self.handoff.clone().expect("it has a request");
        let claim = || Claim::over(&self.seen_of_another(0, Duration::ZERO));
        let outcome = match chance {
            Some(Chance::Wait) => Ok(HandoffStatus::Pending),
            Some(Chance::Take) => Ok(HandoffStatus::Ready(claim())),
            Some(Chance::Steal) => Ok(HandoffStatus::TimedOut(claim())),
            Some(Chance::Over) => Ok(HandoffStatus::Canceled),
            None => Err(failure()),
        };
        self.chance = chance;
        self.done(Done::HandoffPolled { handoff, outcome });
    }
}

/// Ways into conditions.
impl Driven {
    fn claims(&mut self) {
        self.until(|this| this.lists.is_some());
        self.list(Vec::new(), Vec::new());
    }

    fn holds(&mut self, requested: bool) {
        self.claims();
        let handoff_request = if requested { HandoffRequest::New } else { HandoffRequest::None };
        self.feed(Stimulus::Claimed(Outcome::Won { again: false, handoff_request }));
    }

    /// It is to release the partition, and may claim it again after that.
    fn leaves(&mut self) {
        self.prepare(Stimulus::StopRequested);
        self.feed(Stimulus::StopRequested);
    }

    fn lists_own_with_request(&mut self) {
        self.until(|this| this.lists.is_some());
        let requester = Identity::new(names::owner(REQUESTER), names::incarnation("0"));
        let mut record = owned_by(self.this.clone());
        record.handoff_to = Some(requester.owner.clone());
        let heartbeats = vec![self.present(requester)];
        let own = seen(the_partition(), record, Duration::ZERO, self.now);
        self.list(vec![own], heartbeats);
    }

    /// Another instance owns all three partitions, one of which can be requested.
    fn requests(&mut self) {
        self.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
        self.until(|this| this.lists.is_some());
        let too_old = TERMS.own / 2 + STEP;
        let records = [(0, Duration::ZERO), (1, too_old), (2, too_old)];
        let records = records.map(|(partition, age)| self.seen_of_another(partition, age));
        self.list(records.into(), Vec::new());
        self.step(Happened::Hub([the_partition()].into()));
    }

    fn has_requested_it(&mut self) {
        self.requests();
        self.feed(Stimulus::Requested(Some(RequestOutcome::Stands)));
    }

    fn claims_after_request(&mut self, chance: Chance) {
        self.has_requested_it();
        self.prepare(Stimulus::Polled(None));
        self.feed(Stimulus::Polled(Some(chance)));
    }
}
