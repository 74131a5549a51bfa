//! Repair: changing the position of an adopted checkpoint without any progress.

use super::GroupStore;
use super::adopt::Adoption;
use super::settle::is_ambiguous;
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, Position};
use crate::telemetry::StorageOperation;

impl GroupStore {
    /// Replaces the position of an adopted checkpoint with any other, also an earlier one, for a checkpoint from which
    /// processing cannot continue. It is fenced like any checkpoint of the adoption. Together with the adoption before
    /// it, this is the only way to move a checkpoint backward.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if anything was written since the adoption, or may have been; otherwise the error of the
    /// storage. Adopt again, and check the record.
    #[doc(alias = "rewind")]
    pub async fn replace_checkpoint(&self, adoption: &mut Adoption, place: &Position) -> Result<()> {
        let record = self.checkpoint_record(place, &adoption.record, adoption.hub_created_at);
        self.rewrite_adopted(adoption, record).await
    }

    /// Rewrites the position of an adopted checkpoint, where `place` is the position at which reading continues in any
    /// case, with the creation of the event hub. The rest of the record stays as it is. It is fenced like any checkpoint of
    /// the adoption.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if anything was written since the adoption, or may have been; otherwise the error of the
    /// storage. The adoption remains valid: its next checkpoint finds out what is recorded. So processing can continue.
    pub(crate) async fn repair_checkpoint(&self, adoption: &mut Adoption, place: &Position) -> Result<()> {
        let record = CheckpointRecord {
            sequence_number: Some(place.sequence_number),
            offset: Some(place.offset.clone()),
            hub_created_at: adoption.hub_created_at,
            ..adoption.record.clone()
        };
        self.rewrite_adopted(adoption, record).await
    }

    /// Writes once, under the version of the adoption. The write is never repeated: after a write without a response,
    /// only a new adoption can find out what is recorded.
    async fn rewrite_adopted(&self, adoption: &mut Adoption, record: CheckpointRecord) -> Result<()> {
        let guard = self.acquire(RecordKind::Checkpoint, &adoption.partition).await;
        if guard.state.may_be_superseded(adoption.epoch) {
            return Err(changed(adoption));
        }
        let name = self.inner.names.of(RecordKind::Checkpoint, &adoption.partition);
        let under = adoption.etag.clone().into();
        match self.write(StorageOperation::Adopt, &name, &codec::encode_checkpoint(&record), &under).await {
            Ok(written) => {
                (adoption.etag, adoption.record) = (Some(written.etag), record);
                Ok(())
            }
            Err(error) if is_ambiguous(&error) => Err(changed(adoption).with_source(error)),
            Err(error) => Err(error),
        }
    }
}

fn changed(adoption: &Adoption) -> Error {
    let message = format!("the checkpoint of partition {} was written in the meantime", adoption.partition);
    Error::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{ConsumerGroup, OwnerId, PartitionId};
    use crate::store::{AdoptOutcome, Claim, ClaimOutcome};

    #[tokio::test]
    async fn a_repair_of_an_earlier_epoch_is_rejected() {
        let group = ConsumerGroup::new("ns", "hub", "$Default").unwrap();
        let builder = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("a").unwrap());
        let store = builder.connect().await.unwrap();
        let partition = PartitionId::from(0);
        let place = |sequence_number| Position { sequence_number, offset: "-1".into() };
        let won = store.claim(&Claim::unowned(partition.clone())).await;
        let ClaimOutcome::Won(lease) = won else { panic!("{won:?}") };
        let adopted = store.adopt(&partition, lease.epoch(), Some(&place(-1))).await.unwrap();
        let AdoptOutcome::Adopted(mut adoption) = adopted else { panic!("{adopted:?}") };
        store.repair_checkpoint(&mut adoption, &place(4)).await.unwrap();
        assert_eq!((adoption.record().sequence_number, adoption.record().initial), (Some(4), true));
        let seen = store.list_ownerships().await.unwrap().records.remove(0);
        let _ = store.claim(&Claim::over(&seen)).await;
        let rejected = store.repair_checkpoint(&mut adoption, &place(5)).await.unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::Conflict);
        assert_eq!(store.list_checkpoints().await.unwrap().records[0].record.sequence_number, Some(4));
    }
}
