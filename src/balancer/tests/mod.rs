//! The state, step by step: the inputs, and what the state decides to do. No storage is used, and no time passes.

mod beacon;
mod case_check;
mod claims;
mod cycles;
mod heartbeats;
mod instance_scope;
mod news;
mod receiving_handoff_requests;
mod releases;
mod requesting_handoffs;
mod restarts;
mod shutdown;
mod stalls;
mod stop_on_lease_expiry;
mod storage_failures;
mod unowned_partitions;

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use time::macros::datetime;

use super::config::{BalancerConfig, LoopSettings, OnLeaseExpiry};
use super::events::{Note, OwnershipEvent};
use super::liveness::Stalled;
use super::snapshot::Snapshot;
use super::state::BalancerState;
use super::step::{Action, Done, Happened, LoopCommand, ProcessingEnd, StorageRequest};
use crate::error::{Error, ErrorKind};
use crate::model::{
    ETag, Heartbeat, HeartbeatRecord, Identity, Incarnation, LeaseDurations, LeaseScope, OwnerId, Ownership,
    OwnershipRecord, PartitionId,
};
use crate::planner::{LoadBalancingStrategy, PartitionOwner, ReleaseReason};
use crate::store::membership::{DeclareDeadOutcome, HeartbeatOutcome};
use crate::store::{ClaimOutcome, Lease, ReleaseOutcome};

const LEASE_SECONDS: u64 = 60;
const SECOND: Duration = Duration::from_secs(1);

fn owner(id: &str) -> OwnerId {
    OwnerId::new(id).unwrap()
}

fn incarnation(random: u32) -> Incarnation {
    Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), random)
}

fn record(id: &str) -> OwnershipRecord {
    let lease_duration = Some(60 * SECOND);
    OwnershipRecord { cooperative: true, lease_duration, ..OwnershipRecord::owned_by(owner(id), Some(incarnation(1))) }
}

/// The settings of a loop whose handlers have this many seconds to stop.
fn settings(config: BalancerConfig, drain: u64) -> LoopSettings {
    let lease_duration = Duration::from_secs(LEASE_SECONDS);
    LoopSettings {
        this: Identity::new(owner("me"), incarnation(1)),
        lease_durations: LeaseDurations::new(lease_duration, 3 * lease_duration),
        request_timeout: 5 * SECOND,
        drain_timeout: Duration::from_secs(drain),
        reports_starts: false,
        has_other_name_case: false,
        config,
    }
}

/// The loop of owner `me`, and its last snapshot.
struct Loop {
    state: BalancerState,
    now: Duration,
    snapshot: Snapshot,
    /// Whether the test ends the requests about the beacon itself. Otherwise the group has no beacon, and `step` leaves
    /// these requests out.
    has_beacon: bool,
}

impl Loop {
    /// Creates a loop whose handlers have 10 s to stop.
    fn new(config: BalancerConfig) -> Self {
        Self::with_drain(config, 10)
    }

    fn with_drain(config: BalancerConfig, drain: u64) -> Self {
        Self::of(settings(config, drain))
    }

    fn of(settings: LoopSettings) -> Self {
        let snapshot = Snapshot::with_nothing_known(owner("me"), LeaseScope::Partition);
        Self {
            state: BalancerState::new(settings, StdRng::seed_from_u64(1)),
            now: 1000 * SECOND,
            snapshot,
            has_beacon: false,
        }
    }

    /// Creates a loop over an event hub with this many partitions, which has not listed and has claimed nothing.
    fn started(config: BalancerConfig, partitions: u32) -> Self {
        Self::new(config).began(partitions)
    }

    /// Creates a loop that does not know who else is in the group, because it hands no partitions over.
    fn without_handoffs(partitions: u32) -> Self {
        let mut me = Self::with_drain(BalancerConfig::default(), 0);
        me.step(Happened::Began((0..partitions).map(PartitionId::from).collect()));
        me
    }

    /// Begins with an event hub with this many partitions.
    fn began(mut self, partitions: u32) -> Self {
        self.step(Happened::Began((0..partitions).map(PartitionId::from).collect()));
        self.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        self
    }

    /// Returns in short what the state decides about an input, without what it publishes.
    fn step(&mut self, happened: Happened) -> String {
        let actions = self.state.step(happened, self.now);
        for action in &actions {
            if let Action::Publish(snapshot) = action {
                self.snapshot = (**snapshot).clone();
            }
        }
        let mut decided: Vec<_> = actions.iter().filter_map(short).collect();
        if !self.has_beacon {
            let answers: Vec<_> = actions.iter().filter_map(without_beacon).collect();
            decided.retain(|request| !request.contains("beacon"));
            decided.extend(answers.into_iter().map(|answer| self.done(answer)).filter(|decided| !decided.is_empty()));
        }
        decided.join(", ")
    }

