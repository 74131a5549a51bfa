//! The state, step by step: what happened, and what it decides to do. No storage, no time that passes.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use time::macros::datetime;

use super::action::{Action, Request};
use super::config::{BalancerConfig, OnLeaseExpiry, OnStall};
use super::events::OwnershipEvent;
use super::happened::{Command, Done, Happened, Others};
use super::note::Note;
use super::settings::Settings;
use super::snapshot::Snapshot;
use super::state::State;
use super::vitals::Stalled;
use crate::error::{Error, ErrorKind};
use crate::model::{
    ETag, Heartbeat, HeartbeatRecord, Identity, Incarnation, LeaseDurations, LeaseScope, OwnerId, Ownership,
    OwnershipRecord, PartitionId,
};
use crate::planner::{LoadBalancingStrategy, PartitionOwner};
use crate::store::{ClaimOutcome, DeclareDeadOutcome, HandoffTimeouts, HeartbeatOutcome, Lease, ReleaseOutcome};

const EXPIRY: u64 = 60;
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

/// A loop of owner `me`, and what its last step decided.
struct Loop {
    state: State,
    now: Duration,
    snapshot: Snapshot,
}

impl Loop {
    /// Handlers are given 10 s to stop.
    fn new(config: BalancerConfig) -> Self {
        Self::with_drain(config, 10)
    }

    fn with_drain(config: BalancerConfig, drain: u64) -> Self {
        let expiry = Duration::from_secs(EXPIRY);
        let settings = Settings {
            this: Identity::new(owner("me"), incarnation(1)),
            lease_durations: LeaseDurations::new(expiry, 3 * expiry),
            request_timeout: 5 * SECOND,
            handoff_timeouts: HandoffTimeouts::new(expiry / 2 + 5 * SECOND, expiry * 3 / 4),
            drain_timeout: Duration::from_secs(drain),
            has_other_name_case: false,
            config,
        };
        let snapshot = Snapshot::unknown(owner("me"), LeaseScope::Partition);
        Self { state: State::new(settings, StdRng::seed_from_u64(1)), now: 1000 * SECOND, snapshot }
    }

    /// One that has listed a hub of so many partitions, without a record, and has claimed nothing yet.
    fn begun(config: BalancerConfig, partitions: u32) -> Self {
        let mut begun = Self::new(config);
        begun.step(Happened::Began((0..partitions).map(PartitionId::from).collect()));
        begun.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        begun
    }

    /// What it decides, in short, without what it publishes.
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

    /// It is woken after so many seconds.
    fn after(&mut self, seconds: u64) -> String {
        self.now += Duration::from_secs(seconds);
        let decided = self.step(Happened::Woke);
        let has_ended = decided.contains("ended");
        assert!(has_ended || self.state.next_wake().is_none_or(|at| at > self.now), "it would be woken for ever");
        decided
    }

