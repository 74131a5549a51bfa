//! Writes of checkpoints.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::decode_checkpoint;

use super::timeline::Mark;
use super::{FIRST_GENERATION, State};
use crate::history::Purpose;

impl State {
    pub(super) fn checkpoint_written(&mut self, life: usize, partition: usize, name: &str, metadata: &Metadata) {
        let (record, _) = decode_checkpoint(name, metadata);
        let position = record.sequence_number.unwrap_or(-1);
        let may_reset = self.is_operator(life) || self.partitions[partition].adopted_by == Some(life);
        let book = &mut self.partitions[partition];
        let (stored, ours) = (book.history.stored(), self.lives[life].ours);
        book.set_back = !ours && stored.is_some_and(|stored| position < stored);
        let purpose = match stored {
            _ if !ours => self.foreign_checkpoint(life, partition, position),
            None if self.is_operator(life) => self.reset_written(life, partition, position),
            None => self.first_checkpoint(life, partition, position),
            Some(before) if before == position => self.adopts(life, partition, position),
            Some(_) if may_reset => self.reset_written(life, partition, position),
            Some(_) => self.progresses(life, partition, position),
        };
        for verdict in self.partitions[partition].history.checkpointed(&life, purpose, position) {
            self.judged(life, partition, verdict);
        }
        self.put_or_moved(life, partition, stored, position);
    }

    fn first_checkpoint(&mut self, life: usize, partition: usize, position: i64) -> Purpose {
        let is_founder = u32::try_from(partition).is_ok_and(|partition| partition < self.founders);
        let book = &mut self.partitions[partition];
        // Owners of other SDKs write checkpoints in no order, so that nobody can tell what was added.
        if self.latest && (is_founder || self.mixed) {
            let begun_at = book.begun_at.filter(|_| is_founder);
            book.history.leave_out(begun_at.map_or(position, |begun_at| begun_at.min(position)));
        }
        book.history.leave_out(self.starts_after.min(position));
        self.adopts(life, partition, position)
    }

    fn adopts(&mut self, life: usize, partition: usize, position: i64) -> Purpose {
        self.saw(life, "adopts", partition, position);
        self.partitions[partition].adopted_by = Some(life);
        Purpose::Adoption
    }

    fn progresses(&mut self, life: usize, partition: usize, position: i64) -> Purpose {
        self.saw(life, "checkpoints", partition, position);
        Purpose::Progress { tenure: self.partitions[partition].history.adoption_of(&life) }
    }

    fn reset_written(&mut self, life: usize, partition: usize, position: i64) -> Purpose {
        self.saw(life, "resets", partition, position);
        self.count("resets accepted");
        self.mark(life, Mark::Reset { partition, to: position });
        let by_operator = self.is_operator(life);
        // Otherwise retention has overtaken the checkpoint.
        Purpose::Reset { by_operator, may_skip: !by_operator && self.invalid_to_latest }
    }

    fn foreign_checkpoint(&mut self, life: usize, partition: usize, position: i64) -> Purpose {
        self.saw(life, "checkpoints", partition, position);
        self.count("foreign checkpoints");
        let is_another_hub = self.generation != FIRST_GENERATION;
        let history = &mut self.partitions[partition].history;
        // Of a hub that was made anew it has left out whatever the old checkpoint was ahead, and nobody could tell.
        if is_another_hub && position > history.ever_processed_up_to() {
            history.set_stale();
        }
        Purpose::Foreign
    }
}
