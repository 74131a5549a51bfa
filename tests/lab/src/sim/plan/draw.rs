//! Draws a plan from a seed.

use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Incident, Load, Member, Plan, Reset, Role, Scale, Settings, Trouble, Tuning, What};
use crate::sim::foreign::Sdk;

/// Instances come up within this time.
const START_WITHIN: Duration = Duration::from_secs(120);

/// Before its end nothing begins in a storm.
const LULL: Duration = Duration::from_secs(60);

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, scale: &Scale) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut settings = settings(&mut rng);
        let mixed = scale.foreign && scale.instances > 1 && rng.random_bool(0.3);
        let mut members: Vec<_> = (0..scale.instances.max(1)).map(|index| member(&mut rng, index, mixed)).collect();
        if scale.platform {
            name_with_dots(&mut members, seed);
        }
        if scale.wild {
            settings = settings.made_wild(seed, members.iter().map(|member| member.role));
        }
        let loads = (0..scale.partitions.max(1)).map(|_| load(&mut rng)).collect();
        let mut drawing = Drawing { rng, scale, members: scale.instances.max(1), settings: &settings };
        let incidents = drawing.incidents();
        let partitions = scale.partitions.max(1);
        let (platform, storm) = (scale.platform, scale.storm);
        Self { seed, platform, partitions, settings, members, loads, storm, incidents }
    }

    /// The same without the incidents: for the comparison of groups in calm, and as a beginning for plans made by hand.
    #[must_use]
    pub fn calm(seed: u64, scale: &Scale) -> Self {
        Self { incidents: Vec::new(), ..Self::draw(seed, scale) }
    }

    /// Adds an incident.
    #[must_use]
    pub fn with(mut self, at: Duration, what: What) -> Self {
        self.incidents.push(Incident { at, what });
        self.incidents.sort_by_key(|incident| incident.at);
        self
    }
}

fn settings(rng: &mut StdRng) -> Settings {
    let expiry = Duration::from_secs([20, 30, 60, 60][rng.random_range(0..4)]);
    Settings {
        expiry,
        peer_expiry: Duration::from_secs(180),
        interval: expiry / [4, 6, 6][rng.random_range(0..3)],
        greedy: rng.random_bool(0.3),
        strict: rng.random_bool(0.3),
        latest: rng.random_bool(0.3),
        checkpoint_every: Duration::from_secs([5, 15, 60][rng.random_range(0..3)]),
        handoff: rng.random_bool(0.7),
        lease_scope: if rng.random_bool(0.4) { LeaseScope::Instance } else { LeaseScope::Partition },
        stable_names: rng.random_bool(0.5),
        keep: rng.random_bool(0.2),
        latency: Duration::from_millis([5, 50, 400][rng.random_range(0..3)]),
        tuning: Tuning::default(),
    }
}

fn member(rng: &mut StdRng, index: u32, mixed: bool) -> Member {
    let sdk = Sdk::ALL[rng.random_range(0..Sdk::ALL.len())];
    // The first is ours: a group without any of ours has nothing to show.
    let foreign = mixed && index > 0 && rng.random_bool(0.4);
    Member {
        role: if foreign { Role::Foreign(sdk) } else { Role::Ours },
        number: index,
        dots: 0,
        starts_at: START_WITHIN.mul_f64(rng.random_range(0.0..1.0)),
        skew_seconds: if rng.random_bool(0.3) { rng.random_range(-400..400) } else { 0 },
        work: Duration::from_millis([0, 100, 2000][rng.random_range(0..3)]),
        tracks: rng.random_bool(0.4),
        failures_per_mille: if rng.random_bool(0.3) { 5 } else { 0 },
    }
}

/// Members in pairs: without dots, or both with dots, or one called like the other but for a dot. Drawn apart from
/// everything else, so that the rest of the plan stays the same.
fn name_with_dots(members: &mut [Member], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xd075);
    for pair in members.chunks_mut(2) {
        match (rng.random_range(0..3), pair) {
            (1, [first, second]) => (second.number, second.dots) = (first.number, 1),
            (2, pair) => pair.iter_mut().for_each(|member| member.dots = rng.random_range(1..3)),
            _ => {}
        }
    }
}

fn load(rng: &mut StdRng) -> Load {
    Load { every: Duration::from_secs(rng.random_range(10..120)), burst: rng.random_range(1..20) }
}

