//! Draws a plan from a seed.

use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{
    Account, BeaconFault, Incident, IncidentKind, Load, Member, OwnPositions, Plan, Reset, Role, Scale, Settings,
    StorageFault, Tuning, bad_events, failure_rule, one_by_one, terms,
};
use crate::sim::foreign::Sdk;

/// All instances start within this time.
const START_WITHIN: Duration = Duration::from_secs(120);

/// The most events of a recreated hub, in thousandths of those that the deleted one had.
pub(crate) const MOST_PER_MILLE: u32 = 2000;

/// No incident begins this long before the end of the faults.
const LULL: Duration = Duration::from_secs(60);

impl Plan {
    /// Returns the plan of a seed.
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
            settings = settings.with_wild_settings(seed, members.iter().map(|member| member.role));
        }
        if keeps_positions(&members, seed) {
            settings.own_positions = OwnPositions::Fenced;
        }
        one_by_one::draw(&mut members, &settings, seed);
        bad_events::draw(&mut members, &settings, seed, scale);
        let loads = (0..scale.partitions.max(1)).map(|_| load(&mut rng)).collect();
        let mut drawing = Drawing { rng, scale, members: scale.instances.max(1), settings: &settings };
        let mut incidents = drawing.incidents();
        // A reset does not move an application that keeps its own positions.
        recreate(&mut incidents, seed, scale);
        let resets = settings.own_positions == OwnPositions::None;
        incidents.retain(|incident| resets || !matches!(incident.kind, IncidentKind::Reset(_)));
        pause(&mut incidents, &members, seed);
        terms::draw(&mut members, &mut incidents, seed, scale);
        incidents.extend(failure_rule::drawn(seed, scale));
        incidents.extend(failure_rule::blocked(seed, scale));
        incidents.sort_by_key(|incident| incident.at);
        let partitions = scale.partitions.max(1);
        let account = scale.platform.then(|| Account::draw(&mut settings, &members, &incidents, scale, seed));
        let storm = scale.storm;
        let management_quota = failure_rule::quota(seed, scale);
        let beacon = BeaconFault::draw(seed);
        settings.notice_delay = beacon.map_or(Duration::ZERO, |fault| fault.delay(settings.expiry));
        Self { seed, account, beacon, partitions, settings, members, management_quota, loads, storm, incidents }
    }

    /// Returns the plan of a seed without its incidents, and with a beacon that works: for the comparison of groups
    /// without faults, and as a base for handmade plans.
    #[must_use]
    pub fn calm(seed: u64, scale: &Scale) -> Self {
        Self { incidents: Vec::new(), beacon: None, ..Self::draw(seed, scale) }
    }

    /// Adds an incident.
    #[must_use]
    pub fn with(mut self, at: Duration, kind: IncidentKind) -> Self {
        self.incidents.push(Incident { at, kind });
        self.incidents.sort_by_key(|incident| incident.at);
        self
    }
}

fn settings(rng: &mut StdRng) -> Settings {
    let expiry = Duration::from_secs([20, 30, 60, 60][rng.random_range(0..4)]);
    Settings {
        expiry,
        foreign_lease_duration: Duration::from_secs(180),
        interval: expiry / [4, 6, 6][rng.random_range(0..3)],
        greedy: rng.random_bool(0.3),
        strict: rng.random_bool(0.3),
        latest: rng.random_bool(0.3),
        checkpoint_every: Duration::from_secs([5, 15, 60][rng.random_range(0..3)]),
        handoff: rng.random_bool(0.7),
        lease_scope: if rng.random_bool(0.4) { LeaseScope::Instance } else { LeaseScope::Partition },
        stable_names: rng.random_bool(0.5),
        keep: rng.random_bool(0.2),
        own_positions: OwnPositions::None,
        latency: Duration::from_millis([5, 50, 400][rng.random_range(0..3)]),
        slowness: Duration::ZERO,
        notice_delay: Duration::ZERO,
        tuning: Tuning::default(),
    }
}

fn member(rng: &mut StdRng, index: u32, mixed: bool) -> Member {
    let sdk = Sdk::ALL[rng.random_range(0..Sdk::ALL.len())];
    // The first member runs this crate: a group without any instance of this crate tests nothing.
    let foreign = mixed && index > 0 && rng.random_bool(0.4);
    Member {
        role: if foreign { Role::Foreign(sdk) } else { Role::CrateProcessor },
        number: index,
        dots: 0,
        starts_at: START_WITHIN.mul_f64(rng.random_range(0.0..1.0)),
        skew_seconds: if rng.random_bool(0.3) { rng.random_range(-400..400) } else { 0 },
        work: Duration::from_millis([0, 100, 2000][rng.random_range(0..3)]),
        tracks: rng.random_bool(0.4),
        failures_per_mille: if rng.random_bool(0.3) { 5 } else { 0 },
        bad_events: None,
        one_by_one: None,
        terms: None,
    }
}

/// A third of the groups without owners of other SDKs, which would not store their position. Uses its own random
/// numbers, so that the rest of the plan stays the same.
fn keeps_positions(members: &[Member], seed: u64) -> bool {
    let of_this_crate = members.iter().all(|member| member.role == Role::CrateProcessor);
    of_this_crate && StdRng::seed_from_u64(seed ^ 0x0b05).random_bool(0.33)
}

/// Names members in pairs: without dots, both with dots, or with names that differ only by a dot. Uses its own random
/// numbers, so that the rest of the plan stays the same.
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

