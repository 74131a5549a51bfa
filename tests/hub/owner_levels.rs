//! The levels at which `EventHubSource` opens its links, and the processors on it.
//!
//! All clients run on one thread: with more threads, a send of the client can miss its response and hang.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_messaging_eventhubs::error::ErrorKind as ClientErrorKind;
use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ConsumerClient, EventReceiver as ClientReceiver, OpenReceiverOptions, RetryOptions};
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::{EventHubSource, OwnerLevel};
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, ProcessorHandle,
    ShutdownReport, StopReason,
};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, StartPosition,
};
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, PartitionId, Position};
use eventhubs_emulator::EventHubEmulator;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::captured::Captured;
use crate::hub_client::{consumer, earliest, failure, next, numbered, open, producer, send, until, within};

const GROUP: &str = "$Default";
/// As great as the epoch of an ownership: milliseconds since 1970.
const EPOCH: i64 = 1_800_000_000_000;
const INTERVAL: Duration = Duration::from_millis(250);

fn group() -> ConsumerGroup {
    ConsumerGroup::new("localhost", "hub", GROUP).unwrap()
}

async fn hub(partitions: u16) -> EventHubEmulator {
    EventHubEmulator::builder("hub").with_partitions(partitions).start("127.0.0.1:0").await.unwrap()
}

async fn source(hub: &EventHubEmulator, level: OwnerLevel) -> EventHubSource {
    source_with(hub, level, 0).await
}

async fn source_with(hub: &EventHubEmulator, level: OwnerLevel, max_retries: u32) -> EventHubSource {
    let endpoint = hub.endpoint();
    let builder =
        EventHubSource::from_connection_string(&group(), hub.connection_string()).with_client_builder(move |client| {
            let retries = RetryOptions { max_retries, ..RetryOptions::default() };
            client.with_retry_options(retries).with_custom_endpoint(endpoint.clone())
        });
    within("opening a consumer", builder.with_owner_level(level).connect()).await.unwrap()
}

/// With the shortest lease duration that is accepted.
async fn store(container: Arc<dyn BlobContainer>, owner: &str) -> GroupStore {
    let builder = GroupStore::builder(container, group(), OwnerId::new(owner).unwrap());
    builder.with_config(StoreConfig::default().with_lease_duration(Duration::from_secs(4))).connect().await.unwrap()
}

/// What the handler of an instance recorded.
#[derive(Clone, Debug, Default)]
struct Noted {
    /// The sequence numbers of its events, in order.
    numbers: Vec<i64>,
    stops: Vec<StopReason>,
}

/// Records the events, and checkpoints each batch.
#[derive(Clone, Default)]
struct Noting(Arc<watch::Sender<Noted>>);

impl Noting {
    fn numbers(&self) -> Vec<i64> {
        self.0.borrow().numbers.clone()
    }

    async fn wait_for(&self, what: &str, condition: impl Fn(&Noted) -> bool) {
        within(what, self.0.subscribe().wait_for(condition)).await.unwrap();
    }
}

impl Handler<ReceivedEventData> for Noting {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            context.checkpoint(event);
        }
        self.0.send_modify(|noted| noted.numbers.extend(events.iter().filter_map(ReceivedEventData::sequence_number)));
        Ok(())
    }

    async fn stopped(&self, _: PartitionContext, reason: StopReason) {
        self.0.send_modify(|noted| noted.stops.push(reason));
    }
}

fn config() -> ProcessorConfig {
    // The lease duration leaves no time for handoffs.
    ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(INTERVAL).with_handoff(false))
        .with_checkpoint_policy(CheckpointPolicy::default().with_interval(Duration::from_millis(50)))
}

