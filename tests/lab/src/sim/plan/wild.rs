//! Settings from the whole range that `build` accepts.
//!
//! They use their own random numbers, so that plans without them do not change.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::processor::OnFailure;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::tuning::{StartAt, Tuning};
use super::{Role, Settings};

/// How long a link may take to close when its partition stops.
const CLOSING: Duration = Duration::from_secs(2);

/// A longer request timeout is not useful.
const LONGEST_REQUEST: Duration = Duration::from_secs(10);

/// A start by time is this long before an instance starts. Nothing is skipped if each partition has an owner within
/// this time.
const START_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl Settings {
    /// Returns the same settings, but far from the defaults.
    pub(super) fn with_wild_settings(self, seed: u64, roles: impl Iterator<Item = Role>) -> Self {
        let mut draw = Draw(StdRng::seed_from_u64(seed ^ 0x0177_11d0));
        let mixed = roles.into_iter().any(|role| matches!(role, Role::Foreign(_)));
        let mut settings = draw.terms(self, mixed);
        settings.tuning = draw.tuning(&settings);
        if settings.tuning.weighted {
            settings.lease_scope = LeaseScope::Partition;
        }
        settings.latest &= settings.tuning.start.is_none();
        draw.stopping(&mut settings);
        settings
    }
}

struct Draw(StdRng);

impl Draw {
    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())].clone()
    }

    fn seconds(&mut self, choices: &[u64]) -> Duration {
        Duration::from_secs(self.one_of(choices))
    }

    fn share(&mut self, of: Duration, from: f64, to: f64) -> Duration {
        of.mul_f64(self.0.random_range(from..to))
    }

    fn sometimes<T>(&mut self, chance: f64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.random_bool(chance).then(|| value(self))
    }

    /// Owners of other SDKs have their own lease durations. In a group with such owners, this crate cannot use much
    /// longer ones.
    fn terms(&mut self, settings: Settings, mixed: bool) -> Settings {
        let long: &[u64] = if mixed { &[20, 60] } else { &[120, 300] };
        let expiry = if self.0.random_bool(0.3) { self.seconds(long) } else { self.seconds(&[5, 8, 12, 20, 45, 60]) };
        let interval = self.share(expiry, 0.05, 0.33).max(Duration::from_secs(1));
        let foreign_lease_duration = settings.foreign_lease_duration.max(expiry);
        let checkpoint_every = self.seconds(&[1, 5, 60, 240]);
        Settings { expiry, foreign_lease_duration, interval, checkpoint_every, ..settings }
    }

    fn tuning(&mut self, settings: &Settings) -> Tuning {
        let expiry = settings.expiry;
        let stall_timeout = self.one_of(&[expiry / 2, Duration::from_secs(30), Duration::from_secs(300)]);
        let deadline = |draw: &mut Self| draw.share(expiry, 0.1, 0.3).clamp(Duration::from_secs(1), LONGEST_REQUEST);
        Tuning {
            request_timeout: self.sometimes(0.3, deadline),
            concurrency: self.one_of(&[2, 32]).try_into().unwrap_or(NonZeroUsize::MIN),
            weighted: self.0.random_bool(0.25),
            stall_timeout: stall_timeout.max(expiry / 2),
            drain: None,
            batch: self.one_of(&[1, 10, 100, 1000]),
            batch_wait: self.seconds(&[0, 0, 1, 30, 90, 300]),
            prefetch: self.one_of(&[1, 20, 300, 3000]),
            max_in_flight: self.one_of(&[1, 30, 1000]),
            lag_check_interval: self.sometimes(0.8, |draw| draw.seconds(&[1, 10, 30, 120])),
            handler_timeout: self.sometimes(0.2, |draw| draw.seconds(&[10, 90])),
            on_failure: self.on_failure(),
            invalid_to_latest: self.0.random_bool(0.2),
            checkpoints_by_time: self.0.random_bool(0.7),
            checkpoint_events: self.sometimes(0.4, |draw| NonZeroU32::MIN.saturating_add(draw.one_of(&[0, 9, 999]))),
            start: self.sometimes(0.3, Self::start),
            hub_refuses: self.0.random_bool(0.5),
        }
        .sensible()
    }

    fn on_failure(&mut self) -> OnFailure {
        match self.0.random_range(0..3) {
            0 => OnFailure::Restart,
            1 => OnFailure::Release { cooldown: self.seconds(&[0, 10, 60]) },
            _ => OnFailure::Park,
        }
    }

    fn start(&mut self) -> StartAt {
        if self.0.random_bool(0.5) { StartAt::Ago(START_AGE) } else { StartAt::After(self.0.random_range(0..40)) }
    }

    /// Under strict leases the time to stop must fit into the rest of the lease duration. Otherwise it may be longer
    /// than a lease.
    fn stopping(&mut self, settings: &mut Settings) {
        let (expiry, deadline) = (settings.expiry, settings.tuning.deadline(settings.expiry));
        let left = (expiry / 2).saturating_sub(deadline + LeaseDurations::GRACE);
        settings.strict &= left > CLOSING;
        let drain = if self.0.random_bool(0.8) { self.share(expiry, 0.02, 0.3) } else { self.share(expiry, 0.5, 2.0) };
        if !settings.strict || 2 * drain + CLOSING <= left {
            settings.tuning.drain = Some(drain);
        }
    }
}

