//! Assumptions of the exploration about the reactions of balancers.

use super::balancer::{
    Balancers, Chance, Condition, HandoffRequest, Listing, Outcome, Reaction, Renewal, RequestOutcome, Stimulus,
};
use super::driven::{Driven, Lie};
use super::scenario::ABC;
use super::state::Owner;

const WON: Outcome = Outcome::Won { again: false, handoff_request: HandoffRequest::None };
const WON_AGAIN: Outcome = Outcome::Won { again: true, handoff_request: HandoffRequest::None };
const HELD: Condition = Condition::Held { knows_request: false };
const LEAVING: Condition = Condition::Leaving { knows_request: false };
const HOLDING: [Condition; 5] = [
    HELD,
    Condition::Held { knows_request: true },
    LEAVING,
    Condition::Leaving { knows_request: true },
    Condition::HandingOver,
];
/// The record of another instance.
const ANOTHERS: Listing =
    Listing { owner: Some(Owner::Member(1)), live: true, handoff_request: None, above_share: false };
const OWN: Listing = Listing { owner: Some(Owner::Member(0)), ..ANOTHERS };

fn reaction(condition: Condition, stimulus: Stimulus) -> Reaction {
    Balancers::of(ABC, false).reaction(0, condition, stimulus)
}

fn after(condition: Condition, stimulus: Stimulus) -> Condition {
    reaction(condition, stimulus).after
}

#[test]
fn a_release_ends_with_any_outcome() {
    for outcome in [WON, Outcome::Lost, Outcome::Indeterminate] {
        let reaction = reaction(Condition::Releasing, Stimulus::Released(outcome));
        assert_eq!((reaction.after, reaction.emitted.released), (Condition::Idle, outcome == WON), "{outcome:?}");
    }
}

#[test]
fn the_outcome_of_an_abandoned_renewal_is_ignored() {
    for outcome in [WON, WON_AGAIN, Outcome::Lost, Outcome::Replaced, Outcome::Indeterminate] {
        let reaction = reaction(Condition::Idle, Stimulus::Renewed(outcome));
        assert_eq!(
            (reaction.after, reaction.epoch, reaction.emitted.lost),
            (Condition::Idle, None, false),
            "{outcome:?}"
        );
    }
}

/// The exploration gives the lease of a win to the task of the partition, and ends the work of the previous ownership.
#[test]
fn an_ownership_is_published_with_its_epoch() {
    let first = reaction(Condition::Claiming, Stimulus::Claimed(WON));
    assert_eq!((first.after, first.emitted.claimed), (HELD, true));
    assert_eq!(reaction(HELD, Stimulus::Renewed(WON)).epoch, first.epoch);
    let next = reaction(HELD, Stimulus::Renewed(WON_AGAIN));
    assert_eq!((next.after, next.epoch > first.epoch), (HELD, true));
    for indeterminate in [HELD, LEAVING, Condition::HandingOver] {
        assert_eq!(after(indeterminate, Stimulus::Renewed(Outcome::Indeterminate)), indeterminate);
    }
}

#[test]
fn a_new_ownership_that_must_be_released_is_released() {
    for condition in [LEAVING, Condition::Leaving { knows_request: true }, Condition::HandingOver] {
        let reaction = reaction(condition, Stimulus::Renewed(WON_AGAIN));
        assert_eq!((reaction.after, reaction.epoch), (Condition::Releasing, None), "{condition:?}");
    }
}

#[test]
fn a_held_partition_is_renewed_until_its_release() {
    for condition in HOLDING {
        let renews = reaction(condition, Stimulus::RenewalDue).renews;
        let expected = if condition == Condition::HandingOver { Renewal::Draining } else { Renewal::Plain };
        assert_eq!(renews, Some(expected), "{condition:?}");
    }
}

/// A renewal that finds a new request accepts it, unless no partition is handed over; a listing accepts a known one.
#[test]
fn a_requested_owner_hands_over_in_any_condition() {
    let receives = |handoff_request| Stimulus::Renewed(Outcome::Won { again: false, handoff_request });
    let lists = Stimulus::Listed(Listing { handoff_request: Some(1), ..OWN });
    for condition in HOLDING {
        assert_eq!(after(condition, receives(HandoffRequest::New)), Condition::HandingOver, "{condition:?}");
        assert_eq!(after(condition, lists), Condition::HandingOver, "{condition:?}");
    }
    for condition in [Condition::Held { knows_request: true }, Condition::Leaving { knows_request: true }] {
        assert_eq!(after(condition, receives(HandoffRequest::Known)), condition);
    }
    let ignores_requests = Balancers::of(ABC, true);
    assert_eq!(ignores_requests.reaction(0, HELD, lists).after, HELD);
    assert_eq!(
        ignores_requests.reaction(0, HELD, receives(HandoffRequest::New)).after,
        Condition::Held { knows_request: true }
    );
}

