//! Takes over the checkpoint, and determines where to start.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Instrument;

use super::continuity::{DeliveryProgress, Unvalidated, needs_no_correction};
use super::machine::StepOutcome;
use super::orders::SessionEnd;
use super::stall_detector::StallDetector;
use super::task::{PartitionSession, PartitionTask};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, Position};
use crate::processor::checkpoints::requests::Start;
use crate::processor::checkpoints::writer::CheckpointWriter;
use crate::processor::context::PartitionContext;
use crate::processor::handler::Handler;
use crate::processor::shared::{SharedResources, recreation_error};
use crate::processor::start::discovery::{read_hub, record_new_starts_before};
use crate::processor::start::invalid::{
    InvalidCheckpoint, InvalidReason, ResumeFailure, choose_start, confirm_reason, find_correction, invalid_reason,
    is_at, record_of_start, resume_position,
};
use crate::source::positions::{is_rejection, resolve_start};
use crate::source::properties::PartitionProperties;
use crate::source::{EventSource, StartPosition, guard_request, is_of_former_hub};
use crate::store::{AdoptOutcome, Adoption};
use crate::telemetry;

/// The waits between checks of the partition properties, which can be some seconds old. A checkpoint counts as after
/// the end only if it still is after each of these waits, because an error would process all events twice. The same
/// applies to a gap that a link shows again: its events may have expired. The sum of the waits is
/// [`OLDEST_REPORT`](super::stall_detector::OLDEST_REPORT).
pub(super) const RECHECK_WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(5)];

/// Where a partition starts.
struct ResolvedStart {
    adoption: Adoption,
    from: StartPosition,
    /// The position that replaces one after which the partition cannot be read.
    elsewhere: Option<i64>,
    unvalidated: Unvalidated,
}

/// What else decides whether a position is valid.
#[derive(Clone, Copy)]
struct StartFacts<'a> {
    /// Why reading could not continue before, if that is the reason for the restart.
    failure: Option<&'a ResumeFailure>,
    /// When the event hub was created. Read before any position, so it is never that of a later event hub.
    hub_created_at: Option<OffsetDateTime>,
}

impl StartFacts<'_> {
    /// Returns why the partition cannot be read after this record, according to its properties or the former failure.
    fn find_invalid_reason(
        &self,
        record: &CheckpointRecord,
        properties: &PartitionProperties,
    ) -> Option<InvalidReason> {
        invalid_reason(record, properties)
            .or_else(|| self.failure.and_then(|failure| confirm_reason(record, failure, properties)))
    }
}

/// The outcome of taking over the checkpoint.
enum TakeoverOutcome {
    At(Box<ResolvedStart>),
    Lost { by: Option<OwnerId> },
}

impl<S: EventSource, H: Handler<S::Event>> PartitionTask<S, H> {
    /// Takes over the checkpoint. `failure` is why reading could not continue before, if that is the reason for the
    /// restart.
    pub(super) async fn begin_session(
        &self,
        failure: Option<&ResumeFailure>,
    ) -> Result<PartitionSession<S::Event>, StepOutcome> {
        let facts = StartFacts { failure, hub_created_at: self.shared.hub_creation.creation_time() };
        self.shared.hub_creation.doubt.notify_one();
        let outcome = tokio::select! {
            biased;
            reason = self.control.wait_for_stop() => return Err(StepOutcome::Stop(reason)),
            outcome = self.take_over(facts) => outcome,
        };
        match outcome {
            Ok(TakeoverOutcome::At(start)) => Ok(self.new_session(*start, facts.hub_created_at)),
            Ok(TakeoverOutcome::Lost { by }) => Err(StepOutcome::Stop(self.read_loss_reason(by).await)),
            Err(outcome) => Err(outcome),
        }
    }

