//! A feature: what it sets, what it does in a run, and what it allows.

use std::pin::Pin;
use std::time::Duration;

use eventhubs_checkpoint::processor::{CheckpointPolicy, ProcessorConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::features;
use crate::scene::Scene;
use crate::world::World;

pub const SECOND: Duration = Duration::from_secs(1);

pub type Acting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One feature of the processor or the balancer.
pub struct Feature {
    pub name: &'static str,
    /// What it changes of the settings of every instance.
    pub set: fn(&mut Settings, &Draw),
    /// What it does while the group is at work.
    pub act: for<'a> fn(&'a Scene) -> Acting<'a>,
    /// What the promises of the group allow because of it.
    pub allow: fn(&mut Allowed, &Settings, &Draw),
}

impl Feature {
    /// One that only has settings.
    pub const fn of(name: &'static str, set: fn(&mut Settings, &Draw)) -> Self {
        Self { name, set, act: |_| Box::pin(async {}), allow: |_, _, _| {} }
    }

    pub const fn acting(self, act: for<'a> fn(&'a Scene) -> Acting<'a>) -> Self {
        Self { act, ..self }
    }

    pub const fn allowing(self, allow: fn(&mut Allowed, &Settings, &Draw)) -> Self {
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
    /// Some seconds before the instance comes up, calculated again each time.
    EnqueuedAfter,
    AfterSequenceNumber,
}

/// By what rules the group shares the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Balanced,
    Greedy,
    Static,
    Weighted,
}

/// The settings of every instance, and how the application works.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    pub config: ProcessorConfig,
    pub start: Start,
    pub sharing: Sharing,
    /// Whether the application asks for batches, instead of being given them.
    pub pull: bool,
    /// Whether the application tracks events, and finishes them out of order.
    pub tracks: bool,
    /// Whether an operator resumes parked partitions.
    pub resumes_parked: bool,
    /// Whether a position is written some time after it was marked.
    pub checkpoints_by_time: bool,
    /// Whether a checkpoint that is not usable makes the partition start at the latest event.
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
            resumes_parked: false,
            checkpoints_by_time: true,
            invalid_to_latest: false,
        }
    }

    pub fn configure(&mut self, change: impl FnOnce(ProcessorConfig) -> ProcessorConfig) {
        self.config = change(self.config.clone());
    }
}

/// What the seed decides.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a decision of its own")]
pub struct Draw {
    pub seed: u64,
    /// From the begin of the first action to that of the second.
    pub gap: Duration,
    pub batch_wait: Duration,
    pub prefetch: usize,
    pub pause: Duration,
    /// How long an instance stays away.
    pub down: Duration,
    /// Whether an instance that ends, or that loses the storage, is another one than the one that reads the partition
    /// which is paused, released, silenced.
    pub beside: bool,
    /// Whether the storage is away for all instances, or only for one.
    pub outage_for_all: bool,
    /// Whether requests hang while the storage is away, instead of failing at once.
    pub outage_hangs: bool,
    /// Whether a handler that fails panics.
    pub panics: bool,
    /// Whether the hub refuses to start after an event that it does not have.
    pub refuses: bool,
}

impl Draw {
    fn new(pair: &str, seed: u64) -> Self {
        let named = pair.bytes().fold(seed, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        let mut rng = StdRng::seed_from_u64(named);
        let mut seconds = |choices: &[u64]| Duration::from_secs(choices[rng.random_range(0..choices.len())]);
        let (gap, batch_wait, pause) = (seconds(&[0, 7, 40]), seconds(&[90, 300]), seconds(&[45, 130]));
        let down = seconds(&[5, 100]);
        Self {
            seed: rng.random(),
            gap,
            batch_wait,
            prefetch: if rng.random() { 1 } else { 3000 },
            pause,
            down,
            beside: rng.random(),
            outage_for_all: rng.random(),
            outage_hangs: rng.random(),
            panics: rng.random(),
            refuses: rng.random(),
        }
    }
}

/// What the features of a run allow, where a group at rest would allow nothing.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// How long a partition may be without a handler.
    pub dark: Duration,
    /// How long an event may wait until it is handled.
    pub delay: Duration,
    /// Whether events may be handled more than once.
    pub repeats: bool,
    /// Whether an instance that ends in between may leave something undone.
    pub unclean_ends: bool,
    /// Whether events before the start may be handled.
    pub before_start: bool,
}

impl Allowed {
    /// A claim and a start of the handler; a move by handoff.
    fn at_rest() -> Self {
        Self { dark: 45 * SECOND, delay: 60 * SECOND, repeats: false, unclean_ends: false, before_start: false }
    }

    /// A partition is without a handler for this much longer.
    pub fn dark_for(&mut self, time: Duration) {
        self.dark += time;
        self.delay += time;
    }
}

/// Two features, or one, in the order in which they act.
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
        // Its burst passes the numbers of the hub before. Only a position that is refused until then shows that the hub
        // was made again.
        if features.iter().any(|feature| feature.name == "prefetch") {
            draw.refuses = true;
            draw.gap = draw.gap.max(5 * SECOND);
        }
        let (mut settings, mut allowed) = (Settings::new(), Allowed::at_rest());
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
