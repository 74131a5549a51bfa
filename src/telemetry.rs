//! Every span, log event and counter of this crate, named in one place.
//!
//! Fields: `partition`, `owner` (another's), `reason`, `error` (with its causes), `blob`. Levels: `warn` asks for a
//! look, `info` tells what changed, `debug` is for tracing one decision.
//!
//! Failures that are tried again come in floods while the storage or the hub is away. Of those alike an instance tells
//! one in half an expiry as `warn`, with the number of the others (`untold`), and the others as `debug`.
//!
//! Events that are rate limited are methods of [`Telemetry`], which every store has. The other events are functions.

mod floods;
pub mod metrics;
mod requests;

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::codec::MalformedRecord;
use crate::error::Error;
use crate::model::{ConsumerGroup, OwnerId, PartitionId};

use floods::Floods;
pub(crate) use metrics::{GroupMetrics, HeldMetrics, PartitionMetrics};
use requests::RequestCounters;
pub use requests::{Operation, Outcome, RequestCounts};

/// An error with its causes, on one line; without those whose text the one above them repeats.
pub(crate) struct Causes<'a>(pub(crate) &'a Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !told.contains(&text) {
                write!(f, ": {text}")?;
            }
            told = text;
            cause = error.source();
        }
        Ok(())
    }
}

/// Tells a failure that is tried again, unless many like it were told: see [`Floods`].
macro_rules! trying_again {
    ($telemetry:expr, $error:expr, $message:literal, $($fields:tt)+) => {
        trying_again!(of None, $telemetry, $error, $message, $($fields)+)
    };
    (of $operation:expr, $telemetry:expr, $error:expr, $message:literal, $($fields:tt)+) => {
        match $telemetry.0.floods.admit($message, $operation, $error.kind()) {
            Some(untold) => warn!($($fields)+, error = %Causes($error), untold, $message),
            None => debug!($($fields)+, error = %Causes($error), $message),
        }
    };
}

/// What one store reports about its consumer group: the events that are rate limited, the metrics, and the numbers of
/// its requests. All clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry(Arc<Reported>);

#[derive(Debug)]
struct Reported {
    floods: Floods,
    metrics: GroupMetrics,
    requests: RequestCounters,
}

impl Telemetry {
    /// Describes the metrics of the group to the recorder that is installed now. Of failures alike, one in `every` is a
    /// warning.
    pub(crate) fn new(group: &ConsumerGroup, every: Duration) -> Self {
        let metrics = GroupMetrics::describe(group);
        let requests = RequestCounters::new(metrics.clone());
        Self(Arc::new(Reported { floods: Floods::new(every), metrics, requests }))
    }

    pub(crate) fn requests(&self) -> &RequestCounters {
        &self.0.requests
    }

    pub(crate) fn metrics(&self) -> &GroupMetrics {
        &self.0.metrics
    }

    pub(crate) fn ownership_undecided(&self, operation: Operation, partition: &PartitionId, error: &Error) {
        let (topic, operation) = (Some(operation), operation.name());
        trying_again!(of topic, self, error, "the operation is not settled, trying again", %partition, operation);
    }

    pub(crate) fn presence_failed(&self, error: &Error) {
        let operation = Operation::Presence.name();
        trying_again!(self, error, "presence was not told; others may not count this instance", operation);
    }

    pub(crate) fn cycle_failed(&self, error: &Error, next: Duration) {
        self.metrics().cycle_failed();
        trying_again!(self, error, "the balancing cycle failed and will be repeated", next_in = ?next);
    }

    #[cfg(feature = "eventhubs")]
    pub(crate) fn adoption_failed(&self, partition: &PartitionId, error: &Error) {
        trying_again!(self, error, "the partition is held but not adopted yet, trying again", %partition);
    }

    pub(crate) fn partition_failed(&self, partition: &PartitionId, error: &Error, next: Option<Duration>) {
        if let Some(next) = next {
            trying_again!(self, error, "the partition cannot be read, trying again", %partition, next_in = ?next);
        } else {
            warn!(%partition, error = %Causes(error), "the partition cannot be read");
        }
    }

    pub(crate) fn hub_not_ready(&self, error: &Error, next: Duration) {
        trying_again!(self, error, "the event hub cannot be read yet, trying again", next_in = ?next);
    }

    pub(crate) fn group_not_begun(&self, error: &Error, next: Duration) {
        trying_again!(self, error, "the start of the group could not be written down, trying again", next_in = ?next);
    }

    pub(crate) fn checkpoint_failed(&self, partition: &PartitionId, error: &Error) {
        trying_again!(self, error, "the checkpoint was not written and stays pending", %partition);
    }

    pub(crate) fn partition_list_failed(&self, error: &Error, next: Duration) {
        trying_again!(self, error, "the hub's partitions could not be read; going on with those known", next_in = ?next);
    }
}

#[cfg(feature = "azure")]
pub(crate) fn clock_differs(offset_seconds: i64) {
    warn!(offset_seconds, "the local clock differs from that of the storage; requests are signed with its time");
}

