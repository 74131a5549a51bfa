//! Takes over the checkpoint, and determines where to start.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::sleep;

use super::continuity::{Unvalidated, needs_no_correction};
use super::control::Control;
use super::machine::StepOutcome;
use super::reading_end::ReadingEnd;
use super::task::{PartitionSession, PartitionTask, SessionStart};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CheckpointRecord, OwnerId, Position};
use crate::processor::handler::Handler;
use crate::processor::policies::OnEarlierStart;
use crate::processor::shared::{SharedResources, recreation_error};
use crate::processor::shutdown::StopReason;
use crate::processor::start::discovery::{read_hub, record_new_starts_before};
use crate::processor::start::invalid::{
    InvalidCheckpoint, InvalidReason, ResumeFailure, choose_start, confirm_reason, find_correction, invalid_reason,
    is_at, record_of_start, resume_position,
};
use crate::source::positions::{is_rejection, resolve_start};
use crate::source::properties::PartitionProperties;
use crate::source::{EndPosition, EventSource, StartPosition, guard_request, is_of_former_hub};
use crate::store::{AdoptOutcome, Adoption};
use crate::telemetry;

/// The waits between checks of the partition properties, which can be some seconds old. A checkpoint counts as after
/// the end only if it still is after each of these waits, because an error would process all events twice. The same
/// applies to a gap that a link shows again: its events may have expired. The sum of the waits is
/// [`OLDEST_REPORT`](super::stall_detector::OLDEST_REPORT).
pub(super) const RECHECK_WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(5)];

/// What else decides whether a position is valid.
#[derive(Clone, Copy)]
struct StartFacts<'a> {
    /// Why reading could not continue before, if that is the reason for the restart.
    failure: Option<&'a ResumeFailure>,
    /// When the event hub was created. Read before any position, so it never belongs to a later event hub.
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

/// Why the checkpoint was not taken over.
enum TakeoverFailure {
    Lost { by: Option<OwnerId> },
    Failed(StepOutcome),
}

