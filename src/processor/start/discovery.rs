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