/// Partition 1 was added to a group that begins at the latest event, and a processor of another SDK reads it. An
/// instance reads the start of that partition, which it does not own.
#[tokio::test]
async fn reading_a_start_displaces_no_reader() {
    let (log, _guard) = Captured::begin();
    let hub = hub(2).await;
    let producer = producer(&hub).await;
    send(&producer, "1", numbered(3)).await;
    let store = store(Arc::new(MemoryContainer::new()), "a").await;
    assert_eq!(store.init_checkpoint(&0.into(), &Position::new(-1, "-1")).await.unwrap(), InitOutcome::Written);
    let other_sdk = consumer(&hub).await;
    let other_reader = open(&other_sdk, "1", OpenReceiverOptions { owner_level: Some(0), ..earliest() }).await;
    assert_eq!(next(&other_reader, 3).await.len(), 3);

    let handler = Noting::default();
    let config = config()
        .with_start_position(StartPosition::Latest)
        .with_start_position_of(1.into(), StartPosition::AfterSequenceNumber(0));
    let processor = Processor::builder(source(&hub, OwnerLevel::default()).await, store.clone(), handler.clone())
        .with_config(config)
        .build()
        .unwrap();
    let running = tokio::spawn(processor.run(std::future::pending()));

    until("reading the start is rejected", || log.text().contains("another reader holds partition 1")).await;
    assert_eq!(hub.owner_levels(GROUP, "1"), Some(vec![Some(0)]));
    send(&producer, "1", numbered(1)).await;
    assert_eq!(next(&other_reader, 1).await[0].sequence_number(), Some(3), "the other reader continues");
    assert!(handler.numbers().is_empty());

    let offset = hub.partition_properties("1").unwrap().last_enqueued_offset;
    assert_eq!(store.init_checkpoint(&1.into(), &Position::new(3, offset)).await.unwrap(), InitOutcome::Written);
    let displaced = failure(&other_reader).await;
    assert!(matches!(displaced.kind, ClientErrorKind::ConsumerDisconnected(Some(_))), "by an owner: {displaced:?}");
    send(&producer, "1", numbered(1)).await;
    handler.wait_for("the next event", |noted| noted.numbers == [4]).await;
    running.abort();
}

/// A reader of the official client. The client is dropped with it.
struct Reader {
    _client: ConsumerClient,
    receiver: ClientReceiver,
}

async fn reader(hub: &EventHubEmulator, owner_level: Option<i64>) -> Reader {
    let client = consumer(hub).await;
    let receiver = open(&client, "0", OpenReceiverOptions { owner_level, ..earliest() }).await;
    Reader { _client: client, receiver }
}

async fn opened(source: &EventHubSource, epoch: i64) -> EventReceiver<ReceivedEventData> {
    within("opening a link", source.open_receiver(&0.into(), StartPosition::Earliest, 10, epoch)).await.unwrap()
}

async fn batch(receiver: &mut EventReceiver<ReceivedEventData>) -> eventhubs_checkpoint::Result<usize> {
    Ok(within("a batch", receiver.next_batch(100)).await?.len())
}

#[tokio::test]
async fn a_link_has_the_configured_level_in_every_client() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    for (level, epochs, expected) in [
        (OwnerLevel::default(), [1, EPOCH], [Some(0), Some(0)]),
        (OwnerLevel::Fixed(3), [1, EPOCH], [Some(3), Some(3)]),
        (OwnerLevel::Epoch, [EPOCH, i64::MAX], [Some(EPOCH), Some(i64::MAX)]),
        (OwnerLevel::Epoch, [i64::MAX, 1], [Some(i64::MAX), Some(1)]),
        (OwnerLevel::Epoch, [0, 0], [None, None]),
    ] {
        let source = source(&hub, level).await;
        for (epoch, expected) in epochs.into_iter().zip(expected) {
            let mut receiver = opened(&source, epoch).await;
            assert_eq!(batch(&mut receiver).await.unwrap(), 1);
            assert_eq!(hub.owner_levels(GROUP, "0"), Some(vec![expected]), "{level:?}, epoch {epoch}");
            receiver.close(Duration::from_secs(2)).await;
            // The next link is opened through a fresh client.
            source.connection_suspect(&0.into());
        }
        until("the last link is closed", || hub.open_receivers(GROUP, "0") == Some(0)).await;
    }
}