/// Half of them of one partition. Some operators die about when they write.
pub(crate) fn reset(rng: &mut StdRng, partitions: u32, settings: &Settings) -> Reset {
    let partitions = partitions.max(1);
    let all = rng.random_bool(0.5);
    let trouble = Trouble::ALL[rng.random_range(0..Trouble::ALL.len())];
    let dies_after = settings.latency.mul_f64(rng.random_range(0.0..8.0));
    Reset {
        partition: rng.random_range(0..partitions),
        count: if all { rng.random_range(1..=partitions) } else { 1 },
        per_mille: rng.random_range(0..=1000),
        beside_foreign: rng.random_bool(0.7),
        settle: Duration::from_secs([0, 10, 60, 90][rng.random_range(0..4)]),
        trouble: rng.random_bool(0.3).then_some(trouble),
        dies_after: rng.random_bool(0.3).then_some(dies_after),
    }
}

struct Drawing<'a> {
    rng: StdRng,
    scale: &'a Scale,
    members: u32,
    settings: &'a Settings,
}

impl Drawing<'_> {
    fn incidents(&mut self) -> Vec<Incident> {
        let last = self.scale.storm.saturating_sub(LULL);
        let mut incidents = Vec::new();
        let mut at = START_WITHIN;
        loop {
            at += self.scale.incident_every.mul_f64(self.rng.random_range(0.0..2.0)) + Duration::from_millis(1);
            if at >= last {
                return incidents;
            }
            let what = self.what();
            let at = at.min(last.saturating_sub(what.lasts()));
            let beside = self.beside(&what);
            incidents.extend([what].into_iter().chain(beside).map(|what| Incident { at, what }));
            incidents.sort_by_key(|incident| incident.at);
        }
    }

    fn what(&mut self) -> What {
        let (member, partition) = (self.member(), self.partition());
        match self.rng.random_range(0..100) {
            0..15 => What::Crash { member, down: self.seconds(0, 300) },
            15..22 => What::Restart { member, down: self.seconds(0, 120) },
            22..26 => What::Deployment { gap: self.seconds(10, 90), down: self.seconds(0, 30) },
            26..34 => What::Freeze { member, lasts: self.share_of_expiry() },
            34..38 => What::Replace { member, lasts: self.share_of_expiry() },
            38..64 => self.storage(member),
            64..68 => What::LinkBreaks(partition),
            68..72 => What::LinkIsSilent { partition, lasts: self.seconds(1, 300) },
            72..76 => What::LinkReattaches(partition),
            76..80 => What::Expiry { partition, keep: self.rng.random_range(0..50) },
            80..81 => What::HubMadeAnew,
            81..84 => What::Growth(self.rng.random_range(1..5)),
            84..89 => What::Reset(reset(&mut self.rng, self.scale.partitions, self.settings)),
            89..93 => What::Release { member, index: self.rng.random_range(0..8), cooldown: self.seconds(0, 120) },
            93..97 => What::Pause { member, index: self.rng.random_range(0..8), lasts: self.seconds(1, 180) },
            _ => What::HeavyLoad { member, lasts: self.seconds(30, 300) },
        }
    }

    fn storage(&mut self, member: u32) -> What {
        let trouble = Trouble::ALL[self.rng.random_range(0..Trouble::ALL.len())];
        let everybody = self.rng.random_bool(0.4);
        What::Storage { member: (!everybody).then_some(member), trouble, lasts: self.share_of_expiry() }
    }

    /// Doubts harm whoever loses partitions meanwhile: others come back, and take their share.
    fn beside(&mut self, what: &What) -> Option<What> {
        let What::Storage { member: Some(doubtful), trouble: Trouble::Doubts, .. } = what else { return None };
        let other = (doubtful + self.rng.random_range(0..self.members)) % self.members;
        (other != *doubtful).then(|| What::Crash { member: other, down: self.seconds(0, 60) })
    }

    fn member(&mut self) -> u32 {
        self.rng.random_range(0..self.members)
    }

    fn partition(&mut self) -> u32 {
        self.rng.random_range(0..self.scale.partitions.max(1))
    }

    fn seconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from * 1000..to * 1000))
    }

    /// Shorter and longer than the leases.
    fn share_of_expiry(&mut self) -> Duration {
        self.settings.expiry.mul_f64(self.rng.random_range(0.1..4.0))
    }
}
