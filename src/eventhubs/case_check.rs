//! When the store of the official processor looks for live owners in the other name case: by the same rules as the
//! balancer of this crate, but only while the processor claims.

use std::time::Duration;

use crate::model::Moment;
use crate::store::{CaseConflict, time_to_next_look};

/// Whether this owner must look.
#[derive(Debug, Default)]
pub(super) struct CaseCheck {
    /// Whether a conflict is possible.
    is_unknown: bool,
    /// Whether the next look is the second one.
    is_second_due: bool,
    /// When to look although none is known to be possible.
    next: Option<Moment>,
    /// Since when there is a conflict that the other instance should end.
    conflict_since: Option<Moment>,
}

impl CaseCheck {
    /// Records that the ownerships are live, and were not before, or that another instance may have missed them.
    pub(super) fn became_live(&mut self) {
        (self.is_unknown, self.is_second_due) = (true, true);
    }

    /// Returns whether a conflict is possible, so that this owner must claim nothing.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns whether to look now.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.is_unknown || self.next.is_some_and(|next| next <= now)
    }

    /// Records that there is no conflict.
    pub(super) fn passed(&mut self, now: Moment, lease_duration: Duration) {
        let next = now + time_to_next_look(self.is_second_due, lease_duration);
        *self = Self { next: Some(next), ..Self::default() };
    }

    /// Returns whether the other instance may still give way: until its lease would have expired if it had crashed now.
    pub(super) fn waits_for_the_other(
        &mut self,
        conflict: &CaseConflict,
        now: Moment,
        lease_duration: Duration,
    ) -> bool {
        self.is_unknown = true;
        let since = *self.conflict_since.get_or_insert(now);
        conflict.other_should_give_way() && now < since + lease_duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NameCase, OwnerId};
    use crate::store::rules::LiveOwner;

    const LEASE: Duration = Duration::from_secs(60);

    const fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn live(is_of_this_crate: bool) -> CaseConflict {
        let live = LiveOwner { owner: OwnerId::new("x").unwrap(), partition: 0.into(), is_of_this_crate };
        CaseConflict::Other { used: NameCase::Lower, live }
    }

    #[test]
    fn it_looks_at_once_and_soon_and_every_ten_leases() {
        let mut check = CaseCheck::default();
        assert!(!check.is_due(at(1000)));
        check.became_live();
        assert!(check.is_due(at(0)) && check.is_unknown());
        check.passed(at(0), LEASE);
        assert!(!check.is_unknown() && !check.is_due(at(14)) && check.is_due(at(15)));
        check.passed(at(15), LEASE);
        assert!(!check.is_due(at(614)) && check.is_due(at(615)));
        assert!(!check.is_unknown(), "it goes on claiming");
    }

    #[test]
    fn only_an_instance_of_this_crate_is_waited_for() {
        for (is_of_this_crate, waits) in [(true, [true, true, false]), (false, [false; 3])] {
            let mut check = CaseCheck::default();
            let conflict = live(is_of_this_crate);
            assert_eq!([0, 59, 60].map(|now| check.waits_for_the_other(&conflict, at(now), LEASE)), waits);
            assert!(check.is_unknown(), "it claims nothing meanwhile");
        }
    }
}
