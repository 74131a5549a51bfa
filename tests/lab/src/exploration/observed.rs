//! Describes the steps of the exploration, in the words in which runs are [compared](crate::explored) with it.

use std::cmp::Ordering;

use super::notes::Notes;
use super::state::{self, Content, Keys, State, Task, Write, Writer};
use super::system::Model;
use crate::explored::{self, Actor, Checkpoint, Epoch, Move, Owner, Ownership, Position, Requester, Step};

impl Model {
    /// Returns what others can see of a step from this state.
    pub(super) fn observed_steps(&self, from: &State, notes: Notes) -> impl Iterator<Item = Step> {
        let written = notes.written().map(|write| self.written(from, write));
        let started = notes
            .started()
            .map(|start| Step::Start { adopted: start.adopted.map(|adopted| checkpoint(adopted).position) });
        written.into_iter().chain(started)
    }

    fn written(&self, from: &State, write: Write) -> Step {
        let number = match write.by {
            Writer::Member(number) => Some(number),
            Writer::Pinner => None,
        };
        let is_operator = number.is_some_and(|number| self.is_operator(number as usize));
        let actor = if is_operator { Actor::Operator } else { Actor::Instance };
        match write.content {
            Content::Ownership { owner, keys } => Step::Ownership {
                actor,
                before: from.ownership.map(|record| self.ownership(number, record.owner, record.keys)),
                after: self.ownership(number, owner, keys),
                epoch: epoch(from.ownership.map(|record| (record.owner, record.keys)), owner, keys),
            },
            Content::Checkpoint { record, .. } => Step::Checkpoint {
                actor,
                owner: from.ownership.map(|record| self.relation_of(number, record.owner)),
                runs: !is_operator && number.is_some_and(|number| runs(from, number)),
                before: from.checkpoint.map(checkpoint),
                after: checkpoint(record),
                moves: moves(from.checkpoint, record),
            },
        }
    }

    fn ownership(&self, number: Option<u8>, owner: state::Owner, keys: Keys) -> Ownership {
        Ownership {
            owner: self.relation_of(number, owner),
            requester: match keys.handoff_to {
                None => Requester::Nobody,
                Some(requester) if number.is_some_and(|number| self.have_one_name(number, requester)) => Requester::Own,
                Some(_) => Requester::Other,
            },
            draining: keys.draining,
            operator: keys.operator,
        }
    }

    fn relation_of(&self, number: Option<u8>, owner: state::Owner) -> Owner {
        match (number, owner) {
            (_, state::Owner::Unowned) => Owner::Nobody,
            (_, state::Owner::Foreign) => Owner::OtherSdk,
            (Some(number), state::Owner::Member(owner)) if number == owner => Owner::Own,
            (Some(number), state::Owner::Member(owner)) if self.have_one_name(number, owner) => Owner::SameName,
            (_, state::Owner::Member(_)) => Owner::Other,
        }
    }

    fn have_one_name(&self, one: u8, other: u8) -> bool {
        let members = self.scenario.members;
        members[one as usize].owner == members[other as usize].owner
    }
}

fn runs(from: &State, number: u8) -> bool {
    let work = &from.instances[number as usize].work;
    matches!(work.task, Task::Running | Task::Checkpointing(_)) && !work.outlived
}

fn epoch(before: Option<(state::Owner, Keys)>, owner: state::Owner, keys: Keys) -> Epoch {
    let is_owned = |owner| matches!(owner, state::Owner::Member(_));
    let before = before.filter(|(owner, _)| is_owned(*owner)).and_then(|(_, keys)| keys.epoch);
    match keys.epoch {
        _ if !is_owned(owner) => Epoch::Irrelevant,
        None => Epoch::Without,
        Some(_) if before.is_none() => Epoch::First,
        epoch if epoch == before => Epoch::Same,
        Some(_) => Epoch::Another,
    }
}

fn checkpoint(record: state::Checkpoint) -> Checkpoint {
    let position = match record.position {
        None => Position::Nowhere,
        Some(_) if record.pinned => Position::Initial,
        Some(_) => Position::Processed,
    };
    Checkpoint { position, paused: record.paused }
}

fn moves(before: Option<state::Checkpoint>, after: state::Checkpoint) -> Move {
    let before = before.and_then(|before| before.position);
    match before.zip(after.position).map(|(before, after)| after.cmp(&before)) {
        None => Move::Undefined,
        Some(Ordering::Equal) => Move::Stays,
        Some(Ordering::Greater) => Move::Ahead,
        Some(Ordering::Less) => Move::Back,
    }
}

/// Compares what a scenario visits with the list.
pub(super) fn must_be_listed(scenario: &str, visited: impl Iterator<Item = Step>) {
    let mut visited: Vec<_> = visited.map(|step| step.to_string()).collect();
    visited.sort_unstable();
    let is_listed = |step: &String| explored::listed().any(|(listed, _)| listed == step);
    let missing: Vec<_> =
        visited.iter().filter(|step| !is_listed(step)).map(|step| format!("{scenario}: {step}")).collect();
    assert!(missing.is_empty(), "add to src/explored/steps.txt:\n{}", missing.join("\n"));
    let left_over: Vec<_> = explored::listed()
        .filter(|(step, first)| *first == scenario && !visited.iter().any(|visited| visited == step))
        .map(|(step, _)| step)
        .collect();
    assert!(left_over.is_empty(), "{scenario} does not visit what src/explored/steps.txt says: {left_over:#?}");
}
