//! Looks at groups in memory. The fields of a description are changed as the next look would find them.

use std::sync::Arc;

use eventhubs_checkpoint::admin::describe::{GroupDescription, PartitionDescription};
use eventhubs_checkpoint::admin::{HubRanges, Operator};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::source::PartitionProperties;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, Claim, ClaimOutcome};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Position};

pub fn owner(id: &str) -> OwnerId {
    OwnerId::new(id).unwrap()
}

pub fn zero() -> PartitionId {
    0.into()
}

/// A group in memory.
pub struct Group {
    pub container: Arc<MemoryContainer>,
    pub operator: Operator,
}

impl Group {
    pub async fn new() -> Self {
        let container = Arc::new(MemoryContainer::new());
        let operator = Operator::connect(container.clone(), Self::named()).await.unwrap();
        Self { container, operator }
    }

    pub fn named() -> ConsumerGroup {
        ConsumerGroup::new("ns.servicebus.windows.net", "orders", "$Default").unwrap()
    }

    pub async fn store(&self, id: &str) -> GroupStore {
        GroupStore::connect(self.container.clone(), Self::named(), owner(id)).await.unwrap()
    }

    /// An owner claims partition 0 and checkpoints this event.
    pub async fn owned(&self, id: &str, event: i64) {
        let store = self.store(id).await;
        let listing = store.list_ownerships().await.unwrap();
        let over = listing.records.into_iter().find(|seen| seen.partition == zero());
        let claim = over.as_ref().map_or_else(|| Claim::unowned(zero()), Claim::over);
        let ClaimOutcome::Won(lease) = store.claim(&claim).await else { panic!("not claimed") };
        let adopted = store.adopt(lease.partition(), lease.epoch(), None).await.unwrap();
        let AdoptOutcome::Adopted(mut adoption) = adopted else { panic!("not adopted") };
        let _ = store.checkpoint(&mut adoption, &Position::new(event, event.to_string())).await.unwrap();
    }

    /// Looks at the group, whose partition 0 has events from 0 to this one.
    pub async fn look(&self, last: i64) -> GroupDescription {
        self.operator.read().await.unwrap().describe(Some(&ranges(last)))
    }
}

/// Returns the range of partition 0, with events from 0 to this one.
pub fn ranges(last: i64) -> HubRanges {
    let last = Position::new(last, last.to_string());
    [(zero(), PartitionProperties::new(0, Some(last), false))].into_iter().collect()
}

/// Returns a look at partition 0, owned by `a` with checkpoint 9 and last event 19.
pub async fn look() -> GroupDescription {
    let group = Group::new().await;
    group.owned("a", 9).await;
    group.look(19).await
}

/// Returns the same group this many seconds later, changed. A new owner has claimed the partition at that time.
pub fn later(
    before: &GroupDescription,
    seconds: i64,
    change: impl FnOnce(&mut PartitionDescription),
) -> GroupDescription {
    let mut after = before.clone();
    after.taken_at += time::Duration::seconds(seconds);
    let partition = &mut after.partitions[0];
    let earlier = partition.owner.as_ref().map(|owner| owner.id.clone());
    change(partition);
    if let Some(owner) = partition.owner.as_mut().filter(|owner| Some(&owner.id) != earlier.as_ref()) {
        owner.since = Some(after.taken_at);
    }
    after
}

pub fn give_to(partition: &mut PartitionDescription, id: &str) {
    partition.owner.as_mut().unwrap().id = owner(id);
}

/// Moves the checkpoint and the last event.
pub fn advance(partition: &mut PartitionDescription, checkpoint: i64, last: i64) {
    partition.checkpoint.as_mut().unwrap().position.sequence_number = Some(checkpoint);
    partition.hub.as_mut().unwrap().last = Some(last);
    partition.lag.events = Some((last - checkpoint).unsigned_abs());
}
