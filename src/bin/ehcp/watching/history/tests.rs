use std::sync::Arc;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::{HubRanges, Operator, Reset, ResetTarget};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::StartPosition;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use time::macros::datetime;

use super::*;

const START: OffsetDateTime = datetime!(2026-11-23 10:00 UTC);

/// A group with one partition. The descriptions of the library can only be changed, not created.
async fn template() -> GroupDescription {
    let hub = MemoryHub::new("orders", 1);
    hub.publish_many(0, 10, "an order");
    let group = ConsumerGroup::new("ns", "orders", "$Default").unwrap();
    let settings = GroupStore::builder(Arc::new(MemoryContainer::new()), group, OwnerId::new("any").unwrap());
    let operator = Operator::connect(settings).await.unwrap();
    let latest = Reset::to(ResetTarget::Start(StartPosition::Latest));
    operator.plan(&hub.source(), &latest).await.unwrap().init(&operator).await;
    operator.read().await.unwrap().describe(Some(&HubRanges::read(&hub.source()).await.unwrap()))
}

/// Looks at a partition: seconds, checkpoint, last event.
async fn looks(looks: &[(i64, i64, i64)]) -> History {
    let template = template().await;
    let mut history = History::default();
    for (seconds, number, last) in looks {
        let mut group = template.clone();
        group.taken_at = START + Duration::seconds(*seconds);
        let partition = &mut group.partitions[0];
        partition.lag.events = u64::try_from(last - number).ok();
        partition.hub.as_mut().unwrap().last = Some(*last);
        let checkpoint = partition.checkpoint.as_mut().unwrap();
        (checkpoint.position.sequence_number, checkpoint.updated) = (Some(*number), group.taken_at);
        history.add(group);
    }
    history
}

fn rates(history: &History) -> Rates {
    history.rates(&history.last().unwrap().partitions[0])
}

fn at_least(history: &History) -> Option<f64> {
    history.behind_at_least(&history.last().unwrap().partitions[0])
}

#[tokio::test(start_paused = true)]
async fn rates_need_two_looks() {
    assert_eq!(rates(&looks(&[(0, 10, 20)]).await), Rates { processed: None, enqueued: None, behind_s: None });
    let moved = rates(&looks(&[(0, 10, 20), (10, 20, 50)]).await);
    assert_eq!((moved.processed, moved.enqueued), (Some(1.0), Some(3.0)));
    let reset = rates(&looks(&[(0, 10, 20), (10, 5, 20)]).await);
    assert_eq!((reset.processed, reset.enqueued), (None, Some(0.0)), "the checkpoint went back");
    let later = rates(&looks(&[(0, 0, 0), (100, 0, 0), (130, 60, 60)]).await);
    assert_eq!(later.processed, Some(2.0), "of the last 30 s");
}

#[tokio::test(start_paused = true)]
async fn the_time_behind_is_that_of_the_next_event() {
    assert_eq!(rates(&looks(&[(0, 20, 20)]).await).behind_s, Some(0.0));
    // Event 26 is in the middle of those that came between 10 s and 20 s.
    let behind = looks(&[(0, 20, 20), (10, 20, 20), (20, 20, 30), (30, 25, 30)]).await;
    assert_eq!(rates(&behind).behind_s, Some(14.0));
    assert_eq!(at_least(&behind), None);
}

#[tokio::test(start_paused = true)]
async fn events_of_before_the_first_look_have_a_least_time() {
    let history = looks(&[(0, 10, 20), (40, 15, 20)]).await;
    assert_eq!((rates(&history).behind_s, at_least(&history)), (None, Some(40.0)));
    let done = looks(&[(0, 10, 20), (40, 20, 20)]).await;
    assert_eq!((rates(&done).behind_s, at_least(&done)), (Some(0.0), None));
}

#[tokio::test(start_paused = true)]
async fn each_checkpoint_is_kept_once() {
    let mut history = looks(&[(0, 10, 20), (2, 15, 20)]).await;
    let again = history.last().unwrap().clone();
    history.add(again);
    let numbers: Vec<_> = history.checkpoints(&0.into()).map(|seen| seen.sequence_number).collect();
    assert_eq!(numbers, [Some(10), Some(15)]);
}

#[tokio::test(start_paused = true)]
async fn an_hour_is_kept() {
    let many: Vec<_> = (0..2400).map(|look| (look * 2, look, look)).collect();
    let history = looks(&many).await;
    let first = history.slots(&0.into()).next().unwrap().from;
    assert!(START + Duration::seconds(4798) - first <= KEPT + SLOT, "{first}");
    assert_eq!(history.checkpoints(&0.into()).count(), MAX_CHECKPOINTS);
}
