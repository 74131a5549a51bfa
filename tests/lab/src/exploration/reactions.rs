//! What the exploration counts on about the reactions of balancers, and does not look up.

use super::balancer::{Asking, Balancers, Chance, Condition, Listing, Mark, Outcome, Reaction, Renewal, Stimulus};
use super::driven::Driven;
use super::scenario::ABC;
use super::state::Owner;

const WON: Outcome = Outcome::Won { anew: false, mark: Mark::None };
const WON_ANEW: Outcome = Outcome::Won { anew: true, mark: Mark::None };
const HELD: Condition = Condition::Held { knows_mark: false };
const LEAVING: Condition = Condition::Leaving { knows_mark: false };
const HOLDING: [Condition; 5] = [
    HELD,
    Condition::Held { knows_mark: true },
    LEAVING,
    Condition::Leaving { knows_mark: true },
    Condition::HandingOver,
];
/// The record of another.
const ANOTHERS: Listing =
    Listing { owner: Some(Owner::Ours(1)), live: true, mark: None, elsewhere: false, above_share: false };
const OWN: Listing = Listing { owner: Some(Owner::Ours(0)), ..ANOTHERS };

fn reaction(condition: Condition, stimulus: Stimulus) -> Reaction {
    Balancers::of(ABC, false).reaction(0, condition, stimulus)
}

fn after(condition: Condition, stimulus: Stimulus) -> Condition {
    reaction(condition, stimulus).after
}

#[test]
fn a_release_is_over_whatever_became_of_it() {
    for outcome in [WON, Outcome::Lost, Outcome::Undecided] {
        let reaction = reaction(Condition::Releasing, Stimulus::Released(outcome));
        assert_eq!((reaction.after, reaction.says.released), (Condition::Idle, outcome == WON), "{outcome:?}");
    }
}

#[test]
fn the_outcome_of_a_renewal_that_was_given_up_is_of_no_interest() {
    for outcome in [WON, WON_ANEW, Outcome::Lost, Outcome::Replaced, Outcome::Undecided] {
        let reaction = reaction(Condition::Idle, Stimulus::Renewed(outcome));
        assert_eq!((reaction.after, reaction.epoch, reaction.says.lost), (Condition::Idle, None, false), "{outcome:?}");
    }
}

/// The exploration gives the lease of a win to the task of the partition, and ends what ran in the tenure before.
#[test]
fn a_tenure_is_published_with_the_epoch_of_its_lease() {
    let first = reaction(Condition::Claiming, Stimulus::Claimed(WON));
    assert_eq!((first.after, first.says.claimed), (HELD, true));
    assert_eq!(reaction(HELD, Stimulus::Renewed(WON)).epoch, first.epoch);
    let next = reaction(HELD, Stimulus::Renewed(WON_ANEW));
    assert_eq!((next.after, next.epoch > first.epoch), (HELD, true));
    for undecided in [HELD, LEAVING, Condition::HandingOver] {
        assert_eq!(after(undecided, Stimulus::Renewed(Outcome::Undecided)), undecided);
    }
}

#[test]
fn a_new_tenure_of_what_is_to_be_released_is_released_at_once() {
    for condition in [LEAVING, Condition::Leaving { knows_mark: true }, Condition::HandingOver] {
        let reaction = reaction(condition, Stimulus::Renewed(WON_ANEW));
        assert_eq!((reaction.after, reaction.epoch), (Condition::Releasing, None), "{condition:?}");
    }
}

#[test]
fn what_is_held_is_renewed_until_it_is_released() {
    for condition in HOLDING {
        let renews = reaction(condition, Stimulus::RenewalDue).renews;
        let expected = if condition == Condition::HandingOver { Renewal::Draining } else { Renewal::Plain };
        assert_eq!(renews, Some(expected), "{condition:?}");
    }
}

