//! Events of the processing of partitions, and of the start and the end of a processor.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use tracing::{Span, debug, error, info, warn};

use super::Telemetry;
use super::failures::{Causes, warn_retry};
use super::spans::PROCESSOR;
use crate::error::Error;
use crate::model::{CheckpointRecord, Incarnation, PartitionId, Pause, Position};

/// Logs the same event at one of two levels. A level is part of the static metadata of an event.
macro_rules! either {
    ($condition:expr, $one:ident, $other:ident, $($event:tt)+) => {
        if $condition { $one!($($event)+) } else { $other!($($event)+) }
    };
}

impl Telemetry {
    pub(crate) fn hub_not_ready(&self, error: &Error, retry_in: Duration) {
        warn_retry!(PROCESSOR, self, error, "failed to read event hub properties; retrying", ?retry_in);
    }

    pub(crate) fn start_positions_not_recorded(&self, error: &Error, retry_in: Duration) {
        warn_retry!(PROCESSOR, self, error, "failed to record start positions; retrying", ?retry_in);
    }

    pub(crate) fn partition_list_failed(&self, error: &Error, retry_in: Duration) {
        warn_retry!(PROCESSOR, self, error, "failed to list partitions; using the last known list", ?retry_in);
    }

    pub(crate) fn partition_failed(&self, partition: &PartitionId, error: &Error, retry_in: Option<Duration>) {
        if let Some(retry_in) = retry_in {
            warn_retry!(PROCESSOR, self, error, "partition failed; retrying", partition_id = %partition, ?retry_in);
        } else {
            warn!(target: PROCESSOR, partition_id = %partition, error = %Causes(error), "partition failed");
        }
    }

    /// A failed attempt at one event, which is tried again in its place.
    pub(crate) fn event_failed(
        &self,
        partition: &PartitionId,
        sequence_number: Option<i64>,
        attempt: u32,
        error: &Error,
        retry_in: Duration,
    ) {
        warn_retry!(
            PROCESSOR,
            self,
            error,
            "event failed; retrying",
            partition_id = %partition,
            sequence_number,
            attempt,
            ?retry_in
        );
    }

    pub(crate) fn checkpoint_failed(&self, partition: &PartitionId, error: &Error) {
        warn_retry!(
            PROCESSOR,
            self,
            error,
            "checkpoint was not written and stays pending",
            partition_id = %partition
        );
    }
}

pub(crate) fn processor_started(partitions: usize, incarnation: &Incarnation) {
    info!(target: PROCESSOR, partitions, %incarnation, "processor started");
}

pub(crate) fn processor_not_started(error: &Error) {
    error!(target: PROCESSOR, error = %Causes(error), "processor did not start");
}

pub(crate) fn hub_recreated(before: OffsetDateTime, now: OffsetDateTime) {
    warn!(target: PROCESSOR, %before, %now, "event hub was recreated; restarting partitions");
}

pub(crate) fn start_positions_recorded(with_checkpoint: usize, initial: usize, added: usize) {
    info!(target: PROCESSOR, with_checkpoint, initial, added, "recorded start positions of the group");
}

pub(crate) fn partition_started(partition: &PartitionId, start_position: &dyn fmt::Debug) {
    info!(target: PROCESSOR, partition_id = %partition, ?start_position, "processing started");
}

/// At `warn` if the position is before the checkpoint: events are processed again, for example because each instance
/// has its own database. After a crash, the position of the application is usually after the checkpoint.
pub(crate) fn start_chosen(partition: &PartitionId, chosen: &Position, checkpoint: &CheckpointRecord) {
    either!(
        checkpoint.covers_after(chosen.sequence_number), warn, info,
        target: PROCESSOR,
        partition_id = %partition,
        checkpoint = checkpoint.sequence_number,
        sequence_number = chosen.sequence_number,
        "handler chose a start position other than the checkpoint"
    );
}

pub(crate) fn partition_stopped(partition: &PartitionId, reason: &dyn fmt::Debug) {
    info!(target: PROCESSOR, partition_id = %partition, ?reason, "processing stopped");
}

