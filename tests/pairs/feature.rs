//! A feature: the settings it changes, its action in a run, and the deviations it allows.

use std::pin::Pin;
use std::time::Duration;

use eventhubs_checkpoint::processor::{BalancerConfig, CheckpointPolicy, ProcessorConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::features;
use crate::scene::Scene;
use crate::single_events::{Order, SingleEvents};
use crate::world::World;

pub const SECOND: Duration = Duration::from_secs(1);

pub type Action<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One feature of the processor or of the balancer.
pub struct Feature {
    pub name: &'static str,
    /// Changes the settings of every instance.
    pub set: fn(&mut Settings, &Draw),
    /// The action while the group is running.
    pub act: for<'a> fn(&'a Scene) -> Action<'a>,
    /// Relaxes the guarantees that the group must keep.
    pub allow: fn(&mut Allowed, &Settings, &Draw),
}

impl Feature {
    /// Returns a feature that only changes settings.
    pub const fn of(name: &'static str, set: fn(&mut Settings, &Draw)) -> Self {
        Self { name, set, act: |_| Box::pin(async {}), allow: |_, _, _| {} }
    }

    pub const fn with_action(self, act: for<'a> fn(&'a Scene) -> Action<'a>) -> Self {
        Self { act, ..self }
    }

    pub const fn with_allowance(self, allow: fn(&mut Allowed, &Settings, &Draw)) -> Self {
        Self { allow, ..self }
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        features::all().find(|feature| feature.name == name)
    }
}

/// Where the group starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Earliest,
    Latest,
    /// A few seconds before the instance starts, calculated again for each start.
    EnqueuedAfter,
    AfterSequenceNumber,
}

/// How the group distributes the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Balanced,
    Greedy,
    Static,
    Weighted,
}

/// The settings of every instance and of the application.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each field is a separate setting")]
pub struct Settings {
    pub config: ProcessorConfig,
    pub start: Start,
    pub sharing: Sharing,
    /// Whether the application pulls batches instead of implementing a handler.
    pub pull: bool,
    /// Whether the application tracks events and finishes them out of order.
    pub tracks: bool,
    /// How the application processes single events, unless it processes batches.
    pub events: Option<SingleEvents>,
    /// Whether an operator resumes parked partitions.
    pub resumes_parked: bool,
    /// Whether a position is written some time after it was recorded.
    pub checkpoints_by_time: bool,
    /// Whether the partition starts at the latest event if its checkpoint is not usable.
    pub invalid_to_latest: bool,
}

impl Settings {
    fn new() -> Self {
        Self {
            config: World::new(0).config.with_checkpoint_policy(CheckpointPolicy::default()),
            start: Start::Earliest,
            sharing: Sharing::Balanced,
            pull: false,
            tracks: false,
            events: None,
            resumes_parked: false,
            checkpoints_by_time: true,
            invalid_to_latest: false,
        }
    }

    pub fn balance(&mut self, change: impl FnOnce(BalancerConfig) -> BalancerConfig) {
        self.configure(|config| config.with_balancer(change));
    }

    /// Lets the application process single events. Returns how.
    pub fn single_events(&mut self) -> &mut SingleEvents {
        self.events.get_or_insert_default()
    }

    /// Returns whether the application processes several events of a partition at once.
    pub fn is_concurrent(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.order != Order::Partition)
    }

    pub fn configure(&mut self, change: impl FnOnce(ProcessorConfig) -> ProcessorConfig) {
        self.config = change(self.config.clone());
    }
}

/// The random choices of a seed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each field is a separate choice")]
pub struct Draw {
    pub seed: u64,
    /// From the start of the first action to the start of the second.
    pub gap: Duration,
    pub batch_wait: Duration,
    pub prefetch: usize,
    pub pause: Duration,
    /// How long an instance stays down.
    pub downtime: Duration,
    /// Whether the instance that is shut down, crashes or loses the storage reads another partition than
    /// `TARGET`.
    pub victim_reads_other: bool,
    /// Whether the storage is unavailable to all instances, or to one instance only.
    pub outage_for_all: bool,
    /// Whether requests hang while the storage is unavailable, instead of failing immediately.
    pub outage_hangs: bool,
    /// Whether a failing handler panics.
    pub panics: bool,
    /// Whether the hub refuses to start after an event that it does not have.
    pub refuses_positions: bool,
    /// Whether an operator pauses the whole group, or one partition only.
    pub pauses_group: bool,
}

impl Draw {
    fn new(pair: &str, seed: u64) -> Self {
        let named = pair.bytes().fold(seed, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        let mut rng = StdRng::seed_from_u64(named);
        let mut seconds = |choices: &[u64]| Duration::from_secs(choices[rng.random_range(0..choices.len())]);
        let (gap, batch_wait, pause) = (seconds(&[0, 7, 40]), seconds(&[90, 300]), seconds(&[45, 130]));
        let downtime = seconds(&[5, 100]);
        Self {
            seed: rng.random(),
            gap,
            batch_wait,
            prefetch: if rng.random() { 1 } else { 3000 },
            pause,
            downtime,
            victim_reads_other: rng.random(),
            outage_for_all: rng.random(),
            outage_hangs: rng.random(),
            panics: rng.random(),
            refuses_positions: rng.random(),
            pauses_group: rng.random(),
        }
    }
}

/// The deviations that the features of a run allow. A group in the steady state allows none.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// How long a partition may have no handler.
    pub no_handler: Duration,
    /// How long an event may wait until it is handled.
    pub delay: Duration,
    /// How long an owner may deliver events of a partition that an operator has paused.
    pub pause_detection: Duration,
    /// Whether events may be handled more than once.
    pub repeats: bool,
    /// Whether a shutdown during the run may be unclean.
    pub unclean_ends: bool,
    /// Whether events before the start position may be handled.
    pub before_start: bool,
}

impl Allowed {
    /// Covers a claim and the start of the handler, or a move by handoff.
    fn steady() -> Self {
        Self {
            no_handler: 45 * SECOND,
            delay: 60 * SECOND,
            pause_detection: 60 * SECOND,
            repeats: false,
            unclean_ends: false,
            before_start: false,
        }
    }

    /// Allows a partition to have no handler for this much longer.
    pub fn allow_no_handler(&mut self, time: Duration) {
        self.no_handler += time;
        self.delay += time;
    }
}

/// One feature, or two in the order in which they act.
#[derive(Clone)]
pub struct Case {
    pub features: Vec<&'static Feature>,
    pub seed: u64,
    pub draw: Draw,
    pub settings: Settings,
    pub allowed: Allowed,
}

impl Case {
    pub fn new(features: &[&'static Feature], seed: u64) -> Self {
        let features = features.to_vec();
        let mut draw = Draw::new(&name_of(&features), seed);
        // The burst passes the last sequence number of the previous hub. The recreation is only detected if a position
        // is refused before that.
        if features.iter().any(|feature| feature.name == "prefetch") {
            draw.refuses_positions = true;
            draw.gap = draw.gap.max(5 * SECOND);
        }
        let (mut settings, mut allowed) = (Settings::new(), Allowed::steady());
        for feature in &features {
            (feature.set)(&mut settings, &draw);
        }
        for feature in &features {
            (feature.allow)(&mut allowed, &settings, &draw);
        }
        Self { features, seed, draw, settings, allowed }
    }

    pub fn name(&self) -> String {
        name_of(&self.features)
    }
}

fn name_of(features: &[&'static Feature]) -> String {
    features.iter().map(|feature| feature.name).collect::<Vec<_>>().join(" + ")
}
