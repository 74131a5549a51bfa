//! Discovers the partitions of the event hub and records where they start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{TryStreamExt, stream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::balancer::Snapshots;
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::processor::handler::Handler;
use crate::processor::partition::restart_backoff::{LONGEST_WAIT, RestartBackoff};
use crate::processor::shared::{SharedResources, first_wait, shorten_randomly};
use crate::source::{EventSource, NO_EPOCH, StartPosition, guard_request, resolve_start};
use crate::store::GroupStore;
use crate::telemetry::{self, Telemetry};

/// The most partitions whose start is recorded at the same time.
const RECORDED_AT_ONCE: usize = 8;

/// The properties of the event hub are read again after this many load-balancing intervals, which is 5 min by default:
/// event hubs rarely change, and all instances of a namespace share its quota of such requests.
const INTERVALS_BETWEEN_READS: u32 = 30;

/// Checks before the start what can be checked: the event hub, its partitions and the access to them. Then records the
/// starts of the partitions, if the settings require it.
pub(crate) async fn start_up<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<SharedResources<S, H>>,
) -> Result<Arc<[PartitionId]>> {
    let store = &shared.store;
    let starting = async {
        let partitions = repeat_until_success(store, || read_hub(shared), Telemetry::hub_not_ready).await?;
        repeat_until_success(
            store,
            || guard_request(shared.source.check_access(&partitions[0])),
            Telemetry::hub_not_ready,
        )
        .await?;
        record_group_starts(shared, &partitions).await?;
        Ok(partitions)
    };
    starting.await.map_err(|error: Error| {
        telemetry::processor_not_started(&error);
        Error::new(error.kind(), format!("cannot start in {}: {error}", shared.group)).with_source(error)
    })
}

/// Reads the partitions of the event hub, and when it was created.
pub(crate) async fn read_hub<S: EventSource, H>(shared: &SharedResources<S, H>) -> Result<Arc<[PartitionId]>> {
    let _reading = shared.hub_creation.reading.lock().await;
    let hub = guard_request(shared.source.event_hub_properties()).await?;
    let expected = shared.group.event_hub();
    if !hub.event_hub.eq_ignore_ascii_case(expected) {
        return Err(Error::config(format!(
            "the client reads event hub {:?}, but the store keeps the records of {expected:?}: configure the same \
             event hub for both",
            hub.event_hub
        )));
    }
    if hub.partitions.is_empty() {
        return Err(Error::config(format!("event hub {expected:?} has no partitions, so there is nothing to process")));
    }
    shared.hub_creation.record_report(hub.created_at);
    Ok(hub.partitions.into())
}

/// Reads the properties of the event hub again from time to time, because it can gain partitions, and because it can be
/// recreated. Reads them within a load-balancing interval if there is a reason; see [`wait_for_reason`].
pub(crate) async fn refresh_partitions<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<SharedResources<S, H>>,
    partitions: watch::Sender<Arc<[PartitionId]>>,
    mut snapshots: Snapshots,
) {
    let interval = shared.config.balancer.load_balancing_interval;
    let period = interval.saturating_mul(INTERVALS_BETWEEN_READS);
    let store = &shared.store;
    let mut wait = first_wait(period, store.next_random());
    let mut has_failed = false;
    let mut backoff = RestartBackoff::default();
    let mut known: BTreeSet<PartitionId> = partitions.borrow().iter().cloned().collect();
    loop {
        tokio::select! {
            biased;
            () = sleep(wait) => {}
            () = wait_for_reason(&shared, &mut snapshots, &known), if !has_failed => {
                sleep(shorten_randomly(interval, store.next_random())).await;
            }
        }
        // What other instances own counts as known even if the event hub does not have it.
        let owned: Vec<_> = snapshots.borrow().leases.keys().cloned().collect();
        let read = read_hub(&shared).await;
        has_failed = read.is_err();
        match read {
            Ok(named) => {
                known = named.iter().cloned().chain(owned).collect();
                partitions.send_if_modified(|before| std::mem::replace(before, Arc::clone(&named)) != named);
                wait = shorten_randomly(period, store.next_random());
                backoff = RestartBackoff::default();
            }
            Err(error) => {
                let requested = error.retry_after().unwrap_or_default().max(interval);
                wait = shorten_randomly(backoff.next_wait_between(requested, 3 * interval), store.next_random());
                store.telemetry().partition_list_failed(&error, wait);
            }
        }
    }
}

