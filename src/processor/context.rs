//! The operations that a handler has on its partition.

use std::sync::Arc;
use std::time::Duration;

use super::checkpoints::requests::CheckpointRequester;
use super::dead_letters::{DeadLetter, DeadLetters};
use super::handler_errors::{DEAD_LETTER_SINK, DeadLetterError, EventError, HANDLER, HandlerError, handler_error};
use super::partition::control::Control;
use super::partition::orders::SessionEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId};
use crate::source::Positioned;
use crate::store::GroupStore;
use crate::telemetry;

/// The operations that a handler has on its partition. Cheap to clone; the application may move clones into its own
/// tasks.
///
/// A context belongs to one start of the handler. After [`Handler::stopped`](super::Handler::stopped) has returned, its
/// checkpoints are no longer accepted.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::source::Positioned;
/// use eventhubs_checkpoint::{HandlerError, PartitionContext};
///
/// async fn handle<E: Positioned>(events: Vec<E>, partition: PartitionContext) -> Result<(), HandlerError> {
///     let work = tokio::time::sleep(Duration::from_millis(1));
///     if partition.run_until_stopping(work).await.is_none() {
///         return Ok(()); // without a checkpoint: the next owner gets these events
///     }
///     if let Some(last) = events.last() {
///         partition.checkpoint(last); // written in the background
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PartitionContext {
    pub(crate) group: Arc<ConsumerGroup>,
    pub(crate) store: GroupStore,
    pub(crate) drain_timeout: Duration,
    pub(crate) dead_letters: Option<Arc<DeadLetters>>,
    pub(crate) checkpoints: CheckpointRequester,
    pub(crate) control: Arc<Control>,
    pub(crate) over: SessionEnd,
    pub(crate) started_elsewhere: Option<i64>,
}

impl PartitionContext {
    /// Returns the partition.
    #[must_use]
    pub fn partition_id(&self) -> &PartitionId {
        &self.control.partition
    }