/// Draws to which size the recreated hubs grow at once, and adds recreations if the scale asks for them. Uses its own
/// random numbers, so that the rest of the plan stays the same.
fn recreate(incidents: &mut Vec<Incident>, seed: u64, scale: &Scale) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x4ecb);
    let last = scale.storm.saturating_sub(LULL);
    let added = if scale.recreations { rng.random_range(1..5) } else { 0 };
    for _ in 0..added {
        let at = START_WITHIN.max(last.mul_f64(rng.random_range(0.0..1.0)));
        incidents.push(Incident { at, kind: IncidentKind::HubRecreated { per_mille: 0 } });
    }
    incidents.sort_by_key(|incident| incident.at);
    for incident in incidents {
        if let IncidentKind::HubRecreated { per_mille } = &mut incident.kind {
            *per_mille = rng.random_range(0..=MOST_PER_MILLE);
        }
    }
}

fn load(rng: &mut StdRng) -> Load {
    Load { every: Duration::from_secs(rng.random_range(10..120)), burst: rng.random_range(1..20) }
}

/// Half of the resets affect one partition. Some operators are killed at about the time when they write.
pub(crate) fn reset(rng: &mut StdRng, partitions: u32, settings: &Settings) -> Reset {
    let partitions = partitions.max(1);
    let all = rng.random_bool(0.5);
    let storage_fault = StorageFault::ALL[rng.random_range(0..StorageFault::ALL.len())];
    let killed_after = settings.latency.mul_f64(rng.random_range(0.0..8.0));
    Reset {
        partition: rng.random_range(0..partitions),
        count: if all { rng.random_range(1..=partitions) } else { 1 },
        per_mille: rng.random_range(0..=1000),
        with_foreign: rng.random_bool(0.7),
        settle: Duration::from_secs([0, 10, 60, 90][rng.random_range(0..4)]),
        storage_fault: rng.random_bool(0.3).then_some(storage_fault),
        killed_after: rng.random_bool(0.3).then_some(killed_after),
        paused_for: None,
    }
}

/// Draws which operators pause partitions before they reset them: none in a group with owners of other SDKs, which do
/// not honor a pause. Uses its own random numbers, so that the rest of the plan stays the same.
fn pause(incidents: &mut [Incident], members: &[Member], seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x9a05);
    if members.iter().any(|member| member.role != Role::CrateProcessor) {
        return;
    }
    for incident in incidents {
        let lasts = Duration::from_secs(rng.random_range(5..180));
        if let IncidentKind::Reset(reset) = &mut incident.kind
            && rng.random_bool(0.5)
        {
            reset.paused_for = Some(lasts);
        }
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
            let kind = self.kind();
            let at = at.min(last.saturating_sub(kind.lasts()));
            let companion = self.companion(&kind);
            incidents.extend([kind].into_iter().chain(companion).map(|kind| Incident { at, kind }));
            incidents.sort_by_key(|incident| incident.at);
        }
    }

    fn kind(&mut self) -> IncidentKind {
        let (member, partition) = (self.member(), self.partition());
        match self.rng.random_range(0..100) {
            0..15 => IncidentKind::Crash { member, down: self.seconds(0, 300) },
            15..22 => IncidentKind::Restart { member, down: self.seconds(0, 120) },
            22..26 => IncidentKind::Deployment { gap: self.seconds(10, 90), down: self.seconds(0, 30) },
            26..34 => IncidentKind::Freeze { member, lasts: self.share_of_expiry() },
            34..38 => IncidentKind::Replace { member, lasts: self.share_of_expiry() },
            38..64 => self.storage(member),
            64..68 => IncidentKind::LinkBreaks(partition),
            68..72 => IncidentKind::LinkStalls { partition, lasts: self.seconds(1, 300) },
            72..76 => IncidentKind::LinkReattaches(partition),
            76..80 => IncidentKind::Expiry { partition, keep: self.rng.random_range(0..50) },
            80..81 => IncidentKind::HubRecreated { per_mille: 0 },
            81..84 => IncidentKind::Growth(self.rng.random_range(1..5)),
            84..89 => IncidentKind::Reset(reset(&mut self.rng, self.scale.partitions, self.settings)),
            89..93 => {
                IncidentKind::Release { member, index: self.rng.random_range(0..8), cooldown: self.seconds(0, 120) }
            }
            93..97 => IncidentKind::Pause { member, index: self.rng.random_range(0..8), lasts: self.seconds(1, 180) },
            _ => IncidentKind::HeavyLoad { member, lasts: self.seconds(30, 300) },
        }
    }

    fn storage(&mut self, member: u32) -> IncidentKind {
        let storage_fault = StorageFault::ALL[self.rng.random_range(0..StorageFault::ALL.len())];
        let all_instances = self.rng.random_bool(0.4);
        IncidentKind::Storage {
            member: (!all_instances).then_some(member),
            storage_fault,
            lasts: self.share_of_expiry(),
        }
    }

    /// Checkpoint conflicts harm an instance that loses partitions meanwhile: another member crashes, returns, and
    /// takes its share.
    fn companion(&mut self, kind: &IncidentKind) -> Option<IncidentKind> {
        let IncidentKind::Storage { member: Some(affected), storage_fault: StorageFault::CheckpointConflicts, .. } =
            kind
        else {
            return None;
        };
        let other = (affected + self.rng.random_range(0..self.members)) % self.members;
        (other != *affected).then(|| IncidentKind::Crash { member: other, down: self.seconds(0, 60) })
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