/// Waits for a reason to read the properties of the event hub again: it may have been recreated, or another instance
/// owns a partition that this one does not know.
async fn wait_for_reason<S, H>(
    shared: &SharedResources<S, H>,
    snapshots: &mut Snapshots,
    known: &BTreeSet<PartitionId>,
) {
    tokio::select! {
        () = shared.hub_creation.doubt.notified() => {}
        Ok(_) = snapshots.wait_for(|snapshot| !snapshot.leases.keys().all(|owned| known.contains(owned))) => {}
    }
}

/// Records the starts of a group that starts at the latest event, all when the group starts: a partition that is
/// claimed later must not skip the events that arrive before. The last partition comes first and alone. Once it has a
/// checkpoint, all partitions up to it belong to the start of the group, whichever instance records them, and all
/// partitions after it were added later.
///
/// Retries without a limit: the storage and the event hub may be unavailable.
async fn record_group_starts<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<SharedResources<S, H>>,
    partitions: &[PartitionId],
) -> Result<()> {
    if shared.config.start_position != StartPosition::Latest {
        shared.initial_partitions.set_initial(partitions.to_vec());
        return record_single_latest(shared, partitions).await;
    }
    let started = repeat_until_success(
        &shared.store,
        || list_recorded_partitions(shared),
        Telemetry::start_positions_not_recorded,
    )
    .await?;
    let last = started.last().or(partitions.iter().max()).cloned();
    let (initial, added): (Vec<_>, Vec<_>) = partitions.iter().cloned().partition(|p| Some(p) <= last.as_ref());
    telemetry::start_positions_recorded(started.len(), initial.len(), added.len());
    if started.is_empty()
        && let Some(last) = last
    {
        let start = shared.config.start_position_of(&last).clone();
        record_start_persistently(Arc::clone(shared), last, start).await?;
    }
    let missing = initial.iter().filter(|partition| !started.contains(partition)).cloned();
    stream::iter(missing.map(Ok))
        .try_for_each_concurrent(RECORDED_AT_ONCE, |partition| {
            let start = shared.config.start_position_of(&partition).clone();
            record_start_persistently(Arc::clone(shared), partition, start)
        })
        .await?;
    shared.initial_partitions.set_initial(initial);
    record_new_starts(shared, added).await
}

/// Records the start of the partitions for which the application chose the latest event, if the group starts at another
/// position: events that arrive before such a partition is claimed must not be skipped.
async fn record_single_latest<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<SharedResources<S, H>>,
    partitions: &[PartitionId],
) -> Result<()> {
    let chosen = &shared.config.start_positions;
    let latest: Vec<_> =
        partitions.iter().filter(|id| chosen.get(*id) == Some(&StartPosition::Latest)).cloned().collect();
    if latest.is_empty() {
        return Ok(());
    }
    let recorded = repeat_until_success(
        &shared.store,
        || list_recorded_partitions(shared),
        Telemetry::start_positions_not_recorded,
    )
    .await?;
    for partition in latest.into_iter().filter(|partition| !recorded.contains(partition)) {
        record_start_persistently(Arc::clone(shared), partition, StartPosition::Latest).await?;
    }
    Ok(())
}

/// Records the starts of added partitions in ascending order, as their owners do. This happens at once because owners
/// of other SDKs record no starts: if one of them wrote a checkpoint of the last partition, the next instance would
/// count the partitions before it as initial.
async fn record_new_starts<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<SharedResources<S, H>>,
    mut added: Vec<PartitionId>,
) -> Result<()> {
    added.sort();
    for partition in added {
        let start = shared.config.start_position_of_new(&partition).clone();
        record_start_persistently(Arc::clone(shared), partition, start).await?;
    }
    Ok(())
}

/// Returns the partitions that have a checkpoint.
async fn list_recorded_partitions<S, H>(shared: &SharedResources<S, H>) -> Result<BTreeSet<PartitionId>> {
    let checkpoints = shared.store.list_checkpoints().await?.records;
    for found in &checkpoints {
        shared.offset_format.record_offset(found.record.offset.as_deref());
    }
    Ok(checkpoints.into_iter().map(|checkpoint| checkpoint.partition).collect())
}