#[tokio::test]
async fn negative_levels_are_rejected() {
    let hub = hub(1).await;
    let builder = EventHubSource::from_connection_string(&group(), hub.connection_string());
    let refusal = builder.with_owner_level(OwnerLevel::Fixed(-1)).connect().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Config);
    let source = source(&hub, OwnerLevel::Epoch).await;
    let refusal = source.open_receiver(&0.into(), StartPosition::Earliest, 10, -1).await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn readers_up_to_level_0_are_rejected_during_an_epoch() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(1)).await;
    let source = source(&hub, OwnerLevel::Epoch).await;
    let mut ours = opened(&source, EPOCH).await;
    assert_eq!(batch(&mut ours).await.unwrap(), 1);

    for level in [None, Some(0)] {
        let refused = failure(&reader(&hub, level).await.receiver).await;
        assert!(matches!(refused.kind, ClientErrorKind::ConsumerDisconnected(Some(_))), "{level:?}: {refused:?}");
        assert_eq!(hub.owner_levels(GROUP, "0"), Some(vec![Some(EPOCH)]));
    }

    send(&producer, "0", numbered(1)).await;
    assert_eq!(batch(&mut ours).await.unwrap(), 1, "it reads on");
}

#[tokio::test]
async fn a_link_with_an_epoch_displaces_readers_to_level_0() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let source = source(&hub, OwnerLevel::Epoch).await;
    for (level, epoch) in [(None, EPOCH), (Some(0), EPOCH + 1)] {
        let other = reader(&hub, level).await;
        assert_eq!(next(&other.receiver, 1).await.len(), 1);
        let mut ours = opened(&source, epoch).await;
        let (displaced, events) = tokio::join!(failure(&other.receiver), batch(&mut ours));
        assert!(matches!(displaced.kind, ClientErrorKind::ConsumerDisconnected(Some(_))), "{level:?}: {displaced:?}");
        assert_eq!(events.unwrap(), 1);
        ours.close(Duration::from_secs(2)).await;
        until("the link is closed", || hub.open_receivers(GROUP, "0") == Some(0)).await;
    }
}

#[tokio::test]
async fn a_source_with_a_lower_epoch_is_fenced() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let (earlier, later) = (source(&hub, OwnerLevel::Epoch).await, source(&hub, OwnerLevel::Epoch).await);
    let mut displaced = opened(&earlier, EPOCH).await;
    assert_eq!(batch(&mut displaced).await.unwrap(), 1);
    let mut ruling = opened(&later, EPOCH + 1).await;
    let (displacement, events) = tokio::join!(batch(&mut displaced), batch(&mut ruling));
    assert_eq!((displacement.unwrap_err().kind(), events.unwrap()), (ErrorKind::Fenced, 1));
    displaced.close(Duration::from_secs(2)).await;

    let mut refused = opened(&earlier, EPOCH).await;
    assert_eq!(batch(&mut refused).await.unwrap_err().kind(), ErrorKind::Fenced);
    refused.close(Duration::from_secs(2)).await;
    assert_eq!(hub.owner_levels(GROUP, "0"), Some(vec![Some(EPOCH + 1)]));

    ruling.close(Duration::from_secs(2)).await;
    until("the higher link is gone", || hub.open_receivers(GROUP, "0") == Some(0)).await;
    assert_eq!(batch(&mut opened(&earlier, EPOCH).await).await.unwrap(), 1);
}