    async fn take_over(&self, facts: StartFacts<'_>) -> Result<TakeoverOutcome, StepOutcome> {
        let config = &self.shared.config;
        let store = self.shared.store.for_hub_created_at(facts.hub_created_at);
        let mut adoption = match store.adopt(&self.control.partition, self.control.epoch, None).await? {
            AdoptOutcome::Adopted(adoption) => adoption,
            AdoptOutcome::Lost { by } => return Ok(TakeoverOutcome::Lost { by }),
        };
        let chosen = self.call_start_position(adoption.record().clone()).await?;
        let properties = match self.read_properties().await {
            Err(error) if is_busy(&error) && can_wait(&adoption, chosen.as_ref(), facts) => {
                return Ok(self.start_unvalidated(adoption, &error));
            }
            properties => properties?,
        };
        let is_chosen = chosen.is_some();
        if let Some(start) = chosen.filter(|start| !is_at(adoption.record(), start)) {
            return Ok(self.start_as_chosen(adoption, &start, facts, properties).await?);
        }
        let record = adoption.record();
        if !record.has_position() {
            let start = self.shared.initial_partitions.start_position_of(&self.control.partition, config);
            let position = self.position_of(start, &properties).await?;
            return Ok(self.start_at(adoption, position).await?);
        }
        let (reason, properties) = self.validate_record(record, facts, properties).await?;
        if let Some(reason) = reason {
            let record = record.clone();
            if is_chosen && reason == InvalidReason::Recreated {
                keep_former_hub(&mut adoption);
            }
            return Ok(self.start_elsewhere(adoption, record, facts, properties, reason).await?);
        }
        self.repair_checkpoint(&mut adoption, &properties).await?;
        let from = resume_position(adoption.record(), &config.start_position);
        Ok(TakeoverOutcome::At(Box::new(ResolvedStart {
            adoption,
            from,
            elsewhere: None,
            unvalidated: Unvalidated::default(),
        })))
    }

    /// Starts after the checkpoint, which is compared with the partition later: when the event hub is no longer busy.
    fn start_unvalidated(&self, adoption: Adoption, error: &Error) -> TakeoverOutcome {
        telemetry::start_not_validated(&self.control.partition, error);
        let from = resume_position(adoption.record(), &self.shared.config.start_position);
        let unvalidated = Unvalidated::new(adoption.record().clone());
        TakeoverOutcome::At(Box::new(ResolvedStart { adoption, from, elsewhere: None, unvalidated }))
    }

    /// Starts at the position that the application chose. The checkpoint follows it.
    async fn start_as_chosen(
        &self,
        mut adoption: Adoption,
        start: &StartPosition,
        facts: StartFacts<'_>,
        properties: PartitionProperties,
    ) -> Result<TakeoverOutcome> {
        // Whoever owned the partition in another event hub than the record shows has written the record there.
        let CheckpointRecord { hub_created_at, updated_at, .. } = *adoption.record();
        let chosen = CheckpointRecord { updated_at, hub_created_at, ..record_of_start(start) };
        let (reason, properties) = self.validate_record(&chosen, facts, properties).await?;
        if let Some(reason) = reason {
            if reason == InvalidReason::Recreated {
                keep_former_hub(&mut adoption);
            }
            return self.start_elsewhere(adoption, chosen, facts, properties, reason).await;
        }
        let position = match self.position_chosen(start, &properties).await {
            Ok(position) => Some(position),
            Err(error) if is_rejection(&error) => None,
            Err(error) => return Err(error),
        };
        // The broker may have rejected to read after the same position before.
        let Some(position) = position.filter(|position| {
            let place = StartPosition::AfterSequenceNumber(position.sequence_number);
            facts.failure != Some(&ResumeFailure::Rejected(place))
        }) else {
            return self.start_elsewhere(adoption, chosen, facts, properties, InvalidReason::Rejected).await;
        };
        let checkpoint = adoption.record().sequence_number;
        if checkpoint != Some(position.sequence_number) {
            telemetry::start_chosen(&self.control.partition, checkpoint, &position);
        }
        self.start_at(adoption, position).await
    }

    /// Corrects the sequence number of the checkpoint if necessary. A number that is too great must be replaced,
    /// because it would hold back all checkpoints up to it, and so must the time of a former event hub, because
    /// positions of the application are judged by it. Any other number matters only to other readers of the record, so
    /// a failure is only logged.
    async fn repair_checkpoint(&self, adoption: &mut Adoption, properties: &PartitionProperties) -> Result<()> {
        let record = adoption.record();
        let Some(place) = find_correction(record, adoption.hub_created_at(), properties) else { return Ok(()) };
        let too_great = record.sequence_number.is_some_and(|recorded| recorded > place.sequence_number);
        let of_another_hub = record.hub_created_at.is_some_and(|of| Some(of) != adoption.hub_created_at());
        if of_another_hub {
            self.confirm_creation(adoption.hub_created_at()).await?;
        }
        match self.shared.store.repair_checkpoint(adoption, &place).await {
            Err(error) if !too_great && !of_another_hub => {
                telemetry::checkpoint_not_repaired(&self.control.partition, &error);
            }
            repaired => return repaired,
        }
        Ok(())
    }

