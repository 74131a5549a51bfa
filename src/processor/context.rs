//! What a handler can do with its partition.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::checkpointing::CheckpointWriter;
use super::control::Control;
use super::positioned::Positioned;
use super::stop::HandlerError;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId};
use crate::telemetry;

/// What a handler can do with its partition. Cheap to clone, and fit to be moved into tasks of the application's own.
/// It belongs to one start of the handler: after `stopped` nothing that is marked with it counts any more.
#[derive(Clone, Debug)]
pub struct PartitionContext {
    pub(super) group: Arc<ConsumerGroup>,
    pub(super) checkpoints: CheckpointWriter,
    pub(super) control: Arc<Control>,
    /// True once this start of the handler comes to its end.
    pub(super) over: watch::Receiver<bool>,
}

impl PartitionContext {
    /// The partition.
    #[must_use]
    pub fn partition_id(&self) -> &PartitionId {
        &self.control.partition
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &ConsumerGroup {
        &self.group
    }

    /// The number of the tenure in which this instance has the partition: from the claim that won it until it is lost or
    /// given back. A partition that starts again within one tenure keeps its epoch.
    ///
    /// It is strictly greater than the epoch of every earlier tenure of the partition in which events were processed,
    /// whichever instance had it, and no two tenures have the same. An application that writes its results elsewhere can
    /// refuse those of an owner that was displaced and does not know it yet. Store the epoch beside each result, or once
    /// for the partition, and write only where the stored one is not greater:
    ///
    /// ```sql
    /// UPDATE results SET total = $2, epoch = $1 WHERE partition = $3 AND epoch <= $1
    /// ```
    ///
    /// A write that changes no row was refused: a later owner has written. The comparison must include equality, for
    /// one tenure writes many times, and every write must store the epoch, for the stored one is what refuses others.
    /// The epoch refuses late writes only. It does not prevent that events are processed twice: between the claim of
    /// the new owner and its first write, writes of the displaced one are still accepted. Store the position together
    /// with the result to recognize an event that was processed before.
    ///
    /// Owners of other SDKs have no epoch, so their writes pass such a guard or fail it, as the application decides.
    /// Nothing is promised after the ownership record was deleted within two seconds of a claim or while a claim was
    /// under way, nor if the clock of the storage is set back, as that of an emulator may be.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.control.epoch
    }

    /// Says that this event and all before it are processed. It is written down in the background, as the
    /// [`CheckpointPolicy`](super::CheckpointPolicy) says; of several the greatest counts. Never blocks, never fails.
    ///
    /// An event before it that is [tracked](Self::track) and not finished holds it back until it is.
    pub fn checkpoint(&self, event: &impl Positioned) {
        match (event.sequence_number(), event.offset()) {
            (Some(sequence_number), Some(offset)) => self.checkpoints.request(sequence_number, offset),
            _ => telemetry::unpositioned_event(&self.control.span, self.partition_id()),
        }
    }