#[cfg(feature = "azure")]
pub(crate) fn clock_agrees() {
    info!("the local clock agrees with that of the storage again; requests are signed with it");
}

#[cfg(feature = "azure")]
pub(crate) fn token_not_replaced(error: &Error, valid_for: Duration) {
    warn!(error = %Causes(error), ?valid_for, "a token could not be replaced; the one in hand is used until it expires");
}

#[cfg(feature = "azure")]
pub(crate) fn token_replaced() {
    info!("the token issuer returned a token again");
}

#[cfg(feature = "azure")]
pub(crate) fn unusable_blob(blob: &str) {
    warn!(blob, "a blob in a listing has no usable ETag or date, and is left out");
}

pub(crate) fn storage_finding(advice: &str) {
    warn!(advice, "the storage works, but not well");
}

pub(crate) fn malformed_record(malformed: &MalformedRecord) {
    warn!(
        blob = malformed.blob,
        problem = malformed.problem,
        "a record is not as it should be and counts only as far as it can be read"
    );
}

pub(crate) fn claim_won(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(%partition, ?reason, "partition claimed");
}

pub(crate) fn claim_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    debug!(%partition, owner = owner.map(OwnerId::as_str), "another instance was faster to claim the partition");
}

pub(crate) fn ownership_lost(partition: &PartitionId, owner: Option<&OwnerId>) {
    info!(%partition, owner = owner.map(OwnerId::as_str), "partition lost to another owner");
}

pub(crate) fn lease_outlived(partition: &PartitionId) {
    warn!(%partition, "the partition could not be renewed in time and is processed no further");
}

pub(crate) fn releasing(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(%partition, ?reason, "giving the partition back");
}

pub(crate) fn capped(unclaimed: usize) {
    if unclaimed > 0 {
        warn!(unclaimed, "partitions stay unowned because of max_partitions: raise it, or add instances");
    } else {
        info!("no partition stays unowned because of max_partitions any more");
    }
}

pub(crate) fn owner_idle(owner: &OwnerId) {
    warn!(%owner, "another instance claims no unowned partitions; the others take its share of them");
}

pub(crate) fn outage_over(silence: Duration) {
    warn!(?silence, "the storage answers again; other owners are given an expiry to renew");
}

pub(crate) fn cycle_late(late: Duration) {
    warn!(?late, "the balancing loop runs late; something keeps its runtime busy, or the process was stopped");
}

pub(crate) fn stalled(runtime: bool, partitions: &BTreeSet<PartitionId>) {
    let partitions = partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>().join(" ");
    warn!(runtime, partitions, "the application is stalled");
}

pub(crate) fn well_again() {
    info!("the application is well again");
}

pub(crate) fn connect_failed(error: &Error, next: Duration) {
    warn!(error = %Causes(error), next_in = ?next, "the storage does not answer as it should yet, trying again");
}

pub(crate) fn asked(partition: &PartitionId, owner: &OwnerId) {
    info!(%partition, owner = owner.as_str(), "partition asked for");
}

pub(crate) fn not_asked(partition: &PartitionId, reason: &dyn fmt::Debug) {
    debug!(%partition, ?reason, "the partition was not asked for");
}

pub(crate) fn asked_for(partition: &PartitionId, by: &OwnerId) {
    info!(%partition, by = by.as_str(), "another instance asked for the partition, which is handed over");
}

pub(crate) fn duplicates_possible(partition: &PartitionId, cause: &dyn fmt::Debug) {
    warn!(%partition, ?cause, "the partition moves without its last checkpoint; some events may be processed twice");
}

pub(crate) fn declared_dead(by: Option<&OwnerId>) {
    warn!(by = by.map(OwnerId::as_str), "another instance took this one for dead; announcing it again");
}

pub(crate) fn lease_scope_given_up(owner: Option<&OwnerId>) {
    warn!(
        owner = owner.map(OwnerId::as_str),
        "another SDK is at work in the consumer group, to which leases of scope `Instance` look abandoned: every partition is \
         renewed by itself from here on; set the lease scope to `Partition` as long as both are in use"
    );
}

pub(crate) fn presence_cleared(owner: &OwnerId) {
    debug!(owner = owner.as_str(), "deleted the presence of an instance that is long gone");
}

pub(crate) fn in_the_other_tree(partition: &PartitionId, owner: &OwnerId) {
    warn!(
        %partition,
        owner = owner.as_str(),
        "an owner keeps its records under names of another case; its partition is left alone until released or expired"
    );
}

pub(crate) fn released(partition: &PartitionId) {
    info!(%partition, "partition released");
}

pub(crate) fn kept(partition: &PartitionId) {
    info!(%partition, "partition kept for the restart of this owner");
}

pub(crate) fn owner_away(owner: &OwnerId, partitions: usize) {
    if partitions > 0 {
        info!(%owner, partitions, "an owner has shut down and left partitions for its restart");
    } else {
        info!(%owner, "an owner that had shut down is back, or its partitions have expired");
    }
}

pub(crate) fn release_undecided(partition: &PartitionId, error: &Error) {
    warn!(%partition, error = %Causes(error), "the partition could not be released; if it is still mine, it expires");
}

