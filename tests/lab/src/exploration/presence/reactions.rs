//! What the balancer does about presences is written down in [`system`](super::system): here the real
//! [`State`] is asked whether it does so.

use std::time::Duration;

use eventhubs_checkpoint::balancer::BalancerConfig;
use eventhubs_checkpoint::internal::balancer::{Action, Done, Happened, Others, Request, Settings, State};
use eventhubs_checkpoint::internal::planner::{ETag, Presence};
use eventhubs_checkpoint::internal::recorded as names;
use eventhubs_checkpoint::store::{Announced, Claim, ClaimOutcome, Lease, Verdict};
use eventhubs_checkpoint::{Identity, LeaseScope, OwnershipRecord, PartitionId, PresenceRecord};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::driven::PATIENCE;
use super::super::listing::{TERMS, owned_by, seen};

/// Past the expiry.
const OLD: Duration = Duration::from_secs(70);
const EPOCH: i64 = 7;

fn me() -> Identity {
    identity("me")
}

fn identity(owner: &str) -> Identity {
    Identity::new(names::owner(owner), names::incarnation("0"))
}

/// A record that lives by the presence of its owner.
fn record(owner: &str) -> OwnershipRecord {
    let mut record = owned_by(identity(owner));
    record.scope = LeaseScope::Instance;
    record
}

fn presence(owner: &str, age: Duration, broken: bool, received: Duration) -> Presence {
    let Identity { owner, incarnation, .. } = identity(owner);
    let mut record = PresenceRecord::new(owner, incarnation);
    record.broken_by = broken.then(|| names::owner("another"));
    Presence::new(record, ETag::new("there"), age, received)
}

/// An instance that lives by its presence.
struct Instance {
    state: State,
    now: Duration,
    /// It requested so, and has no answer.
    announces: bool,
    lists: bool,
    holds: bool,
}

impl Instance {
    fn new() -> Self {
        let settings = Settings {
            me: me(),
            terms: TERMS,
            request_deadline: Duration::from_secs(5),
            patience: PATIENCE,
            drain: Duration::from_secs(10),
            has_other_tree: false,
            config: BalancerConfig::default().with_lease_scope(LeaseScope::Instance),
        };
        let state = State::new(settings, StdRng::seed_from_u64(0));
        let mut new = Self { state, now: Duration::from_secs(1000), announces: false, lists: false, holds: false };
        new.step(Happened::Began([PartitionId::from(0)].into()));
        new.announced(Announced::Present);
        new.until(|new| new.lists);
        new
    }

    fn holding() -> Self {
        let mut new = Self::new();
        new.step(Happened::Done(Done::Listed(Ok(Vec::new()))));
        new.step(Happened::Done(Done::OthersListed(Ok(Others {
            presences: Some(Vec::new()),
            other_tree: Vec::new(),
        }))));
        let outcome = ClaimOutcome::Won(new.lease());
        new.step(Happened::Done(Done::Claimed { partition: 0.into(), outcome }));
        assert!(new.holds);
        new
    }

