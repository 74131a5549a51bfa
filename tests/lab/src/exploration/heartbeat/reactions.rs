//! The reactions of the balancer to heartbeats are implemented in [`system`](super::system): these tests check that the
//! real [`BalancerState`] reacts like this.

use std::time::Duration;

use eventhubs_checkpoint::balancer::BalancerConfig;
use eventhubs_checkpoint::internal::balancer::{Action, BalancerState, Done, Happened, LoopSettings, StorageRequest};
use eventhubs_checkpoint::internal::planner::{ETag, Heartbeat};
use eventhubs_checkpoint::internal::recorded as names;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::membership::{DeclareDeadOutcome, HeartbeatOutcome, HeartbeatRecord};
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome, Lease};
use eventhubs_checkpoint::{Error, ErrorKind, Identity, LeaseScope, PartitionId};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::listing::{TERMS, owned_by, seen};

/// Past the expiry.
const OLD: Duration = Duration::from_secs(70);
const EPOCH: i64 = 7;

fn this() -> Identity {
    identity("me")
}

fn identity(owner: &str) -> Identity {
    Identity::new(names::owner(owner), names::incarnation("0"))
}

/// A record that the heartbeat of its owner keeps alive.
fn record(owner: &str) -> OwnershipRecord {
    let mut record = owned_by(identity(owner));
    record.scope = LeaseScope::Instance;
    record
}

fn heartbeat(owner: &str, age: Duration, broken: bool, received: Duration) -> Heartbeat {
    let Identity { owner, incarnation, .. } = identity(owner);
    let mut record = HeartbeatRecord::new(owner, incarnation, TERMS.own);
    record.declared_dead_by = broken.then(|| names::owner("another"));
    Heartbeat::new(record, ETag::new("there"), age, received)
}

/// An instance whose leases its heartbeat keeps alive.
struct Instance {
    state: BalancerState,
    now: Duration,
    /// It has requested a heartbeat, and has no response.
    sends_heartbeat: bool,
    lists: bool,
    holds: bool,
}

impl Instance {
    fn new() -> Self {
        let settings = LoopSettings {
            this: this(),
            lease_durations: TERMS,
            request_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
            reports_starts: false,
            has_other_name_case: false,
            config: BalancerConfig::default().with_lease_scope(LeaseScope::Instance),
        };
        let state = BalancerState::new(settings, StdRng::seed_from_u64(0));
        let mut new =
            Self { state, now: Duration::from_secs(1000), sends_heartbeat: false, lists: false, holds: false };
        new.step(Happened::Began([PartitionId::from(0)].into()));
        new.sent(HeartbeatOutcome::Written);
        new.until(|new| new.lists);
        new
    }

    fn holding() -> Self {
        let mut new = Self::new();
        new.step(Happened::Done(Done::ListedWithHeartbeats(Ok((Vec::new(), Vec::new())))));
        let outcome = ClaimOutcome::Won(new.lease());
        new.step(Happened::Done(Done::Claimed { partition: 0.into(), outcome }));
        assert!(new.holds);
        new
    }

    fn step(&mut self, happened: Happened) -> Vec<StorageRequest> {
        let actions = self.state.step(happened, self.now);
        let mut requests = Vec::new();
        for action in actions {
            match action {
                Action::Publish(snapshot) => self.holds = snapshot.owned.contains_key(&PartitionId::from(0)),
                Action::Request(StorageRequest::SendHeartbeat) => self.sends_heartbeat = true,
                Action::Request(StorageRequest::ListWithHeartbeats) => self.lists = true,
                Action::Request(request) => requests.push(request),
                _ => {}
            }
        }
        requests
    }

    fn until(&mut self, is_reached: impl Fn(&Self) -> bool) {
        for _ in 0..100 {
            if is_reached(self) {
                return;
            }
            self.now = self.now.max(self.state.next_wake().expect("it waits for something"));
            self.step(Happened::Woke);
        }
        panic!("the condition is never reached");
    }

    /// It sends a heartbeat, with this outcome.
    fn sent(&mut self, sent: HeartbeatOutcome) {
        self.until(|this| this.sends_heartbeat);
        self.sends_heartbeat = false;
        self.step(Happened::Done(Done::HeartbeatSent(Ok(sent))));
    }

    fn is_declared_dead(&mut self) {
        self.sent(HeartbeatOutcome::DeclaredDead { by: None });
    }

    fn is_registered(&mut self) {
        self.sent(HeartbeatOutcome::Written);
    }

    /// Returns whether it rewrites its record at once.
    fn rewrites(&mut self) -> bool {
        self.rewrites_to(LeaseScope::Instance)
    }

    /// Returns whether it rewrites its record at once, with this scope.
    fn rewrites_to(&mut self, scope: LeaseScope) -> bool {
        self.step(Happened::Woke).into_iter().any(|request| match request {
            StorageRequest::Renew(lease) => {
                assert_eq!(lease, lease.clone().forcing_rewrite(scope), "a read is not enough");
                true
            }
            _ => false,
        })
    }

