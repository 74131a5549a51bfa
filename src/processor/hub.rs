//! What the hub says of itself, at the start and again and again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{TryStreamExt, stream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::handler::Handler;
use super::pauses::{LONGEST_PAUSE, RestartBackoff, jittered};
use super::resolve::position_of;
use super::shared::Shared;
use super::source::{EventSource, NO_EPOCH, StartPosition, caught_request};
use crate::error::{Error, ErrorKind, Result};
use crate::model::PartitionId;
use crate::store::GroupStore;
use crate::telemetry::{self, Telemetry};

/// How many partitions are pinned at once.
const RECORDED_AT_ONCE: usize = 8;

/// Whatever can be known to be wrong before anything starts.
pub(super) async fn start_up<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<Shared<S, H>>,
) -> Result<Arc<[PartitionId]>> {
    let store = &shared.store;
    let partitions = repeated(store, || hub_partitions(shared), Telemetry::hub_not_ready).await?;
    repeated(store, || caught_request(shared.source.check_access(&partitions[0])), Telemetry::hub_not_ready).await?;
    begin_group(shared, &partitions).await?;
    Ok(partitions)
}

async fn hub_partitions<S: EventSource, H>(shared: &Shared<S, H>) -> Result<Arc<[PartitionId]>> {
    let hub = caught_request(shared.source.event_hub_properties()).await?;
    let expected = shared.group.event_hub();
    if !hub.event_hub.eq_ignore_ascii_case(expected) {
        return Err(Error::config(format!(
            "the client reads event hub {:?}, but the store keeps the records of {expected:?}: configure the same event hub for both",
            hub.event_hub
        )));
    }
    if hub.partitions.is_empty() {
        return Err(Error::config(format!("event hub {expected:?} has no partitions, so there is nothing to process")));
    }
    Ok(hub.partitions.into())
}

/// Reads the hub's partitions anew every interval: their number can grow.
pub(super) async fn refresh<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<Shared<S, H>>,
    partitions: watch::Sender<Arc<[PartitionId]>>,
) {
    let interval = shared.config.load_balancing_interval;
    loop {
        sleep(interval).await;
        match hub_partitions(&shared).await {
            Ok(named) => {
                partitions.send_if_modified(|known| {
                    let changed = **known != *named;
                    *known = named;
                    changed
                });
            }
            Err(error) => shared.store.telemetry().partition_list_failed(&error, interval),
        }
    }
}

/// A group that starts at the latest event pins all its partitions as it begins: those that are claimed later must not
/// skip what comes meanwhile. The last partition comes first and alone: once it has a checkpoint, all up to it are of
/// the beginning, whoever of several instances pins them, and those behind it were added later.
///
/// As long as it takes: the storage and the hub may be away.
async fn begin_group<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<Shared<S, H>>,
    partitions: &[PartitionId],
) -> Result<()> {
    if shared.config.start_position != StartPosition::Latest {
        shared.new_partitions.started_with(partitions.to_vec());
        return record_single_latest(shared, partitions).await;
    }
    let begun = repeated(&shared.store, || recorded(&shared.store), Telemetry::start_positions_not_recorded).await?;
    let last = begun.last().or(partitions.iter().max()).cloned();
    let (founders, added): (Vec<_>, Vec<_>) = partitions.iter().cloned().partition(|p| Some(p) <= last.as_ref());
    telemetry::start_positions_recorded(begun.len(), founders.len(), added.len());
    if begun.is_empty()
        && let Some(last) = last
    {
        let start = shared.config.start_position_of(&last).clone();
        record_start_persistently(Arc::clone(shared), last, start).await?;
    }
    let missing = founders.iter().filter(|partition| !begun.contains(partition)).cloned();
    let pinning = |partition| {
        let start = shared.config.start_position_of(&partition).clone();
        record_start_persistently(Arc::clone(shared), partition, start)
    };
    stream::iter(missing.map(Ok)).try_for_each_concurrent(RECORDED_AT_ONCE, pinning).await?;
    shared.new_partitions.started_with(founders);
    record_new_starts(shared, added).await
}