    /// Returns the consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// Returns the epoch in which this instance owns the partition. An epoch begins when an instance wins the
    /// partition, and ends when the instance loses or releases it. A partition that restarts within one ownership keeps
    /// its epoch.
    ///
    /// It is strictly greater than the epochs of all earlier owners that processed events of the partition, and no two
    /// ownerships have the same epoch. An application that writes its results elsewhere can use it to reject the writes
    /// of a previous owner that does not yet know that it lost the partition. Store the epoch with each result, or once
    /// per partition, and write only if the stored epoch is not greater:
    ///
    /// ```sql
    /// UPDATE results SET total = $2, epoch = $1 WHERE partition = $3 AND epoch <= $1
    /// ```
    ///
    /// A write that changes no row was rejected: a later owner has written. The comparison must include equality,
    /// because one owner writes many times. Every write must store the epoch, because the stored epoch rejects the
    /// others. The epoch rejects late writes only. It does not keep events from being processed twice: between the
    /// claim of the new owner and its first write, writes of the previous owner are still accepted. Store the position
    /// together with the result to recognize an event that was processed before.
    ///
    /// Owners of other SDKs have no epoch; the application decides whether such a guard accepts their writes. The epoch
    /// is not guaranteed to increase if the ownership record is deleted within two seconds of a claim or while a claim
    /// is in progress, or if the clock of the storage is set back, as an emulator's may be.
    #[doc(alias = "fencing_token")]
    #[doc(alias = "owner_level")]
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.control.epoch
    }

    /// Returns the number of the current delivery attempt: 1, plus one for each consecutive failure at the same event.
    /// That is the event that the failure names, or the first event of the failed call. The count starts again when the
    /// partition fails at another event, has processed the event, or moves to another instance. Events before it that
    /// are redelivered have the same attempt number, so do not set an event aside by this number alone.
    #[doc(alias = "delivery_count")]
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.control.failures.current_failure().map_or(1, |failing| failing.failures.saturating_add(1))
    }

    /// If the requested position was invalid, returns the sequence number that
    /// [`OnInvalidCheckpoint`](super::OnInvalidCheckpoint) chose instead; reading starts after it. The requested
    /// position is the checkpoint, or what [`Handler::start_position`](super::Handler::start_position) returned. An
    /// application that keeps its own position must replace it with this number, which is smaller if the event hub was
    /// recreated. `None` if the partition started as requested.
    #[must_use]
    pub fn started_elsewhere(&self) -> Option<i64> {
        self.started_elsewhere
    }

    /// Requests a checkpoint at this event: the event and all events before it are processed. Does not wait and does
    /// not fail. The processor writes the greatest requested position in the background, as the
    /// [`CheckpointPolicy`](super::CheckpointPolicy) says.
    ///
    /// An earlier event that is [tracked](Self::track) and not finished holds the checkpoint back until it is finished.
    ///
    /// The `update_checkpoint` of other SDKs waits for the write, as [`checkpoint_now`](Self::checkpoint_now) does.
    #[doc(alias = "commit")]
    #[doc(alias = "store_offset")]
    pub fn checkpoint(&self, event: &impl Positioned) {
        match (event.sequence_number(), event.offset()) {
            (Some(sequence_number), Some(offset)) => self.checkpoints.request_position(sequence_number, offset),
            _ => telemetry::event_without_position(&self.control.span, self.partition_id()),
        }
    }

    /// Requests a checkpoint at this event and waits until it is durable.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::EventsInFlight`] if an earlier tracked event is not finished. The position stays requested and is
    ///   written when that event is finished.
    /// - [`ErrorKind::Fenced`] if this instance no longer owns the partition. Stop working on it.
    /// - [`ErrorKind::Closed`] if the partition has stopped.
    /// - [`ErrorKind::InvalidArgument`] if the event has no sequence number or no offset.
    /// - Any other error of the storage. The position stays requested, and the processor retries the write.
    #[doc(alias = "commit_sync")]
    #[doc(alias = "update_checkpoint")]
    pub async fn checkpoint_now(&self, event: &impl Positioned) -> Result<()> {
        let Some(position) = event.position() else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the event has no sequence number or no offset, so it cannot be checkpointed",
            ));
        };
        let number = position.sequence_number;
        self.checkpoints.request_position(number, &position.offset);
        loop {
            self.checkpoints.flush().await?;
            if self.checkpoints.checkpoint_view().written >= Some(number) {
                return Ok(());
            }
            // If no event holds the checkpoint back now, the last one was finished after the flush.
            if let Some(open) = self.checkpoints.waits_for(number) {
                return Err(Error::new(
                    ErrorKind::EventsInFlight,
                    format!("the checkpoint at event {number} waits until the tracked event {open} is finished"),
                ));
            }
        }
    }

    /// Writes the requested position and waits until it is durable. A position that waits for a tracked event is not
    /// written.
    ///
    /// # Errors
    ///
    /// The errors of [`checkpoint_now`](Self::checkpoint_now), except [`ErrorKind::EventsInFlight`] and
    /// [`ErrorKind::InvalidArgument`].
    pub async fn flush(&self) -> Result<()> {
        self.checkpoints.flush().await
    }

    /// Tracks an event that the application will finish later, with [`TrackedEvent::finish`]. Events may be finished in
    /// any order. The checkpoint advances by itself, up to the last event before which all tracked events are finished.
    ///
    /// Track the events of a batch before `handle` returns: after that, an untracked event no longer holds the
    /// checkpoint back. An event that is neither tracked nor checkpointed does not advance the checkpoint by itself; a
    /// later one that is covers it.
    ///
    /// While [`max_in_flight`](super::ProcessorConfig::max_in_flight) events, or
    /// [`max_in_flight_bytes`](super::ProcessorConfig::max_in_flight_bytes), are tracked and not finished, no more
    /// events are delivered. Below this limit, any number of events after an open one may be delivered and finished;
    /// they are redelivered if the partition restarts before the open one is finished. If the partition stops for
    /// another reason than a failure, tracked events may be finished within the drain timeout.
    #[must_use = "an event that is never finished holds the checkpoint back forever"]
    pub fn track(&self, event: &impl Positioned) -> TrackedEvent {
        let place = event.position().map(|position| (position.sequence_number, position.offset.into_boxed_str()));
        let byte_size = event.byte_size();
        match &place {
            None => telemetry::event_without_position(&self.control.span, self.partition_id()),
            Some((number, _)) if !self.checkpoints.track_event(*number, byte_size) => {
                telemetry::event_tracked_late(&self.control.span, self.partition_id(), *number);
            }
            Some(_) => {}
        }
        TrackedEvent { place, byte_size, checkpoints: self.checkpoints.clone() }
    }

    /// Reports that the partition cannot be processed, for example by a task of the application that belongs to it. The
    /// partition fails, as after an error of [`Handler::handle`](super::Handler::handle), and
    /// [`OnFailure`](super::OnFailure) determines what follows. The handler first finishes the batch that it has. Of
    /// several failures the first one counts. A context of a start that has ended, or is stopping, changes nothing.
    pub fn fail(&self, error: impl Into<HandlerError>) {
        self.checkpoints.fail_start("the application", error.into());
    }

    /// Moves an event to the [dead letters](super::ProcessorBuilder::with_dead_letters), for a handler of batches that
    /// knows that it can never process the event. Waits until the event is stored; then the handler continues with the
    /// batch. The checkpoint advances over the event once it covers all events before.
    ///
    /// Not cancel-safe: if the call is dropped, the event may still be stored, and is stored again when it is
    /// redelivered. The call of the sink counts toward the handler timeout. If the sink panics, so does this call.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::{Handler, PartitionContext, handler_fn};
    /// use eventhubs_checkpoint::source::Positioned;
    ///
    /// # fn parse<E>(_: &E) -> Result<i32, std::num::ParseIntError> { Ok(1) }
    /// fn handler<E: Positioned + Send + Sync + 'static>() -> impl Handler<E> {
    ///     handler_fn(|events: Vec<E>, context: PartitionContext| async move {
    ///         for event in events {
    ///             match parse(&event) {
    ///                 Ok(order) => println!("order {order}"),
    ///                 Err(error) => {
    ///                     context.dead_letter(event, error).await?;
    ///                     continue;
    ///                 }
    ///             }
    ///             context.checkpoint(&event);
    ///         }
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The event was not moved. Return the error from the handler, so that the event is redelivered.
    ///
    /// - [`ErrorKind::InvalidArgument`] if the processor has no dead letters, or the event is not one of its source.
    /// - [`ErrorKind::Fenced`] if this instance no longer owns the partition, and [`ErrorKind::Closed`] if the
    ///   partition has stopped.
    /// - [`ErrorKind::Handler`] if the sink failed.
    /// - Any other error of the storage, which is asked whether this instance still owns the partition.
    pub async fn dead_letter<E>(&self, event: E, error: impl Into<HandlerError>) -> Result<()>
    where
        E: Positioned + Send + Sync + 'static,
    {
        let Some(dead_letters) = &self.dead_letters else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the processor has no dead letters: set a sink with `ProcessorBuilder::with_dead_letters`",
            ));
        };
        if !dead_letters.accepts_type_of(&event) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} is not the event type of the event source", std::any::type_name::<E>()),
            ));
        }
        // The partition may be stopping: the handler may finish its batch.
        self.checkpoints.confirm_owner().await?;
        let number = event.sequence_number();
        let attempts = self
            .control
            .failures
            .current_failure()
            .filter(|failing| number.is_some() && failing.place.first_event() == number)
            .map_or(1, |failing| failing.failures.saturating_add(1));
        let letter = self.new_letter(Arc::new(event), attempts, Arc::new(handler_error(HANDLER, error.into())));
        dead_letters.store_event(&letter).await.map_err(|error| {
            let source = DeadLetterError::new(number, handler_error(DEAD_LETTER_SINK, error));
            Error::new(ErrorKind::Handler, source.to_string()).with_source(source)
        })?;
        self.record_move(&letter);
        self.pass_over(&*letter.event);
        Ok(())
    }

    pub(super) fn new_letter<E>(&self, event: Arc<E>, attempts: u32, error: Arc<Error>) -> DeadLetter<E> {
        DeadLetter {
            event,
            group: Arc::clone(&self.group),
            partition_id: self.partition_id().clone(),
            epoch: self.epoch(),
            attempts,
            error,
        }
    }

    /// Records that an event is stored as a dead letter.
    pub(super) fn record_move(&self, DeadLetter { event, attempts, error, .. }: &DeadLetter<impl Positioned>) {
        let Control { failures, progress, metrics, .. } = &*self.control;
        if let Some(position) = event.position() {
            let checkpoint = self.checkpoints.checkpoint_view().written;
            failures.record_move(position.sequence_number, &position.offset, checkpoint);
            failures.forget_event(position.sequence_number);
        }
        progress.count_dead_letter();
        metrics.count_dead_letter();
        telemetry::event_dead_lettered(self.partition_id(), event.sequence_number(), *attempts, error);
    }

    /// Fails if the partition is stopping, or the record does not show that this instance owns it: a previous owner
    /// that does not know yet that it lost the partition must move no event.
    pub(super) async fn confirm_owner(&self) -> Result<()> {
        if self.is_stopping() {
            return Err(Error::new(ErrorKind::Closed, "the partition is stopping"));
        }
        self.checkpoints.confirm_owner().await
    }

    /// Lets the checkpoint advance over an event that is stored as a dead letter, once it covers all events before.
    pub(super) fn pass_over(&self, event: &impl Positioned) {
        if let Some(position) = event.position() {
            self.checkpoints.pass_over(position.sequence_number, &position.offset);
        }
    }

    /// Returns whether this start of the partition is ending: it was requested to stop, it failed, or the processor was
    /// dropped. A handler that takes long should check this and return early. Tasks of the application that belong to
    /// the partition should end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.over.has_ended() || self.control.is_stopping()
    }

    /// Waits until this start of the partition is ending.
    pub async fn stopping(&self) {
        tokio::select! {
            () = self.over.wait_for_end() => {}
            _ = self.control.wait_for_stop() => {}
        }
    }

    /// Runs a future until it completes, or until the partition is [stopping](Self::stopping). In the latter case the
    /// future is dropped, and `None` is returned.
    #[doc(alias = "run_until_cancelled")]
    pub async fn run_until_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.stopping() => None,
        }
    }

    /// Stops delivering batches until [`resume`](Self::resume). This instance keeps its lease and the events that the
    /// source has prefetched, but load balancing may still move the partition: after a move, or a restart of the
    /// process, it is not paused.
    pub fn pause(&self) {
        self.control.pause();
    }

    /// Continues to deliver batches. Only an operator can end a
    /// [pause that an operator set](crate::admin::Operator::pause).
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Releases the partition after a clean stop. This instance does not claim it again for `cooldown` (at least one
    /// load-balancing interval, at most a year) and half an interval more. Other instances may claim it at once. Does
    /// nothing if the partition is already stopping.
    pub fn release(&self, cooldown: Duration) {
        let _ = self.control.request_release(cooldown);
    }
}

