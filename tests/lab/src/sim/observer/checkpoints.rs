//! Writes of checkpoints.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::decode_checkpoint;
use eventhubs_checkpoint::store::CheckpointRecord;
use tokio::time::Instant;

use super::timeline::TimelineEvent;
use super::{FIRST_GENERATION, State};
use crate::history::Purpose;

impl State {
    pub(super) fn checkpoint_written(&mut self, incarnation: usize, partition: usize, name: &str, metadata: &Metadata) {
        let (record, _) = decode_checkpoint(name, metadata);
        let position = record.sequence_number.unwrap_or(-1);
        self.checkpoint_step(incarnation, partition, &record);
        self.partitions[partition].paused_until = record.paused.and_then(|pause| pause.until);
        let may_reset = self.is_operator(incarnation) || self.partitions[partition].adopted_by == Some(incarnation);
        let book = &mut self.partitions[partition];
        let (stored, crate_processor) = (book.history.stored(), self.incarnations[incarnation].crate_processor);
        if record.hub_created_at.is_some() {
            book.undated = None;
        } else if stored != Some(position) || !crate_processor {
            book.undated = Some(Instant::now());
        }
        book.set_back = !crate_processor && stored.is_some_and(|stored| position < stored);
        let shown = std::mem::replace(&mut book.shown_creation, record.hub_created_at);
        if shown.zip(self.recreated_at).is_some_and(|(shown, recreated_at)| shown != recreated_at) {
            book.history.shows_another_hub();
        }
        // It may be at the end of the new hub already: then a restart at the latest event moves nothing.
        if self.invalid_to_latest && crate_processor && stored == Some(position) && shown != record.hub_created_at {
            book.history.leave_out(position);
        }
        let purpose = match stored {
            _ if !crate_processor => self.foreign_checkpoint(incarnation, partition, position),
            None if self.is_operator(incarnation) => self.reset_written(incarnation, partition, position),
            None => self.first_checkpoint(incarnation, partition, position),
            Some(before) if before == position => self.adopts(incarnation, partition, position),
            Some(_) if may_reset => self.reset_written(incarnation, partition, position),
            Some(_) => self.progresses(incarnation, partition, position),
        };
        for verdict in self.partitions[partition].history.checkpointed(&incarnation, purpose, position) {
            self.judged(incarnation, partition, verdict);
        }
        self.put_or_moved(incarnation, partition, stored, position);
    }

    fn checkpoint_step(&mut self, incarnation: usize, partition: usize, record: &CheckpointRecord) {
        let actor = self.actor(incarnation);
        let records = &mut self.partitions[partition].records;
        if !self.incarnations[incarnation].crate_processor {
            return records.foreign_checkpoint(record.clone());
        }
        let step = records.checkpoint_written((&incarnation, actor), record.clone());
        self.must_be_explored(incarnation, partition, step);
    }

    fn first_checkpoint(&mut self, incarnation: usize, partition: usize, position: i64) -> Purpose {
        let is_founder = u32::try_from(partition).is_ok_and(|partition| partition < self.founders);
        let book = &mut self.partitions[partition];
        // Owners of other SDKs write checkpoints in any order, so it is unknown which partitions were added later.
        if self.latest && (is_founder || self.mixed) {
            let begun_at = book.begun_at.filter(|_| is_founder);
            book.history.leave_out(begun_at.map_or(position, |begun_at| begun_at.min(position)));
        }
        book.history.leave_out(self.starts_after.min(position));
        self.adopts(incarnation, partition, position)
    }

    fn adopts(&mut self, incarnation: usize, partition: usize, position: i64) -> Purpose {
        self.trace(incarnation, "adopts", partition, position);
        // While its handler runs, the owner only adds to the record in which hub its position is.
        if !self.incarnations[incarnation].sessions.contains_key(&partition) {
            self.partitions[partition].adopted_by = Some(incarnation);
        }
        Purpose::Adoption
    }

    fn progresses(&mut self, incarnation: usize, partition: usize, position: i64) -> Purpose {
        self.trace(incarnation, "checkpoints", partition, position);
        Purpose::Progress { ownership: self.partitions[partition].history.adoption_of(&incarnation) }
    }

    fn reset_written(&mut self, incarnation: usize, partition: usize, position: i64) -> Purpose {
        self.trace(incarnation, "resets", partition, position);
        self.count("resets accepted");
        self.record(incarnation, TimelineEvent::Reset { partition, to: position });
        let by_operator = self.is_operator(incarnation);
        // Otherwise retention has overtaken the checkpoint.
        Purpose::Reset { by_operator, may_skip: !by_operator && self.invalid_to_latest }
    }

    fn foreign_checkpoint(&mut self, incarnation: usize, partition: usize, position: i64) -> Purpose {
        self.trace(incarnation, "checkpoints", partition, position);
        self.count("foreign checkpoints");
        let is_another_hub = self.generation != FIRST_GENERATION;
        let history = &mut self.partitions[partition].history;
        // After the hub was recreated, a foreign owner has skipped all events up to the old checkpoint without a
        // notice.
        if is_another_hub && position > history.ever_processed_up_to() {
            history.set_stale();
        }
        Purpose::Foreign
    }
}
