//! The steps of the exploration, with which runs are compared.
//!
//! The exploration proves the rules for every step that its scenarios contain. A run with real requests, of the
//! simulation or of real processes, is covered by that proof only if its steps are among them. So both describe what
//! they see in the same words: a [`Step`] is an accepted write, or the start of a partition, from the viewpoint of its
//! writer. It says whose record is replaced by what, in which epoch and under which condition, whether the writer runs
//! the partition, and where the position moves. It does not say who the writer is, nor which numbers it writes, so a
//! run of many instances and events can be compared with three instances and a few events. Every step is checked
//! together with the records that the steps before it have left, so a run in which each step is explored is a path
//! through the explored records.
//!
//! `steps.txt` has every step that the scenarios visit, each with a scenario that does. The tests of the exploration
//! compare it with what they visit: no step is missing, and none is left over. `gaps.txt` has the steps that runs take
//! and no scenario contains, with the reasons.

mod follow;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

pub use follow::PartitionRecords;

const STEPS: &str = include_str!("steps.txt");
const GAPS: &str = include_str!("gaps.txt");

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Actor {
    Instance,
    Operator,
}

/// An owner, as the actor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The partition was released.
    Unowned,
    /// The actor.
    Own,
    /// Another incarnation of the actor.
    SameName,
    /// Another instance of this crate, or an operator.
    Other,
    /// An instance of another SDK.
    OtherSdk,
}

/// Who has requested a handoff, as the actor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Requester {
    None,
    Own,
    Other,
}

/// An ownership record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ownership {
    /// Its owner.
    pub owner: Owner,
    /// Who has requested a handoff.
    pub requester: Requester,
    /// Its owner drains the partition.
    pub draining: bool,
    /// An operator wrote it.
    pub operator: bool,
}

/// How the epoch of an owned record relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Epoch {
    /// The record has no owner, whose epoch would matter.
    Irrelevant,
    /// The record has none.
    Without,
    /// The record before had none that matters.
    First,
    /// It is the same.
    Same,
    /// It is another one.
    Another,
}

impl Epoch {
    /// Compares the epochs of two records. Those of records without an owner of this crate do not matter.
    pub(crate) fn between<E: PartialEq>(before: Option<E>, after: Option<E>, is_owned: bool) -> Self {
        match (before, after) {
            _ if !is_owned => Self::Irrelevant,
            (_, None) => Self::Without,
            (None, Some(_)) => Self::First,
            (Some(before), Some(after)) if before == after => Self::Same,
            (Some(_), Some(_)) => Self::Another,
        }
    }
}

/// A checkpoint record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint {
    /// Its position.
    pub position: Position,
    /// The partition is paused.
    pub paused: bool,
}

/// What a checkpoint says about the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// Nothing.
    Nowhere,
    /// The start of the group.
    Initial,
    /// How far the partition was processed.
    Processed,
}

/// Where a write moves the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Move {
    /// One of the records has no position.
    Undefined,
    /// It stays.
    Stays,
    /// To a later event.
    Ahead,
    /// To an earlier event.
    Back,
}

impl Move {
    /// Compares the positions of two records.
    pub(crate) fn between<P: Ord>(before: Option<P>, after: Option<P>) -> Self {
        match before.zip(after).map(|(before, after)| after.cmp(&before)) {
            None => Self::Undefined,
            Some(Ordering::Equal) => Self::Stays,
            Some(Ordering::Greater) => Self::Ahead,
            Some(Ordering::Less) => Self::Back,
        }
    }
}

