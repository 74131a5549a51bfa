//! What a cycle has listed.

use crate::balance::Moment;
use crate::error::Result;
use crate::store::{GroupStore, Ownership, Presence};

/// What was listed, and when it was asked for.
pub(super) struct Cycle {
    pub(super) asked: Moment,
    pub(super) records: Vec<Ownership>,
}

/// Who else is there, beside the owners here.
pub(super) struct Others {
    pub(super) presences: Option<Vec<Presence>>,
    pub(super) other_tree: Vec<Ownership>,
}

impl Others {
    pub(super) async fn list(store: &GroupStore, presences: bool, other_tree: bool) -> Result<Self> {
        let presences = if presences { Some(store.list_presences().await?.records) } else { None };
        let other_tree = if other_tree { store.list_other_tree().await?.records } else { Vec::new() };
        Ok(Self { presences, other_tree })
    }
}
