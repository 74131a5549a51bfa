//! The state, step by step: the inputs, and what the state decides to do. No storage is used, and no time passes.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use time::macros::datetime;

use super::action::{Action, Request};
use super::config::{BalancerConfig, OnLeaseExpiry, OnStall};
use super::events::OwnershipEvent;
use super::happened::{Command, Done, Happened, Others};
use super::liveness::Stalled;
use super::note::Note;
use super::settings::Settings;
use super::snapshot::Snapshot;
use super::state::State;
use crate::error::{Error, ErrorKind};
use crate::model::{
    ETag, Heartbeat, HeartbeatRecord, Identity, Incarnation, LeaseDurations, LeaseScope, OwnerId, Ownership,
    OwnershipRecord, PartitionId,
};
use crate::planner::{LoadBalancingStrategy, PartitionOwner};
use crate::store::handoff::HandoffTimeouts;
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
    OwnershipRecord { cooperative: true, ..OwnershipRecord::owned_by(owner(id), Some(incarnation(1))) }
}

/// The loop of owner `me`, and its last snapshot.
struct Loop {
    state: State,
    now: Duration,
    snapshot: Snapshot,
}

impl Loop {
    /// Creates a loop whose handlers have 10 s to stop.
    fn new(config: BalancerConfig) -> Self {
        Self::with_drain(config, 10)
    }

    fn with_drain(config: BalancerConfig, drain: u64) -> Self {
        let lease_duration = Duration::from_secs(LEASE_SECONDS);
        let settings = Settings {
            this: Identity::new(owner("me"), incarnation(1)),
            lease_durations: LeaseDurations::new(lease_duration, 3 * lease_duration),
            request_timeout: 5 * SECOND,
            handoff_timeouts: HandoffTimeouts::new(lease_duration / 2 + 5 * SECOND, lease_duration * 3 / 4),
            drain_timeout: Duration::from_secs(drain),
            has_other_name_case: false,
            config,
        };
        let snapshot = Snapshot::unknown(owner("me"), LeaseScope::Partition);
        Self { state: State::new(settings, StdRng::seed_from_u64(1)), now: 1000 * SECOND, snapshot }
    }

    /// Creates a loop over an event hub with this many partitions, which has not listed and has claimed nothing.
    fn started(config: BalancerConfig, partitions: u32) -> Self {
        let mut started = Self::new(config);
        started.step(Happened::Began((0..partitions).map(PartitionId::from).collect()));
        started.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        started
    }

    /// Returns in short what the state decides about an input, without what it publishes.
    fn step(&mut self, happened: Happened) -> String {
        let actions = self.state.step(happened, self.now);
        for action in &actions {
            if let Action::Publish(snapshot) = action {
                self.snapshot = (**snapshot).clone();
            }
        }
        actions.iter().filter_map(short).collect::<Vec<_>>().join(", ")
    }

    fn done(&mut self, done: Done) -> String {
        self.step(Happened::Done(done))
    }

    fn command(&mut self, command: Command) -> String {
        self.step(Happened::Commanded(command))
    }

    /// Wakes the state after this many seconds.
    fn after(&mut self, seconds: u64) -> String {
        self.now += Duration::from_secs(seconds);
        let decided = self.step(Happened::Woke);
        let has_ended = decided.contains("ended");
        assert!(has_ended || self.state.next_wake().is_none_or(|at| at > self.now), "it would be woken forever");
        decided
    }

    /// Lists records of these owners, by partition; `-` stands for a released one, `.` for none. The leases of capital
    /// letters have expired.
    fn listed(&mut self, owners: &str) -> String {
        let letters = (0u32..).zip(owners.chars()).filter(|(_, letter)| *letter != '.');
        let seen = letters.map(|(partition, letter)| {
            let age = Duration::from_secs(if letter.is_ascii_uppercase() { 3 * LEASE_SECONDS } else { 0 });
            let record = match letter.to_ascii_lowercase() {
                '-' => OwnershipRecord::default(),
                'm' => record("me"),
                other => record(&other.to_string()),
            };
            Ownership::new(
                partition.into(),
                record,
                ETag::new("seen"),
                age,
                (datetime!(2026-01-01 00:00:00 UTC), self.now),
            )
        });
        let seen = seen.collect();
        self.done(Done::Listed(Ok(seen)))
    }

