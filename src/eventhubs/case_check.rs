//! When the store of the official processor looks for live owners in the other name case: by the same rules as the
//! balancer of this crate, but only while the processor claims.

use std::time::Duration;

use crate::model::Moment;
use crate::store::CaseConflict;

/// How many lease durations lie between two looks without a special reason.
const PERIOD: u32 = 10;

/// Whether this owner must look.
#[derive(Debug, Default)]
pub(super) struct CaseCheck {
    is_due: bool,
    /// When it looked and found no conflict.
    checked: Option<Moment>,
    /// Since when there is a conflict that the other instance may end.
    conflict_since: Option<Moment>,
}

impl CaseCheck {
    /// Returns whether a conflict is possible: this owner must look, and claim nothing before that.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Lets this owner, whose ownerships are live, look if they were not live before, or if the last look is long ago.
    pub(super) fn plan(&mut self, was_live: bool, now: Moment, lease_duration: Duration) {
        let is_old = self.checked.is_some_and(|checked| now >= checked + lease_duration * PERIOD);
        self.is_due |= !was_live || is_old;
    }

    /// Records that there is no conflict.
    pub(super) fn passed(&mut self, now: Moment) {
        *self = Self { is_due: false, checked: Some(now), conflict_since: None };
    }

    /// Returns whether the other instance may still give way.
    pub(super) fn waits_for_the_other(
        &mut self,
        conflict: &CaseConflict,
        now: Moment,
        lease_duration: Duration,
    ) -> bool {
        let since = *self.conflict_since.get_or_insert(now);
        conflict.may_end() && now < since + lease_duration / 2
    }
}