impl From<Error> for TakeoverFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<StepOutcome> for TakeoverFailure {
    fn from(outcome: StepOutcome) -> Self {
        Self::Failed(outcome)
    }
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
            Ok(start) => {
                let end = self.find_end(facts.hub_created_at);
                if end.is_reached(start.adoption.record().sequence_number) {
                    self.control.progress.record_adopted(start.adoption.record().sequence_number);
                    return Err(StepOutcome::Stop(StopReason::EndReached));
                }
                Ok(self.new_session(start, end, facts.hub_created_at))
            }
            Err(TakeoverFailure::Lost { by }) => Err(StepOutcome::Stop(self.read_loss_reason(by).await)),
            Err(TakeoverFailure::Failed(outcome)) => Err(outcome),
        }
    }

    /// Returns where the partition ends. A restart ends where the first start of this ownership does.
    fn find_end(&self, hub_created_at: Option<OffsetDateTime>) -> ReadingEnd {
        let SharedResources { config, .. } = &*self.shared;
        let Control { partition, properties, end: known, .. } = &*self.control;
        let mut end = match known.get() {
            Some((of, number)) if *of == hub_created_at => ReadingEnd::new(Some(EndPosition::SequenceNumber(*number))),
            _ => ReadingEnd::new(config.end_positions.get(partition).or(config.end_position.as_ref()).cloned()),
        };
        if let Some(properties) = &*properties.borrow() {
            self.learn_latest(&mut end, properties, hub_created_at);
        }
        end
    }

    /// Learns which event is the latest one at the start of this ownership.
    pub(super) fn learn_latest(
        &self,
        end: &mut ReadingEnd,
        properties: &PartitionProperties,
        hub_created_at: Option<OffsetDateTime>,
    ) {
        if let Some(number) = end.learn_latest(properties) {
            self.control.end.get_or_init(|| (hub_created_at, number));
        }
    }

    async fn take_over(&self, facts: StartFacts<'_>) -> Result<SessionStart, TakeoverFailure> {
        let mut adoption = self.adopt_checkpoint(facts.hub_created_at, None).await?;
        if let Some(pause) = self.check_pause(&mut adoption).await? {
            return Err(StepOutcome::Paused(pause).into());
        }
        let own = self.call_start_position(adoption.record().clone()).await?;
        self.shared.store.set_own_position(&mut adoption, own.is_kept()).await?;
        let mut start = self.find_start(adoption, own.start(), facts).await?;
        // A partition without a checkpoint has one now.
        self.shared.store.set_own_position(&mut start.adoption, own.is_kept()).await?;
        Ok(start)
    }

    /// Determines where to start, and records it. `chosen` is the position of the application, if it has one.
    async fn find_start(
        &self,
        mut adoption: Adoption,
        chosen: Option<&StartPosition>,
        facts: StartFacts<'_>,
    ) -> Result<SessionStart, TakeoverFailure> {
        let SharedResources { initial_partitions, config, .. } = &*self.shared;
        let mut properties = match self.read_properties().await {
            Err(error) if is_busy(&error) && can_wait(&adoption, chosen, facts) => {
                telemetry::start_not_validated(&self.control.partition, &error);
                let unvalidated = Unvalidated::new(adoption.record().clone());
                return Ok(SessionStart { unvalidated, ..start_after_record(adoption, &config.start_position) });
            }
            properties => properties?,
        };
        if let Some(start) = chosen.filter(|start| !is_at(adoption.record(), start)) {
            return self.start_as_chosen(adoption, start, facts, properties).await;
        }
        if !adoption.record().has_position() {
            let start = initial_partitions.start_position_of(&self.control.partition, config);
            let position = self.position_of(start, &properties).await?;
            return self.start_at(adoption, position).await;
        }
        if let Some(reason) = self.validate_record(adoption.record(), facts, &mut properties).await? {
            let checkpoint = adoption.record().clone();
            if chosen.is_some() && reason == InvalidReason::Recreated {
                keep_former_hub(&mut adoption);
            }
            return self.start_elsewhere(adoption, checkpoint, facts, properties, reason).await;
        }
        self.repair_checkpoint(&mut adoption, &properties).await?;
        Ok(start_after_record(adoption, &config.start_position))
    }

    /// Takes over the checkpoint, which fences the previous owner. A partition without a checkpoint gets this position.
    async fn adopt_checkpoint(
        &self,
        hub_created_at: Option<OffsetDateTime>,
        position: Option<&Position>,
    ) -> Result<Adoption, TakeoverFailure> {
        let store = self.shared.store.for_hub_created_at(hub_created_at);
        match store.adopt(&self.control.partition, self.control.epoch, position).await? {
            AdoptOutcome::Adopted(adoption) => Ok(adoption),
            AdoptOutcome::Lost { by } => Err(TakeoverFailure::Lost { by }),
        }
    }

    /// Starts at the position that the application chose. The checkpoint follows it.
    async fn start_as_chosen(
        &self,
        mut adoption: Adoption,
        start: &StartPosition,
        facts: StartFacts<'_>,
        mut properties: PartitionProperties,
    ) -> Result<SessionStart, TakeoverFailure> {
        // Whoever owned the partition in another event hub than the record shows has written the record there.
        let CheckpointRecord { hub_created_at, updated_at, .. } = *adoption.record();
        let chosen = CheckpointRecord { updated_at, hub_created_at, ..record_of_start(start) };
        if let Some(reason) = self.validate_record(&chosen, facts, &mut properties).await? {
            if reason == InvalidReason::Recreated {
                keep_former_hub(&mut adoption);
            }
            return self.start_elsewhere(adoption, chosen, facts, properties, reason).await;
        }
        let Some(position) = self.position_chosen(start, facts, &properties).await? else {
            return self.start_elsewhere(adoption, chosen, facts, properties, InvalidReason::Rejected).await;
        };
        self.check_earlier_start(adoption.record(), &position)?;
        if adoption.record().sequence_number != Some(position.sequence_number) {
            telemetry::start_chosen(&self.control.partition, &position, adoption.record());
        }
        self.start_at(adoption, position).await
    }

    /// Refuses a start of the application before the checkpoint if the policy says so, and counts it otherwise.
    fn check_earlier_start(&self, record: &CheckpointRecord, position: &Position) -> Result<(), StepOutcome> {
        if !record.covers_after(position.sequence_number) {
            return Ok(());
        }
        if self.shared.config.on_earlier_start == OnEarlierStart::Fail {
            return Err(StepOutcome::HandlerFailed(Arc::new(earlier_start_error(record, position))));
        }
        self.control.metrics.count_start_before_checkpoint();
        Ok(())
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
                Ok(())
            }
            repaired => repaired,
        }
    }

    /// Returns the position that the application chose, unless the broker rejects it. A number in the partition needs
    /// no look-up: the checkpoint follows without an offset, as the application does.
    async fn position_chosen(
        &self,
        start: &StartPosition,
        facts: StartFacts<'_>,
        properties: &PartitionProperties,
    ) -> Result<Option<Position>> {
        let found = match start {
            StartPosition::AfterSequenceNumber(number) if properties.holds_before_last(*number) => {
                Ok(Position::new(*number, ""))
            }
            _ => self.position_of(start, properties).await,
        };
        match found {
            Err(error) if is_rejection(&error) => Ok(None),
            // The broker has rejected to read after this position before.
            Ok(position)
                if facts.failure
                    == Some(&ResumeFailure::Rejected(StartPosition::AfterSequenceNumber(position.sequence_number))) =>
            {
                Ok(None)
            }
            found => found.map(Some),
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

    /// Returns why the checkpoint is invalid, if it is. Reads the properties again if they may be too old to show it.
    async fn validate_record(
        &self,
        record: &CheckpointRecord,
        facts: StartFacts<'_>,
        properties: &mut PartitionProperties,
    ) -> Result<Option<InvalidReason>> {
        if is_of_former_hub(record, facts.hub_created_at) {
            return Ok(Some(InvalidReason::Recreated));
        }
        let mut reason = facts.find_invalid_reason(record, properties);
        for wait in RECHECK_WAITS {
            if reason != Some(InvalidReason::BeyondEnd) {
                break;
            }
            sleep(wait).await;
            *properties = self.read_properties().await?;
            reason = facts.find_invalid_reason(record, properties);
        }
        Ok(reason)
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
    async fn start_at(&self, mut adoption: Adoption, position: Position) -> Result<SessionStart, TakeoverFailure> {
        self.shared.offset_format.record_offset(adoption.record().offset.as_deref());
        let position = self.shared.offset_format.to_recordable(position);
        let hub_created_at = adoption.hub_created_at();
        if !adoption.record().has_position() {
            record_new_starts_before(&self.shared, &self.control.partition).await?;
            adoption = self.adopt_checkpoint(hub_created_at, Some(&position)).await?;
        } else if !is_recorded(&adoption, &position) {
            let store = self.shared.store.for_hub_created_at(hub_created_at);
            store.replace_checkpoint(&mut adoption, &position).await?;
        }
        Ok(start_after_record(adoption, &StartPosition::AfterSequenceNumber(position.sequence_number)))
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
    ) -> Result<SessionStart, TakeoverFailure> {
        self.confirm_creation(facts.hub_created_at).await?;
        let invalid = InvalidCheckpoint { partition: self.control.partition.clone(), checkpoint, properties, reason };
        let from = choose_start(&self.shared.config.on_invalid_checkpoint, &invalid)?;
        let position = self.position_of(&from, &invalid.properties).await?;
        // An old position of the application may have expired. A position in another event hub cannot be compared.
        if reason != InvalidReason::Recreated && invalid.checkpoint.sequence_number < adoption.record().sequence_number
        {
            self.check_earlier_start(adoption.record(), &position)?;
        }
        telemetry::invalid_checkpoint(&invalid.partition, &invalid, &from, reason == InvalidReason::Expired);
        self.control.metrics.count_invalid_checkpoint(reason.name());
        let elsewhere = Some(position.sequence_number);
        Ok(SessionStart { elsewhere, ..self.start_at(adoption, position).await? })
    }
}

/// Returns the start after the position of the record, or at `otherwise` if the record has none.
fn start_after_record(adoption: Adoption, otherwise: &StartPosition) -> SessionStart {
    SessionStart {
        from: resume_position(adoption.record(), otherwise),
        adoption,
        elsewhere: None,
        unvalidated: Unvalidated::default(),
    }
}

fn earlier_start_error(record: &CheckpointRecord, position: &Position) -> Error {
    Error::new(
        ErrorKind::InvalidPosition,
        format!(
            "the position of the application starts the partition after {}, before the checkpoint {}, so events would be \
             processed again; make all instances use one database, or, if that is intended, also move the checkpoint: \
             `ehcp reset --own-positions`",
            position.sequence_number,
            record.sequence_number.unwrap_or_default(),
        ),
    )
}

/// Returns whether the event hub rejects requests because there are too many.
fn is_busy(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Throttled { .. })
}

/// Returns whether reading may begin after the checkpoint before it is compared with the partition.
fn can_wait(adoption: &Adoption, chosen: Option<&StartPosition>, facts: StartFacts<'_>) -> bool {
    let record = adoption.record();
    chosen.is_none_or(|start| is_at(record, start))
        && facts.failure.is_none()
        && needs_no_correction(record)
        && !is_of_former_hub(record, facts.hub_created_at)
}

/// Returns whether the record shows this position in the event hub that is read. It may have an offset that the
/// position lacks.
fn is_recorded(adoption: &Adoption, position: &Position) -> bool {
    let record = adoption.record();
    adoption.hub_created_at().is_none_or(|time| record.hub_created_at == Some(time))
        && record.sequence_number == Some(position.sequence_number)
        && (position.offset.is_empty() || record.offset.as_deref() == Some(&*position.offset))
}

/// Lets the record show the former event hub until the application has taken over its position in this one. If the
/// instance crashed before, the next owner would otherwise take the application's old position for one in this event
/// hub.
fn keep_former_hub(adoption: &mut Adoption) {
    let record = adoption.record();
    adoption.set_hub_created_at(record.hub_created_at.or(record.updated_at));
}