pub(crate) fn partition_paused(partition: &PartitionId, pause: &Pause) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        since = %pause.since,
        until = pause.until.map(tracing::field::display),
        reason = pause.reason.as_deref(),
        "partition is paused; delivering nothing"
    );
}

pub(crate) fn partition_resumed(partition: &PartitionId) {
    info!(target: PROCESSOR, partition_id = %partition, "partition was resumed");
}

pub(crate) fn pause_not_recorded(partition: &PartitionId, error: &Error) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        error = %Causes(error),
        "partition is parked, but the checkpoint does not show it yet"
    );
}

pub(crate) fn releasing_after_failure(partition: &PartitionId, cooldown: Duration) {
    info!(target: PROCESSOR, partition_id = %partition, ?cooldown, "releasing partition after handler failure");
}

pub(crate) fn adoption_contended(partition: &PartitionId, error: &Error) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        error = %Causes(error),
        "checkpoint keeps changing; releasing partition"
    );
}

/// The sequence numbers of the first and the last event of a batch.
type Batch = Option<(i64, i64)>;

/// At `error` if the policy parks the partition, because nothing retries it then.
pub(crate) fn handler_failed(
    partition: &PartitionId,
    batch: Batch,
    attempt: Option<u32>,
    error: &Error,
    policy: &dyn fmt::Debug,
    parks: bool,
    retry_in: Option<Duration>,
) {
    let (first_sequence_number, last_sequence_number) = batch.unzip();
    either!(
        parks, error, warn,
        target: PROCESSOR,
        partition_id = %partition,
        first_sequence_number,
        last_sequence_number,
        attempt,
        error = %Causes(error),
        ?policy,
        retry_in = retry_in.map(tracing::field::debug),
        "handler failed"
    );
}

pub(crate) fn handler_failed_while_draining(partition: &PartitionId, batch: Batch, error: &Error) {
    let (first_sequence_number, last_sequence_number) = batch.unzip();
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        first_sequence_number,
        last_sequence_number,
        error = %Causes(error),
        "handler failed while draining; its batch will be redelivered"
    );
}

pub(crate) fn drain_timed_out(partition: &PartitionId, batch: Batch, timeout: Duration) {
    let (first_sequence_number, last_sequence_number) = batch.unzip();
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        first_sequence_number,
        last_sequence_number,
        ?timeout,
        "handler did not finish in time; its batch will be redelivered"
    );
}

pub(crate) fn event_dead_lettered(partition: &PartitionId, sequence_number: Option<i64>, attempts: u32, error: &Error) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        sequence_number,
        attempts,
        error = %Causes(error),
        "event moved to the dead letters"
    );
}

pub(crate) fn undecodable_skipped(partition: &PartitionId, sequence_number: i64, error: &Error) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        sequence_number,
        error = %Causes(error),
        "skipped an event that cannot be decoded"
    );
}

pub(crate) fn callback_timed_out(partition: &PartitionId, callback: &str, timeout: Duration) {
    warn!(target: PROCESSOR, partition_id = %partition, callback, ?timeout, "handler callback timed out");
}

pub(crate) fn callback_failed(partition: &PartitionId, callback: &str, error: &Error) {
    error!(
        target: PROCESSOR,
        partition_id = %partition,
        callback,
        error = %Causes(error),
        "handler callback failed"
    );
}

pub(crate) fn partition_task_panicked(partition: &PartitionId, error: &str) {
    error!(target: PROCESSOR, partition_id = %partition, error, "partition task panicked; releasing partition");
}

/// At `error` if events expired before they were processed, because they are lost.
pub(crate) fn invalid_checkpoint(
    partition: &PartitionId,
    checkpoint: &dyn fmt::Display,
    start_position: &dyn fmt::Debug,
    events_lost: bool,
) {
    either!(
        events_lost, error, warn,
        target: PROCESSOR,
        partition_id = %partition,
        %checkpoint,
        ?start_position,
        "invalid checkpoint; starting from another position"
    );
}