    /// Records of these owners, by partition; `-` stands for a released one, `.` for none. Capital letters have expired.
    fn listed(&mut self, owners: &str) -> String {
        let letters = (0u32..).zip(owners.chars()).filter(|(_, letter)| *letter != '.');
        let seen = letters.map(|(partition, letter)| {
            let age = Duration::from_secs(if letter.is_ascii_uppercase() { 3 * EXPIRY } else { 0 });
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

    fn nobody_else(&mut self) -> String {
        self.done(Done::OthersListed(Ok(Others { heartbeats: Some(Vec::new()), other_name_case: Vec::new() })))
    }

    fn lease(&self, partition: u32, epoch: i64) -> Lease {
        Lease::of(partition.into(), record("me"), ETag::new("won"), self.now, epoch)
    }

    /// It wins a partition that it claims.
    fn wins(&mut self, partition: u32, epoch: i64) -> String {
        let outcome = ClaimOutcome::Won(self.lease(partition, epoch));
        self.done(Done::Claimed { partition: partition.into(), outcome })
    }

    fn renewed(&mut self, partition: u32, epoch: i64) -> String {
        let outcome = ClaimOutcome::Won(self.lease(partition, epoch));
        self.done(Done::Renewed { partition: partition.into(), epoch, outcome })
    }

    /// It holds so many partitions, all of them the hub's, each in tenure 1.
    fn holding(config: BalancerConfig, partitions: u32) -> Self {
        let mut held = Self::begun(config.with_load_balancing_strategy(LoadBalancingStrategy::Greedy), partitions);
        held.after(0);
        held.listed("");
        held.nobody_else();
        (0..partitions).for_each(|partition| drop(held.wins(partition, 1)));
        held
    }
}

fn short(action: &Action) -> Option<String> {
    Some(match action {
        Action::Publish(_) | Action::Measure { .. } | Action::Note(Note::CycleTook(_)) => return None,
        Action::Request(request) => short_request(request),
        Action::Emit(event) => short_event(event),
        Action::Note(note) => format!("{note:?}").split(['(', ' ', '{']).next().unwrap_or_default().to_owned(),
        Action::FallBack => "fall back".to_owned(),
        Action::Replaced(_) => "replaced".to_owned(),
        Action::Ended(left) => format!("ended, kept {}, unreleased {}", left.kept, left.unreleased),
    })
}

fn short_request(request: &Request) -> String {
    match request {
        Request::List => "list".to_owned(),
        Request::ListOthers { heartbeats: presences, other_name_case: other_tree } => match (presences, other_tree) {
            (true, true) => "list presences and other tree".to_owned(),
            (true, false) => "list presences".to_owned(),
            (false, _) => "list other tree".to_owned(),
        },
        Request::DeclareDead { claims, .. } => format!("declare dead for {}", claims.len()),
        Request::Claim(claim) => format!("claim {}", claim.partition()),
        Request::Renew(lease) if lease.record().draining => format!("renew {} draining", lease.partition()),
        Request::Renew(lease) => format!("renew {}", lease.partition()),
        Request::Release { lease, .. } => format!("release {}", lease.partition()),
        Request::Keep(lease) => format!("keep {}", lease.partition()),
        Request::RequestHandoff(seen) => format!("mark {}", seen.partition),
        Request::PollHandoff { handoff, .. } => format!("pursue {}", handoff.partition()),
        Request::SendHeartbeat => "heartbeat".to_owned(),
        Request::RemoveHeartbeat { .. } => "withdraw".to_owned(),
        Request::DeleteHeartbeats(_) => "clear".to_owned(),
    }
}

fn short_event(event: &OwnershipEvent) -> String {
    match event {
        OwnershipEvent::Claimed { partition, .. } => format!("Claimed {partition}"),
        OwnershipEvent::Lost { partition, .. } => format!("Lost {partition}"),
        OwnershipEvent::LeaseExpired { partition } => format!("Outlived {partition}"),
        OwnershipEvent::Releasing { partition, reason } => format!("Releasing {partition} {}", reason.as_str()),
        OwnershipEvent::Released { partition } => format!("Released {partition}"),
        OwnershipEvent::Kept { partition } => format!("Kept {partition}"),
        OwnershipEvent::OwnerAway { owner, partitions } => format!("{owner} away with {partitions}"),
        OwnershipEvent::HandoffRequested { partition, .. } => format!("Asked {partition}"),
        OwnershipEvent::HandoffReceived { partition, .. } => format!("AskedFor {partition}"),
        OwnershipEvent::DuplicatesPossible { partition, cause } => format!("Duplicates {partition} {}", cause.as_str()),
        OwnershipEvent::DeclaredDead { .. } => "DeclaredDead".to_owned(),
        OwnershipEvent::Stalled(stalled) => if stalled.any() { "Stalled" } else { "Well" }.to_owned(),
        OwnershipEvent::LimitReached { unclaimed } => format!("Capped {unclaimed}"),
    }
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "away")
}

mod cycles {
    use super::*;

    #[test]
    fn the_first_waits_for_the_presence() {
        let mut me = Loop::new(BalancerConfig::default());
        assert_eq!(me.step(Happened::Began([0.into()].into())), "heartbeat");
        assert_eq!(me.after(0), "", "it is not known yet");
        assert_eq!(me.done(Done::HeartbeatSent(Err(unavailable()))), "HeartbeatFailed");
        assert_eq!(me.after(0), "list", "nor does it wait for ever");
    }

    #[test]
    fn without_handoffs_the_first_begins_at_once() {
        let mut me = Loop::with_drain(BalancerConfig::default(), 0);
        assert_eq!(me.step(Happened::Began([0.into()].into())), "");
        assert_eq!(me.after(0), "list");
    }

    #[test]
    fn presences_are_listed_before_a_claim() {
        let mut me = Loop::begun(BalancerConfig::default(), 2);
        assert_eq!(me.after(0), "list");
        assert_eq!(me.listed(".."), "list presences");
        let claim = me.nobody_else();
        assert!(["claim 0", "claim 1"].contains(&claim.as_str()), "one partition an interval: {claim}");
    }

    #[test]
    fn what_is_under_way_counts_as_won() {
        let mut me = Loop::begun(
            BalancerConfig::default()
                .with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
                .with_max_partitions(1),
            2,
        );
        me.after(0);
        me.listed("..");
        let first = me.nobody_else();
        assert!(first.contains("claim") && first.ends_with("Capped 1") || first.starts_with("Capped 1"), "{first}");
        assert_eq!(me.after(12), "list");
        me.listed("..");
        assert_eq!(me.nobody_else(), "", "the claim may still be won");
    }

    #[test]
    fn a_failure_is_followed_by_a_short_wait() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.after(0);
        assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
        assert_eq!(me.after(1), "list");
        assert_eq!(me.done(Done::Listed(Err(unavailable()))), "CycleFailed");
        assert_eq!(me.after(1), "", "the next wait is longer");
        assert_eq!(me.after(1), "list");
    }

    #[test]
    fn one_that_is_late_is_noted() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        assert_eq!(me.after(6), "CycleLate, list");
    }

