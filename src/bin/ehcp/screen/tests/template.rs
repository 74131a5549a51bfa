//! The group from which the tests of the screen make others.

use std::sync::Arc;

use eventhubs_checkpoint::admin::describe::GroupDescription;
use eventhubs_checkpoint::admin::{HubRanges, Operator, Reset, ResetTarget};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::{Claim, ClaimOutcome};
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId};

/// A group with one partition that has everything. The descriptions of the library can only be changed, not created.
pub async fn template() -> GroupDescription {
    let hub = MemoryHub::new("orders", 1);
    hub.publish_many(0, 10, "an order");
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "orders", "$Default").unwrap();
    let container = Arc::new(MemoryContainer::new());
    let store = GroupStore::connect(container.clone(), group.clone(), OwnerId::new("any").unwrap()).await.unwrap();
    let claimed = store.claim(&Claim::unowned(PartitionId::from(0))).await;
    assert!(matches!(claimed, ClaimOutcome::Won(_)), "{claimed:?}");
    let operator = Operator::connect(container, group).await.unwrap();
    let latest = Reset::to(ResetTarget::Start(StartPosition::Latest));
    operator.plan(&hub.source(), &latest).await.unwrap().init(&operator).await;
    let ranges = HubRanges::read(&hub.source()).await.unwrap();
    operator.read().await.unwrap().describe(Some(&ranges))
}