    fn no_other_heartbeats(&mut self) -> String {
        self.done(Done::OthersListed(Ok(Others { heartbeats: Some(Vec::new()), other_name_case: Vec::new() })))
    }

    fn lease(&self, partition: u32, epoch: i64) -> Lease {
        Lease::of(partition.into(), record("me"), ETag::new("won"), self.now, epoch)
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

    /// Creates a loop that owns this many partitions, all those of the event hub, each with epoch 1.
    fn owning(config: BalancerConfig, partitions: u32) -> Self {
        let mut owned = Self::started(config.with_load_balancing_strategy(LoadBalancingStrategy::Greedy), partitions);
        owned.after(0);
        owned.listed("");
        owned.no_other_heartbeats();
        (0..partitions).for_each(|partition| drop(owned.wins(partition, 1)));
        owned
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
    })
}

fn short_request(request: &Request) -> String {
    match request {
        Request::List => "list".to_owned(),
        Request::ListOthers { heartbeats, other_name_case } => match (heartbeats, other_name_case) {
            (true, true) => "list heartbeats and other name case".to_owned(),
            (true, false) => "list heartbeats".to_owned(),
            (false, _) => "list other name case".to_owned(),
        },
        Request::DeclareDead { claims, .. } => format!("declare dead for {}", claims.len()),
        Request::Claim(claim) => format!("claim {}", claim.partition()),
        Request::Renew(lease) if lease.record().draining => format!("renew {} draining", lease.partition()),
        Request::Renew(lease) => format!("renew {}", lease.partition()),
        Request::Release { lease, .. } => format!("release {}", lease.partition()),
        Request::Keep(lease) => format!("keep {}", lease.partition()),
        Request::RequestHandoff(seen) => format!("request handoff {}", seen.partition),
        Request::PollHandoff { handoff, .. } => format!("poll handoff {}", handoff.partition()),
        Request::SendHeartbeat => "heartbeat".to_owned(),
        Request::RemoveHeartbeat { .. } => "remove heartbeat".to_owned(),
        Request::DeleteHeartbeats(_) => "delete heartbeats".to_owned(),
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

mod cycles {
    use super::*;

    #[test]
    fn first_cycle_waits_for_the_heartbeat() {
        let mut me = Loop::new(BalancerConfig::default());
        assert_eq!(me.step(Happened::Began([0.into()].into())), "heartbeat");
        assert_eq!(me.after(0), "", "the heartbeat is not written yet");
        assert_eq!(me.done(Done::HeartbeatSent(Err(unavailable()))), "HeartbeatFailed");
        assert_eq!(me.after(0), "list", "a failed heartbeat does not delay it further");
    }

    #[test]
    fn first_cycle_is_immediate_without_handoffs() {
        let mut me = Loop::with_drain(BalancerConfig::default(), 0);
        assert_eq!(me.step(Happened::Began([0.into()].into())), "");
        assert_eq!(me.after(0), "list");
    }

    #[test]
    fn heartbeats_are_listed_before_a_claim() {
        let mut me = Loop::started(BalancerConfig::default(), 2);
        assert_eq!(me.after(0), "list");
        assert_eq!(me.listed(".."), "list heartbeats");
        let claim = me.no_other_heartbeats();
        assert!(["claim 0", "claim 1"].contains(&claim.as_str()), "one partition per interval: {claim}");
    }

    #[test]
    fn claims_under_way_count_as_won() {
        let mut me = Loop::started(
            BalancerConfig::default()
                .with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
                .with_max_partitions(1),
            2,
        );
        me.after(0);
        me.listed("..");
        let first = me.no_other_heartbeats();
        assert!(
            first.contains("claim") && first.ends_with("LimitReached 1") || first.starts_with("LimitReached 1"),
            "{first}"
        );
        assert_eq!(me.after(12), "list");
        me.listed("..");
        assert_eq!(me.no_other_heartbeats(), "", "the claim may still be won");
    }

    #[test]
    fn a_failed_cycle_is_retried_soon() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
        assert_eq!(me.after(1), "list");
        assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
        assert_eq!(me.after(1), "", "the next wait is longer");
        assert_eq!(me.after(1), "list");
    }

    #[test]
    fn a_late_cycle_is_reported() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        assert_eq!(me.after(6), "CycleLate, list");
    }

    #[test]
    fn a_later_incarnation_ends_the_loop() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        let later = OwnershipRecord::owned_by(owner("me"), Some(incarnation(2)));
        let seen = Ownership::new(
            0.into(),
            later,
            ETag::new("seen"),
            Duration::ZERO,
            (datetime!(2026-01-01 00:00:00 UTC), me.now),
        );
        assert_eq!(me.done(Done::Listed(Ok(vec![seen]))), "replaced");
    }

    #[test]
    fn an_older_listing_does_not_drop_a_lease() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert_eq!(me.after(12), "list");
        assert_eq!(me.after(20), "renew 0");
        assert_eq!(me.listed("x"), "", "the current renewal will show it");
        assert_eq!(me.renewed(0, 1), "");
        assert_eq!(me.after(15), "list");
        assert_eq!(me.listed("x"), "Lost 0");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
    }
}

