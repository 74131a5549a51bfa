//! Claims, their outcomes, and owners that are declared dead first.

use super::*;

#[test]
fn a_won_lease_is_renewed_at_half_its_duration() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(me.snapshot.owned, [(0.into(), 1)].into());
    assert_eq!(me.state.next_wake().map(|at| at <= me.now + 30 * SECOND), Some(true));
    let renewal = me.state.partitions.next_wake(&me.state.context).unwrap();
    assert!((me.now + 25 * SECOND..=me.now + 28 * SECOND).contains(&renewal), "it was won 2 s ago");
    assert_eq!(me.after(24), "CycleLate, list", "spread by up to a tenth");
    assert_eq!(me.after(4), "renew 0");
    assert_eq!(me.after(4), "", "it is under way");
    assert_eq!(me.renewed(0, 1), "");
}

#[test]
fn a_loss_brings_the_next_cycle_forward() {
    let mut me = Loop::claiming(BalancerConfig::default());
    let lost = Done::Claimed { partition: 0.into(), outcome: ClaimOutcome::Lost { by: Some(owner("x")) } };
    assert_eq!(me.done(lost), "ClaimLost");
    assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Other(owner("x"))));
    assert_eq!(me.after(2), "list");
}

#[test]
fn an_indeterminate_claim_is_not_repeated_at_once() {
    let mut me = Loop::claiming(BalancerConfig::default());
    let indeterminate = ClaimOutcome::Indeterminate(unavailable());
    assert_eq!(me.done(Done::Claimed { partition: 0.into(), outcome: indeterminate }), "Indeterminate");
    assert_eq!(me.after(1), "");
    assert_eq!(me.after(2), "list", "a quarter of an interval has passed");
    assert_eq!((me.listed(".").as_str(), me.no_other_heartbeats().as_str()), ("list heartbeats", "claim 0"));
}

#[test]
fn a_failed_claim_is_repeated_once_its_wait_is_over() {
    for (millis, decided) in [(2499, ""), (2500, "list heartbeats")] {
        let mut me = Loop::claiming(BalancerConfig::default());
        let outcome = ClaimOutcome::Indeterminate(unavailable());
        me.done(Done::Claimed { partition: 0.into(), outcome });
        me.now += Duration::from_millis(millis);
        assert_eq!(me.listed("."), decided, "after {millis} ms");
    }
}

fn fail_renewal(me: &mut Loop, partition: u32) {
    let outcome = ClaimOutcome::Indeterminate(unavailable());
    me.done(Done::Renewed { partition: partition.into(), epoch: 1, outcome });
}

/// Returns what is renewed.
fn renewed_partitions(decided: &str) -> Vec<u32> {
    let renewed = decided.split(", ").filter_map(|action| action.strip_prefix("renew "));
    renewed.map(|partition| partition.parse().unwrap()).collect()
}

/// An eighth of the lease duration, and up to a quarter more.
#[test]
fn a_failed_renewal_is_repeated_within_10_s() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    assert_eq!(renewed_partitions(&me.after(30)), [0]);
    for _ in 0..6 {
        fail_renewal(&mut me, 0);
        assert!((0..10).any(|_| renewed_partitions(&me.after(1)) == [0]));
    }
}

/// Blob storage that is down would otherwise get more requests than usual.
#[test]
fn failed_renewals_take_turns_until_one_succeeds() {
    let mut me = Loop::owning(BalancerConfig::default(), 3);
    assert_eq!(renewed_partitions(&me.after(30)), [0, 1, 2]);
    (0..3).for_each(|partition| fail_renewal(&mut me, partition));
    let mut turns = Vec::new();
    for _ in 0..25 {
        let renewed = renewed_partitions(&me.after(1));
        for partition in renewed {
            fail_renewal(&mut me, partition);
            turns.push(partition);
        }
    }
    assert!((3..=4).contains(&turns.len()), "one in 7.5 s: {turns:?}");
    let turn = (0..10).find_map(|_| renewed_partitions(&me.after(1)).first().copied()).unwrap();
    me.renewed(turn, 1);
    let others: Vec<_> = (0..3).filter(|partition| *partition != turn).collect();
    assert_eq!(renewed_partitions(&me.after(1)), others, "the storage responds again");
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
    let heartbeat = HeartbeatRecord::new(owner("x"), incarnation(1), 60 * SECOND);
    let heartbeat = Heartbeat::new(heartbeat, ETag::new("heartbeat"), Duration::from_secs(3 * LEASE_SECONDS), me.now);
    let actions = me.state.step(Happened::Done(Done::HeartbeatsListed(Ok(vec![heartbeat]))), me.now);
    let request = actions.into_iter().find_map(|action| match action {
        Action::Request(StorageRequest::DeclareDead { heartbeat, claims, .. }) => Some((heartbeat, claims)),
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

/// Returns a loop that has claimed the only unowned partition of this listing, and won it.
fn with_first_win(reports_starts: bool, listing: &str) -> Loop {
    let settings = LoopSettings { reports_starts, ..settings(BalancerConfig::default(), 10) };
    let mut me = Loop::of(settings).began(u32::try_from(listing.len()).unwrap());
    me.after(0);
    me.listed(listing);
    assert_eq!(me.no_other_heartbeats(), "claim 0");
    me.wins(0, 1);
    me
}

/// Returns what the loop claims three seconds later, if all other partitions are unowned by then.
fn second_claim(me: &mut Loop) -> String {
    me.after(3);
    if me.listed("m..") == "list heartbeats" { me.no_other_heartbeats() } else { String::new() }
}

#[test]
fn claims_wait_for_a_start_that_is_overdue() {
    for reports_starts in [false, true] {
        let mut me = with_first_win(reports_starts, ".xx");
        assert_eq!(second_claim(&mut me).starts_with("claim "), !reports_starts);
        if reports_starts {
            me.command(LoopCommand::ProcessingStarted { partition: 0.into(), epoch: 7 });
            assert_eq!(second_claim(&mut me), "", "that was another epoch");
            me.command(LoopCommand::ProcessingStarted { partition: 0.into(), epoch: 1 });
            assert!(second_claim(&mut me).starts_with("claim "));
        }
    }
}

#[test]
fn no_handoff_is_requested_while_a_start_is_overdue() {
    for reports_starts in [false, true] {
        let mut me = with_first_win(reports_starts, ".xxx");
        let mut requested = String::new();
        for _ in 0..3 {
            me.after(12);
            if me.listed("mxxx").ends_with("list heartbeats") {
                requested += &me.no_other_heartbeats();
            }
        }
        assert_eq!(requested.contains("request handoff"), !reports_starts, "{requested}");
    }
}
