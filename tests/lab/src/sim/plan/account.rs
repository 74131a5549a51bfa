//! What the storage account is like, and how slow it is.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Latency, Platform};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Incident, IncidentKind, Member, Role, Scale, Settings};

/// The most blobs and versions of a page.
const PAGE_SIZE: NonZeroUsize = const { NonZeroUsize::new(5000).unwrap() };

/// The share of the request timeout that a request takes at most.
const LEEWAY: f64 = 0.95;

/// A request takes no longer than the lease duration divided by this: a release that meets the request of a handoff
/// needs five requests, and the lease must last for them.
const PER_LEASE: u32 = 6;

/// An account, seen through a [`Platform`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// How long each request takes at the beginning.
    pub first: Duration,
    /// How long each request takes at the end of the faults and from then on.
    pub last: Duration,
    /// How long each further page of a listing takes, if deleted blobs and former versions are kept.
    pub page: Option<Duration>,
    /// Whether instances may delete blobs.
    pub deletes: bool,
    /// Whether errors have their error codes.
    pub error_codes: bool,
}

impl Account {
    /// Draws an account, and adds its latency to the settings. Uses its own random numbers, so that the rest of the
    /// plan stays the same. Other SDKs have no bound that holds for a slow storage, so a group with one of them gets
    /// none.
    pub(super) fn draw(
        settings: &mut Settings,
        members: &[Member],
        incidents: &[Incident],
        scale: &Scale,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x0acc);
        let foreign = members.iter().any(|member| member.role != Role::CrateProcessor);
        let all = all_settings(settings, members, incidents);
        let timeouts = all.iter().map(|settings| settings.tuning.deadline(settings.expiry));
        let shortest = timeouts.min().unwrap_or_default();
        let leases = all.iter().map(|settings| settings.expiry / PER_LEASE);
        let longest = leases.chain([shortest.mul_f64(LEEWAY)]).min().unwrap_or_default();
        let rest = longest.saturating_sub(settings.latency);
        let mut share = || rest.mul_f64([0.0, 0.0, 0.1, 0.5, 1.0][rng.random_range(0..5)]);
        let (first, last) = if foreign { (Duration::ZERO, Duration::ZERO) } else { (share(), share()) };
        let account = Self {
            first,
            last,
            page: rng.random_bool(0.3).then_some(shortest / 20),
            deletes: rng.random_bool(0.7),
            error_codes: rng.random_bool(0.7),
        };
        let pages = 4 * u32::try_from(scale.storm.as_secs() / 3600).unwrap_or(u32::MAX).max(1);
        settings.slowness = first.max(last) + account.page.unwrap_or_default() * pages;
        account
    }

    /// Returns the container of this account, in which requests take no time yet.
    pub(crate) fn over(&self, container: Arc<dyn BlobContainer>, seed: u64) -> Platform {
        let denied = (!self.deletes).then_some(BlobOperation::Delete);
        let platform = Platform::new(container, seed).with_denied(denied).with_error_codes(self.error_codes);
        match self.page {
            Some(page) => platform.with_history(PAGE_SIZE, page),
            None => platform,
        }
    }

    /// Adds the time that requests take, some time after the beginning of the faults.
    pub(crate) fn slow(&self, container: Arc<dyn BlobContainer>, elapsed: Duration, storm: Duration) -> Platform {
        let now = Latency::growing(self.first, self.last, storm).after(elapsed);
        Platform::new(container, 0)
            .with_dots_dropped(false)
            .with_directories(false)
            .with_front_ends(Duration::ZERO)
            .with_latency(Latency::growing(now, self.last, storm.saturating_sub(elapsed)))
    }
}

/// Returns the settings of all instances, also those that are rolled out.
fn all_settings(settings: &Settings, members: &[Member], incidents: &[Incident]) -> Vec<Settings> {
    let of_members = members.iter().filter_map(|member| member.terms.as_ref());
    let of_rollouts = incidents.iter().filter_map(|incident| match &incident.kind {
        IncidentKind::Rollout { terms, .. } => Some(terms),
        _ => None,
    });
    let others = of_members.chain(of_rollouts).map(|terms| settings.under(terms));
    others.chain([settings.clone()]).collect()
}