    /// Returns for how long the release that this input causes is repeated, if that is limited.
    fn release_limit(&mut self, happened: Happened) -> Option<Duration> {
        let actions = self.state.step(happened, self.now).into_iter();
        let mut limits = actions.filter_map(|action| match action {
            Action::Request(StorageRequest::Release { until, .. }) => {
                Some(until.map(|until| until.saturating_sub(self.now)))
            }
            _ => None,
        });
        limits.next().expect("nothing is released")
    }

    fn done(&mut self, done: Done) -> String {
        self.step(Happened::Done(done))
    }

    fn command(&mut self, command: LoopCommand) -> String {
        self.step(Happened::Commanded(command))
    }

    /// Reports that the handler of a partition, which was won with epoch 1, has stopped.
    fn stopped(&mut self, partition: u32, settled: bool) -> String {
        let end = ProcessingEnd::Stopped { settled, cooldown: Duration::ZERO };
        self.command(LoopCommand::ProcessingEnded { partition: partition.into(), epoch: 1, end })
    }

    /// Reports that another owner has a partition.
    fn lost(&mut self, partition: u32, epoch: i64) -> String {
        let end = ProcessingEnd::Lost { by: None };
        self.command(LoopCommand::ProcessingEnded { partition: partition.into(), epoch, end })
    }

    /// Wakes the state after this many seconds.
    fn after(&mut self, seconds: u64) -> String {
        self.now += Duration::from_secs(seconds);
        let decided = self.step(Happened::Woke);
        let has_ended = decided.contains("ended") || decided.contains("refused");
        assert!(has_ended || self.state.next_wake().is_none_or(|at| at > self.now), "it would be woken forever");
        decided
    }

    /// Wakes the state every second until it decides this. Returns how many seconds that takes, at most ten minutes.
    fn wake_until(&mut self, expected: &str) -> u64 {
        let waited = (1..=600).find(|_| self.after(1).contains(expected));
        waited.unwrap_or_else(|| panic!("nothing leads to `{expected}`"))
    }

    /// Lists the ownerships of [`listing_of`].
    fn listed(&mut self, owners: &str) -> String {
        self.step(listing_of(owners, self.now))
    }

    fn no_other_heartbeats(&mut self) -> String {
        self.done(Done::HeartbeatsListed(Ok(Vec::new())))
    }

    fn lease(&self, partition: u32, epoch: i64) -> Lease {
        let record = OwnershipRecord { scope: self.snapshot.lease_scope, ..record("me") };
        Lease::of(partition.into(), record, ETag::new("won"), self.now, epoch)
    }

    /// Wins a partition that is being claimed.
    fn wins(&mut self, partition: u32, epoch: i64) -> String {
        let outcome = ClaimOutcome::Won(self.lease(partition, epoch));
        self.done(Done::Claimed { partition: partition.into(), outcome })
    }

    fn renewed(&mut self, partition: u32, epoch: i64) -> String {
        let outcome = ClaimOutcome::Won(self.lease(partition, epoch));
        self.done(Done::Renewed { partition: partition.into(), epoch, outcome })
    }

    /// Creates a loop that claims the only partition.
    fn claiming(config: BalancerConfig) -> Self {
        let mut me = Self::started(config, 1);
        me.after(0);
        me.listed(".");
        assert_eq!(me.no_other_heartbeats(), "claim 0");
        me
    }

    /// Creates a loop that owns this many partitions, all of the event hub's, each with epoch 1, and whose last
    /// cycle found nothing to claim.
    fn owning(config: BalancerConfig, partitions: u32) -> Self {
        let mut owned = Self::started(config.with_load_balancing_strategy(LoadBalancingStrategy::Greedy), partitions);
        owned.after(0);
        owned.listed("");
        owned.no_other_heartbeats();
        (0..partitions).for_each(|partition| drop(owned.wins(partition, 1)));
        owned.after(2);
        owned.listed(&"m".repeat(partitions as usize));
        owned
    }
}

/// Returns a listing with records of these owners, by partition; `-` stands for a released one, `.` for none. The
/// leases of capital letters have expired.
fn listing_of(owners: &str, now: Duration) -> Happened {
    let letters = (0u32..).zip(owners.chars()).filter(|(_, letter)| *letter != '.');
    let seen = letters.map(|(partition, letter)| {
        let age = Duration::from_secs(if letter.is_ascii_uppercase() { 3 * LEASE_SECONDS } else { 0 });
        let record = match letter.to_ascii_lowercase() {
            '-' => OwnershipRecord::default(),
            'm' => record("me"),
            '?' => OwnershipRecord::owned_by(owner("python"), None),
            other => record(&other.to_string()),
        };
        let time = (datetime!(2026-01-01 00:00:00 UTC), now);
        Ownership::new(partition.into(), record, ETag::new("seen"), age, time)
    });
    Happened::Done(Done::Listed(Ok(seen.collect())))
}

