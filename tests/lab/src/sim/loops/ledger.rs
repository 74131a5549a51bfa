//! Who owns what, by the writes that the container accepted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Answer, Blob, BlobContainer, BlobList, Condition, ContainerCreation, Metadata, Written,
};
use eventhubs_checkpoint::internal::codec::decode_ownership;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use eventhubs_checkpoint::{Identity, Incarnation, OwnerId, OwnershipRecord, PartitionId};
use tokio::time::Instant;

use super::trace::Move;

/// A container that keeps books of ownerships. Clones are the same.
#[derive(Clone)]
pub(super) struct Ledger {
    inner: Arc<dyn BlobContainer>,
    started: Instant,
    /// One write at a time, so that they are booked in the order in which they were applied.
    turn: Arc<tokio::sync::Mutex<()>>,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    /// The lives that go on.
    alive: BTreeMap<OwnerId, Incarnation>,
    records: BTreeMap<PartitionId, OwnershipRecord>,
    moves: Vec<Move>,
}

impl Ledger {
    pub(super) fn new(inner: Arc<dyn BlobContainer>) -> Self {
        Self { inner, started: Instant::now(), turn: Arc::default(), books: Arc::default() }
    }

    pub(super) fn begins(&self, life: &Identity) {
        self.books().alive.insert(life.owner.clone(), life.incarnation.clone());
    }

    pub(super) fn ends(&self, life: &Identity) {
        self.books().alive.remove(&life.owner);
    }

    pub(super) fn owners(&self) -> BTreeMap<PartitionId, OwnerId> {
        let books = self.books();
        let live = books.records.iter().filter_map(|(partition, record)| Some((partition, books.live_owner(record)?)));
        live.map(|(partition, owner)| (partition.clone(), owner.clone())).collect()
    }

    pub(super) fn moves(&self) -> Vec<Move> {
        self.books().moves.clone()
    }

    /// The books are right after every statement, so a panic elsewhere while they were locked does no harm.
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    fn book(&self, name: &str, metadata: &Metadata) {
        let Some((_, partition)) = name.rsplit_once("/ownership/") else { return };
        let Ok(partition) = PartitionId::new(partition) else { return };
        let (record, _) = decode_ownership(name, metadata);
        let mut books = self.books();
        let before = books.records.get(&partition).and_then(|before| books.live_owner(before)).cloned();
        if let (Some(from), Some(to)) = (before, record.owner.clone())
            && from != to
        {
            books.moves.push(Move { at: self.started.elapsed(), partition: partition.clone(), from, to });
        }
        books.records.insert(partition, record);
    }
}

impl Books {
    /// The owner, if the life that wrote this goes on.
    fn live_owner<'a>(&self, record: &'a OwnershipRecord) -> Option<&'a OwnerId> {
        let owner = record.owner.as_ref()?;
        (self.alive.get(owner)? == record.incarnation.as_ref()?).then_some(owner)
    }
}

#[async_trait]
impl BlobContainer for Ledger {
    async fn list(&self, prefix: &str) -> Result<BlobList> {
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<Written> {
        let (ledger, name) = (self.clone(), name.to_owned());
        let (metadata, condition) = (metadata.clone(), condition.clone());
        // What has arrived is applied and booked, whatever becomes of its sender.
        let applied = tokio::spawn(async move {
            let _turn = ledger.turn.lock().await;
            let written = ledger.inner.write(&name, &metadata, &condition).await?;
            ledger.book(&name, &metadata);
            Ok(written)
        });
        applied.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unknown, "the simulated server failed").with_source(error))
        })
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<Answer> {
        self.inner.delete(name, condition).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn isolated(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("inner", &self.inner).finish_non_exhaustive()
    }
}