    fn cannot_write_its_heartbeat(&mut self) {
        self.until(|this| this.sends_heartbeat);
        self.sends_heartbeat = false;
        let error = Error::new(ErrorKind::Unavailable, "the storage is unavailable");
        self.step(Happened::Done(Done::HeartbeatSent(Err(error))));
    }

    fn lease_in(&self, scope: LeaseScope) -> Lease {
        let mut record = record("me");
        record.scope = scope;
        Lease::of(0.into(), record, ETag::new("renewed"), self.now, EPOCH)
    }

    fn renewed(&mut self, outcome: ClaimOutcome) {
        self.now += Duration::from_secs(2);
        self.step(Happened::Done(Done::Renewed { partition: 0.into(), epoch: EPOCH, outcome }));
    }

    fn lease(&self) -> Lease {
        Lease::of(0.into(), record("me"), ETag::new("won"), self.now, EPOCH)
    }

    /// Returns its requests after a listing of another's old record with this heartbeat.
    fn lists(&mut self, heartbeat: Option<Heartbeat>) -> Vec<StorageRequest> {
        let listing = vec![seen(0.into(), record("another"), OLD, self.now)];
        let heartbeats = heartbeat.into_iter().collect();
        self.step(Happened::Done(Done::ListedWithHeartbeats(Ok((listing, heartbeats)))))
    }
}

#[test]
fn a_doubtful_lease_is_rewritten_after_the_heartbeat() {
    let mut this = Instance::holding();
    this.is_registered();
    assert!(!this.rewrites(), "nothing is in doubt");
    this.is_declared_dead();
    assert!(!this.rewrites() && this.holds, "it could be taken over again");
    this.is_registered();
    assert!(this.rewrites());
    let lease = this.lease();
    this.renewed(ClaimOutcome::Won(lease));
    assert!(!this.rewrites() && this.holds);
    this.is_registered();
    assert!(!this.rewrites(), "the doubt is resolved");
}

#[test]
fn a_rewrite_during_the_declaration_does_not_count() {
    for present_before_the_outcome in [false, true] {
        let mut this = Instance::holding();
        this.is_declared_dead();
        this.is_registered();
        assert!(this.rewrites());
        this.is_declared_dead();
        if present_before_the_outcome {
            this.is_registered();
        }
        let lease = this.lease();
        this.renewed(ClaimOutcome::Won(lease));
        assert_eq!(this.rewrites(), present_before_the_outcome);
        if !present_before_the_outcome {
            this.is_registered();
            assert!(this.rewrites());
        }
    }
}

#[test]
fn a_rewrite_that_finds_another_owner_ends_the_lease() {
    let mut this = Instance::holding();
    this.is_declared_dead();
    this.is_registered();
    assert!(this.rewrites());
    this.renewed(ClaimOutcome::Lost { by: Some(names::owner("another")) });
    assert!(!this.holds && !this.rewrites());
    this.is_declared_dead();
    this.is_registered();
    assert!(!this.rewrites(), "no lease is left to doubt");
}

#[test]
fn an_unwritable_heartbeat_is_replaced_and_comes_back() {
    let mut this = Instance::holding();
    this.cannot_write_its_heartbeat();
    this.now += TERMS.own / 4;
    assert!(this.rewrites_to(LeaseScope::Partition));
    let lease = this.lease_in(LeaseScope::Partition);
    this.renewed(ClaimOutcome::Won(lease));
    assert!(!this.rewrites() && this.holds);
    this.is_registered();
    assert!(this.rewrites(), "the record says that the heartbeat counts, before it does");
    let lease = this.lease_in(LeaseScope::Instance);
    this.renewed(ClaimOutcome::Won(lease));
    assert!(!this.rewrites() && this.holds);
}

#[test]
fn an_old_record_is_claimed_after_the_declaration() {
    let young = |now| Some(heartbeat("another", Duration::ZERO, false, now));
    let mut this = Instance::new();
    let now = this.now;
    assert!(this.lists(young(now)).is_empty(), "its owner is live");
    let dead: [fn(Duration) -> Option<Heartbeat>; 3] = [
        |now| Some(heartbeat("another", OLD, false, now)),
        |now| Some(heartbeat("another", Duration::ZERO, true, now)),
        |_| None,
    ];
    for dead in dead {
        let mut this = Instance::new();
        let now = this.now;
        let claims = match this.lists(dead(now)).as_slice() {
            [StorageRequest::DeclareDead { claims, .. }] => claims.clone(),
            other => panic!("it declares the owner dead first: {other:?}"),
        };
        let judged = |this: &mut Instance, claims: Vec<Claim>, verdict| {
            this.step(Happened::Done(Done::DeclaredDead { claims, outcome: Ok(verdict) }))
        };
        let mut alive = Instance::new();
        alive.lists(dead(now));
        assert!(judged(&mut alive, claims.clone(), DeclareDeadOutcome::StillAlive).is_empty());
        assert!(matches!(
            judged(&mut this, claims, DeclareDeadOutcome::Declared).as_slice(),
            [StorageRequest::Claim(_)]
        ));
    }
}