async fn record_start_persistently<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<SharedResources<S, H>>,
    partition: PartitionId,
    start: StartPosition,
) -> Result<()> {
    repeat_until_success(
        &shared.store,
        || record_start(&shared, &partition, &start),
        Telemetry::start_positions_not_recorded,
    )
    .await
}

/// Records the starts of the added partitions before this one, in ascending order. If the last of several added
/// partitions had a checkpoint and those before it had none, an instance that starts then would count them as initial,
/// and start them at the latest event.
pub(crate) async fn record_new_starts_before<S: EventSource, H>(
    shared: &SharedResources<S, H>,
    partition: &PartitionId,
) -> Result<()> {
    if !shared.initial_partitions.is_new(partition, &shared.config) {
        return Ok(());
    }
    let partitions = read_hub(shared).await?;
    let recorded = list_recorded_partitions(shared).await?;
    let missing: BTreeSet<_> = partitions
        .iter()
        .filter(|other| shared.initial_partitions.is_new(other, &shared.config))
        .filter(|added| *added < partition && !recorded.contains(*added))
        .collect();
    for added in missing {
        record_start(shared, added, shared.config.start_position_of_new(added)).await?;
    }
    Ok(())
}

async fn record_start<S: EventSource, H>(
    shared: &SharedResources<S, H>,
    partition: &PartitionId,
    start: &StartPosition,
) -> Result<()> {
    let store = shared.store.for_hub_created_at(shared.hub_creation.creation_time());
    let properties = guard_request(shared.source.partition_properties(partition)).await?;
    match resolve_start(&shared.source, partition, start, &properties, NO_EPOCH).await {
        Ok(position) => store.init_checkpoint(partition, &shared.offset_format.to_recordable(position)).await.map(drop),
        Err(rejection) if rejection.kind() == ErrorKind::Fenced => {
            confirm_started_by_owner(shared, partition, rejection).await
        }
        Err(error) => Err(error),
    }
}

/// Succeeds if the partition has a checkpoint. Called if the broker rejects a receiver because the owner of the
/// partition reads it: an owner of this crate has recorded the start before it reads, but an owner of another SDK
/// writes nothing until its first checkpoint.
async fn confirm_started_by_owner<S, H>(
    shared: &SharedResources<S, H>,
    partition: &PartitionId,
    rejection: Error,
) -> Result<()> {
    if list_recorded_partitions(shared).await?.contains(partition) {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::EventSource,
        format!(
            "another reader holds partition {partition} and has written no checkpoint, so the start of the partition \
             is recorded later: when that reader writes one, or stops"
        ),
    );
    Err(error.with_source(rejection))
}