    /// Returns the position that the application chose. A number in the partition needs no look-up: the checkpoint
    /// follows without an offset, as the application does.
    async fn position_chosen(&self, start: &StartPosition, properties: &PartitionProperties) -> Result<Position> {
        match start {
            StartPosition::AfterSequenceNumber(number) if properties.holds_before_last(*number) => {
                Ok(Position { sequence_number: *number, offset: String::new() })
            }
            _ => self.position_of(start, properties).await,
        }
    }

    async fn position_of(&self, start: &StartPosition, properties: &PartitionProperties) -> Result<Position> {
        resolve_start(&self.shared.source, &self.control.partition, start, properties, self.control.epoch).await
    }

    pub(super) async fn read_properties(&self) -> Result<PartitionProperties> {
        let properties = guard_request(self.shared.source.partition_properties(&self.control.partition)).await?;
        self.control.publish_properties(properties.clone());
        Ok(properties)
    }

    /// Returns why the checkpoint is invalid, if it is, and the properties that show it.
    async fn validate_record(
        &self,
        record: &CheckpointRecord,
        facts: StartFacts<'_>,
        mut properties: PartitionProperties,
    ) -> Result<(Option<InvalidReason>, PartitionProperties)> {
        if is_of_former_hub(record, facts.hub_created_at) {
            return Ok((Some(InvalidReason::Recreated), properties));
        }
        let mut reason = facts.find_invalid_reason(record, &properties);
        for wait in RECHECK_WAITS {
            if reason != Some(InvalidReason::BeyondEnd) {
                break;
            }
            sleep(wait).await;
            properties = self.read_properties().await?;
            reason = facts.find_invalid_reason(record, &properties);
        }
        Ok((reason, properties))
    }

    /// Reads again when the event hub was created: the record may be newer than what this instance knows, or the event
    /// hub may have been recreated since.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPosition`](crate::ErrorKind::InvalidPosition) if it was created at another time than known:
    /// take over the checkpoint again.
    async fn confirm_creation(&self, known: Option<OffsetDateTime>) -> Result<()> {
        read_hub(&self.shared).await?;
        if self.shared.hub_creation.was_recreated_since(known) { Err(recreation_error()) } else { Ok(()) }
    }

    /// Starts after this position, and records it before anything is read from there. An old checkpoint would reject
    /// all smaller positions. Every link continues from the recorded position: if it were opened at "the latest event"
    /// again, it would skip events.
    async fn start_at(&self, mut adoption: Adoption, position: Position) -> Result<TakeoverOutcome> {
        self.shared.offset_format.record_offset(adoption.record().offset.as_deref());
        let position = self.shared.offset_format.to_recordable(position);
        let store = self.shared.store.for_hub_created_at(adoption.hub_created_at());
        let partition = &self.control.partition;
        if !adoption.record().has_position() {
            record_new_starts_before(&self.shared, partition).await?;
            adoption = match store.adopt(partition, self.control.epoch, Some(&position)).await? {
                AdoptOutcome::Adopted(adoption) => adoption,
                AdoptOutcome::Lost { by } => return Ok(TakeoverOutcome::Lost { by }),
            };
        } else if !is_recorded(&adoption, &position) {
            store.replace_checkpoint(&mut adoption, &position).await?;
        }
        let from = resume_position(adoption.record(), &StartPosition::AfterSequenceNumber(position.sequence_number));
        Ok(TakeoverOutcome::At(Box::new(ResolvedStart {
            adoption,
            from,
            elsewhere: None,
            unvalidated: Unvalidated::default(),
        })))
    }