    #[test]
    fn a_later_incarnation_ends_the_loop() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
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
    fn an_older_listing_takes_nothing_away() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert_eq!(me.after(12), "list");
        assert_eq!(me.after(20), "renew 0");
        assert_eq!(me.listed("x"), "", "the renewal that is under way will show it");
        assert_eq!(me.renewed(0, 1), "");
        assert_eq!(me.after(15), "list");
        assert_eq!(me.listed("x"), "Lost 0");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
    }
}

mod claims {
    use super::*;

    #[test]
    fn a_win_is_held_and_renewed_at_half_the_expiry() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
        assert_eq!(me.state.next_wake().map(|at| at <= me.now + 30 * SECOND), Some(true));
        assert_eq!(me.after(26), "CycleLate, list", "spread by up to a tenth");
        assert_eq!(me.after(4), "renew 0");
        assert_eq!(me.after(4), "", "it is under way");
        assert_eq!(me.renewed(0, 1), "");
    }

    #[test]
    fn a_loss_brings_the_next_cycle_forward() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        assert_eq!(me.nobody_else(), "claim 0");
        let lost = Done::Claimed { partition: 0.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
        assert_eq!(me.done(lost), "ClaimLost");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
        assert_eq!(me.after(11), "list");
    }

    #[test]
    fn an_undecided_one_is_not_repeated_at_once() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.nobody_else();
        let undecided = ClaimOutcome::Indeterminate(unavailable());
        assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome: undecided }), "Indeterminate");
        assert_eq!(me.after(11), "list");
        assert_eq!(me.listed("."), "", "one interval and a half have not passed");
        assert_eq!(me.after(11), "list");
        assert_eq!((me.listed(".").as_str(), me.nobody_else().as_str()), ("list presences", "claim 0"));
    }

    #[test]
    fn an_owner_that_lives_by_its_presence_is_declared_dead() {
        let mut me =
            Loop::begun(BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy), 2);
        me.after(0);
        let dead = OwnershipRecord { scope: LeaseScope::Instance, ..record("x") };
        let seen = |partition: u32, now| {
            Ownership::new(
                partition.into(),
                dead.clone(),
                ETag::new("seen"),
                Duration::from_secs(3 * EXPIRY),
                (datetime!(2026-01-01 00:00:00 UTC), now),
            )
        };
        let listing = vec![seen(0, me.now), seen(1, me.now)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "list presences");
        let presence = HeartbeatRecord::new(owner("x"), incarnation(1));
        let presence = Heartbeat::new(presence, ETag::new("there"), Duration::from_secs(3 * EXPIRY), me.now);
        let others = Others { heartbeats: Some(vec![presence]), other_name_case: Vec::new() };
        let actions = me.state.step(Happened::Done(Done::OthersListed(Ok(others))), me.now);
        let request = actions.into_iter().find_map(|action| match action {
            Action::Request(Request::DeclareDead { heartbeat: presence, claims, .. }) => Some((presence, claims)),
            _ => None,
        });
        let (presence, claims) = request.unwrap();
        assert_eq!((presence.is_some(), claims.len()), (true, 2), "once for both");
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
        let mut me = Loop::holding(BalancerConfig::default(), 2);
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
    fn a_handler_that_does_not_stop_is_not_waited_for() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        me.step(Happened::Hub([0.into()].into()));
        me.after(12);
        me.listed("mm");
        assert!(me.after(29).contains("renew 1"), "10 s, and 20 s for its last checkpoint");
        me.renewed(1, 1);
        assert_eq!(me.after(1), "release 1");
    }

    #[test]
    fn a_renewal_that_is_under_way_comes_first() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert!(me.after(30).contains("renew 0"));
        assert_eq!(me.command(stopped(0, true)), "Releasing 0 requested");
        assert_eq!(me.snapshot.owned, [].into());
        assert_eq!(me.renewed(0, 1), "release 0");
    }

    #[test]
    fn what_belongs_to_an_earlier_tenure_is_ignored() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        let earlier = Command::Release { partition: 0.into(), epoch: 9, cooldown: Duration::ZERO, settled: true };
        assert_eq!(me.command(earlier), "");
        assert_eq!(me.command(Command::MarkLost { partition: 0.into(), epoch: 9, by: None }), "");
        assert_eq!(me.command(Command::MarkLost { partition: 0.into(), epoch: 1, by: None }), "Lost 0");
    }

    #[test]
    fn what_was_released_is_not_taken_back_at_once() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        me.command(stopped(0, true));
        me.done(Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released });
        assert!(me.after(12).contains("list"));
        assert_eq!(me.listed("-"), "");
    }
}

