//! The owners that this instance watches between two listings. At least the two instances that follow an owner in the
//! order of the owner IDs watch it. One read per lease duration shows whether it still renews: an owner that does not
//! is listed at once, and the beacon tells the other instances.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Context;
use super::step::StorageRequest;
use crate::error::Result;
use crate::model::{LeaseDurations, Moment, OwnerId, Ownership};
use crate::planner::{LiveOwnership, View};

/// How many owners each instance watches. So at least as many instances watch each owner: if one of them crashes
/// together with it, the other one still does.
pub(crate) const WATCHED: u32 = 2;

/// The owners that this instance watches.
#[derive(Debug, Default)]
pub(super) struct OwnerWatch(pub(super) BTreeMap<OwnerId, Watched>);

/// An owner that this instance watches.
#[derive(Debug)]
pub(super) struct Watched {
    /// Its record that was renewed last.
    seen: Ownership,
    /// When to look; `None` while a read is under way, or if a listing will show it.
    look_at: Option<Moment>,
}

impl OwnerWatch {
    /// Chooses the owners to watch by the last listing.
    pub(super) fn record_view(&mut self, view: &View<'_>) {
        self.0 = watched_by(&view.me, &view.owners)
            .filter_map(|(owner, live)| {
                // If a renewal has failed, the listing at the expiry is the next look.
                let look_at = Some(live.silent_at).filter(|_| live.overdue_expiry.is_none());
                Some((owner.clone(), Watched { seen: view.record_of(&live.partition)?.clone(), look_at }))
            })
            .collect();
    }

    /// Returns when to look next.
    pub(super) fn next_look_at(&self) -> Option<Moment> {
        self.0.values().filter_map(|watched| watched.look_at).min()
    }

    /// Reads a record of each owner that should have renewed it by now.
    pub(super) fn start_looks(&mut self, context: &mut Context) {
        for (owner, watched) in &mut self.0 {
            if watched.look_at.is_some_and(|at| at <= context.now) {
                watched.look_at = None;
                context.push_request(StorageRequest::CheckOwner { owner: owner.clone(), seen: watched.seen.clone() });
            }
        }
    }

    /// Returns whether a listing must show what has become of the owner.
    pub(super) fn on_checked(
        &mut self,
        context: &Context,
        owner: &OwnerId,
        since_renewal: &Result<Option<Duration>>,
    ) -> bool {
        let Some(watched) = self.0.get_mut(owner) else { return false };
        let lease_duration = context.settings.lease_durations.of(&watched.seen.record);
        match since_renewal {
            Ok(Some(age)) if !LeaseDurations::is_overdue(*age, lease_duration) => {
                watched.look_at = Some(context.now + lease_duration.saturating_sub(*age));
                false
            }
            _ => {
                self.0.remove(owner);
                true
            }
        }
    }
}

/// Returns the owners that precede this instance in the order of the ids, around the end, up to the second one that
/// takes part.
fn watched_by<'a>(
    this: &'a OwnerId,
    owners: &'a BTreeMap<OwnerId, LiveOwnership>,
) -> impl Iterator<Item = (&'a OwnerId, &'a LiveOwnership)> {
    let mut nearer = 0;
    owners.range(..this).rev().chain(owners.range(this..).rev()).take_while(move |(_, live)| {
        let is_near = nearer < WATCHED;
        nearer += u32::from(live.takes_part);
        is_near
    })
}