pub(crate) fn not_released(unreleased: usize) {
    warn!(unreleased, "some partitions could not be released in time; they expire");
}

pub(crate) fn partition_started(partition: &PartitionId, from: &dyn fmt::Debug) {
    info!(%partition, ?from, "processing started");
}

pub(crate) fn partition_stopped(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(%partition, ?reason, "processing stopped");
}

pub(crate) fn adoption_contended(partition: &PartitionId, error: &Error) {
    warn!(%partition, error = %Causes(error), "the partition cannot be adopted and is released");
}

pub(crate) fn handler_failed(partition: &PartitionId, error: &Error, policy: &dyn fmt::Debug) {
    warn!(%partition, error = %Causes(error), ?policy, "the handler failed");
}

pub(crate) fn partition_given_back(partition: &PartitionId, cooldown: Duration) {
    info!(%partition, ?cooldown, "the partition is given back");
}

pub(crate) fn invalid_checkpoint(invalid: &dyn fmt::Display, from: &dyn fmt::Debug) {
    warn!(%invalid, ?from, "the partition starts elsewhere than at its checkpoint");
}

pub(crate) fn checkpoint_not_repaired(partition: &PartitionId, error: &Error) {
    debug!(%partition, error = %Causes(error), "the sequence number of the checkpoint was not corrected");
}

pub(crate) fn group_begins(with_checkpoint: usize, begun_with: usize, added: usize) {
    info!(with_checkpoint, begun_with, added, "the group starts at the latest event; partitions added later do not");
}

pub(crate) fn tracked_late(partition: &PartitionId, sequence_number: i64) {
    warn!(%partition, sequence_number, "an event was tracked after the checkpoint had passed it, and holds nothing back");
}

/// The first one of a partition's start as a warning.
pub(crate) fn token_dropped(partition: &PartitionId, sequence_number: i64, checkpoint: Option<i64>, first: bool) {
    macro_rules! dropped {
        ($event:ident) => {
            $event!(%partition, sequence_number, checkpoint, "a token was dropped unfinished, which holds the checkpoint back")
        };
    }
    if first { dropped!(warn) } else { dropped!(debug) }
}

pub(crate) fn left_in_flight(partition: &PartitionId, events: usize) {
    warn!(%partition, events, "events in flight were not finished in time; they will be delivered again");
}

pub(crate) fn probe_failed(partition: &PartitionId, error: &Error) {
    debug!(%partition, error = %Causes(error), "the hub did not tell how far the partition is");
}

pub(crate) fn asked_to_end() {
    info!("asked to end");
}

pub(crate) fn asked_again() {
    warn!("asked again: ends at once");
}

pub(crate) fn shut_down(by: Option<&Error>, clean: bool, report: &dyn fmt::Debug) {
    match by {
        Some(error) => warn!(error = %Causes(error), ?report, "the processor has ended, though nobody asked it to"),
        None if clean => info!(?report, "the processor has ended"),
        None => warn!(?report, "the processor has ended, but not all of it in good order"),
    }
}

pub(crate) fn drain_timed_out(partition: &PartitionId, after: Duration) {
    warn!(%partition, ?after, "the handler did not finish in time; its batch will be delivered again");
}

pub(crate) fn callback_cut_short(partition: &PartitionId, callback: &str, after: Duration) {
    warn!(%partition, callback, ?after, "the handler's callback did not end in time and was cut short");
}

pub(crate) fn callback_panicked(partition: &PartitionId, callback: &str, error: &Error) {
    warn!(%partition, callback, error = %Causes(error), "the handler's callback panicked");
}

pub(crate) fn unpositioned_event(partition: &PartitionId) {
    warn!(%partition, "the event carries no sequence number or no offset, so it cannot be checkpointed");
}

pub(crate) fn handler_failed_while_draining(partition: &PartitionId, error: &Error) {
    warn!(%partition, error = %Causes(error), "the handler failed while draining; its batch will be delivered again");
}

pub(crate) fn partition_task_panicked(partition: &PartitionId, error: &str) {
    warn!(%partition, error, "the partition's task panicked; the partition is released");
}

pub(crate) fn shutdown_cut_short(after: Duration) {
    warn!(?after, "some partitions did not stop in time and were cut short");
}

pub(crate) fn source_not_closed(error: &Error) {
    debug!(error = %Causes(error), "the event source was not closed in good order");
}

#[cfg(feature = "eventhubs")]
pub(crate) fn link_not_closed(partition: &str, error: &dyn fmt::Display) {
    debug!(partition, %error, "the link was not closed in good order; the broker drops it");
}

#[cfg(feature = "eventhubs")]
pub(crate) fn reconnected() {
    warn!("the connection to the event hub was dead; what is opened from now on goes through a fresh one");
}

#[cfg(feature = "eventhubs")]
pub(crate) fn reconnect_failed(error: &Error, next: Duration) {
    warn!(error = %Causes(error), next_after = ?next, "the connection to the event hub is dead, and no fresh one was made");
}