    fn step(&mut self, happened: Happened) -> Vec<Request> {
        let actions = self.state.step(happened, self.now);
        let mut requests = Vec::new();
        for action in actions {
            match action {
                Action::Publish(snapshot) => self.holds = snapshot.held.contains_key(&PartitionId::from(0)),
                Action::Request(Request::Announce) => self.announces = true,
                Action::Request(Request::List) => self.lists = true,
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
        panic!("it does not come so far");
    }

    /// It announces itself, with this outcome.
    fn announced(&mut self, announced: Announced) {
        self.until(|me| me.announces);
        self.announces = false;
        self.step(Happened::Done(Done::Announced(Ok(announced))));
    }

    fn is_declared_dead(&mut self) {
        self.announced(Announced::DeclaredDead { by: None });
    }

    fn is_present(&mut self) {
        self.announced(Announced::Present);
    }

    /// Whether it rewrites its record at once.
    fn rewrites(&mut self) -> bool {
        self.step(Happened::Woke).into_iter().any(|request| match request {
            Request::Renew(lease) => {
                assert_eq!(lease, lease.clone().rewritten(LeaseScope::Instance), "a read is not enough");
                true
            }
            _ => false,
        })
    }

    fn renewed(&mut self, outcome: ClaimOutcome) {
        self.now += Duration::from_secs(2);
        self.step(Happened::Done(Done::Renewed { partition: 0.into(), epoch: EPOCH, outcome }));
    }

    fn lease(&self) -> Lease {
        Lease::of(0.into(), record("me"), ETag::new("won"), self.now, EPOCH)
    }

    /// What it requests about the old record of another, which has this presence.
    fn lists(&mut self, presence: Option<Presence>) -> Vec<Request> {
        let listing = vec![seen(0.into(), record("another"), OLD, self.now)];
        self.step(Happened::Done(Done::Listed(Ok(listing))));
        let presences = Some(presence.into_iter().collect());
        self.step(Happened::Done(Done::OthersListed(Ok(Others { presences, other_tree: Vec::new() }))))
    }
}

#[test]
fn a_lease_in_doubt_is_rewritten_once_the_instance_is_present() {
    let mut me = Instance::holding();
    me.is_present();
    assert!(!me.rewrites(), "nothing is in doubt");
    me.is_declared_dead();
    assert!(!me.rewrites() && me.holds, "it could be taken over again");
    me.is_present();
    assert!(me.rewrites());
    let lease = me.lease();
    me.renewed(ClaimOutcome::Won(lease));
    assert!(!me.rewrites() && me.holds);
    me.is_present();
    assert!(!me.rewrites(), "the doubt is over");
}

#[test]
fn a_rewriting_during_which_it_was_declared_dead_does_not_count() {
    for present_before_the_outcome in [false, true] {
        let mut me = Instance::holding();
        me.is_declared_dead();
        me.is_present();
        assert!(me.rewrites());
        me.is_declared_dead();
        if present_before_the_outcome {
            me.is_present();
        }
        let lease = me.lease();
        me.renewed(ClaimOutcome::Won(lease));
        assert_eq!(me.rewrites(), present_before_the_outcome);
        if !present_before_the_outcome {
            me.is_present();
            assert!(me.rewrites());
        }
    }
}

#[test]
fn a_rewriting_that_finds_another_owner_ends_the_lease() {
    let mut me = Instance::holding();
    me.is_declared_dead();
    me.is_present();
    assert!(me.rewrites());
    me.renewed(ClaimOutcome::Lost { by: Some(names::owner("another")) });
    assert!(!me.holds && !me.rewrites());
    me.is_declared_dead();
    me.is_present();
    assert!(!me.rewrites(), "nothing is left to doubt");
}

#[test]
fn an_old_record_is_claimed_once_its_owner_was_declared_dead() {
    let young = |now| Some(presence("another", Duration::ZERO, false, now));
    let mut me = Instance::new();
    let now = me.now;
    assert!(me.lists(young(now)).is_empty(), "its owner lives");
    let dead: [fn(Duration) -> Option<Presence>; 3] = [
        |now| Some(presence("another", OLD, false, now)),
        |now| Some(presence("another", Duration::ZERO, true, now)),
        |_| None,
    ];
    for dead in dead {
        let mut me = Instance::new();
        let now = me.now;
        let claims = match me.lists(dead(now)).as_slice() {
            [Request::DeclareDead { claims, .. }] => claims.clone(),
            other => panic!("it breaks first: {other:?}"),
        };
        let judged = |me: &mut Instance, claims: Vec<Claim>, verdict| {
            me.step(Happened::Done(Done::Judged { claims, outcome: Ok(verdict) }))
        };
        let mut alive = Instance::new();
        alive.lists(dead(now));
        assert!(judged(&mut alive, claims.clone(), Verdict::Alive).is_empty());
        assert!(matches!(judged(&mut me, claims, Verdict::Dead).as_slice(), [Request::Claim(_)]));
    }
}