/// Returns the answer to a request about the beacon, if there is none and another instance creates it.
fn without_beacon(action: &Action) -> Option<Done> {
    match action {
        Action::Request(StorageRequest::ReadBeacon) => Some(Done::BeaconRead(Ok(None))),
        Action::Request(StorageRequest::LightBeacon(_)) => Some(Done::BeaconLit(Ok(None))),
        _ => None,
    }
}

fn short(action: &Action) -> Option<String> {
    Some(match action {
        Action::Publish(_) | Action::Measure { .. } | Action::Note(Note::CycleTook(_)) => return None,
        Action::Request(request) => short_request(request),
        Action::Emit(event) => short_event(event),
        Action::Note(note) => format!("{note:?}").split(['(', ' ', '{']).next().unwrap_or_default().to_owned(),
        Action::Replaced(_) => "replaced".to_owned(),
        Action::Ended(left) => format!("ended, kept {}, unreleased {}", left.kept, left.unreleased),
        Action::Refused(left, _) => format!("refused, unreleased {}", left.unreleased),
    })
}

fn short_request(request: &StorageRequest) -> String {
    match request {
        StorageRequest::List => "list".to_owned(),
        StorageRequest::ListWithHeartbeats => "list with heartbeats".to_owned(),
        StorageRequest::ListHeartbeats => "list heartbeats".to_owned(),
        StorageRequest::FindCaseConflict => "look at the other casing".to_owned(),
        StorageRequest::DeclareDead { claims, .. } => format!("declare dead for {}", claims.len()),
        StorageRequest::Claim(claim) => format!("claim {}", claim.partition()),
        StorageRequest::Renew(lease) if lease.record().draining => format!("renew {} draining", lease.partition()),
        StorageRequest::Renew(lease) => format!("renew {}", lease.partition()),
        StorageRequest::Release { lease, .. } => format!("release {}", lease.partition()),
        StorageRequest::Keep(lease) => format!("keep {}", lease.partition()),
        StorageRequest::RequestHandoff(seen) => format!("request handoff {}", seen.partition),
        StorageRequest::PollHandoff(handoff) => format!("poll handoff {}", handoff.partition()),
        StorageRequest::SendHeartbeat => "heartbeat".to_owned(),
        StorageRequest::EndHeartbeat { .. } => "end heartbeat".to_owned(),
        StorageRequest::DeleteHeartbeats(_) => "delete heartbeats".to_owned(),
        StorageRequest::ReadBeacon => "read beacon".to_owned(),
        StorageRequest::LightBeacon(_) => "light beacon".to_owned(),
        StorageRequest::RefreshBeacon(_) => "refresh beacon".to_owned(),
        StorageRequest::CheckOwner { owner, .. } => format!("check {owner}"),
    }
}

fn short_event(event: &OwnershipEvent) -> String {
    match event {
        OwnershipEvent::Claimed { partition, .. } => format!("Claimed {partition}"),
        OwnershipEvent::Lost { partition, .. } => format!("Lost {partition}"),
        OwnershipEvent::LeaseExpired { partition } => format!("LeaseExpired {partition}"),
        OwnershipEvent::Releasing { partition, reason } => format!("Releasing {partition} {}", reason.as_str()),
        OwnershipEvent::Released { partition } => format!("Released {partition}"),
        OwnershipEvent::Kept { partition } => format!("Kept {partition}"),
        OwnershipEvent::OwnerAway { owner, partitions } => format!("{owner} away with {partitions}"),
        OwnershipEvent::HandoffRequested { partition, .. } => format!("HandoffRequested {partition}"),
        OwnershipEvent::HandoffReceived { partition, .. } => format!("HandoffReceived {partition}"),
        OwnershipEvent::DuplicatesPossible { partition, cause } => {
            format!("DuplicatesPossible {partition} {}", cause.as_str())
        }
        OwnershipEvent::DeclaredDead { .. } => "DeclaredDead".to_owned(),
        OwnershipEvent::Stalled(stalled) => if stalled.any() { "Stalled" } else { "Recovered" }.to_owned(),
        OwnershipEvent::LimitReached { unclaimed } => format!("LimitReached {unclaimed}"),
    }
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "unavailable")
}
