//! What operators do and report.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::ResetOutcome;
use eventhubs_checkpoint::store::OwnershipRecord;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::State;
use crate::sim::bounds::CLOCK_ERROR;
use crate::sim::invariant::Invariant;

/// The position to which an operator is to reset each partition.
pub(in super::super) type Wanted = BTreeMap<usize, i64>;

/// The progress of the reset of one partition.
pub(super) struct Progress {
    to: i64,
    /// The operator wrote the checkpoint, with or without moving it.
    written: bool,
    /// The operator moved the checkpoint.
    moved: bool,
    /// The operator reported that it did not reset the partition and will not.
    given_up: bool,
}

impl State {
    pub(super) fn is_operator(&self, incarnation: usize) -> bool {
        self.incarnations[incarnation].crate_processor && self.incarnations[incarnation].member.is_none()
    }

    /// An operator begins. If the group is settled and the operator is undisturbed, each partition that it resets goes
    /// back to the same owner.
    pub(in super::super) fn operates(
        &mut self,
        incarnation: usize,
        wanted: Wanted,
        undisturbed: bool,
        now: OffsetDateTime,
    ) {
        self.clock = (Instant::now(), now);
        let owners_before_reset = (undisturbed && self.is_settled()).then(|| {
            self.count("resets in calm");
            self.partitions.iter().map(super::Partition::holder).collect()
        });
        self.disturbed();
        self.owners_before_reset = owners_before_reset;
        let progress = |to| Progress { to, written: false, moved: false, given_up: false };
        self.incarnations[incarnation].resets =
            wanted.into_iter().map(|(partition, to)| (partition, progress(to))).collect();
    }

    /// Returns the time by the clock of the storage.
    pub(super) fn server_time(&self) -> OffsetDateTime {
        self.clock.1 + self.clock.0.elapsed()
    }

    /// Checks that no owner of this crate starts a partition while it is paused, unless it has adopted the partition
    /// before.
    pub(super) fn must_not_be_paused(&mut self, incarnation: usize, partition: usize, epoch: Option<i64>) {
        let book = &self.partitions[partition];
        let is_current = epoch.is_some_and(|epoch| !book.epochs.has_later(epoch));
        let is_paused = is_current && book.is_paused(self.server_time() + CLOCK_ERROR);
        let name = self.name_of(incarnation);
        self.check(Invariant::Paused, !is_paused, || format!("{name} starts partition {partition}, which is paused"));
    }

    /// The first record of an operator reveals its identity.
    pub(super) fn operator_is_known(&mut self, incarnation: usize, record: &OwnershipRecord) {
        if !self.is_operator(incarnation) || self.incarnations[incarnation].id.is_some() {
            return;
        }
        if let (Some(owner), Some(id)) = (&record.owner, &record.incarnation) {
            self.incarnations[incarnation].owner = owner.clone();
            self.incarnations[incarnation].id = Some(id.as_str().to_owned());
        }
    }

    /// A checkpoint was accepted in place of `stored`. An adoption leaves the position of a reset unchanged.
    pub(super) fn put_or_moved(&mut self, incarnation: usize, partition: usize, stored: Option<i64>, position: i64) {
        if self.is_operator(incarnation) {
            return self.operator_wrote(incarnation, partition, stored, position);
        }
        let book = &mut self.partitions[partition];
        if !self.incarnations[incarnation].crate_processor || book.put_to != Some(position) {
            book.put_to = None;
        }
    }

    fn operator_wrote(&mut self, incarnation: usize, partition: usize, stored: Option<i64>, position: i64) {
        let moves = stored != Some(position);
        let progress = self.incarnations[incarnation].resets.get_mut(&partition);
        let may_move = progress.as_ref().is_some_and(|progress| progress.to == position && !progress.given_up);
        if let Some(progress) = progress {
            progress.moved |= moves;
            progress.written |= position == progress.to;
        }
        if moves || may_move {
            self.partitions[partition].put_to = Some(position);
        }
        let name = self.name_of(incarnation);
        self.check(Invariant::Operator, !moves || may_move, || {
            format!("{name} moved the checkpoint of partition {partition} from {stored:?} to {position}")
        });
    }

    /// Checks what an operator reports of a partition.
    pub(in super::super) fn reported(&mut self, incarnation: usize, partition: usize, outcome: &ResetOutcome) {
        let Some(progress) = self.incarnations[incarnation].resets.get_mut(&partition) else { return };
        let (written, moved) = (progress.written, progress.moved);
        let holds = match outcome {
            ResetOutcome::Done => written,
            ResetOutcome::NotDone(_) => !moved,
            ResetOutcome::Indeterminate { written: reported, .. } => written || !reported,
            _ => false,
        };
        progress.given_up = matches!(outcome, ResetOutcome::NotDone(_));
        let is_released = self.partitions[partition].holder() != Some(incarnation);
        let is_done = matches!(outcome, ResetOutcome::Done);
        self.count(name_of(outcome));
        if !is_done {
            self.owners_before_reset = None;
        }
        let name = self.name_of(incarnation);
        self.note(format!("{name} partition {partition}: {outcome:?}"));
        self.check(Invariant::Operator, holds && (is_released || !is_done), || {
            format!("{name} reported {outcome:?} of partition {partition}; written: {written}, released: {is_released}")
        });
    }

    /// The operator has ended, or was killed.
    pub(in super::super) fn operator_ends(&mut self, incarnation: usize) {
        self.trace(incarnation, "ends", 0, 0);
        self.terminates(incarnation);
        self.watch_partitions_of(incarnation);
    }

    /// An owner writes its handoff request into the record of another.
    pub(super) fn requests_handoff(&mut self, incarnation: usize, partition: usize) {
        let Some(holder) = self.partitions[partition].holder() else { return };
        let operator = self.is_operator(holder);
        let name = self.name_of(incarnation);
        self.check(Invariant::Operator, !operator, || {
            format!("{name} requests partition {partition} from an operator")
        });
    }

    /// An operator takes a partition, or a partition is taken from it. Neither counts as a move of the group.
    pub(super) fn taken_with_an_operator(&mut self, partition: usize, from: usize, to: usize, expired: bool) {
        self.count(if self.is_operator(to) { "taken by an operator" } else { "taken from an operator" });
        let stolen = self.is_operator(from) && self.incarnations[to].crate_processor && !expired;
        let (from, to) = (self.name_of(from), self.name_of(to));
        self.check(Invariant::Operator, !stolen, || format!("{to} took partition {partition} from {from}"));
    }

    /// Checks that no partition moves because of a reset.
    pub(super) fn must_not_move(&mut self, partition: usize, to: usize) {
        if self.is_operator(to) {
            return;
        }
        let Some(owners_before_reset) = &self.owners_before_reset else { return };
        let holds = owners_before_reset.get(partition) == Some(&Some(to));
        let name = self.name_of(to);
        self.check(Invariant::Sticky, holds, || format!("{name} took partition {partition} because of a reset"));
    }
}

fn name_of(outcome: &ResetOutcome) -> &'static str {
    match outcome {
        ResetOutcome::Done => "resets done",
        ResetOutcome::NotDone(_) => "resets not done",
        ResetOutcome::Indeterminate { written: true, .. } => "resets indeterminate, written",
        _ => "resets indeterminate",
    }
}
