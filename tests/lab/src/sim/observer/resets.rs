//! What operators do, and what they report.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::ResetOutcome;
use eventhubs_checkpoint::store::OwnershipRecord;

use super::State;
use crate::sim::invariant::Invariant;

/// Where an operator is to put checkpoints, by partition.
pub(in super::super) type Wanted = BTreeMap<usize, i64>;

/// How far the reset of one partition is.
pub(super) struct Progress {
    to: i64,
    /// It moved the checkpoint there, or wrote it where it was.
    written: bool,
    /// It moved the checkpoint.
    moved: bool,
    /// It has reported that it did not, and will not.
    given_up: bool,
}

impl State {
    pub(super) fn is_operator(&self, life: usize) -> bool {
        self.lives[life].ours && self.lives[life].member.is_none()
    }

    /// An operator begins. If all is well, and nothing goes wrong with it, what it resets goes back to the same owners.
    pub(in super::super) fn operates(&mut self, life: usize, wanted: Wanted, unharmed: bool) {
        let still = (unharmed && self.all_is_well()).then(|| {
            self.count("resets in calm");
            self.partitions.iter().map(super::Partition::holder).collect()
        });
        self.disturbed();
        self.still = still;
        let progress = |to| Progress { to, written: false, moved: false, given_up: false };
        self.lives[life].resets = wanted.into_iter().map(|(partition, to)| (partition, progress(to))).collect();
    }

    /// Its first record says who it is.
    pub(super) fn operator_is_known(&mut self, life: usize, record: &OwnershipRecord) {
        if !self.is_operator(life) || self.lives[life].incarnation.is_some() {
            return;
        }
        if let (Some(owner), Some(incarnation)) = (&record.owner, &record.incarnation) {
            self.lives[life].owner = owner.clone();
            self.lives[life].incarnation = Some(incarnation.as_str().to_owned());
        }
    }

    /// A checkpoint was accepted, where this one was stored before. An adoption leaves it where an operator has put it.
    pub(super) fn put_or_moved(&mut self, life: usize, partition: usize, stored: Option<i64>, position: i64) {
        if self.is_operator(life) {
            return self.operator_wrote(life, partition, stored, position);
        }
        let book = &mut self.partitions[partition];
        if !self.lives[life].ours || book.put_to != Some(position) {
            book.put_to = None;
        }
    }

    fn operator_wrote(&mut self, life: usize, partition: usize, stored: Option<i64>, position: i64) {
        let moves = stored != Some(position);
        let progress = self.lives[life].resets.get_mut(&partition);
        let may_move = progress.as_ref().is_some_and(|progress| progress.to == position && !progress.given_up);
        if let Some(progress) = progress {
            progress.moved |= moves;
            progress.written |= position == progress.to;
        }
        if moves || may_move {
            self.partitions[partition].put_to = Some(position);
        }
        let name = self.name_of(life);
        self.check(Invariant::Operator, !moves || may_move, || {
            format!("{name} moved the checkpoint of partition {partition} from {stored:?} to {position}")
        });
    }

    /// What an operator reports of a partition.
    pub(in super::super) fn reported(&mut self, life: usize, partition: usize, outcome: &ResetOutcome) {
        let Some(progress) = self.lives[life].resets.get_mut(&partition) else { return };
        let (written, moved) = (progress.written, progress.moved);
        let holds = match outcome {
            ResetOutcome::Done => written,
            ResetOutcome::NotDone(_) => !moved,
            ResetOutcome::Indeterminate { written: reported, .. } => written || !reported,
            _ => false,
        };
        progress.given_up = matches!(outcome, ResetOutcome::NotDone(_));
        let is_released = self.partitions[partition].holder() != Some(life);
        let is_done = matches!(outcome, ResetOutcome::Done);
        self.count(name_of(outcome));
        if !is_done {
            self.still = None;
        }
        let name = self.name_of(life);
        self.note(format!("{name} partition {partition}: {outcome:?}"));
        self.check(Invariant::Operator, holds && (is_released || !is_done), || {
            format!("{name} reported {outcome:?} of partition {partition}; written: {written}, released: {is_released}")
        });
    }

    /// It has ended, or was killed.
    pub(in super::super) fn operator_ends(&mut self, life: usize) {
        self.saw(life, "ends", 0, 0);
        self.dies(life);
        self.watch_what_is_left_by(life);
    }

    /// An owner writes its mark into the record of another.
    pub(super) fn asks(&mut self, life: usize, partition: usize) {
        let Some(holder) = self.partitions[partition].holder() else { return };
        let operator = self.is_operator(holder);
        let name = self.name_of(life);
        self.check(Invariant::Operator, !operator, || format!("{name} asks an operator for partition {partition}"));
    }

    /// An operator takes a partition, or one of its own is taken. That is no move of the group.
    pub(super) fn taken_with_an_operator(&mut self, partition: usize, from: usize, to: usize, expired: bool) {
        self.count(if self.is_operator(to) { "taken by an operator" } else { "taken from an operator" });
        let robbed = self.is_operator(from) && self.lives[to].ours && !expired;
        let (from, to) = (self.name_of(from), self.name_of(to));
        self.check(Invariant::Operator, !robbed, || format!("{to} took partition {partition} from {from}"));
    }

    /// Nothing moves because of a reset.
    pub(super) fn must_be_still(&mut self, partition: usize, to: usize) {
        if self.is_operator(to) {
            return;
        }
        let Some(still) = &self.still else { return };
        let holds = still.get(partition) == Some(&Some(to));
        let name = self.name_of(to);
        self.check(Invariant::Sticky, holds, || format!("{name} took partition {partition} because of a reset"));
    }
}

fn name_of(outcome: &ResetOutcome) -> &'static str {
    match outcome {
        ResetOutcome::Done => "resets done",
        ResetOutcome::NotDone(_) => "resets not done",
        ResetOutcome::Indeterminate { written: true, .. } => "resets unsure, written",
        _ => "resets unsure",
    }
}
