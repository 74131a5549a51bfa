//! The look for live owners in the other blob-name casing, while this instance has a live ownership.
//!
//! An instance looks when it connects, but two instances that connect at the same time may choose different casings,
//! and one whose process was frozen may be taken for dead. So an instance whose ownerships were not live, and now are,
//! looks again, and claims nothing more before it knows that there is no conflict. It wrote its ownership before it
//! looks, and so did every other instance, so at least one of two that use different casings sees the other.
//!
//! Of two instances of this crate, the instance that uses names as given ends. It may have looked before the other
//! instance claimed, so it looks once more soon afterwards, and the other instance waits for it. If a hypervisor pauses
//! the machine, no clock of the instance shows that, so the instance also looks periodically.

use std::sync::Arc;

use super::context::Context;
use super::events::Note;
use super::step::StorageRequest;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::model::Moment;
use crate::store::{CaseConflict, time_to_next_look};

/// Whether this instance must look, and when.
#[derive(Debug, Default)]
pub(super) struct CaseConflictCheck {
    progress: CheckProgress,
    /// Since when it has a live ownership without knowing whether there is a conflict.
    unknown_since: Option<Moment>,
    /// Whether the next look is the second one.
    is_second_due: bool,
    /// How many times it could not look, in a row.
    failures: u32,
    /// Why it could not look.
    error: Option<Arc<Error>>,
    /// Until when it waits for the other instance to give way.
    patient_until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CheckProgress {
    #[default]
    Done,
    Due(Moment),
    UnderWay,
    /// It must look once more when the request that is under way has ended.
    UnderWayAndDue,
}

impl CaseConflictCheck {
    /// Returns when to look; `None` if there is no need to, or while it looks.
    pub(super) fn next_look_at(&self) -> Option<Moment> {
        match self.progress {
            CheckProgress::Due(at) => Some(at),
            CheckProgress::Done | CheckProgress::UnderWay | CheckProgress::UnderWayAndDue => None,
        }
    }

    /// Returns whether a conflict with an instance that uses the other casing is possible.
    pub(super) fn is_unknown(&self) -> bool {
        self.unknown_since.is_some()
    }

    /// Returns since when it could not look, and the last error, if there is one.
    pub(super) fn failing_since(&self) -> Option<(Moment, &Arc<Error>)> {
        self.unknown_since.zip(self.error.as_ref())
    }

    /// Records that this instance has a live ownership, and had none before.
    pub(super) fn record_live_lease(&mut self, context: &Context) {
        if context.settings.has_other_name_case {
            self.unknown_since.get_or_insert(context.now);
            self.is_second_due = true;
            self.progress = match self.progress {
                CheckProgress::Done | CheckProgress::Due(_) => CheckProgress::Due(context.now),
                CheckProgress::UnderWay | CheckProgress::UnderWayAndDue => CheckProgress::UnderWayAndDue,
            };
        }
    }

    /// Looks, if it is time.
    pub(super) fn start_if_due(&mut self, context: &mut Context) {
        if self.next_look_at().is_some_and(|at| at <= context.now) {
            self.progress = CheckProgress::UnderWay;
            context.push_request(StorageRequest::FindCaseConflict);
        }
    }

    /// Returns the conflict, if there is one that this instance must end for. Looks again if that is not known.
    pub(super) fn on_found(
        &mut self,
        context: &mut Context,
        found: Result<Option<CaseConflict>>,
    ) -> Option<CaseConflict> {
        let lease_duration = context.settings.lease_duration();
        let conflict = match found {
            Ok(conflict) => conflict,
            Err(error) => {
                self.look_again_after(context, error);
                return None;
            }
        };
        self.failures = 0;
        self.error = None;
        match conflict {
            Some(conflict) if self.waits_for_the_other(context, &conflict) => {
                self.progress = CheckProgress::Due(context.now + lease_duration / 8);
                None
            }
            Some(conflict) => Some(conflict),
            None if self.progress == CheckProgress::UnderWayAndDue => {
                self.progress = CheckProgress::Due(context.now);
                None
            }
            None => {
                let is_second = std::mem::take(&mut self.is_second_due);
                self.progress = CheckProgress::Due(context.now + time_to_next_look(is_second, lease_duration));
                self.unknown_since = None;
                self.patient_until = None;
                None
            }
        }
    }

    /// Looks again after an error, with growing waits.
    fn look_again_after(&mut self, context: &mut Context, error: Error) {
        let backoff = Backoff::new(context.settings.first_retry_wait(), context.settings.lease_duration() / 8);
        let wait = backoff.wait_after(self.failures).max(context.settings.retry_after(&error));
        self.progress = CheckProgress::Due(context.now + wait);
        self.failures = self.failures.saturating_add(1);
        let error = Arc::new(error);
        self.error = Some(Arc::clone(&error));
        context.push_note(Note::CaseConflictUnknown(error));
    }

    /// Returns whether the other instance may still give way: until its lease would have expired if it had crashed now.
    fn waits_for_the_other(&mut self, context: &mut Context, conflict: &CaseConflict) -> bool {
        if !conflict.other_should_give_way() {
            return false;
        }
        self.unknown_since.get_or_insert(context.now);
        let until = *self.patient_until.get_or_insert_with(|| {
            context.push_note(Note::CaseConflictWaits(conflict.clone()));
            context.now + context.settings.lease_duration()
        });
        context.now < until
    }
}
