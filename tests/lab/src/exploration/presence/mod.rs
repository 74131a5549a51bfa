//! Leases that live by a presence: one partition of A, the presence of A, and two others that would take it over.
//!
//! Here, too, every request is one step, and every answer goes to the machines that the store drives (`announcing`,
//! `breaking`, `after_doubt`). Written down is what surrounds them: in the loop, when a lease is in doubt, when its
//! record is rewritten, and when an owner is declared dead; [`reactions`] tests that the real state of the balancer does
//! the same. How old a record or the presence is, is a choice: once written it is young, and at any time it may become
//! old, for A may be paused anywhere.

mod reactions;
mod state;
mod system;

use self::system::{Model, Rule};
use super::notes::{Event, Invariant};
use super::search::{Aim, Explored, explore};

const AIM: Aim = Aim { invariants: &[Invariant::Present], live: true };

fn explored(without: Option<Rule>, thieves: usize, faults: u8) -> Explored {
    let explored = explore(&Model { without, thieves, faults }, AIM);
    println!("{without:?}, {thieves} thieves, {faults} faults: {} states, {} steps", explored.states, explored.steps);
    explored
}

fn is_clean(thieves: usize, faults: u8) {
    let explored = explored(None, thieves, faults);
    assert_eq!(explored.violation, None);
    let events =
        [Event::DeclaredDead, Event::Rewritten, Event::RewriteLost, Event::PresenceBroken, Event::BrokenTooLate];
    for event in events {
        assert!(explored.notes.tells_of(event), "{event:?} was not explored");
    }
}

#[test]
fn nothing_is_taken_over_from_one_that_was_told_that_it_is_there_presence_2() {
    is_clean(1, 3);
}

#[test]
fn nor_if_two_would_take_it_over_presence_3() {
    is_clean(2, 1);
}

/// `steps` are the ones that matter, in order; the last is the one that breaks it.
fn falls(without: Rule, steps: &[&str]) {
    let violation = explored(Some(without), 1, 1).violation.expect("it holds without the rule");
    println!("    {}", violation.trace.join("\n    "));
    assert_eq!(violation.invariant, Invariant::Present);
    let mut trace = violation.trace.iter();
    for step in steps {
        assert!(trace.any(|label| label == step), "{step:?} is not on the way, or too early");
    }
}

#[test]
fn the_presence_is_written_under_its_own_version_alone() {
    let steps = ["B breaks the presence: done", "A announces itself: done", "B claims the partition: done"];
    falls(Rule::UnderItsVersion, &steps);
}

#[test]
fn who_takes_over_breaks_first() {
    falls(Rule::BreakFirst, &["B lists an old presence, and breaks nothing"]);
}

#[test]
fn to_read_a_record_is_not_enough() {
    falls(Rule::Rewrite, &["A reads its record, and writes nothing"]);
}

#[test]
fn who_was_declared_dead_announces_itself_before_it_rewrites() {
    falls(
        Rule::AnnounceFirst,
        &["A rewrites its record: done", "B claims the partition: done", "A announces itself: done"],
    );
}

#[test]
fn a_presence_that_is_gone_was_declared_dead() {
    falls(Rule::GoneIsDead, &["somebody clears the old presence", "A reads its presence: again"]);
}