mod end {
    use super::*;

    #[test]
    fn everything_is_released() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        assert_eq!(
            me.command(Command::Shutdown),
            "Releasing 0 shutdown, release 0, Releasing 1 shutdown, release 1, withdraw"
        );
        let released =
            |partition: u32| Done::Released { partition: partition.into(), outcome: ReleaseOutcome::Released };
        assert_eq!(me.done(released(0)), "Released 0");
        assert_eq!(me.done(released(1)), "Released 1");
        assert_eq!(me.done(Done::HeartbeatRemoved(Ok(()))), "ended, kept 0, unreleased 0");
    }

    #[test]
    fn what_is_not_released_in_time_is_left() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        me.command(Command::Shutdown);
        assert_eq!(me.after(19), "");
        assert_eq!(me.state.next_wake(), Some(me.now + SECOND));
        assert_eq!(me.after(1), "NotReleased, ended, kept 0, unreleased 2");
    }

    #[test]
    fn what_is_won_by_then_is_released() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.nobody_else();
        assert_eq!(me.command(Command::Shutdown), "withdraw");
        assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
    }

    #[test]
    fn nothing_more_is_claimed_once_it_is_near() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        assert_eq!(me.command(Command::StopClaiming), "");
        assert_eq!(me.after(0), "withdraw", "no share is left to it");
        assert_eq!(me.after(60), "", "no cycle");
    }

    #[test]
    fn a_later_incarnation_changes_nothing() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
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
    fn everything_is_renewed_once_more_and_left() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        assert_eq!(me.command(Command::Keep), "withdraw, keep 0, keep 1");
        me.done(Done::HeartbeatRemoved(Ok(())));
        assert_eq!(kept(&mut me, 0), "Kept 0");
        assert_eq!(kept(&mut me, 1), "Kept 1, ended, kept 2, unreleased 0");
    }

    #[test]
    fn a_renewal_that_is_under_way_comes_first() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert!(me.after(30).contains("renew 0"));
        assert_eq!(me.command(Command::Keep), "withdraw");
        assert_eq!(me.renewed(0, 1), "keep 0");
    }

    #[test]
    fn what_is_draining_is_released() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        me.step(Happened::Hub([0.into()].into()));
        me.after(12);
        assert_eq!(me.listed("mm"), "Releasing 1 partition_removed");
        assert_eq!(me.command(Command::Keep), "withdraw, keep 0, release 1");
    }

    #[test]
    fn a_claim_that_is_won_by_then_is_released() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.after(0);
        me.listed(".");
        me.nobody_else();
        assert_eq!(me.command(Command::Keep), "withdraw");
        assert_eq!(me.wins(0, 1), "Claimed 0, Releasing 0 shutdown, release 0");
    }

    /// The listing of a group in which `x` holds two of three partitions and is away, and `me` one.
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
    fn an_owner_that_is_away_is_reported_and_left_alone() {
        let mut me =
            Loop::begun(BalancerConfig::default().with_load_balancing_strategy(LoadBalancingStrategy::Greedy), 3);
        me.after(0);
        assert_eq!(with_one_away(&mut me), "list presences");
        assert_eq!(me.nobody_else(), "x away with 2, claim 0");
        assert_eq!(me.wins(0, 1), "Claimed 0");
        me.after(12);
        assert_eq!(with_one_away(&mut me), "");
        assert_eq!(me.snapshot.away(), [(owner("x"), 2)].into());
        me.after(30);
        assert_eq!(me.listed("mxx"), "x away with 0");
    }
}