/// For a requested partition: no other instance relies on events being processed once.
#[test]
fn only_a_handing_over_owner_reports_duplicates() {
    for condition in [LEAVING, Condition::HandingOver] {
        let handing_over = condition == Condition::HandingOver;
        for (stimulus, emits) in [
            (Stimulus::Stopped { settled: true }, false),
            (Stimulus::Stopped { settled: false }, handing_over),
            (Stimulus::TimeOver, handing_over),
        ] {
            let reaction = reaction(condition, stimulus);
            assert_eq!(
                (reaction.after, reaction.emitted.duplicates),
                (Condition::Releasing, emits),
                "{condition:?} {stimulus:?}"
            );
        }
    }
}

/// The exploration reports a steal where it occurs without a timeout that may come at any time.
#[test]
fn a_steal_is_a_claim_that_reports_duplicates() {
    for (condition, emits) in [(Condition::Taking, false), (Condition::Stealing, true)] {
        let won = reaction(condition, Stimulus::Claimed(WON));
        assert_eq!((won.after, won.emitted.duplicates), (HELD, emits));
        for outcome in [Outcome::Lost, Outcome::Indeterminate] {
            assert_eq!(after(condition, Stimulus::Claimed(outcome)), Condition::Pending, "{outcome:?}");
        }
        assert_eq!(after(condition, Stimulus::Claimed(Outcome::Replaced)), Condition::Over);
    }
}

#[test]
fn a_failed_poll_decides_nothing() {
    assert_eq!(after(Condition::Pending, Stimulus::Polled(None)), Condition::Pending);
    assert_eq!(after(Condition::Requesting, Stimulus::Requested(None)), Condition::Idle);
    for refused in [RequestOutcome::Lost, RequestOutcome::TooOld, RequestOutcome::Refused] {
        assert_eq!(after(Condition::Requesting, Stimulus::Requested(Some(refused))), Condition::Idle, "{refused:?}");
    }
    assert_eq!(after(Condition::Pending, Stimulus::Polled(Some(Chance::Over))), Condition::Idle);
}

/// The exploration treats it as a loss, and a claim by the next listing.
#[test]
fn a_lost_unowned_partition_is_claimed_in_one_step() {
    for listing in [
        Listing { live: false, ..ANOTHERS },
        Listing { owner: Some(Owner::Unowned), ..ANOTHERS },
        Listing { owner: None, ..ANOTHERS },
    ] {
        let reaction = reaction(HELD, Stimulus::Listed(listing));
        assert_eq!((reaction.emitted.lost, reaction.after), (true, Condition::Claiming), "{listing:?}");
        assert_eq!(after(Condition::Idle, Stimulus::Listed(listing)), Condition::Claiming, "{listing:?}");
    }
}

/// The exploration has no shutdown: an instance that is requested to stop, releases and may then begin again has the
/// same steps.
#[test]
fn a_shutdown_releases_what_is_held_and_won() {
    for condition in HOLDING {
        assert_eq!(after(condition, Stimulus::ShutDown), Condition::Releasing, "{condition:?}");
    }
    let ending = |condition, outcome| {
        let this = Driven::into_condition(ABC, 0, false, Lie::Missing, condition, Stimulus::ShutDown);
        this.then(Stimulus::ShutDown).reaction(Stimulus::Claimed(outcome)).after
    };
    for (outcome, expected) in
        [(WON, Condition::Releasing), (Outcome::Lost, Condition::Over), (Outcome::Indeterminate, Condition::Over)]
    {
        assert_eq!(ending(Condition::Claiming, outcome), expected, "{outcome:?}");
    }
    for condition in [Condition::Idle, Condition::Requesting, Condition::Pending] {
        assert_eq!(after(condition, Stimulus::ShutDown), Condition::Over, "{condition:?}");
    }
}