/// Repeats a request until it succeeds. Reports each error with the wait after it. Returns an error that a later
/// attempt cannot avoid.
async fn repeat_until_success<T, F: Future<Output = Result<T>>>(
    store: &GroupStore,
    request: impl Fn() -> F,
    failed: impl Fn(&Telemetry, &Error, Duration),
) -> Result<T> {
    let mut backoff = RestartBackoff::default();
    loop {
        match request().await {
            Err(error) if error.may_pass() => {
                let wait = backoff.next_wait_between(error.retry_after().unwrap_or_default(), LONGEST_WAIT);
                let wait = shorten_randomly(wait, store.next_random());
                failed(store.telemetry(), &error, wait);
                sleep(wait).await;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::timeout;

    use super::*;
    use crate::blob::memory::MemoryContainer;
    use crate::model::{ConsumerGroup, OwnerId, Position};
    use crate::processor::{HandlerError, PartitionContext, Processor, ProcessorConfig, handler_fn};
    use crate::source::{EventHubProperties, EventReceiver, PartitionProperties};
    use crate::store::StoreConfig;
    use crate::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
    use crate::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};

    const SECOND: Duration = Duration::from_secs(1);

    /// A hub that may refuse receivers, and counts how often its properties are read.
    struct TestSource {
        hub: MemorySource,
        rejection: Option<ErrorKind>,
        reads: AtomicUsize,
    }

    impl EventSource for TestSource {
        type Event = MemoryEvent;

        async fn event_hub_properties(&self) -> Result<EventHubProperties> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.hub.event_hub_properties().await
        }

        async fn partition_properties(&self, partition: &PartitionId) -> Result<PartitionProperties> {
            self.hub.partition_properties(partition).await
        }

        async fn open_receiver(
            &self,
            partition: &PartitionId,
            from: StartPosition,
            prefetch: usize,
            epoch: i64,
        ) -> Result<EventReceiver<MemoryEvent>> {
            match self.rejection {
                Some(kind) => Err(Error::new(kind, "rejected")),
                None => self.hub.open_receiver(partition, from, prefetch, epoch).await,
            }
        }
    }

    /// An instance that has not started, and its storage.
    struct Instance<H> {
        processor: Processor<TestSource, H>,
        container: FaultyContainer,
    }

    async fn with_config(hub: &MemoryHub, config: ProcessorConfig) -> Instance<impl Handler<MemoryEvent>> {
        new_instance(hub, config, None).await
    }

    async fn new_instance(
        hub: &MemoryHub,
        config: ProcessorConfig,
        rejection: Option<ErrorKind>,
    ) -> Instance<impl Handler<MemoryEvent>> {
        let container = FaultyContainer::new(Arc::new(MemoryContainer::new()), 1);
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let builder = GroupStore::builder(Arc::new(container.clone()), group, OwnerId::new("a").unwrap());
        let without_check = StoreConfig::default().with_verify_storage(false);
        let store = builder.with_config(without_check).with_seed(3).connect().await.unwrap();
        let source = TestSource { hub: hub.source(), rejection, reads: AtomicUsize::new(0) };
        let handler = handler_fn(|_: Vec<MemoryEvent>, _: PartitionContext| async { Ok::<_, HandlerError>(()) });
        let processor = Processor::builder(source, store, handler).with_config(config).build().unwrap();
        Instance { processor, container }
    }

    impl<H: Handler<MemoryEvent>> Instance<H> {
        /// Starts within an hour, or not at all.
        async fn start(&self) -> Result<Arc<[PartitionId]>> {
            timeout(3600 * SECOND, start_up(&self.processor.shared)).await.expect("it tries on and on")
        }

        /// Returns the sequence number of each checkpoint.
        async fn recorded(&self) -> BTreeMap<u32, i64> {
            let listed = self.processor.shared.store.list_checkpoints().await.unwrap().records;
            let found = listed.into_iter().map(|checkpoint| {
                (checkpoint.partition.as_str().parse().unwrap(), checkpoint.record.sequence_number.unwrap())
            });
            found.collect()
        }

        async fn init(&self, partition: u32, number: i64) {
            let position = Position::new(number, (number * 10).to_string());
            self.processor.shared.store.init_checkpoint(&partition.into(), &position).await.unwrap();
        }
    }

    fn latest() -> ProcessorConfig {
        ProcessorConfig::default().with_start_position(StartPosition::Latest)
    }

    /// Creates a hub whose partitions have the events 0 and 1.
    fn hub_of(partitions: u32) -> MemoryHub {
        let hub = MemoryHub::new("hub", partitions);
        for partition in 0..partitions {
            hub.publish_many(partition, 2, "x");
        }
        hub
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_starts_at_the_end_records_all_ends() {
        let hub = hub_of(3);
        let instance = with_config(&hub, latest()).await;
        assert_eq!(*instance.start().await.unwrap(), [0.into(), 1.into(), 2.into()]);
        hub.publish(1, "later");
        instance.start().await.unwrap();
        assert_eq!(instance.recorded().await, [(0, 1), (1, 1), (2, 1)].into());
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_at_the_beginning_records_nothing() {
        let instance = with_config(&hub_of(3), ProcessorConfig::default()).await;
        instance.start().await.unwrap();
        assert_eq!(instance.recorded().await, [].into());
    }

    /// The partitions after the last one with a checkpoint.
    #[tokio::test(start_paused = true)]
    async fn partitions_added_later_start_at_their_first_event() {
        let instance = with_config(&hub_of(4), latest()).await;
        instance.init(1, 0).await;
        instance.start().await.unwrap();
        assert_eq!(instance.recorded().await, [(0, 1), (1, 0), (2, -1), (3, -1)].into());
    }

    /// Its checkpoint shows which partitions belong to the start of the group.
    #[tokio::test(start_paused = true)]
    async fn the_start_of_the_last_partition_is_recorded_first() {
        let instance = with_config(&hub_of(3), latest()).await;
        let last = Target::from(BlobOperation::Write).ending("checkpoint/2");
        instance.container.set_plan(FaultPlan::default().with_on(1.0, last, Fault::Unreachable));
        let started = timeout(60 * SECOND, start_up(&instance.processor.shared)).await;
        assert!(started.is_err() && instance.recorded().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_chosen_partitions_start_at_the_end() {
        let config = ProcessorConfig::default()
            .with_start_position_of(0.into(), StartPosition::AfterSequenceNumber(0))
            .with_start_position_of(1.into(), StartPosition::Latest)
            .with_start_position_of(2.into(), StartPosition::Latest);
        let instance = with_config(&hub_of(4), config).await;
        instance.init(2, 0).await;
        instance.start().await.unwrap();
        assert_eq!(instance.recorded().await, [(1, 1), (2, 0)].into());
    }

    /// Otherwise an instance that starts then would take those before it for initial ones.
    #[tokio::test(start_paused = true)]
    async fn starts_of_added_partitions_are_recorded_in_order() {
        let hub = hub_of(2);
        let instance = with_config(&hub, latest()).await;
        instance.start().await.unwrap();
        hub.grow_to(6);
        instance.init(3, 0).await;
        let shared = &instance.processor.shared;
        record_new_starts_before(shared, &1.into()).await.unwrap();
        assert_eq!(instance.recorded().await, [(0, 1), (1, 1), (3, 0)].into(), "1 is not new");
        record_new_starts_before(shared, &4.into()).await.unwrap();
        assert_eq!(instance.recorded().await, [(0, 1), (1, 1), (2, -1), (3, 0)].into());
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_what_may_pass() {
        for (fault, starts) in [(Fault::Unreachable, true), (Fault::Unauthorized, false)] {
            let instance = with_config(&hub_of(1), latest()).await;
            instance.container.set_plan(FaultPlan::always(fault));
            let recovery = async {
                sleep(100 * SECOND).await;
                instance.container.set_plan(FaultPlan::default());
            };
            let (started, ()) = futures::join!(instance.start(), recovery);
            assert_eq!(started.is_ok(), starts);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_hub_of_the_group_is_read() {
        for (name, partitions) in [("other", 1), ("hub", 0)] {
            let instance = with_config(&MemoryHub::new(name, partitions), latest()).await;
            assert_eq!(instance.start().await.unwrap_err().kind(), ErrorKind::Config, "{name}");
        }
        assert!(with_config(&MemoryHub::new("HUB", 1), latest()).await.start().await.is_ok());
    }

    /// If another reader holds the partition, its checkpoint is enough.
    #[tokio::test(start_paused = true)]
    async fn only_the_checkpoint_of_a_reader_replaces_the_start() {
        for (rejection, has_checkpoint, expected) in [
            (Some(ErrorKind::Fenced), true, Ok(())),
            (Some(ErrorKind::Fenced), false, Err(ErrorKind::EventSource)),
            (Some(ErrorKind::Unavailable), true, Err(ErrorKind::Unavailable)),
            (None, false, Ok(())),
        ] {
            let hub = hub_of(1);
            let instance = new_instance(&hub, latest(), rejection).await;
            if has_checkpoint {
                instance.init(0, 0).await;
            }
            let start = StartPosition::AfterSequenceNumber(0);
            let recorded = record_start(&instance.processor.shared, &0.into(), &start).await;
            assert_eq!(recorded.map_err(|error| error.kind()), expected, "{rejection:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_hub_is_read_rarely_unless_there_is_a_reason() {
        let hub = hub_of(1);
        let instance = with_config(&hub, latest()).await;
        let shared = &instance.processor.shared;
        let partitions = watch::Sender::new(Arc::from([0.into()]));
        let mut named = partitions.subscribe();
        let snapshots = instance.processor.handle.balancer.snapshots();
        tokio::spawn(refresh_partitions(Arc::clone(shared), partitions, snapshots));
        sleep(1500 * SECOND).await;
        let reads = shared.source.reads.load(Ordering::Relaxed);
        assert!((5..=8).contains(&reads), "every five minutes: {reads}");
        assert!(!named.has_changed().unwrap(), "nothing has changed");
        hub.grow_to(2);
        shared.hub_creation.doubt.notify_one();
        timeout(11 * SECOND, named.changed()).await.unwrap().unwrap();
        assert_eq!(**named.borrow_and_update(), [0.into(), 1.into()]);
        hub.grow_to(3);
        timeout(301 * SECOND, named.changed()).await.unwrap().unwrap();
    }
}
