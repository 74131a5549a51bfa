//! Describes the steps of the exploration, in the words in which runs are [compared](crate::explored) with it.

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
                epoch: Epoch::between(epoch_before(from), keys.epoch, matches!(owner, state::Owner::Member(_))),
            },
            Content::Checkpoint { record, .. } => Step::Checkpoint {
                actor,
                owner: from.ownership.map(|record| self.relation_of(number, record.owner)),
                runs: !is_operator && number.is_some_and(|number| runs(from, number)),
                before: from.checkpoint.map(checkpoint),
                after: checkpoint(record),
                moves: Move::between(from.checkpoint.and_then(|before| before.position), record.position),
            },
        }
    }

    fn ownership(&self, number: Option<u8>, owner: state::Owner, keys: Keys) -> Ownership {
        Ownership {
            owner: self.relation_of(number, owner),
            requester: match keys.handoff_to {
                None => Requester::None,
                Some(requester) if number.is_some_and(|number| self.have_one_name(number, requester)) => Requester::Own,
                Some(_) => Requester::Other,
            },
            draining: keys.draining,
            operator: keys.operator,
        }
    }

    fn relation_of(&self, number: Option<u8>, owner: state::Owner) -> Owner {
        match (number, owner) {
            (_, state::Owner::Unowned) => Owner::Unowned,
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

fn epoch_before(from: &State) -> Option<u8> {
    let owned = from.ownership.filter(|record| matches!(record.owner, state::Owner::Member(_)));
    owned.and_then(|record| record.keys.epoch)
}

fn checkpoint(record: state::Checkpoint) -> Checkpoint {
    let position = match record.position {
        None => Position::Nowhere,
        Some(_) if record.pinned => Position::Initial,
        Some(_) => Position::Processed,
    };
    Checkpoint { position, paused: record.paused }
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
