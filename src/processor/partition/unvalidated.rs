//! A start from a recorded position whose partition could not be asked about, because the event hub was busy.

use tokio::time::Instant;

use super::stall_detector::OLDEST_REPORT;
use crate::error::{Error, ErrorKind, Result};
use crate::model::CheckpointRecord;
use crate::processor::start::invalid::{InvalidReason, invalid_reason};
use crate::source::offset_format::BEFORE_EVERYTHING;
use crate::source::properties::PartitionProperties;

/// Returns whether reading may begin after this checkpoint before it is compared with the partition: the comparison
/// would not change the record, and reading shows if events after it have expired.
pub(super) fn needs_no_correction(record: &CheckpointRecord) -> bool {
    record.sequence_number.is_some() && record.offset.as_deref() != Some(BEFORE_EVERYTHING)
}

/// The checkpoint after which reading began, until the first lag check, gap or event shows whether it is valid.
#[derive(Debug, Default)]
pub(super) struct Unvalidated {
    record: Option<CheckpointRecord>,
    /// Since when the event hub reports that it ends before the checkpoint.
    beyond_end_since: Option<Instant>,
    is_refuted: bool,
}

impl Unvalidated {
    pub(super) fn new(record: CheckpointRecord) -> Self {
        Self { record: Some(record), ..Self::default() }
    }

    /// Records that events arrive after the checkpoint.
    pub(super) fn continued(&mut self) {
        self.record = None;
    }

    /// Returns whether the checkpoint is known to be invalid.
    pub(super) fn is_refuted(&self) -> bool {
        self.is_refuted
    }

    /// Compares the checkpoint with the partition. A report can be some seconds old, so the end counts only if a later
    /// report confirms it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPosition`] if the checkpoint is invalid: take it over again.
    pub(super) fn compare(&mut self, properties: &PartitionProperties) -> Result<()> {
        let reason = self.record.as_ref().map(|record| invalid_reason(record, properties));
        match reason {
            None => {}
            Some(None) => self.record = None,
            Some(Some(InvalidReason::BeyondEnd))
                if self.beyond_end_since.get_or_insert_with(Instant::now).elapsed() < OLDEST_REPORT => {}
            Some(Some(reason)) => {
                self.is_refuted = true;
                return Err(Error::new(ErrorKind::InvalidPosition, format!("the checkpoint is invalid: {reason}")));
            }
        }
        Ok(())
    }
}