pub(crate) fn checkpoint_not_repaired(partition: &PartitionId, error: &Error) {
    debug!(
        target: PROCESSOR,
        partition_id = %partition,
        error = %Causes(error),
        "failed to correct the sequence number of the checkpoint"
    );
}

/// `span` is the span of the partition, because the application may be in a task without a span.
pub(crate) fn event_tracked_late(span: &Span, partition: &PartitionId, sequence_number: i64) {
    span.in_scope(|| {
        warn!(
            target: PROCESSOR,
            partition_id = %partition,
            sequence_number,
            "event tracked too late to hold back the checkpoint"
        );
    });
}

/// At `warn` for the first dropped event of a start of the partition. `span` is the span of the partition.
pub(crate) fn event_dropped_unfinished(
    span: &Span,
    partition: &PartitionId,
    sequence_number: i64,
    checkpoint: Option<i64>,
    first: bool,
) {
    span.in_scope(|| {
        either!(
            first, warn, debug,
            target: PROCESSOR,
            partition_id = %partition,
            sequence_number,
            checkpoint,
            "tracked event dropped unfinished; the checkpoint stays before it"
        );
    });
}

/// `span` is the span of the partition.
pub(crate) fn event_without_position(span: &Span, partition: &PartitionId) {
    span.in_scope(|| {
        warn!(
            target: PROCESSOR,
            partition_id = %partition,
            "event has no sequence number or no offset and cannot be checkpointed"
        );
    });
}

pub(crate) fn events_left_in_flight(partition: &PartitionId, events: usize) {
    warn!(
        target: PROCESSOR,
        partition_id = %partition,
        events,
        "events in flight were not finished in time; they will be redelivered"
    );
}

pub(crate) fn end_not_delivered(partition: &PartitionId, after: i64, up_to: i64) {
    info!(
        target: PROCESSOR,
        partition_id = %partition,
        after,
        up_to,
        "event hub does not deliver the end that it reports; counting it as read until it grows"
    );
}

pub(crate) fn start_not_validated(partition: &PartitionId, error: &Error) {
    info!(
        target: PROCESSOR,
        partition_id = %partition,
        error = %Causes(error),
        "event hub is busy; comparing the checkpoint with it later"
    );
}

pub(crate) fn lag_check_failed(partition: &PartitionId, error: &Error) {
    debug!(
        target: PROCESSOR,
        partition_id = %partition,
        error = %Causes(error),
        "failed to read partition properties; lag is stale"
    );
}

#[cfg(feature = "metrics")]
pub(crate) fn unowned_check_failed(error: &Error) {
    debug!(target: PROCESSOR, error = %Causes(error), "failed to read partitions without an owner; their lag is stale");
}

/// `span` is the span of the processor, because the application may be in a task without a span.
pub(crate) fn shutdown_requested(span: &Span) {
    span.in_scope(|| info!(target: PROCESSOR, "shutdown requested"));
}

/// `span` is the span of the processor.
pub(crate) fn shutdown_forced(span: &Span) {
    span.in_scope(|| warn!(target: PROCESSOR, "shutdown requested again; stopping immediately"));
}

pub(crate) fn shutdown_timed_out(timeout: Option<Duration>) {
    warn!(target: PROCESSOR, ?timeout, "shutdown timeout exceeded; stopping immediately");
}

pub(crate) fn partitions_aborted(timeout: Duration) {
    warn!(target: PROCESSOR, ?timeout, "aborted partitions that did not stop in time");
}

pub(crate) fn shut_down(by: Option<&Error>, clean: bool, report: &dyn fmt::Debug) {
    match by {
        Some(error) => error!(target: PROCESSOR, error = %Causes(error), ?report, "processor stopped unexpectedly"),
        None if clean => info!(target: PROCESSOR, ?report, "processor stopped"),
        None => warn!(target: PROCESSOR, ?report, "processor shut down uncleanly"),
    }
}

pub(crate) fn source_not_closed(error: &Error) {
    debug!(target: PROCESSOR, error = %Causes(error), "failed to close event source cleanly");
}
