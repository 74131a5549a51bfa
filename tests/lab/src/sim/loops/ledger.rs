//! Tracks the owner of each partition from the writes that the container accepted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use eventhubs_checkpoint::blob::{BlobContainer, Metadata};
use eventhubs_checkpoint::internal::codec::decode_ownership;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{Identity, Incarnation, OwnerId, PartitionId};
use tokio::time::Instant;

use super::trace::Move;
use crate::history;
use crate::sim::recorder::Recorder;

/// Clones share the same books.
#[derive(Clone)]
pub(super) struct Ledger {
    started: Instant,
    books: Arc<Mutex<Books>>,
}

/// An instance as ownership records name it.
type Holder = (OwnerId, Option<Incarnation>);

#[derive(Default)]
struct Books {
    /// The running instances.
    alive: BTreeMap<OwnerId, Incarnation>,
    partitions: BTreeMap<PartitionId, history::Partition<Holder>>,
    moves: Vec<Move>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), books: Arc::default() }
    }

    /// Wraps a container so that all its writes are recorded.
    pub(super) fn around(&self, inner: Arc<dyn BlobContainer>) -> Arc<dyn BlobContainer> {
        let ledger = self.clone();
        Recorder::new(inner, move |name, metadata| ledger.book(name, metadata))
    }

    pub(super) fn begins(&self, identity: &Identity) {
        self.books().alive.insert(identity.owner.clone(), identity.incarnation.clone());
    }

    pub(super) fn ends(&self, identity: &Identity) {
        self.books().alive.remove(&identity.owner);
    }

    pub(super) fn owners(&self) -> BTreeMap<PartitionId, OwnerId> {
        let books = self.books();
        let owned = books.partitions.iter().filter_map(|(partition, history)| Some((partition, history.owner()?)));
        let live = owned.filter(|(_, owner)| books.is_alive(owner));
        live.map(|(partition, (owner, _))| (partition.clone(), owner.clone())).collect()
    }

    pub(super) fn moves(&self) -> Vec<Move> {
        self.books().moves.clone()
    }

    /// The books are consistent after every statement, so a panic elsewhere while they were locked does no harm.
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    fn book(&self, name: &str, metadata: &Metadata) {
        let Some((_, partition)) = name.rsplit_once("/ownership/") else { return };
        let Ok(partition) = PartitionId::new(partition) else { return };
        let (record, _) = decode_ownership(name, metadata);
        let owner = record.owner.map(|owner| (owner, record.incarnation));
        let mut books = self.books();
        let change = books.partitions.entry(partition.clone()).or_default().owned_by(owner.clone());
        let before = change.before.filter(|before| books.is_alive(before));
        if let (Some((from, _)), Some((to, _))) = (before, owner)
            && from != to
        {
            books.moves.push(Move { at: self.started.elapsed(), partition, from, to });
        }
    }
}

impl Books {
    fn is_alive(&self, (owner, incarnation): &Holder) -> bool {
        self.alive.get(owner).is_some_and(|alive| Some(alive) == incarnation.as_ref())
    }
}