mod claims {
    use super::*;

    #[test]
    fn a_won_lease_is_renewed_at_half_its_duration() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
        assert_eq!(me.state.next_wake().map(|at| at <= me.now + 30 * SECOND), Some(true));
        assert_eq!(me.after(26), "CycleLate, list", "spread by up to a tenth");
        assert_eq!(me.after(4), "renew 0");
        assert_eq!(me.after(4), "", "it is under way");
        assert_eq!(me.renewed(0, 1), "");
    }

    #[test]
    fn a_loss_brings_the_next_cycle_forward() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        assert_eq!(me.no_other_heartbeats(), "claim 0");
        let lost = Done::Claimed { partition: 0.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
        assert_eq!(me.done(lost), "ClaimLost");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
        assert_eq!(me.after(11), "list");
    }

    #[test]
    fn an_indeterminate_claim_is_not_repeated_at_once() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.no_other_heartbeats();
        let indeterminate = ClaimOutcome::Indeterminate(unavailable());
        assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome: indeterminate }), "Indeterminate");
        assert_eq!(me.after(11), "list");
        assert_eq!(me.listed("."), "", "one interval and a half have not passed");
        assert_eq!(me.after(11), "list");
        assert_eq!((me.listed(".").as_str(), me.no_other_heartbeats().as_str()), ("list heartbeats", "claim 0"));
    }

    #[test]
    fn an_expired_owner_is_declared_dead_once() {
        let mut me =
            Loop::started(BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy), 2);
        me.after(0);
        let dead = OwnershipRecord { scope: LeaseScope::Instance, ..record("x") };
        let seen = |partition: u32, now| {
            Ownership::new(
                partition.into(),
                dead.clone(),
                ETag::new("seen"),
                Duration::from_secs(3 * LEASE_SECONDS),
                (datetime!(2026-01-01 00:00:00 UTC), now),
            )
        };
        let listing = vec![seen(0, me.now), seen(1, me.now)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "list heartbeats");
        let heartbeat = HeartbeatRecord::new(owner("x"), incarnation(1));
        let heartbeat =
            Heartbeat::new(heartbeat, ETag::new("heartbeat"), Duration::from_secs(3 * LEASE_SECONDS), me.now);
        let others = Others { heartbeats: Some(vec![heartbeat]), other_name_case: Vec::new() };
        let actions = me.state.step(Happened::Done(Done::OthersListed(Ok(others))), me.now);
        let request = actions.into_iter().find_map(|action| match action {
            Action::Request(Request::DeclareDead { heartbeat, claims, .. }) => Some((heartbeat, claims)),
            _ => None,
        });
        let (heartbeat, claims) = request.unwrap();
        assert_eq!((heartbeat.is_some(), claims.len()), (true, 2), "once for both");
        let alive = me.done(Done::DeclaredDead { claims: claims.clone(), outcome: Ok(DeclareDeadOutcome::StillAlive) });
        assert_eq!(alive, "");
        let unknown = me.done(Done::DeclaredDead { claims: claims.clone(), outcome: Err(unavailable()) });
        assert_eq!(unknown, "Indeterminate");
        let dead = me.done(Done::DeclaredDead { claims, outcome: Ok(DeclareDeadOutcome::Declared) });
        assert_eq!(dead, "claim 0, claim 1");
    }
}

mod releases {
    use super::*;

    fn stopped(partition: u32, settled: bool) -> Command {
        Command::Release { partition: partition.into(), epoch: 1, cooldown: Duration::ZERO, settled }
    }

