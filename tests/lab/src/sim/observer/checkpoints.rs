//! Writes of checkpoints.

use super::done::Done;
use super::timeline::Mark;
use super::{FIRST_GENERATION, State};
use crate::sim::invariant::Invariant;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::decode_checkpoint;

impl State {
    pub(super) fn checkpoint_written(&mut self, life: usize, partition: usize, name: &str, metadata: &Metadata) {
        let (record, _) = decode_checkpoint(name, metadata);
        let position = record.sequence_number.unwrap_or(-1);
        let rewound = record.rewound.map(|id| id.as_str().to_owned());
        let book = &self.partitions[partition];
        let is_rewind = rewound.is_some() && rewound != book.rewound;
        let (stored, ours) = (book.stored, self.lives[life].ours);
        self.partitions[partition].rewound = rewound;
        self.partitions[partition].set_back = !ours && stored.is_some_and(|stored| position < stored);
        match stored {
            _ if !ours => self.foreign_checkpoint(life, partition, position),
            _ if is_rewind => self.rewind_written(life, partition, position),
            None => self.first_checkpoint(life, partition, position),
            Some(before) if before == position => self.adopts(life, partition, position),
            Some(before) => self.our_checkpoint(life, partition, before, position),
        }
        self.partitions[partition].stored = Some(position);
    }

    fn first_checkpoint(&mut self, life: usize, partition: usize, position: i64) {
        let is_founder = u32::try_from(partition).is_ok_and(|partition| partition < self.founders);
        // Owners of other SDKs write checkpoints in no order, so that nobody can tell what was added.
        if self.latest && (is_founder || self.mixed) {
            let book = &mut self.partitions[partition];
            let begun_at = book.begun_at.filter(|_| is_founder);
            let start = begun_at.map_or(position, |begun_at| begun_at.min(position));
            book.since_rewind.raise(start);
            book.ever.raise(start);
        }
        let (book, start) = (&mut self.partitions[partition], self.starts_after.min(position));
        book.since_rewind.raise(start);
        book.ever.raise(start);
        self.adopts(life, partition, position);
        self.skips_nothing(life, partition, position);
    }

    /// Who never owned the partition pins its start for others.
    fn adopts(&mut self, life: usize, partition: usize, position: i64) {
        self.saw(life, "adopts", partition, position);
        let Some(tenure) = self.lives[life].tenures.get(&partition).copied() else { return };
        let adopted = self.partitions[partition].adopted;
        let name = self.name_of(life);
        self.check(Invariant::Fenced, tenure >= adopted, || {
            format!("{name} adopted partition {partition} in tenure {tenure}, after tenure {adopted} had")
        });
        self.partitions[partition].adopted = adopted.max(tenure);
        self.lives[life].adoptions.insert(partition, tenure);
    }

    fn our_checkpoint(&mut self, life: usize, partition: usize, before: i64, position: i64) {
        self.saw(life, "checkpoints", partition, position);
        let name = self.name_of(life);
        let (adopted, tenure) =
            (self.partitions[partition].adopted, self.lives[life].adoptions.get(&partition).copied());
        self.check(Invariant::Fenced, tenure.is_some_and(|tenure| tenure >= adopted), || {
            format!("{name} wrote checkpoint {position} of partition {partition} in tenure {tenure:?} of {adopted}")
        });
        self.check(Invariant::NeverBack, position >= before, || {
            format!("{name} moved the checkpoint of partition {partition} from {before} to {position}")
        });
        self.skips_nothing(life, partition, position);
    }

    fn skips_nothing(&mut self, life: usize, partition: usize, position: i64) {
        let book = &mut self.partitions[partition];
        let done = book.since_rewind.prefix().max(book.first - 1);
        book.stale &= position > done;
        if book.stale {
            return;
        }
        let name = self.name_of(life);
        self.check(Invariant::NothingSkipped, position <= done, || {
            format!("{name} wrote checkpoint {position} of partition {partition}, but only {done} is processed")
        });
    }

    fn rewind_written(&mut self, life: usize, partition: usize, position: i64) {
        self.saw(life, "rewinds", partition, position);
        let book = &self.partitions[partition];
        let is_operator = self.lives[life].member.is_none();
        let is_back = book.stored.is_some_and(|stored| position < stored);
        let is_beyond_end = book.stored.is_some_and(|stored| stored >= book.end);
        let (stale, adopted) = (book.stale, book.adopted);
        let (name, tenure) = (self.name_of(life), self.lives[life].tenures.get(&partition).copied());
        self.check(Invariant::Fenced, is_operator || tenure.is_some_and(|tenure| tenure >= adopted), || {
            format!("{name} replaced the checkpoint of partition {partition} in tenure {tenure:?} of {adopted}")
        });
        if is_back {
            let asked = is_operator || stale || is_beyond_end;
            self.check(Invariant::NeverBack, asked, || format!("{name} put partition {partition} back unasked"));
        } else if !is_operator && !self.invalid_to_latest {
            // Retention has overtaken the checkpoint.
            self.skips_nothing(life, partition, position);
        }
        if !is_operator && self.invalid_to_latest {
            self.partitions[partition].ever.raise(position);
        }
        self.count("rewinds accepted");
        let moment = self.moment;
        let book = &mut self.partitions[partition];
        (book.stale, book.rewound_at) = (position >= book.end, moment);
        book.since_rewind = Done::up_to(position.max(book.first - 1));
        self.mark(life, Mark::Rewound { partition, to: position });
    }

    /// It is written at will, so it may undo anything, a rewind too.
    fn foreign_checkpoint(&mut self, life: usize, partition: usize, position: i64) {
        self.saw(life, "checkpoints", partition, position);
        self.count("foreign checkpoints");
        let is_another_hub = self.generation != FIRST_GENERATION;
        let book = &mut self.partitions[partition];
        book.since_rewind = book.ever.clone();
        book.rewound_at = 0;
        // Of a hub that was made anew it has left out whatever the old checkpoint was ahead, and nobody could tell.
        let left_out = is_another_hub && position > book.ever.prefix();
        book.stale |= left_out || position >= book.end;
    }
}