/// The renewal that conflicts with a new mark starts the handoff, unless handoffs are off; so does a listing that shows
/// a known mark.
#[test]
fn an_owner_that_is_asked_hands_over_whatever_it_was_about_to_do() {
    let meets = |mark| Stimulus::Renewed(Outcome::Won { anew: false, mark });
    let lists = Stimulus::Listed(Listing { mark: Some(1), ..OWN });
    for condition in HOLDING {
        assert_eq!(after(condition, meets(Mark::New)), Condition::HandingOver, "{condition:?}");
        assert_eq!(after(condition, lists), Condition::HandingOver, "{condition:?}");
    }
    for condition in [Condition::Held { knows_mark: true }, Condition::Leaving { knows_mark: true }] {
        assert_eq!(after(condition, meets(Mark::Known)), condition);
    }
    let deaf = Balancers::of(ABC, true);
    assert_eq!(deaf.reaction(0, HELD, lists).after, HELD);
    assert_eq!(deaf.reaction(0, HELD, meets(Mark::New)).after, Condition::Held { knows_mark: true });
}

/// Of a partition that was asked for: no other instance counts on it that events are processed once.
#[test]
fn only_who_hands_over_tells_of_duplicates() {
    for condition in [LEAVING, Condition::HandingOver] {
        let handing_over = condition == Condition::HandingOver;
        for (stimulus, tells) in [
            (Stimulus::Stopped { settled: true }, false),
            (Stimulus::Stopped { settled: false }, handing_over),
            (Stimulus::TimeOver, handing_over),
        ] {
            let reaction = reaction(condition, stimulus);
            assert_eq!(
                (reaction.after, reaction.says.duplicates),
                (Condition::Releasing, tells),
                "{condition:?} {stimulus:?}"
            );
        }
    }
}

/// What was stolen is reported by the exploration where it is stolen without a time-out that may come at any time.
#[test]
fn a_steal_is_a_claim_that_tells_of_duplicates() {
    for (condition, tells) in [(Condition::Taking, false), (Condition::Stealing, true)] {
        let won = reaction(condition, Stimulus::Claimed(WON));
        assert_eq!((won.after, won.says.duplicates), (HELD, tells));
        for outcome in [Outcome::Lost, Outcome::Undecided] {
            assert_eq!(after(condition, Stimulus::Claimed(outcome)), Condition::Asked, "{outcome:?}");
        }
        assert_eq!(after(condition, Stimulus::Claimed(Outcome::Replaced)), Condition::Over);
    }
}

#[test]
fn a_look_that_fails_decides_nothing_and_a_mark_that_fails_is_given_up() {
    assert_eq!(after(Condition::Asked, Stimulus::Pursued(None)), Condition::Asked);
    assert_eq!(after(Condition::Marking, Stimulus::Marked(None)), Condition::Idle);
    for refused in [Asking::Lost, Asking::TooOld, Asking::Refused] {
        assert_eq!(after(Condition::Marking, Stimulus::Marked(Some(refused))), Condition::Idle, "{refused:?}");
    }
    assert_eq!(after(Condition::Asked, Stimulus::Pursued(Some(Chance::Over))), Condition::Idle);
}

/// The exploration takes it for a loss, and for a claim by the next listing.
#[test]
fn what_a_listing_shows_as_lost_and_unowned_is_claimed_in_the_same_step() {
    for listing in [
        Listing { live: false, ..ANOTHERS },
        Listing { owner: Some(Owner::Nobody), ..ANOTHERS },
        Listing { owner: None, ..ANOTHERS },
    ] {
        let reaction = reaction(HELD, Stimulus::Listed(listing));
        assert_eq!((reaction.says.lost, reaction.after), (true, Condition::Claiming), "{listing:?}");
        assert_eq!(after(Condition::Idle, Stimulus::Listed(listing)), Condition::Claiming, "{listing:?}");
    }
}

/// The exploration has no shutdown: an instance that is told to stop, releases and then may begin again, goes through
/// the same.
#[test]
fn a_shutdown_releases_what_is_held_and_what_is_won_by_then() {
    for condition in HOLDING {
        assert_eq!(after(condition, Stimulus::ShutDown), Condition::Releasing, "{condition:?}");
    }
    let ending = |condition, outcome| {
        let me = Driven::into_condition(ABC, 0, false, condition, Stimulus::ShutDown);
        me.then(Stimulus::ShutDown).reaction(Stimulus::Claimed(outcome)).after
    };
    for (outcome, expected) in
        [(WON, Condition::Releasing), (Outcome::Lost, Condition::Over), (Outcome::Undecided, Condition::Over)]
    {
        assert_eq!(ending(Condition::Claiming, outcome), expected, "{outcome:?}");
    }
    for condition in [Condition::Idle, Condition::Marking, Condition::Asked] {
        assert_eq!(after(condition, Stimulus::ShutDown), Condition::Over, "{condition:?}");
    }
}