impl Tuning {
    /// Without lag checks only a rejected start reveals a recreated hub.
    fn sensible(self) -> Self {
        Self { hub_refuses: self.hub_refuses || self.lag_check_interval.is_none(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, Scale};
    use super::*;

    type Differs = fn(&Tuning, &Tuning) -> bool;

    fn drawn(seed: u64, wild: bool) -> Plan {
        Plan::draw(seed, &Scale { wild, ..Scale::default() })
    }

    #[test]
    fn plans_without_wild_settings_are_unchanged() {
        for seed in 1..200 {
            let (tame, wild) = (drawn(seed, false), drawn(seed, true));
            assert_eq!(tame.settings.tuning, Tuning::default());
            assert_eq!((tame.members, tame.loads), (wild.members, wild.loads));
        }
    }

    #[test]
    fn every_setting_is_drawn_away_from_its_default() {
        let tunings: Vec<_> = (1..200).map(|seed| drawn(seed, true).settings.tuning).collect();
        let usual = Tuning::default();
        let differs: [(&str, Differs); 16] = [
            ("request_timeout", |one, other| one.request_timeout != other.request_timeout),
            ("concurrency", |one, other| one.concurrency != other.concurrency),
            ("weighted", |one, other| one.weighted != other.weighted),
            ("stall_timeout", |one, other| one.stall_timeout != other.stall_timeout),
            ("drain", |one, other| one.drain != other.drain),
            ("batch", |one, other| one.batch != other.batch),
            ("batch_wait", |one, other| one.batch_wait != other.batch_wait),
            ("prefetch", |one, other| one.prefetch != other.prefetch),
            ("max_in_flight", |one, other| one.max_in_flight != other.max_in_flight),
            ("lag_check_interval", |one, other| one.lag_check_interval != other.lag_check_interval),
            ("handler_timeout", |one, other| one.handler_timeout != other.handler_timeout),
            ("on_failure", |one, other| one.on_failure != other.on_failure),
            ("invalid_to_latest", |one, other| one.invalid_to_latest != other.invalid_to_latest),
            ("checkpoints_by_time", |one, other| one.checkpoints_by_time != other.checkpoints_by_time),
            ("checkpoint_events", |one, other| one.checkpoint_events != other.checkpoint_events),
            ("start", |one, other| one.start != other.start),
        ];
        for (name, differs) in differs {
            assert!(tunings.iter().any(|tuning| differs(tuning, &usual)), "{name}");
        }
    }
}