mod asking {

    use super::*;
    use crate::model::OwnershipRecord;
    use crate::store::{Claim, Handoff, HandoffRequestOutcome, HandoffStatus};

    /// A mark that stands in the record of `x` for partition 1.
    fn handoff() -> Handoff {
        let record = OwnershipRecord::owned_by(owner("x"), None);
        Handoff::requested(1.into(), &record, Duration::ZERO).unwrap()
    }

    fn claim() -> Claim {
        Claim::unowned(1.into())
    }

    /// A loop that has asked `x` for partition 1.
    fn having_asked() -> (Loop, Handoff) {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
        assert_eq!(me.after(12), "list");
        assert_eq!(me.listed("mxx"), "");
        let handoff = handoff();
        let standing = HandoffRequestOutcome::Requested(handoff.clone());
        assert_eq!(me.done(Done::HandoffRequested { partition: 1.into(), outcome: Ok(standing) }), "Asked 1");
        (me, handoff)
    }

    fn pursued(me: &mut Loop, handoff: &Handoff, outcome: HandoffStatus<Claim>) -> String {
        me.done(Done::HandoffPolled { handoff: handoff.clone(), outcome: Ok(outcome) })
    }

    #[test]
    fn an_owner_above_its_share_is_asked() {
        let mut me = Loop::begun(BalancerConfig::default(), 2);
        me.after(0);
        assert_eq!(me.listed("xx"), "", "not in the first cycle");
        assert_eq!(me.after(12), "list");
        me.listed("xx");
        let mark = me.nobody_else();
        assert!(["mark 0", "mark 1"].contains(&mark.as_str()), "{mark}");
    }

    #[test]
    fn the_record_is_looked_at_every_half_interval() {
        let (mut me, handoff) = having_asked();
        assert_eq!(me.snapshot.requested_handoffs, [(1.into(), owner("x"))].into());
        assert_eq!(me.after(4), "");
        assert_eq!(me.after(1), "pursue 1");
        assert_eq!(me.after(1), "", "it is being looked at");
        assert_eq!(pursued(&mut me, &handoff, HandoffStatus::Pending), "");
        assert!(me.after(5).contains("pursue 1"));
    }