/// Records the start of the partitions for which the application chose the latest event, if the group starts at another
/// position: events that arrive before such a partition is claimed must not be skipped.
async fn record_single_latest<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<Shared<S, H>>,
    partitions: &[PartitionId],
) -> Result<()> {
    let starts_at_latest =
        |partition: &&PartitionId| shared.config.start_positions.get(partition) == Some(&StartPosition::Latest);
    let latest: Vec<_> = partitions.iter().filter(starts_at_latest).cloned().collect();
    if latest.is_empty() {
        return Ok(());
    }
    let recorded = repeated(&shared.store, || recorded(&shared.store), Telemetry::start_positions_not_recorded).await?;
    for partition in latest.into_iter().filter(|partition| !recorded.contains(partition)) {
        record_start_persistently(Arc::clone(shared), partition, StartPosition::Latest).await?;
    }
    Ok(())
}

/// In order, as whoever claims one of them does. At once, for owners of other SDKs pin nothing: a checkpoint of theirs
/// in the last partition would make those before it look like founders to whoever comes up next.
async fn record_new_starts<S: EventSource, H: Handler<S::Event>>(
    shared: &Arc<Shared<S, H>>,
    mut added: Vec<PartitionId>,
) -> Result<()> {
    added.sort();
    for partition in added {
        let start = shared.config.start_position_of_new(&partition).clone();
        record_start_persistently(Arc::clone(shared), partition, start).await?;
    }
    Ok(())
}

/// The partitions that have a checkpoint.
async fn recorded(store: &GroupStore) -> Result<BTreeSet<PartitionId>> {
    Ok(store.list_checkpoints().await?.records.into_iter().map(|checkpoint| checkpoint.partition).collect())
}

async fn record_start_persistently<S: EventSource, H: Handler<S::Event>>(
    shared: Arc<Shared<S, H>>,
    partition: PartitionId,
    start: StartPosition,
) -> Result<()> {
    repeated(&shared.store, || record_start(&shared, &partition, &start), Telemetry::start_positions_not_recorded).await
}

/// Writes down where the added partitions before this one start, in order. Who comes up while the last of several has a
/// checkpoint, but not those before it, would take these for some that the group began with, and start them at the
/// latest event.
pub(super) async fn record_new_starts_before<S: EventSource, H>(
    shared: &Shared<S, H>,
    partition: &PartitionId,
) -> Result<()> {
    if !shared.new_partitions.contains(partition, &shared.config) {
        return Ok(());
    }
    let partitions = hub_partitions(shared).await?;
    let recorded = recorded(&shared.store).await?;
    let is_added = |other: &&PartitionId| {
        *other < partition && shared.new_partitions.contains(other, &shared.config) && !recorded.contains(*other)
    };
    let before: BTreeSet<_> = partitions.iter().filter(is_added).collect();
    for added in before {
        record_start(shared, added, shared.config.start_position_of_new(added)).await?;
    }
    Ok(())
}

async fn record_start<S: EventSource, H>(
    shared: &Shared<S, H>,
    partition: &PartitionId,
    start: &StartPosition,
) -> Result<()> {
    let properties = caught_request(shared.source.partition_properties(partition)).await?;
    match position_of(&shared.source, partition, start, &properties, NO_EPOCH).await {
        Ok(position) => shared.store.init_checkpoint(partition, &position).await.map(drop),
        Err(refusal) if refusal.kind() == ErrorKind::Fenced => {
            started_by_owner(&shared.store, partition, refusal).await
        }
        Err(error) => Err(error),
    }
}

/// The broker refuses a look at the partition because its owner reads it. An owner of this crate has recorded the start
/// before it reads. One of another SDK records none until its first checkpoint.
async fn started_by_owner(store: &GroupStore, partition: &PartitionId, refusal: Error) -> Result<()> {
    if recorded(store).await?.contains(partition) {
        return Ok(());
    }
    let message = format!(
        "another reader holds partition {partition} and has written no checkpoint, so the start of the partition is \
         recorded later: when that reader writes one, or stops"
    );
    Err(Error::new(ErrorKind::EventSource, message).with_source(refusal))
}

/// Repeats a request until it succeeds. An error that waiting cannot change is returned, any other one is reported
/// together with the pause after it.
async fn repeated<T, F: Future<Output = Result<T>>>(
    store: &GroupStore,
    request: impl Fn() -> F,
    failed: impl Fn(&Telemetry, &Error, Duration),
) -> Result<T> {
    let mut pauses = RestartBackoff::default();
    loop {
        match request().await {
            Err(error) if error.may_pass() => {
                let asked = error.retry_after().unwrap_or_default();
                let pause = jittered(pauses.next_between(asked, LONGEST_PAUSE), store.random());
                failed(store.telemetry(), &error, pause);
                sleep(pause).await;
            }
            settled => return settled,
        }
    }
}
