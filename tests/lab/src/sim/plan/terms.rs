//! Settings that instances of one group may have differently.

use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::balancer::LoadBalancingStrategy;
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Incident, IncidentKind, Member, Plan, Role, Scale, Settings};

/// How long a link may take to close when its partition stops.
const CLOSING: Duration = Duration::from_secs(2);

/// The settings of an instance, as far as they may differ within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The lease duration.
    pub expiry: Duration,
    /// The time between two cycles.
    pub interval: Duration,
    /// Whether the instance claims all missing partitions at once.
    pub greedy: bool,
    /// What keeps its leases alive.
    pub lease_scope: LeaseScope,
    /// The request timeout of its store.
    pub request_timeout: Option<Duration>,
}

impl Terms {
    /// Returns the terms of the profile for a fast failover.
    #[must_use]
    pub fn fast_failover() -> Self {
        Self::of(&StoreConfig::fast_failover(), &ProcessorConfig::fast_failover())
    }

    /// Returns the default terms.
    #[must_use]
    pub fn default_profile() -> Self {
        Self::of(&StoreConfig::default(), &ProcessorConfig::default())
    }

    fn of(store: &StoreConfig, processor: &ProcessorConfig) -> Self {
        Self {
            expiry: store.lease_duration,
            interval: processor.balancer.load_balancing_interval,
            greedy: processor.balancer.load_balancing_strategy == LoadBalancingStrategy::Greedy,
            lease_scope: processor.balancer.lease_scope,
            request_timeout: store.request_timeout,
        }
    }

    fn lasting(seconds: u64, interval: u64, greedy: bool, lease_scope: LeaseScope) -> Self {
        let (expiry, interval) = (Duration::from_secs(seconds), Duration::from_secs(interval));
        Self { expiry, interval, greedy, lease_scope, request_timeout: None }
    }

    /// The terms that are drawn.
    fn choices() -> [Self; 6] {
        [
            Self::fast_failover(),
            Self::default_profile(),
            Self::lasting(20, 5, false, LeaseScope::Partition),
            Self::lasting(30, 10, true, LeaseScope::Instance),
            Self::lasting(60, 20, true, LeaseScope::Partition),
            Self::lasting(120, 10, false, LeaseScope::Instance),
        ]
    }
}

impl Settings {
    /// Returns these settings with other terms. What depends on the lease duration has its default again.
    #[must_use]
    pub fn under(&self, terms: &Terms) -> Self {
        let mut settings =
            Self { expiry: terms.expiry, interval: terms.interval, greedy: terms.greedy, ..self.clone() };
        let tuning = &mut settings.tuning;
        tuning.request_timeout = terms.request_timeout;
        tuning.drain = None;
        tuning.stall_timeout = tuning.stall_timeout.max(terms.expiry / 2);
        settings.lease_scope = if tuning.weighted { LeaseScope::Partition } else { terms.lease_scope };
        let stopping = tuning.deadline(terms.expiry) + LeaseDurations::GRACE + CLOSING;
        settings.strict &= terms.expiry / 2 > stopping;
        settings
    }

    fn slower(self, other: &Self) -> Self {
        let mut slower = Self {
            expiry: self.expiry.max(other.expiry),
            interval: self.interval.max(other.interval),
            greedy: self.greedy && other.greedy,
            ..self
        };
        let deadline = slower.tuning.deadline(self.expiry).max(other.tuning.deadline(other.expiry));
        slower.tuning.request_timeout = Some(deadline);
        slower
    }
}

impl Plan {
    /// Returns the settings of an instance that starts now, after a rollout of these terms.
    #[must_use]
    pub(crate) fn settings_of(&self, member: u32, rolled_out: Option<&Terms>) -> Settings {
        let own = self.members.get(member as usize).and_then(|member| member.terms.as_ref());
        rolled_out.or(own).map_or_else(|| self.settings.clone(), |terms| self.settings.under(terms))
    }

    /// Returns settings that are at least as slow as those of every instance at any time.
    pub(crate) fn slowest_settings(&self) -> Settings {
        let of_members = self.members.iter().filter_map(|member| member.terms.as_ref());
        let of_rollouts = self.incidents.iter().filter_map(|incident| match &incident.kind {
            IncidentKind::Rollout { terms, .. } => Some(terms),
            _ => None,
        });
        let all = of_members.chain(of_rollouts).map(|terms| self.settings.under(terms));
        all.fold(self.settings.clone(), |slowest, other| slowest.slower(&other))
    }
}

/// Draws the terms of some members, and a rollout to all and back. Uses its own random numbers, so that the rest of the
/// plan stays the same.
pub(super) fn draw(members: &mut [Member], incidents: &mut Vec<Incident>, seed: u64, scale: &Scale) {
    if !scale.mixed_settings {
        return;
    }
    let mut rng = StdRng::seed_from_u64(seed ^ 0x7e45);
    let one = |rng: &mut StdRng| Terms::choices()[rng.random_range(0..Terms::choices().len())];
    for member in members.iter_mut().filter(|member| member.role == Role::CrateProcessor) {
        if rng.random_bool(0.5) {
            member.terms = Some(one(&mut rng));
        }
    }
    if rng.random_bool(0.5) {
        let at = scale.storm.mul_f64(rng.random_range(0.1..0.5));
        let gap = Duration::from_secs(rng.random_range(30..180));
        let back = at + scale.storm.mul_f64(rng.random_range(0.1..0.4));
        for (at, terms) in [(at, one(&mut rng)), (back, Terms::default_profile())] {
            incidents.push(Incident { at, kind: IncidentKind::Rollout { terms, gap, down: Duration::from_secs(5) } });
        }
    }
}