    #[test]
    fn what_was_released_is_claimed() {
        let (mut me, handoff) = having_asked();
        me.after(5);
        assert_eq!(pursued(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
        assert_eq!(me.wins(1, 2), "Claimed 1");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }

    /// The loop was woken for ever while such a claim took longer than half an interval.
    #[test]
    fn what_is_being_claimed_is_not_looked_at() {
        let (mut me, handoff) = having_asked();
        me.after(5);
        assert_eq!(pursued(&mut me, &handoff, HandoffStatus::Ready(claim())), "claim 1");
        assert!(!me.after(6).contains("pursue"));
        let lost = Done::Claimed { partition: 1.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
        assert_eq!(me.done(lost), "ClaimLost");
        assert!(me.after(1).contains("pursue 1"), "its owner renewed it meanwhile");
    }

    #[test]
    fn an_owner_that_does_not_respond_is_stolen_from() {
        let (mut me, handoff) = having_asked();
        me.after(5);
        assert_eq!(pursued(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "claim 1");
        assert_eq!(me.wins(1, 2), "Duplicates 1 not_acknowledged, Claimed 1");
    }

    #[test]
    fn after_an_outage_nothing_is_stolen() {
        let (mut me, handoff) = having_asked();
        let (at, silence) = (me.now, 60 * SECOND);
        assert_eq!(me.step(Happened::OutageEnded { at, silence }), "OutageOver");
        me.after(5);
        assert_eq!(pursued(&mut me, &handoff, HandoffStatus::TimedOut(claim())), "");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }

    #[test]
    fn an_instance_that_claims_nothing_asks_no_further() {
        let (mut me, _) = having_asked();
        me.command(Command::StopClaiming);
        assert_eq!(me.after(5), "withdraw");
        assert_eq!(me.snapshot.requested_handoffs, [].into());
    }
}

mod being_asked {
    use super::*;

    /// Partition 0 as listed, with a mark of `x`.
    fn marked(me: &Loop) -> Ownership {
        let record = OwnershipRecord { handoff_to: Some(owner("x")), ..record("me") };
        Ownership::new(
            0.into(),
            record,
            ETag::new("marked"),
            Duration::ZERO,
            (datetime!(2026-01-01 00:00:00 UTC), me.now),
        )
    }

    /// A listing shows the mark, and whether its author is there.
    fn sees_a_mark(me: &mut Loop, is_there: bool) -> String {
        me.after(12);
        let listing = vec![marked(me)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "list presences");
        let presence = HeartbeatRecord::new(owner("x"), incarnation(1));
        let presence = Heartbeat::new(presence, ETag::new("there"), Duration::ZERO, me.now);
        let presences = Some(if is_there { vec![presence] } else { Vec::new() });
        me.done(Done::OthersListed(Ok(Others { heartbeats: presences, other_name_case: Vec::new() })))
    }

    #[test]
    fn it_drains_and_says_so() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert_eq!(sees_a_mark(&mut me, true), "AskedFor 0, Releasing 0 handed_over");
        assert_eq!(me.snapshot.owned, [].into());
        assert_eq!(me.after(0), "renew 0 draining");
        let stopped = Command::Release { partition: 0.into(), epoch: 1, cooldown: Duration::ZERO, settled: true };
        assert_eq!(me.command(stopped), "", "the acknowledgment is under way");
        assert_eq!(me.renewed(0, 1), "release 0");
    }

    #[test]
    fn a_handler_that_fails_at_the_end_is_reported() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        sees_a_mark(&mut me, true);
        let stopped = Command::Release { partition: 0.into(), epoch: 1, cooldown: Duration::ZERO, settled: false };
        assert_eq!(me.command(stopped), "Duplicates 0 checkpoint_not_written, release 0");
    }

    #[test]
    fn the_mark_of_a_dead_owner_is_taken_away() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        assert_eq!(sees_a_mark(&mut me, false), "");
        assert_eq!(me.after(0), "renew 0");
        assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
    }

    #[test]
    fn a_renewal_that_meets_the_mark_is_enough() {
        let mut me = Loop::holding(BalancerConfig::default(), 1);
        me.after(30);
        let lease = Lease::of(0.into(), marked(&me).record, ETag::new("met"), me.now, 1);
        let met = Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Won(lease) };
        assert_eq!(me.done(met), "AskedFor 0, Releasing 0 handed_over");
    }

    #[test]
    fn where_handlers_have_no_time_to_stop_it_is_ignored() {
        let mut me = Loop::with_drain(BalancerConfig::default(), 0);
        me.step(Happened::Began([0.into()].into()));
        me.after(0);
        assert_eq!(me.listed("."), "claim 0");
        me.wins(0, 1);
        me.after(12);
        let listing = vec![marked(&me)];
        assert_eq!(me.done(Done::Listed(Ok(listing))), "");
    }
}