/// What the exploration treats as one condition is one: the history of an instance does not change its reactions.
#[test]
fn the_way_into_a_condition_makes_no_difference() {
    use Stimulus::{Claimed, Listed, MarkedLost, Polled, Released, Renewed, Requested};
    let receives_request = Renewed(Outcome::Won { again: false, handoff_request: HandoffRequest::New });
    // After a failure it waits for some listings.
    let waits = [Listed(ANOTHERS); 8];
    let ways: [(Condition, &[Stimulus], Condition); 20] = [
        (Condition::Releasing, &[Released(WON)], Condition::Idle),
        (Condition::Releasing, &[Released(Outcome::Indeterminate)], Condition::Idle),
        (HELD, &[MarkedLost], Condition::Idle),
        (HELD, &[Renewed(Outcome::Lost)], Condition::Idle),
        (HELD, &[Listed(ANOTHERS)], Condition::Idle),
        (Condition::Claiming, &[Claimed(Outcome::Lost)], Condition::Idle),
        (Condition::Claiming, &[Claimed(Outcome::Indeterminate)], Condition::Idle),
        (Condition::Requesting, &[Requested(None)], Condition::Idle),
        (Condition::Pending, &[Polled(Some(Chance::Over))], Condition::Idle),
        (Condition::Idle, &[Listed(ANOTHERS)], Condition::Idle),
        (Condition::Taking, &[Claimed(WON)], HELD),
        (Condition::Stealing, &[Claimed(WON)], HELD),
        (HELD, &[Renewed(WON)], HELD),
        (HELD, &[Renewed(Outcome::Indeterminate)], HELD),
        (LEAVING, &[Renewed(WON)], LEAVING),
        (LEAVING, &[Renewed(Outcome::Indeterminate)], LEAVING),
        (HELD, &[receives_request], Condition::HandingOver),
        (LEAVING, &[receives_request], Condition::HandingOver),
        (Condition::Taking, &[Claimed(Outcome::Lost)], Condition::Pending),
        (Condition::Pending, &[Polled(None), Polled(Some(Chance::Wait))], Condition::Pending),
    ];
    for (from, way, to) in ways {
        let waits: &[_] = if to == Condition::Idle { &waits } else { &[] };
        for stimulus in stimuli(to) {
            let start = Driven::into_condition(ABC, 0, false, Lie::Missing, from, Stimulus::ShutDown);
            let there = way.iter().chain(waits).fold(start, |this, happens| this.then(*happens));
            assert_eq!(there.condition(), to, "from {from:?} by {way:?}");
            assert_eq!(there.reaction(stimulus), reaction(to, stimulus), "from {from:?} by {way:?}: {stimulus:?}");
        }
    }
}

/// Returns the stimuli that an instance in this condition can receive.
fn stimuli(condition: Condition) -> Vec<Stimulus> {
    let mut stimuli = vec![Stimulus::ShutDown];
    for owner in [None, Some(Owner::Unowned), Some(Owner::Foreign), OWN.owner, ANOTHERS.owner] {
        for handoff_request in
            [None, Some(0), Some(1)].into_iter().filter(|handoff_request| owner.is_some() || handoff_request.is_none())
        {
            for live in [true, false] {
                stimuli.push(Stimulus::Listed(Listing { owner, live, handoff_request, above_share: false }));
            }
        }
    }
    let outcomes = [HandoffRequest::None, HandoffRequest::New]
        .map(|handoff_request| Outcome::Won { again: false, handoff_request });
    let outcomes = outcomes.into_iter().chain([WON_AGAIN, Outcome::Lost, Outcome::Replaced, Outcome::Indeterminate]);
    if HOLDING.contains(&condition) {
        stimuli.extend(outcomes.map(Stimulus::Renewed));
        stimuli.extend([Stimulus::RenewalDue, Stimulus::MarkedLost, Stimulus::StopRequested]);
        stimuli.extend([true, false].map(|settled| Stimulus::Stopped { settled }));
    }
    if matches!(condition, Condition::Leaving { .. } | Condition::HandingOver) {
        stimuli.push(Stimulus::TimeOver);
    }
    if condition == Condition::Pending {
        let chances = [Some(Chance::Wait), Some(Chance::Take), Some(Chance::Steal), Some(Chance::Over), None];
        stimuli.extend(chances.map(Stimulus::Polled));
    }
    stimuli
}