    #[test]
    fn a_partition_drains_before_it_is_released() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        me.step(Happened::Hub([0.into()].into()));
        assert_eq!(me.after(12), "list");
        assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
        assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
        assert_eq!(me.snapshot.releasing, [1.into()].into());
        assert_eq!(me.command(stopped(1, true)), "release 1");
        let released = Done::Released { partition: 1.into(), outcome: ReleaseOutcome::Released };
        assert_eq!(me.done(released), "Released 1");
        assert_eq!(me.snapshot.releasing, [].into());
    }

    #[test]
    fn a_release_does_not_wait_for_a_stuck_handler() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        me.step(Happened::Hub([0.into()].into()));
        me.after(12);
        me.listed("mm");
        assert!(me.after(29).contains("renew 1"), "10 s, and 20 s for its last checkpoint");
        me.renewed(1, 1);
        assert_eq!(me.after(1), "release 1");
    }

    #[test]
    fn a_release_waits_for_the_current_renewal() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert!(me.after(30).contains("renew 0"));
        assert_eq!(me.command(stopped(0, true)), "Releasing 0 requested");
        assert_eq!(me.snapshot.owned, [].into());
        assert_eq!(me.renewed(0, 1), "release 0");
    }

    #[test]
    fn commands_for_an_earlier_epoch_are_ignored() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        let earlier = Command::Release { partition: 0.into(), epoch: 9, cooldown: Duration::ZERO, settled: true };
        assert_eq!(me.command(earlier), "");
        assert_eq!(me.command(Command::MarkLost { partition: 0.into(), epoch: 9, by: None }), "");
        assert_eq!(me.command(Command::MarkLost { partition: 0.into(), epoch: 1, by: None }), "Lost 0");
    }

    #[test]
    fn a_released_partition_is_not_reclaimed_at_once() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.command(stopped(0, true));
        me.done(Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released });
        assert!(me.after(12).contains("list"));
        assert_eq!(me.listed("-"), "");
    }
}

mod shutdown {
    use super::*;

    #[test]
    fn all_partitions_are_released() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        assert_eq!(
            me.command(Command::Shutdown),
            "Releasing 0 shutdown, release 0, Releasing 1 shutdown, release 1, remove heartbeat"
        );
        let released =
            |partition: u32| Done::Released { partition: partition.into(), outcome: ReleaseOutcome::Released };
        assert_eq!(me.done(released(0)), "Released 0");
        assert_eq!(me.done(released(1)), "Released 1");
        assert_eq!(me.done(Done::HeartbeatRemoved(Ok(()))), "ended, kept 0, unreleased 0");
    }

    #[test]
    fn partitions_not_released_in_time_are_left() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        me.command(Command::Shutdown);
        assert_eq!(me.after(19), "");
        assert_eq!(me.state.next_wake(), Some(me.now + SECOND));
        assert_eq!(me.after(1), "NotReleased, ended, kept 0, unreleased 2");
    }

    #[test]
    fn a_late_win_is_released() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.no_other_heartbeats();
        assert_eq!(me.command(Command::Shutdown), "remove heartbeat");
        assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
    }

    #[test]
    fn nothing_is_claimed_after_stop_claiming() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        assert_eq!(me.command(Command::StopClaiming), "");
        assert_eq!(me.after(0), "remove heartbeat", "other instances leave no share to it");
        assert_eq!(me.after(60), "", "no cycle");
    }

    #[test]
    fn a_later_incarnation_has_no_effect() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.after(30);
        me.command(Command::Shutdown);
        let replaced = ClaimOutcome::Replaced { by: incarnation(2) };
        let outcome = me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome: replaced });
        assert!(!outcome.contains("replaced"), "{outcome}");
    }
}

mod restarts {
    use super::*;

    fn kept(me: &mut Loop, partition: u32) -> String {
        let outcome = ClaimOutcome::Won(me.lease(partition, 1));
        me.done(Done::Kept { partition: partition.into(), outcome })
    }

