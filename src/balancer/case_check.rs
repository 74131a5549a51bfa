//! The look for live owners in the other name case, after this instance has got a live ownership.
//!
//! An instance looks when it connects, but two instances that connect at the same time may choose different cases, and
//! one whose process was frozen may be taken for dead. So an instance whose ownerships were not live, and now are, looks
//! again. It wrote its ownership before it looks, and so did every other instance, so at least one of two that use
//! different cases sees the other.

use super::action::Request;
use super::context::Context;
use super::note::Note;
use super::retries::back_off;
use crate::error::Result;
use crate::model::Moment;
use crate::store::CaseConflict;

/// Whether this instance must look, and when.
#[derive(Debug, Default)]
pub(super) struct CaseCheck {
    progress: Progress,
    /// How many times it could not look, in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Done,
    Due(Moment),
    UnderWay,
    /// It must look once more when the request that is under way has ended.
    UnderWayAndDue,
}

impl CaseCheck {
    /// Returns when to look; `None` if there is no need to, or while it looks.
    pub(super) fn next(&self) -> Option<Moment> {
        match self.progress {
            Progress::Due(at) => Some(at),
            Progress::Done | Progress::UnderWay | Progress::UnderWayAndDue => None,
        }
    }

    /// Records that this instance has a live ownership, and had none before.
    pub(super) fn became_live(&mut self, context: &Context) {
        if context.settings.has_other_name_case {
            self.progress = match self.progress {
                Progress::Done | Progress::Due(_) => Progress::Due(context.now),
                Progress::UnderWay | Progress::UnderWayAndDue => Progress::UnderWayAndDue,
            };
        }
    }

    /// Looks, if it is time.
    pub(super) fn start(&mut self, context: &mut Context) {
        if self.next().is_some_and(|at| at <= context.now) {
            self.progress = Progress::UnderWay;
            context.request(Request::FindCaseConflict);
        }
    }

    /// Returns the conflict, if there is one. Looks again if that is not known.
    pub(super) fn on_found(
        &mut self,
        context: &mut Context,
        found: Result<Option<CaseConflict>>,
    ) -> Option<CaseConflict> {
        match found {
            Ok(conflict) => {
                let is_due = self.progress == Progress::UnderWayAndDue;
                self.progress = if is_due { Progress::Due(context.now) } else { Progress::Done };
                self.failures = 0;
                conflict
            }
            Err(error) => {
                let settings = &context.settings;
                let wait = back_off(self.failures, settings.retry_pause(), settings.lease_duration() / 8);
                self.progress = Progress::Due(context.now + wait.max(settings.retry_after(&error)));
                self.failures = self.failures.saturating_add(1);
                context.note(Note::CaseConflictUnknown(error));
                None
            }
        }
    }
}