/// The official client attaches the link again by itself when it is polled.
#[tokio::test]
async fn a_re_attached_link_takes_back_only_at_level_0() {
    for level in [OwnerLevel::Fixed(0), OwnerLevel::Epoch] {
        let hub = hub(1).await;
        send(&producer(&hub).await, "0", numbered(1)).await;
        let (earlier, later) = (source_with(&hub, level, 8).await, source_with(&hub, level, 8).await);
        let mut former = opened(&earlier, EPOCH).await;
        assert_eq!(batch(&mut former).await.unwrap(), 1);
        assert_eq!(hub.detach_receivers(GROUP, "0"), Some(1));
        let mut ruling = opened(&later, EPOCH + 1).await;
        assert_eq!(batch(&mut ruling).await.unwrap(), 1);

        let re_attached = batch(&mut former).await;

        if level == OwnerLevel::Epoch {
            assert_eq!(re_attached.unwrap_err().kind(), ErrorKind::Fenced);
            assert_eq!(hub.owner_levels(GROUP, "0"), Some(vec![Some(EPOCH + 1)]));
        } else {
            assert_eq!(re_attached.unwrap(), 1);
            assert_eq!(batch(&mut ruling).await.unwrap_err().kind(), ErrorKind::Fenced);
        }
    }
}

/// A source whose owner has epochs above `base`, and which opens links only while the gate is open.
struct Gated {
    inner: EventHubSource,
    base: i64,
    gate: watch::Receiver<bool>,
    /// When a link was opened.
    opened: Arc<Mutex<Vec<Instant>>>,
}

impl EventSource for Gated {
    type Event = ReceivedEventData;

    async fn event_hub_properties(&self) -> eventhubs_checkpoint::Result<EventHubProperties> {
        self.inner.event_hub_properties().await
    }

    async fn partition_properties(&self, partition: &PartitionId) -> eventhubs_checkpoint::Result<PartitionProperties> {
        self.inner.partition_properties(partition).await
    }

    async fn open_receiver(
        &self,
        partition: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        epoch: i64,
    ) -> eventhubs_checkpoint::Result<EventReceiver<ReceivedEventData>> {
        let _ = self.gate.clone().wait_for(|open| *open).await;
        self.opened.lock().unwrap().push(Instant::now());
        self.inner.open_receiver(partition, from, prefetch, self.base + epoch).await
    }
}

/// A processor, and everything that a test does to it.
struct Instance {
    handler: Noting,
    handle: ProcessorHandle,
    running: JoinHandle<eventhubs_checkpoint::Result<ShutdownReport>>,
    storage: FaultyContainer,
    gate: watch::Sender<bool>,
    opened: Arc<Mutex<Vec<Instant>>>,
}

impl Instance {
    async fn start(
        hub: &EventHubEmulator,
        container: &MemoryContainer,
        owner: &str,
        base: i64,
        level: OwnerLevel,
    ) -> Self {
        let (gate, opened) = (watch::Sender::new(true), Arc::default());
        let inner = source(hub, level).await;
        let gated = Gated { inner, base, gate: gate.subscribe(), opened: Arc::clone(&opened) };
        let storage = FaultyContainer::new(Arc::new(container.clone()), 1);
        let handler = Noting::default();
        let store = store(Arc::new(storage.clone()), owner).await;
        let processor = Processor::builder(gated, store, handler.clone()).with_config(config()).build().unwrap();
        let handle = processor.handle();
        let running = tokio::spawn(processor.run(std::future::pending()));
        Self { handler, handle, running, storage, gate, opened }
    }

    fn opens(&self) -> usize {
        self.opened.lock().unwrap().len()
    }

    fn last_error(&self) -> String {
        self.handle
            .partitions()
            .into_iter()
            .find_map(|status| status.last_error)
            .map_or_else(String::new, |error| error.message)
    }

    async fn end(self) {
        self.handle.shutdown();
        within("the end of a processor", self.running).await.unwrap().unwrap();
    }
}

