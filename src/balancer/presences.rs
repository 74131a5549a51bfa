//! What this instance knows of presences, its own among them.

use crate::balance::Moment;
use crate::model::OwnerId;
use crate::store::Presence;

/// What is known of who is there, and what was said of this instance.
#[derive(Debug, Default)]
pub(super) struct Presences {
    /// Something of this instance may be there.
    pub(super) announced: bool,
    /// How many announcements and withdrawals are under way.
    pub(super) under_way: u32,
    /// The first announcement has been made, or could not be.
    pub(super) begun: bool,
    /// When to say it again, on the lease clock; nothing: at once.
    pub(super) next: Option<Moment>,
    /// How many announcements have failed in a row.
    pub(super) failures: u32,
    /// As last listed.
    pub(super) known: Vec<Presence>,
}

impl Presences {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// The presence of an owner, as last listed.
    pub(super) fn of(&self, owner: &OwnerId) -> Option<&Presence> {
        self.known.iter().find(|seen| seen.record.owner == *owner)
    }
}