    /// The same, and returns when it is durable.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EventsInFlight`] if a tracked event before it holds it back: it stays marked, and is written when that
    /// one is finished. [`ErrorKind::Fenced`] if the partition belongs to somebody else now; [`ErrorKind::Closed`] if it
    /// has been stopped; otherwise what the storage answered: the position stays pending and is written later.
    pub async fn checkpoint_now(&self, event: &impl Positioned) -> Result<()> {
        let Some(position) = event.position() else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the event has no sequence number or no offset, so it cannot be checkpointed",
            ));
        };
        let number = position.sequence_number;
        self.checkpoints.request(number, &position.offset);
        loop {
            self.checkpoints.flush().await?;
            if self.checkpoints.written() >= Some(number) {
                return Ok(());
            }
            // If nothing is in its way any more, that was finished only after the flush.
            if let Some(open) = self.checkpoints.waits_for(number) {
                let message =
                    format!("the checkpoint at event {number} waits until the tracked event {open} is finished");
                return Err(Error::new(ErrorKind::EventsInFlight, message));
            }
        }
    }

    /// Writes what is marked, and returns when it is durable.
    ///
    /// # Errors
    ///
    /// As of [`checkpoint_now`](Self::checkpoint_now), but for the first.
    pub async fn flush(&self) -> Result<()> {
        self.checkpoints.flush().await
    }

    /// Tracks an event that will be finished later, in whatever order: by [`TrackedEvent::finish`]. The checkpoint goes as far
    /// as all events are finished in the order of their delivery, by itself.
    ///
    /// Take the token before `handle` returns from the batch: events of it without a token then stand in nobody's way
    /// any more. Of those, the ones that were neither tracked nor marked are checkpointed together with the next one
    /// that is.
    ///
    /// When [`max_in_flight`](super::ProcessorConfig::max_in_flight) events are tracked and not finished, no more are
    /// delivered. With fewer, events after an open one are delivered and finished as ever, however many; they are
    /// processed again if the partition starts again before the open one is finished. When the partition stops, but for
    /// a failure, those in flight have the drain time to be finished.
    #[must_use = "an event that is never finished holds the checkpoint back for ever"]
    pub fn track(&self, event: &impl Positioned) -> TrackedEvent {
        let place = event.position().map(|position| (position.sequence_number, position.offset.into_boxed_str()));
        match &place {
            None => telemetry::unpositioned_event(&self.control.span, self.partition_id()),
            Some((number, _)) if !self.checkpoints.track(*number) => {
                telemetry::tracked_late(&self.control.span, self.partition_id(), *number);
            }
            Some(_) => {}
        }
        TrackedEvent { place, checkpoints: self.checkpoints.clone() }
    }

    /// Whether this start of the partition comes to its end: it is asked to stop, or it failed. A handler that takes
    /// long should look, and return early; tasks of the application's own should end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.over.borrow() || self.control.is_stopping()
    }

    /// Ready when this start of the partition comes to its end.
    pub async fn stopping(&self) {
        let mut over = self.over.clone();
        tokio::select! {
            // An error means that the partition's task is gone.
            _ = over.wait_for(|over| *over) => {}
            _ = self.control.stopping() => {}
        }
    }

    /// Runs this until it ends, or until the partition is [stopping](Self::stopping): then it is dropped, and there is
    /// no result.
    pub async fn run_until_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.stopping() => None,
        }
    }

    /// Delivers no further batches until [`resume`](Self::resume). The partition is kept meanwhile, and what the source
    /// holds ahead is kept, too. A partition that is lost and won again is not paused.
    pub fn pause(&self) {
        self.control.pause();
    }

    /// Delivers batches again.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Gives the partition back, in good order, and does not take it again before this time is over. Others may take it
    /// at once. Nothing changes if it stops already.
    pub fn release(&self, cooldown: Duration) {
        let _ = self.control.release(cooldown);
    }
}

/// An event in flight: see [`PartitionContext::track`].
///
/// Dropped without being finished, it keeps its event open, and counts as in flight: what was not said to be done is
/// not done. The checkpoint stays before the event, and when the partition starts again, the event and all after it are
/// delivered again. While the partition is at work, a warning and
/// [`HealthIssue::CheckpointHeld`](super::HealthIssue::CheckpointHeld) report it. At the end nothing waits for it, and
/// [`ShutdownReport::held_back`](super::ShutdownReport::held_back) names the partition.
///
/// Call [`fail`](Self::fail) for an event that cannot be processed now, and [`finish`](Self::finish) for one that never
/// can, after it was put aside elsewhere.
#[derive(Debug)]
#[must_use = "an event that is never finished holds the checkpoint back for ever"]
pub struct TrackedEvent {
    place: Option<(i64, Box<str>)>,
    checkpoints: CheckpointWriter,
}

impl TrackedEvent {
    /// The event is done. Never blocks, never fails.
    pub fn finish(mut self) {
        if let Some((number, offset)) = self.place.take() {
            self.checkpoints.finish(number, &offset);
        }
    }

    /// The event cannot be processed: fails the partition as an error of [`Handler::handle`](super::Handler::handle)
    /// does, and [`OnFailure`](super::OnFailure) says what follows. By default the partition starts again from its
    /// checkpoint, and the event is delivered again.
    ///
    /// A batch that the handler has at hand is finished first. Of several that fail the first counts. A partition that
    /// stops already does so as before, and the event is delivered again at its next start.
    pub fn fail(mut self, error: impl Into<HandlerError>) {
        let event = self.place.take().map(|(number, _)| number);
        self.checkpoints.fail(event, error.into());
    }
}

impl Drop for TrackedEvent {
    fn drop(&mut self) {
        if let Some((number, _)) = &self.place {
            self.checkpoints.abandon(*number);
        }
    }
}