/// What the exploration takes for one condition is one: the past of an instance makes no difference to what it does.
#[test]
fn the_way_into_a_condition_makes_no_difference() {
    use Stimulus::{Claimed, Forgotten, Listed, Marked, Pursued, Released, Renewed};
    let meets_mark = Renewed(Outcome::Won { anew: false, mark: Mark::New });
    // After a failure it waits for some listings.
    let waits = [Listed(ANOTHERS); 8];
    let ways: [(Condition, &[Stimulus], Condition); 20] = [
        (Condition::Releasing, &[Released(WON)], Condition::Idle),
        (Condition::Releasing, &[Released(Outcome::Undecided)], Condition::Idle),
        (HELD, &[Forgotten], Condition::Idle),
        (HELD, &[Renewed(Outcome::Lost)], Condition::Idle),
        (HELD, &[Listed(ANOTHERS)], Condition::Idle),
        (Condition::Claiming, &[Claimed(Outcome::Lost)], Condition::Idle),
        (Condition::Claiming, &[Claimed(Outcome::Undecided)], Condition::Idle),
        (Condition::Marking, &[Marked(None)], Condition::Idle),
        (Condition::Asked, &[Pursued(Some(Chance::Over))], Condition::Idle),
        (Condition::Idle, &[Listed(ANOTHERS)], Condition::Idle),
        (Condition::Taking, &[Claimed(WON)], HELD),
        (Condition::Stealing, &[Claimed(WON)], HELD),
        (HELD, &[Renewed(WON)], HELD),
        (HELD, &[Renewed(Outcome::Undecided)], HELD),
        (LEAVING, &[Renewed(WON)], LEAVING),
        (LEAVING, &[Renewed(Outcome::Undecided)], LEAVING),
        (HELD, &[meets_mark], Condition::HandingOver),
        (LEAVING, &[meets_mark], Condition::HandingOver),
        (Condition::Taking, &[Claimed(Outcome::Lost)], Condition::Asked),
        (Condition::Asked, &[Pursued(None), Pursued(Some(Chance::Wait))], Condition::Asked),
    ];
    for (from, way, to) in ways {
        let waits: &[_] = if to == Condition::Idle { &waits } else { &[] };
        for stimulus in stimuli(to) {
            let start = Driven::into_condition(ABC, 0, false, from, Stimulus::ShutDown);
            let there = way.iter().chain(waits).fold(start, |me, happens| me.then(*happens));
            assert_eq!(there.condition(), to, "from {from:?} by {way:?}");
            assert_eq!(there.reaction(stimulus), reaction(to, stimulus), "from {from:?} by {way:?}: {stimulus:?}");
        }
    }
}

/// What may happen to an instance in this condition.
fn stimuli(condition: Condition) -> Vec<Stimulus> {
    let mut stimuli = vec![Stimulus::ShutDown];
    for owner in [None, Some(Owner::Nobody), Some(Owner::Foreign), OWN.owner, ANOTHERS.owner] {
        for mark in [None, Some(0), Some(1)].into_iter().filter(|mark| owner.is_some() || mark.is_none()) {
            for [live, elsewhere] in [[true, true], [true, false], [false, true], [false, false]] {
                stimuli.push(Stimulus::Listed(Listing { owner, live, mark, elsewhere, above_share: false }));
            }
        }
    }
    let outcomes = [Mark::None, Mark::New].map(|mark| Outcome::Won { anew: false, mark });
    let outcomes = outcomes.into_iter().chain([WON_ANEW, Outcome::Lost, Outcome::Replaced, Outcome::Undecided]);
    if HOLDING.contains(&condition) {
        stimuli.extend(outcomes.map(Stimulus::Renewed));
        stimuli.extend([Stimulus::RenewalDue, Stimulus::Forgotten, Stimulus::ToldToStop]);
        stimuli.extend([true, false].map(|settled| Stimulus::Stopped { settled }));
    }
    if matches!(condition, Condition::Leaving { .. } | Condition::HandingOver) {
        stimuli.push(Stimulus::TimeOver);
    }
    if condition == Condition::Asked {
        let chances = [Some(Chance::Wait), Some(Chance::Take), Some(Chance::Steal), Some(Chance::Over), None];
        stimuli.extend(chances.map(Stimulus::Pursued));
    }
    stimuli
}