    /// Starts where the policy says, because the partition cannot be read after `checkpoint`, which is the recorded
    /// position or the one that the application chose.
    async fn start_elsewhere(
        &self,
        adoption: Adoption,
        checkpoint: CheckpointRecord,
        facts: StartFacts<'_>,
        properties: PartitionProperties,
        reason: InvalidReason,
    ) -> Result<TakeoverOutcome> {
        self.confirm_creation(facts.hub_created_at).await?;
        let invalid = InvalidCheckpoint { partition: self.control.partition.clone(), checkpoint, properties, reason };
        let from = choose_start(&self.shared.config.on_invalid_checkpoint, &invalid)?;
        let position = self.position_of(&from, &invalid.properties).await?;
        let events_lost = reason == InvalidReason::Expired;
        telemetry::invalid_checkpoint(&invalid.partition, &invalid, &from, events_lost);
        self.control.metrics.count_invalid_checkpoint(reason.name());
        let elsewhere = position.sequence_number;
        let mut begun = self.start_at(adoption, position).await?;
        if let TakeoverOutcome::At(start) = &mut begun {
            start.elsewhere = Some(elsewhere);
        }
        Ok(begun)
    }

    fn new_session(
        &self,
        ResolvedStart { adoption, from, elsewhere, unvalidated }: ResolvedStart,
        hub_created_at: Option<OffsetDateTime>,
    ) -> PartitionSession<S::Event> {
        let SharedResources { store, config, group, .. } = &*self.shared;
        self.control.failures.record_start(adoption.record().sequence_number, elsewhere.is_some());
        let over = watch::Sender::new(false);
        let start = Start {
            partition: self.control.partition.clone(),
            stopping: self.control.watch_stopping(),
            over: SessionEnd::new(over.subscribe()),
            span: self.control.span.clone(),
        };
        let policy = config.checkpoint_policy.clone();
        let telemetry = (self.control.metrics.clone(), self.shared.spans.clone());
        let shows_former_hub = adoption.hub_created_at() != hub_created_at;
        let (checkpointer, writer) = CheckpointWriter::new(store.clone(), adoption, policy, telemetry, start);
        self.control.progress.record_start(writer.clone(), elsewhere.is_some());
        let mut writing = JoinSet::new();
        writing.spawn(checkpointer.run().in_current_span());
        let context = PartitionContext {
            group: Arc::clone(group),
            checkpoints: writer.clone(),
            control: Arc::clone(&self.control),
            over: SessionEnd::new(over.subscribe()),
            started_elsewhere: elsewhere,
        };
        // Jitter brings a lag check forward by up to a quarter of the interval.
        let stall_detector = StallDetector::new(config.lag_check_interval.map_or(Duration::MAX, |time| time / 4 * 3));
        PartitionSession {
            context,
            over,
            writer,
            writing,
            delivered: DeliveryProgress::new(from),
            stall_detector,
            link: None,
            displaced: false,
            undecodable: None,
            hub_created_at,
            unvalidated,
            shows_former_hub,
            drained_by: None,
        }
    }
}

/// Returns whether the event hub rejects requests because there are too many.
fn is_busy(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Throttled { .. })
}

/// Returns whether reading may begin after the checkpoint before it is compared with the partition.
fn can_wait(adoption: &Adoption, chosen: Option<&StartPosition>, facts: StartFacts<'_>) -> bool {
    let record = adoption.record();
    let continues = chosen.is_none_or(|start| is_at(record, start)) && facts.failure.is_none();
    continues && needs_no_correction(record) && !is_of_former_hub(record, facts.hub_created_at)
}

/// Returns whether the record shows this position in the event hub that is read. It may have an offset that the
/// position lacks.
fn is_recorded(adoption: &Adoption, position: &Position) -> bool {
    let record = adoption.record();
    let is_current = adoption.hub_created_at().is_none_or(|time| record.hub_created_at == Some(time));
    let has_offset = position.offset.is_empty() || record.offset.as_deref() == Some(&*position.offset);
    is_current && record.sequence_number == Some(position.sequence_number) && has_offset
}

/// Lets the record show the former event hub until the application has taken over its position in this one. If the
/// instance crashed before, the next owner would otherwise take the application's old position for one in this event
/// hub.
fn keep_former_hub(adoption: &mut Adoption) {
    let record = adoption.record();
    adoption.set_hub_created_at(record.hub_created_at.or(record.updated_at));
}