/// Two instances; the first one is disconnected from the storage while its link breaks. The second one has taken the
/// partition over and has read events 0 to 9. The first one has read 0 to 4, and waits at its gate to open the next
/// link.
async fn taken_over(hub: &EventHubEmulator, level: OwnerLevel) -> [Instance; 2] {
    let container = MemoryContainer::new();
    let producer = producer(hub).await;
    send(&producer, "0", numbered(5)).await;
    let first = Instance::start(hub, &container, "first", EPOCH, level).await;
    let is_checkpointed = || first.handle.partitions().iter().any(|status| status.checkpoint == Some(4));
    until("5 events are checkpointed", is_checkpointed).await;

    first.storage.set_plan(FaultPlan::always(Fault::Unreachable));
    first.gate.send_replace(false);
    assert_eq!(hub.detach_receivers(GROUP, "0"), Some(1));
    let second = Instance::start(hub, &container, "second", EPOCH + 1000, level).await;
    send(&producer, "0", numbered(5)).await;
    second.handler.wait_for("the second half", |noted| noted.numbers == [5, 6, 7, 8, 9]).await;
    assert_eq!((first.handler.numbers(), first.opens()), (vec![0, 1, 2, 3, 4], 1));
    [first, second]
}

/// Once it reaches the storage.
async fn loses_the_partition(first: &Instance) {
    first.storage.set_plan(FaultPlan::default());
    first.handler.wait_for("the end of the ownership", |noted| !noted.stops.is_empty()).await;
    let stops = first.handler.0.borrow().stops.clone();
    assert!(matches!(&stops[..], [StopReason::OwnershipLost { by: Some(by) }] if by.as_str() == "second"), "{stops:?}");
}

#[tokio::test]
async fn with_epochs_a_disconnected_owner_cannot_take_back() {
    let hub = hub(1).await;
    let [first, second] = taken_over(&hub, OwnerLevel::Epoch).await;

    first.gate.send_replace(true);
    until("the broker rejects the first", || first.last_error().contains("already exists")).await;
    send(&producer(&hub).await, "0", numbered(5)).await;
    second.handler.wait_for("the last events", |noted| noted.numbers.len() == 10).await;
    sleep(Duration::from_secs(1)).await;

    assert_eq!(second.handler.numbers(), (5..15).collect::<Vec<_>>());
    assert_eq!(
        (first.handler.numbers(), first.opens()),
        (vec![0, 1, 2, 3, 4], 2),
        "it reads the storage before it opens"
    );
    assert_eq!(second.opens(), 1, "it was never displaced");
    assert!(matches!(hub.owner_levels(GROUP, "0").as_deref(), Some([Some(level)]) if *level > EPOCH + 1000));
    loses_the_partition(&first).await;
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn at_level_0_a_disconnected_owner_takes_back_once() {
    let hub = hub(1).await;
    let [first, second] = taken_over(&hub, OwnerLevel::Fixed(0)).await;

    first.gate.send_replace(true);
    first.handler.wait_for("events that the second has read", |noted| noted.numbers.contains(&9)).await;
    until("the second displaces it again", || first.last_error().contains("is getting disconnected")).await;
    send(&producer(&hub).await, "0", numbered(5)).await;
    second.handler.wait_for("the last events", |noted| noted.numbers.contains(&14)).await;

    assert_eq!((first.opens(), second.opens()), (2, 2), "it reads the storage before it opens a third link");
    assert_eq!(hub.owner_levels(GROUP, "0"), Some(vec![Some(0)]));
    loses_the_partition(&first).await;
    first.end().await;
    second.end().await;
}

/// It owns the partition, but the broker prefers a reader with a higher level.
#[tokio::test]
async fn a_rejected_owner_retries_less_and_less_often() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let higher = reader(&hub, Some(i64::MAX)).await;
    assert_eq!(next(&higher.receiver, 1).await.len(), 1);

    let owner = Instance::start(&hub, &MemoryContainer::new(), "owner", EPOCH, OwnerLevel::Epoch).await;
    until("it is rejected", || owner.last_error().contains("already exists")).await;
    until("it has tried again", || owner.opens() >= 3).await;
    let pauses: Vec<_> = owner.opened.lock().unwrap().windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (pause, wait) in pauses.iter().zip([250, 500]) {
        // With jitter.
        assert!(*pause >= Duration::from_millis(wait * 3 / 4), "{pauses:?}");
    }
    assert!(owner.handler.numbers().is_empty());

    drop(higher);
    owner.handler.wait_for("the event", |noted| noted.numbers == [0]).await;
    owner.end().await;
}