    #[test]
    fn all_leases_are_renewed_once_more_and_kept() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        assert_eq!(me.command(Command::Keep), "remove heartbeat, keep 0, keep 1");
        me.done(Done::HeartbeatRemoved(Ok(())));
        assert_eq!(kept(&mut me, 0), "Kept 0");
        assert_eq!(kept(&mut me, 1), "Kept 1, ended, kept 2, unreleased 0");
    }

    #[test]
    fn keeping_waits_for_the_current_renewal() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert!(me.after(30).contains("renew 0"));
        assert_eq!(me.command(Command::Keep), "remove heartbeat");
        assert_eq!(me.renewed(0, 1), "keep 0");
    }

    #[test]
    fn a_draining_partition_is_released() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        me.step(Happened::Hub([0.into()].into()));
        me.after(12);
        assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
        assert_eq!(me.command(Command::Keep), "remove heartbeat, keep 0, release 1");
    }

    #[test]
    fn a_late_win_is_released() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.no_other_heartbeats();
        assert_eq!(me.command(Command::Keep), "remove heartbeat");
        assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
    }

    /// Lists a group in which `x` owns two of three partitions and is away, and `me` owns one.
    fn with_one_away(me: &mut Loop) -> String {
        let away = OwnershipRecord { away: true, ..record("x") };
        let seen = |partition: u32, record: OwnershipRecord, now| {
            Ownership::new(
                partition.into(),
                record,
                ETag::new("seen"),
                Duration::ZERO,
                (datetime!(2026-01-01 00:00:00 UTC), now),
            )
        };
        let listing = vec![seen(0, record("me"), me.now), seen(1, away.clone(), me.now), seen(2, away, me.now)];
        me.done(Done::Listed(Ok(listing)))
    }

    #[test]
    fn an_away_owner_is_reported_and_not_stolen_from() {
        let mut me =
            Loop::started(BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy), 3);
        me.after(0);
        assert_eq!(with_one_away(&mut me), "list heartbeats");
        assert_eq!(me.no_other_heartbeats(), "x away with 2, claim 0");
        assert_eq!(me.wins(0, 1), "Claimed 0");
        me.after(12);
        assert_eq!(with_one_away(&mut me), "");
        assert_eq!(me.snapshot.away(), [(owner("x"), 2)].into());
        me.after(30);
        assert_eq!(me.listed("mxx"), "x away with 0");
    }
}

mod requesting_handoffs {
    use super::*;
    use crate::model::OwnershipRecord;
    use crate::store::Claim;
    use crate::store::handoff::{Handoff, HandoffRequestOutcome, HandoffStatus};

    /// Returns a handoff of partition 1, which was requested from `x`.
    fn handoff() -> Handoff {
        let record = OwnershipRecord::owned_by(owner("x"), None);
        Handoff::requested(1.into(), &record, Duration::ZERO).unwrap()
    }

    fn claim() -> Claim {
        Claim::unowned(1.into())
    }

    /// Creates a loop that has requested partition 1 from `x`.
    fn with_requested_handoff() -> (Loop, Handoff) {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
        assert_eq!(me.after(12), "list");
        assert_eq!(me.listed("mxx"), "");
        let handoff = handoff();
        let standing = HandoffRequestOutcome::Requested(handoff.clone());
        assert_eq!(
            me.done(Done::HandoffRequested { partition: 1.into(), outcome: Ok(standing) }),
            "HandoffRequested 1"
        );
        (me, handoff)
    }

    fn polled(me: &mut Loop, handoff: &Handoff, outcome: HandoffStatus<Claim>) -> String {
        me.done(Done::HandoffPolled { handoff: handoff.clone(), outcome: Ok(outcome) })
    }

    #[test]
    fn an_owner_above_its_share_gets_a_request() {
        let mut me = Loop::started(BalancerConfig::default(), 2);
        me.after(0);
        assert_eq!(me.listed("xx"), "", "not in the first cycle");
        assert_eq!(me.after(12), "list");
        me.listed("xx");
        let request = me.no_other_heartbeats();
        assert!(["request handoff 0", "request handoff 1"].contains(&request.as_str()), "{request}");
    }