/// An accepted write, or a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A write without a condition.
    Unconditional(Actor),
    /// A write of an ownership.
    Ownership {
        /// The writer.
        actor: Actor,
        /// The record that it replaces.
        before: Option<Ownership>,
        /// The record that it writes.
        after: Ownership,
        /// The epoch of what it writes.
        epoch: Epoch,
    },
    /// A write of a checkpoint.
    Checkpoint {
        /// The writer.
        actor: Actor,
        /// The owner in the ownership record at this moment, if there is one.
        owner: Option<Owner>,
        /// The writer has started the partition in its last ownership, and not stopped it.
        runs: bool,
        /// The record that it replaces.
        before: Option<Checkpoint>,
        /// The record that it writes.
        after: Checkpoint,
        /// Where it moves the position.
        moves: Move,
    },
    /// An instance starts the partition.
    Start {
        /// The checkpoint with which it adopted the partition. `None`: there was none.
        adopted: Option<Position>,
    },
}

/// Returns whether the scenarios visit this step, or it is a known gap.
#[must_use]
pub fn is_known(step: Step) -> bool {
    static KNOWN: LazyLock<BTreeSet<&str>> = LazyLock::new(|| listed().map(|(step, _)| step).chain(gaps()).collect());
    KNOWN.contains(step.to_string().as_str())
}

fn gaps() -> impl Iterator<Item = &'static str> {
    GAPS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns the listed steps, each with the scenario that visits it.
pub(crate) fn listed() -> impl Iterator<Item = (&'static str, &'static str)> {
    STEPS.lines().filter_map(|line| line.split_once(": ")).map(|(scenario, step)| (step, scenario))
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unconditional(actor) => write!(f, "{actor} writes without a condition"),
            Self::Ownership { actor, before, after, epoch } => {
                write!(f, "{actor} writes ownership: {} -> {after}, {epoch}", Present(*before))
            }
            Self::Checkpoint { actor, owner, runs, before, after, moves } => {
                let runs = if *runs { ", runs it" } else { "" };
                write!(f, "{actor} writes checkpoint: {} -> {after}, {moves}", Present(*before))?;
                write!(f, "; owner: {}{runs}", Present(*owner))
            }
            Self::Start { adopted } => write!(f, "instance starts: {}", Present(*adopted)),
        }
    }
}

/// Something that may be absent.
struct Present<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Present<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(present) => present.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        f.write_str(if self.draining { " draining" } else { "" })?;
        f.write_str(match self.requester {
            Requester::None => "",
            Requester::Own => " requested by actor",
            Requester::Other => " requested by other",
        })?;
        f.write_str(if self.operator { " of operator" } else { "" })
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.position, if self.paused { " paused" } else { "" })
    }
}

/// Implements `Display` by one word or two for each variant.
macro_rules! words {
    ($($type:ident { $($variant:ident => $words:literal,)* })*) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $words,)* })
            }
        })*
    };
}

words! {
    Actor { Instance => "instance", Operator => "operator", }
    Owner { Unowned => "unowned", Own => "actor", SameName => "same name", Other => "other", OtherSdk => "other SDK", }
    Epoch {
        Irrelevant => "no owner",
        Without => "no epoch",
        First => "first epoch",
        Same => "same epoch",
        Another => "another epoch",
    }
    Position { Nowhere => "nowhere", Initial => "initial", Processed => "processed", }
    Move { Undefined => "undefined", Stays => "stays", Ahead => "ahead", Back => "back", }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_is_listed_twice() {
        let mut steps: Vec<_> = listed().map(|(step, _)| step).collect();
        steps.extend(gaps());
        let listed = steps.len();
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), listed);
    }

    #[test]
    fn forbidden_steps_are_unknown() {
        assert!(!is_known(Step::Unconditional(Actor::Instance)));
        let processed = Checkpoint { position: Position::Processed, paused: false };
        let ahead = |owner, runs| Step::Checkpoint {
            actor: Actor::Instance,
            owner,
            runs,
            before: Some(processed),
            after: processed,
            moves: Move::Ahead,
        };
        assert!(is_known(ahead(Some(Owner::Own), true)));
        assert!(is_known(ahead(Some(Owner::Other), true)), "before the next owner adopts");
        let back = Step::Checkpoint {
            actor: Actor::Instance,
            owner: Some(Owner::Own),
            runs: true,
            before: Some(processed),
            after: processed,
            moves: Move::Back,
        };
        assert!(!is_known(back));
    }
}
