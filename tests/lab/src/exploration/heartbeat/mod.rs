//! Leases that a heartbeat keeps alive: one partition of A, the heartbeat of A, and two other instances that want to
//! take it over.
//!
//! Here, too, every request is one step, and every response goes to the machines that the store drives (`announcing`,
//! `breaking`, `resolve_ambiguous_write`). Only the surroundings are implemented here: when a lease is in doubt, when
//! its record is rewritten, and when an owner is declared dead; [`reactions`] tests that the real state of the balancer
//! behaves like this. The ages of a record and of the heartbeat are choices: they are fresh after a write, and may
//! become old at any time, because A may be paused anywhere.

mod reactions;
mod state;
mod system;

use self::system::{Model, Rule};
use super::notes::{Event, Invariant};
use super::search::{Aim, Explored, explore};

const AIM: Aim = Aim { invariants: &[Invariant::KeptAlive], live: true };

fn explored(without: Option<Rule>, claimers: usize, faults: u8) -> Explored {
    let explored = explore(&Model { without, claimers, faults }, AIM);
    println!("{without:?}, {claimers} claimers, {faults} faults: {} states, {} steps", explored.states, explored.steps);
    explored
}

fn is_clean(claimers: usize, faults: u8) {
    let explored = explored(None, claimers, faults);
    assert_eq!(explored.violation, None);
    let events = [
        Event::DeclaredDead,
        Event::Rewritten,
        Event::RewriteLost,
        Event::HeartbeatInvalidated,
        Event::DeclaredTooLate,
    ];
    for event in events {
        assert!(explored.notes.contains(event), "{event:?} was not explored");
    }
}

#[test]
fn a_valid_heartbeat_protects_its_leases_2() {
    is_clean(1, 3);
}

#[test]
fn two_claimers_change_nothing_3() {
    is_clean(2, 1);
}

/// `steps` are the relevant steps, in order; the last one violates the invariant.
fn falls(without: Rule, steps: &[&str]) {
    let violation = explored(Some(without), 1, 1).violation.expect("it holds without the rule");
    println!("    {}", violation.trace.join("\n    "));
    assert_eq!(violation.invariant, Invariant::KeptAlive);
    let mut trace = violation.trace.iter();
    for step in steps {
        assert!(trace.any(|label| label == step), "{step:?} is not on the path, or too early");
    }
}

#[test]
fn a_heartbeat_is_written_only_under_its_version() {
    let steps = ["B declares A dead: done", "A sends a heartbeat: done", "B claims the partition: done"];
    falls(Rule::UnderItsVersion, &steps);
}

#[test]
fn a_takeover_declares_the_owner_dead_first() {
    falls(Rule::DeclareFirst, &["B lists an old heartbeat, and declares nothing"]);
}

#[test]
fn reading_a_record_is_not_enough() {
    falls(Rule::Rewrite, &["A reads its record, and writes nothing"]);
}

#[test]
fn the_heartbeat_is_sent_before_the_rewrite() {
    falls(
        Rule::HeartbeatFirst,
        &["A rewrites its record: done", "B claims the partition: done", "A sends a heartbeat: done"],
    );
}

#[test]
fn a_missing_heartbeat_means_declared_dead() {
    falls(Rule::MissingIsDead, &["an instance deletes the old heartbeat", "A reads its heartbeat: again"]);
}