    #[test]
    fn a_handoff_is_polled_every_half_interval() {
        let (mut me, handoff) = with_requested_handoff();
        assert_eq!(me.snapshot.requested_handoffs, [(1.into(), owner("x"))].into());
        assert_eq!(me.after(4), "");
        assert_eq!(me.after(1), "poll handoff 1");
        assert_eq!(me.after(1), "", "a poll is under way");
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::Pending), "");
        assert!(me.after(5).contains("poll handoff 1"));
    }

    #[test]
    fn a_released_partition_is_claimed() {
        let (mut me, handoff) = with_requested_handoff();
        me.after(5);
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
        assert_eq!(me.wins(1, 2), "Claimed 1");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }

    /// A loop that polled while such a claim took longer than half an interval was woken forever.
    #[test]
    fn a_partition_being_claimed_is_not_polled() {
        let (mut me, handoff) = with_requested_handoff();
        me.after(5);
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
        assert!(!me.after(6).contains("poll handoff"));
        let lost = Done::Claimed { partition: 1.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
        assert_eq!(me.done(lost), "ClaimLost");
        assert!(me.after(1).contains("poll handoff 1"), "its owner renewed it in the meantime");
    }

    #[test]
    fn a_partition_is_stolen_after_the_timeout() {
        let (mut me, handoff) = with_requested_handoff();
        me.after(5);
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "claim 1");
        assert_eq!(me.wins(1, 2), "DuplicatesPossible 1 not_acknowledged, Claimed 1");
    }

    #[test]
    fn nothing_is_stolen_after_an_outage() {
        let (mut me, handoff) = with_requested_handoff();
        let (at, silence) = (me.now, 60 * SECOND);
        assert_eq!(me.step(Happened::OutageEnded { at, silence }), "OutageOver");
        me.after(5);
        assert_eq!(polled(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }

    #[test]
    fn stop_claiming_cancels_handoffs() {
        let (mut me, _) = with_requested_handoff();
        me.command(Command::StopClaiming);
        assert_eq!(me.after(5), "remove heartbeat");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }
}

mod receiving_handoff_requests {
    use super::*;

    /// Returns partition 0 as listed, with a handoff request of `x`.
    fn requested(me: &Loop) -> Ownership {
        let record = OwnershipRecord { handoff_to: Some(owner("x")), ..record("me") };
        Ownership::new(
            0.into(),
            record,
            ETag::new("requested"),
            Duration::ZERO,
            (datetime!(2026-01-01 00:00:00 UTC), me.now),
        )
    }

    /// Lists the request, and whether the requesting instance has a heartbeat.
    fn receives_request(me: &mut Loop, is_there: bool) -> String {
        me.after(12);
        let listing = vec![requested(me)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "list heartbeats");
        let heartbeat = HeartbeatRecord::new(owner("x"), incarnation(1));
        let heartbeat = Heartbeat::new(heartbeat, ETag::new("heartbeat"), Duration::ZERO, me.now);
        let heartbeats = Some(if is_there { vec![heartbeat] } else { Vec::new() });
        me.done(Done::OthersListed(Ok(Others { heartbeats, other_name_case: Vec::new() })))
    }

    #[test]
    fn the_owner_acknowledges_and_drains() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert_eq!(receives_request(&mut me, true), "HandoffReceived 0, Releasing 0 handed_over");
        assert_eq!(me.snapshot.owned, [].into());
        assert_eq!(me.after(0), "renew 0 draining");
        let stopped = Command::Release { partition: 0.into(), epoch: 1, cooldown: Duration::ZERO, settled: true };
        assert_eq!(me.command(stopped), "", "the acknowledgment is under way");
        assert_eq!(me.renewed(0, 1), "release 0");
    }

    #[test]
    fn a_failed_last_batch_is_reported() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        receives_request(&mut me, true);
        let stopped = Command::Release { partition: 0.into(), epoch: 1, cooldown: Duration::ZERO, settled: false };
        assert_eq!(me.command(stopped), "DuplicatesPossible 0 checkpoint_not_written, release 0");
    }

    #[test]
    fn a_request_of_a_dead_owner_is_removed() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        assert_eq!(receives_request(&mut me, false), "");
        assert_eq!(me.after(0), "renew 0");
        assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
    }

    #[test]
    fn a_renewal_also_detects_the_request() {
        let mut me = Loop::owning(BalancerConfig::default(), 1);
        me.after(30);
        let lease = Lease::of(0.into(), requested(&me).record, ETag::new("renewed"), me.now, 1);
        let met = Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Won(lease) };
        assert_eq!(me.done(met), "HandoffReceived 0, Releasing 0 handed_over");
    }

    #[test]
    fn requests_are_ignored_without_a_drain_timeout() {
        let mut me = Loop::with_drain(BalancerConfig::default(), 0);
        me.step(Happened::Began([0.into()].into()));
        me.after(0);
        assert_eq!(me.listed("."), "claim 0");
        me.wins(0, 1);
        me.after(12);
        let listing = vec![requested(&me)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "");
    }
}

