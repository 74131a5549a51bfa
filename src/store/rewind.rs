//! Rewind: the only way back, but for [`replace_checkpoint`](GroupStore::replace_checkpoint).
//!
//! The checkpoint is put anywhere, with the id of this rewind, and the same id is added to the ownership, so that an
//! owner with nothing to write meets it too, at its next renewal or listing. Whoever meets an id that it does not know
//! stops, adopts, and goes on from there.

use tokio::time::sleep;

use super::adopt::{Adoption, decoded};
use super::ownership::FoundRecord;
use super::{GroupStore, MAX_ATTEMPTS, back_off, condition, is_doubtful};
use crate::blob::{Condition, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, OwnershipRecord, PartitionId, Position, RewindId};
use crate::telemetry::Operation;

/// A rewind that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rewound {
    /// Tells it from others.
    pub id: RewindId,
    /// The owner that will meet it at its next renewal or listing, at the latest. Nobody if the partition has no owner
    /// of this crate: its next one will start from the new position; an owner of another SDK goes on as if nothing had
    /// happened.
    pub told: Option<OwnerId>,
}

/// What to do so that an owner meets the rewind.
enum Telling {
    Done(Option<OwnerId>),
    /// Mark its record.
    Write(FoundRecord),
    /// Its record has expired, but it may only have been suspended: then nothing would tell it when it wakes, as long
    /// as it has nothing to write. Released, the record is refused to it, or found released by its next listing, and
    /// free for others as before.
    Free(FoundRecord),
    /// Its record is about to be renewed, or abandoned. A mark would make it look alive.
    Wait,
}

impl GroupStore {
    /// Puts the checkpoint of a partition anywhere: mostly back, to have events processed again. Anybody may; the
    /// owner, if there is one, stops and starts again from there. The only operation that moves a checkpoint backwards.
    ///
    /// It may wait for an owner's renewal, or for its record to expire; an expired one is released.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Contended`] if other writers kept getting in between, else what the storage answered. It may have
    /// been done in part: rewind again, as often as it takes.
    pub async fn rewind(&self, partition: &PartitionId, to: &Position) -> Result<Rewound> {
        let id = RewindId::new(self.random());
        self.put_back(partition, to, &id).await?;
        let told = self.tell_owner(partition, &id).await?;
        Ok(Rewound { id, told })
    }

    /// Puts the checkpoint of a partition that was adopted anywhere, backwards too: in place of one from which
    /// processing cannot go on. As fenced as any checkpoint of the adoption's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if anything was written since the adoption, or may have been; else what the storage
    /// answered. Adopt again, and look.
    pub async fn replace_checkpoint(&self, adoption: &mut Adoption, place: &Position) -> Result<()> {
        let turn = self.turn(RecordKind::Checkpoint, &adoption.partition).await;
        let changed = || {
            let message = format!("the checkpoint of partition {} was written meanwhile", adoption.partition);
            Error::new(ErrorKind::Conflict, message)
        };
        if adoption.tenure < turn.state.begun() {
            return Err(changed());
        }
        let id = RewindId::new(self.random());
        let record = self.put_back_record(place, &adoption.record, id);
        let name = self.inner.names.of(RecordKind::Checkpoint, &adoption.partition);
        let under = condition(adoption.etag.clone());
        match self.write(Operation::Rewind, &name, &codec::encode_checkpoint(&record), &under).await {
            Ok(written) => {
                turn.state.take_notice(record.rewound.clone());
                (adoption.etag, adoption.record) = (Some(written.etag), record);
                Ok(())
            }
            Err(error) if is_doubtful(&error) => Err(changed().with_source(error)),
            Err(error) => Err(error),
        }
    }

    /// The other tree does not count any more: it may be further, and would undo this at the next adoption.
    fn put_back_record(&self, to: &Position, last: &CheckpointRecord, id: RewindId) -> CheckpointRecord {
        CheckpointRecord { rewound: Some(id), imported: None, ..self.checkpoint_record(to, last) }
    }

    async fn put_back(&self, partition: &PartitionId, to: &Position, id: &RewindId) -> Result<()> {
        let _turn = self.turn(RecordKind::Checkpoint, partition).await;
        let name = self.inner.names.of(RecordKind::Checkpoint, partition);
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let found = self.read(&name).await?.map(decoded);
            let (last, etag) = found.map(|(record, blob)| (record, blob.etag)).unzip();
            let last = last.unwrap_or_default();
            if last.rewound.as_ref() == Some(id) {
                return Ok(());
            }
            let record = self.put_back_record(to, &last, id.clone());
            if self.rewind_written(&name, &codec::encode_checkpoint(&record), &condition(etag)).await? {
                return Ok(());
            }
        }
        Err(contended("checkpoint", partition))
    }

    async fn tell_owner(&self, partition: &PartitionId, id: &RewindId) -> Result<Option<OwnerId>> {
        let mut attempt = 0;
        while attempt < MAX_ATTEMPTS {
            match self.telling(self.found_alive(partition).await?, id) {
                Telling::Done(told) => return Ok(told),
                Telling::Wait => sleep(self.terms().expiry / 16).await,
                Telling::Write(found) => {
                    let record = OwnershipRecord { rewound: Some(id.clone()), ..found.record };
                    let told = record.owner.clone();
                    if self.told(partition, attempt, &record, found.etag).await? {
                        return Ok(told);
                    }
                    attempt += 1;
                }
                Telling::Free(found) => {
                    if self.told(partition, attempt, &found.record.released(), found.etag).await? {
                        return Ok(None);
                    }
                    attempt += 1;
                }
            }
        }
        Err(contended("ownership", partition))
    }

    /// The ownership, as old as what keeps it alive.
    async fn found_alive(&self, partition: &PartitionId) -> Result<Option<FoundRecord>> {
        let Some(mut found) = self.read_ownership(partition).await? else { return Ok(None) };
        found.age = self.age_of_life(&found.record, found.age).await?;
        Ok(Some(found))
    }

    async fn told(&self, partition: &PartitionId, attempt: u32, record: &OwnershipRecord, over: ETag) -> Result<bool> {
        back_off(attempt).await;
        let _turn = self.turn(RecordKind::Ownership, partition).await;
        let name = self.inner.names.of(RecordKind::Ownership, partition);
        self.rewind_written(&name, &codec::encode_ownership(record), &Condition::Match(over)).await
    }

    fn telling(&self, found: Option<FoundRecord>, id: &RewindId) -> Telling {
        let terms = self.terms();
        match found {
            Some(found) if found.record.rewound.as_ref() == Some(id) => Telling::Done(found.record.owner),
            Some(found) if found.record.owner.is_some() && found.record.incarnation.is_some() => match found.age {
                young if young < terms.expiry / 2 => Telling::Write(found),
                age if terms.counts_as_live(&found.record, age) => Telling::Wait,
                _ => Telling::Free(found),
            },
            _ => Telling::Done(None),
        }
    }

    async fn rewind_written(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<bool> {
        match self.write(Operation::Rewind, name, metadata, condition).await {
            Ok(_) => Ok(true),
            Err(error) if is_doubtful(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn contended(record: &str, partition: &PartitionId) -> Error {
    Error::new(ErrorKind::Contended, format!("the {record} of partition {partition} changes all the time"))
}