mod by_presence {
    use super::*;

    fn config() -> BalancerConfig {
        BalancerConfig::default().with_lease_scope(LeaseScope::Instance)
    }

    fn lease(me: &Loop, partition: u32) -> Lease {
        let record = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
        Lease::of(partition.into(), record, ETag::new("won"), me.now, 1)
    }

    fn holding() -> Loop {
        let mut me = Loop::begun(config(), 1);
        me.after(0);
        me.listed(".");
        me.nobody_else();
        let outcome = ClaimOutcome::Won(lease(&me, 0));
        assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome }), "Claimed 0");
        me
    }

    #[test]
    fn only_the_presence_is_renewed() {
        let mut me = holding();
        assert_eq!(me.after(30), "heartbeat, CycleLate, list");
        assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))), "");
        assert!(!me.after(30).contains("renew"));
    }

    #[test]
    fn after_being_declared_dead_everything_is_rewritten() {
        let mut me = holding();
        me.after(30);
        assert_eq!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::DeclaredDead { by: None }))), "DeclaredDead");
        assert_eq!(me.after(0), "heartbeat", "before it is present again, a record could be taken over once more");
        me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written)));
        assert_eq!(me.after(0), "renew 0");
        let outcome = ClaimOutcome::Won(lease(&me, 0));
        me.done(Done::Renewed { partition: 0.into(), epoch: 1, outcome });
        assert_eq!(me.after(1), "");
    }

    #[test]
    fn a_foreign_owner_ends_it() {
        let mut me = holding();
        me.after(12);
        let foreign = OwnershipRecord::owned_by(owner("python"), None);
        let mine = OwnershipRecord { scope: LeaseScope::Instance, ..record("me") };
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
        let listing = vec![seen(0, mine, me.now), seen(1, foreign, me.now)];
        let decided = me.done(Done::Listed(Ok(listing)));
        assert_eq!(decided, "fall back, ScopeGivenUp");
        assert_eq!(me.snapshot.lease_scope, LeaseScope::Partition);
        assert!(me.after(0).contains("renew 0"), "with the other scope");
    }
}

mod stalls {
    use super::*;

    fn stalled(partition: u32) -> Stalled {
        Stalled { partitions: [partition.into()].into(), ..Stalled::default() }
    }

    #[test]
    fn they_are_reported_and_nothing_else() {
        let mut me = Loop::holding(BalancerConfig::default(), 2);
        assert_eq!(me.step(Happened::Liveness(stalled(1))), "Stalled");
        assert_eq!(me.snapshot.stalled, stalled(1));
        assert_eq!(me.step(Happened::Liveness(Stalled::default())), "Well");
    }

    #[test]
    fn they_cost_the_partition_where_that_is_wanted() {
        let mut me = Loop::holding(BalancerConfig::default().with_on_stall(OnStall::Release), 2);
        assert_eq!(me.step(Happened::Liveness(stalled(1))), "Stalled, Releasing 1 stalled");
    }

    #[test]
    fn a_stalled_runtime_claims_nothing() {
        let mut me = Loop::begun(BalancerConfig::default(), 1);
        me.step(Happened::Liveness(Stalled { runtime: true, ..Stalled::default() }));
        assert_eq!(me.after(0), "withdraw, list");
        assert_eq!(me.listed("."), "");
    }
}

mod strict_leases {
    use super::*;

    #[test]
    fn they_end_before_the_expiry() {
        let mut me = Loop::holding(BalancerConfig::default().with_on_lease_expiry(OnLeaseExpiry::Stop), 1);
        assert!(me.after(30).contains("renew 0"));
        let failed =
            Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Indeterminate(unavailable()) };
        assert_eq!(me.done(failed), "Indeterminate");
        assert!(!me.after(17).contains("Outlived"));
        assert!(me.after(1).contains("Outlived 0"), "60 s less 2 s of grace and 10 s to stop");
        assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Reclaimable));
    }
}