mod instance_scope {
    use super::*;

    fn config() -> BalancerConfig {
        BalancerConfig::default().with_lease_scope(LeaseScope::Instance)
    }

    fn lease(me: &Loop, partition: u32) -> Lease {
        let record = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
        Lease::of(partition.into(), record, ETag::new("won"), me.now, 1)
    }

    fn owning() -> Loop {
        let mut me = Loop::started(config(), 1);
        me.after(0);
        me.listed(".");
        me.no_other_heartbeats();
        let outcome = ClaimOutcome::Won(lease(&me, 0));
        assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome }), "Claimed 0");
        me
    }

    #[test]
    fn only_the_heartbeat_is_renewed() {
        let mut me = owning();
        assert_eq!(me.after(30), "heartbeat, CycleLate, list");
        assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))), "");
        assert!(!me.after(30).contains("renew"));
    }

    #[test]
    fn all_leases_are_rewritten_after_declared_dead() {
        let mut me = owning();
        me.after(30);
        assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::DeclaredDead { by: None }))), "DeclaredDead");
        assert_eq!(me.after(0), "heartbeat", "before the heartbeat, a record could be taken over again");
        me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        assert_eq!(me.after(0), "renew 0");
        let outcome = ClaimOutcome::Won(lease(&me, 0));
        me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
        assert_eq!(me.after(1), "");
    }

    #[test]
    fn a_foreign_owner_ends_the_instance_scope() {
        let mut me = owning();
        me.after(12);
        let foreign = OwnershipRecord::owned_by(owner("python"), None);
        let own = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
        let seen = |partition: u32, record, now| {
            Ownership::new(
                partition.into(),
                record,
                ETag::new("seen"),
                Duration::ZERO,
                (datetime!(2026-01-01 00:00:00 UTC), now),
            )
        };
        me.step(Happened::Hub([0.into(), 1.into()].into()));
        let listing = vec![seen(0, own, me.now), seen(1, foreign, me.now)];
        let decided = me.done(Done::Listed(Ok(listing)));
        assert_eq!(decided, "ScopeGivenUp");
        assert_eq!(me.snapshot.lease_scope, LeaseScope::Partition);
        assert!(me.after(0).contains("renew 0"), "with the other lease scope");
    }
}

mod stalls {
    use super::*;

    fn stalled(partition: u32) -> Stalled {
        Stalled { partitions: [partition.into()].into(), ..Stalled::default() }
    }

    #[test]
    fn stalls_are_only_reported_by_default() {
        let mut me = Loop::owning(BalancerConfig::default(), 2);
        assert_eq!(me.step(Happened::Liveness(stalled(1))), "Stalled");
        assert_eq!(me.snapshot.stalled, stalled(1));
        assert_eq!(me.step(Happened::Liveness(Stalled::default())), "Recovered");
    }

    #[test]
    fn on_stall_release_releases_the_partition() {
        let mut me = Loop::owning(BalancerConfig::default().with_on_stall(OnStall::Release), 2);
        assert_eq!(me.step(Happened::Liveness(stalled(1))), "Stalled, Releasing 1 stalled");
    }

    #[test]
    fn a_stalled_runtime_claims_nothing() {
        let mut me = Loop::started(BalancerConfig::default(), 1);
        me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
        assert_eq!(me.after(0), "remove heartbeat, list");
        assert_eq!(me.listed("."), "");
    }
}

mod stop_on_lease_expiry {
    use super::*;

    #[test]
    fn leases_end_before_the_lease_duration() {
        let mut me = Loop::owning(BalancerConfig::default().with_on_lease_expiry(OnLeaseExpiry::Stop), 1);
        assert!(me.after(30).contains("renew 0"));
        let failed =
            Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Indeterminate(unavailable()) };
        assert_eq!(me.done(failed), "Indeterminate");
        assert!(!me.after(17).contains("LeaseExpired"));
        assert!(me.after(1).contains("LeaseExpired 0"), "60 s less 2 s of grace and 10 s to stop");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Reclaimable));
    }
}