/// A tracked event in flight; see [`PartitionContext::track`].
///
/// A tracked event that is dropped unfinished counts as not processed and stays in flight. The checkpoint stays before
/// the event, and when the partition restarts, this event and all later ones are redelivered. While the partition runs,
/// a warning and [`HealthIssue::CheckpointHeld`](super::HealthIssue::CheckpointHeld) report it. A shutdown does not
/// wait for it; [`ShutdownReport::held_back`](super::ShutdownReport::held_back) names the partition.
///
/// Call [`fail`](Self::fail) for an event that cannot be processed now. Call [`finish`](Self::finish) for an event that
/// can never be processed, after storing it elsewhere.
///
/// ```
/// use eventhubs_checkpoint::PartitionContext;
/// use eventhubs_checkpoint::source::Positioned;
///
/// /// The event may finish after later ones: the checkpoint waits for it.
/// fn spawn<E: Positioned + Send + 'static>(event: E, partition: &PartitionContext) {
///     let tracked = partition.track(&event);
///     tokio::spawn(async move {
///         println!("{:?}", event.sequence_number());
///         tracked.finish();
///     });
/// }
/// ```
#[derive(Debug)]
#[must_use = "an event that is never finished holds the checkpoint back forever"]
pub struct TrackedEvent {
    place: Option<(i64, Box<str>)>,
    byte_size: usize,
    checkpoints: CheckpointRequester,
}

impl TrackedEvent {
    /// Finishes the event. Does not wait and does not fail.
    #[doc(alias = "acknowledge")]
    #[doc(alias = "dead_letter")]
    pub fn finish(mut self) {
        if let Some((number, offset)) = self.place.take() {
            self.checkpoints.finish_token(number, &offset, self.byte_size);
        }
    }

    /// Reports that the event cannot be processed. The partition fails, as after an error of
    /// [`Handler::handle`](super::Handler::handle), and [`OnFailure`](super::OnFailure) determines what follows. By
    /// default the partition restarts from its checkpoint, and the event is redelivered.
    ///
    /// The handler first finishes the batch that it has. If several events fail, the first error counts. If the
    /// partition is already stopping, the failure does not change that, and the event is redelivered after the next
    /// start.
    #[doc(alias = "nack")]
    pub fn fail(mut self, error: impl Into<HandlerError>) {
        let number = self.place.take().map(|(number, _)| number);
        self.checkpoints.fail_token(EventError::for_tracked_event(number, error));
    }
}

impl Drop for TrackedEvent {
    fn drop(&mut self) {
        if let Some((number, _)) = &self.place {
            self.checkpoints.abandon_token(*number, self.byte_size);
        }
    }
}
