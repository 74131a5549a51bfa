//! Leases that a heartbeat keeps alive: one partition of A, the heartbeat of A, and two other instances that want to
//! take it over.
//!
//! Here, too, every request is one step, and the rules of the store decide about every response (`decide_heartbeat`,
//! `decide_declaration`, `decide_ownership`). Only the surroundings are implemented here: when a lease is in doubt,
//! when its record is rewritten, and when an owner is declared dead; [`reactions`] tests that the real state of the
//! balancer behaves like this. The ages of a record and of the heartbeat are choices: they are fresh after a write, and
//! may become old at any time, because A may be paused anywhere.

mod claimers;
mod owner;
mod reactions;
mod state;
mod system;

use self::system::{Model, Rule};
use super::notes::{Event, Invariant};
use super::search::{Aim, Explored, explore};

const AIM: Aim = Aim { invariants: &[Invariant::KeptAlive], live: true };

/// A owns the partition, and another instance wants it.
const OWNING: Model = Model { without: None, owns: true, claimers: 1, faults: 1, ends: 0, fallbacks: 0 };
/// It may be unable to write its heartbeat once.
const LATE: Model = Model { fallbacks: 1, ..OWNING };
/// A claims it, and may end its heartbeat once.
const ENDING: Model = Model { owns: false, ends: 1, ..OWNING };

/// What any of these explores in which an owner may be late.
const DECLARED_DEAD: [Event; 5] =
    [Event::DeclaredDead, Event::Rewritten, Event::RewriteLost, Event::HeartbeatInvalidated, Event::DeclaredTooLate];

fn explored(model: &Model) -> Explored {
    let explored = explore(model, AIM);
    println!("{model:?}: {} states, {} steps", explored.states, explored.steps);
    explored
}

fn is_clean(model: Model, events: &[Event]) {
    let explored = explored(&model);
    assert_eq!(explored.violation, None);
    for event in events {
        assert!(explored.notes.contains(*event), "{event:?} was not explored");
    }
}

#[test]
fn a_valid_heartbeat_protects_its_leases_2() {
    let events = [DECLARED_DEAD.as_slice(), &[Event::RepeatRefused, Event::FirstCopyAnswered]].concat();
    is_clean(Model { faults: 3, ..OWNING }, &events);
}

#[test]
fn two_claimers_change_nothing_3() {
    is_clean(Model { claimers: 2, ..OWNING }, &DECLARED_DEAD);
}

#[test]
fn without_a_heartbeat_the_record_counts_2() {
    is_clean(LATE, &[DECLARED_DEAD.as_slice(), &[Event::FellBack, Event::CameBack]].concat());
}

#[test]
fn an_ended_heartbeat_may_begin_again_2() {
    is_clean(ENDING, &[Event::Ended, Event::Rewritten, Event::HeartbeatInvalidated]);
}

#[test]
fn an_ended_heartbeat_that_is_late_1() {
    is_clean(Model { faults: 0, fallbacks: 1, ..ENDING }, &[Event::Ended, Event::FellBack, Event::CameBack]);
}

/// `steps` are the relevant steps, in order; the last one violates the invariant.
fn falls(model: Model, without: Rule, steps: &[&str]) {
    let violation = explored(&Model { without: Some(without), ..model }).violation.expect("it holds without the rule");
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
    falls(OWNING, Rule::UnderItsVersion, &steps);
}

#[test]
fn a_takeover_declares_the_owner_dead_first() {
    falls(OWNING, Rule::DeclareFirst, &["B lists an old heartbeat, and declares nothing"]);
}

#[test]
fn reading_a_record_is_not_enough() {
    falls(OWNING, Rule::Rewrite, &["A reads its record, and writes nothing"]);
}

#[test]
fn the_heartbeat_is_sent_before_the_rewrite() {
    falls(
        OWNING,
        Rule::HeartbeatFirst,
        &["A writes its record: done", "B claims the partition: done", "A sends a heartbeat: done"],
    );
}

#[test]
fn a_missing_heartbeat_means_declared_dead() {
    falls(OWNING, Rule::MissingIsDead, &["an instance deletes the old heartbeat", "A reads its heartbeat: again"]);
}

#[test]
fn a_refused_repetition_is_read() {
    falls(Model { faults: 2, ..OWNING }, Rule::ConflictIsRead, &["A sends its heartbeat again"]);
}

#[test]
fn a_claim_does_not_count_on_an_ended_heartbeat() {
    let steps = ["A ends its heartbeat: done", "A writes its record: done", "A sends a heartbeat: done"];
    falls(ENDING, Rule::EndIsDoubt, &steps);
}

#[test]
fn an_ended_heartbeat_is_deleted_under_its_version() {
    let steps = ["A deletes its heartbeat: no response, in progress", "A sends a heartbeat: done"];
    falls(ENDING, Rule::DeletedUnderItsVersion, &steps);
}

#[test]
fn no_heartbeat_counts_after_an_individual_renewal() {
    falls(LATE, Rule::NoneCountsAfterRewrite, &["A is late with its heartbeat"]);
}

#[test]
fn the_record_says_first_that_the_heartbeat_counts() {
    falls(LATE, Rule::BackAfterRewrite, &["A is late with its heartbeat", "A sends a heartbeat: done"]);
}
