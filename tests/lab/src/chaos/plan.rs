//! Draws from a seed which fault occurs when and on which instance.

use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::chaos::clock::Moment;
use crate::chaos::resets::{self, Reset};

/// A fault of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// An instance is killed (SIGKILL) and restarted.
    Kill,
    /// An instance is shut down (SIGTERM) and restarted.
    Restart,
    /// An instance is stopped (SIGSTOP) for longer than the lease duration, and continued (SIGCONT).
    Freeze,
    /// One instance cannot reach the storage for longer than the lease duration.
    Isolate,
    /// No instance reaches the storage for 1.5 times the lease duration.
    Outage,
    /// The storage accepts requests and never responds.
    Hang,
    /// A third of the requests is carried out, but the response is lost.
    LostResponses,
    /// Half of the requests or responses are late, some after the request timeout.
    Delay,
    /// Half of the requests are rejected: 503 with Retry-After.
    Throttle,
    /// The storage is restarted.
    StorageRestart,
    /// Connections to the event hub are cut.
    HubCut,
    /// Connections to the event hub stay open, but nothing passes.
    HubStall,
    /// Every core has two more processes that never sleep.
    Cpu,
    /// The wall clock of one instance is wrong by minutes.
    Clock,
    /// Operators reset the checkpoints of some or all partitions while the group runs; some operators are killed.
    Reset,
}

/// What a fault affects. At any time there is at most one incident in each place, and one per instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Instance,
    Storage,
    Hub,
    Machine,
    Checkpoints,
}

/// One fault at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    pub at: Moment,
    pub fault: Fault,
    /// The affected instance; `None` for all.
    pub instance: Option<u32>,
    pub lasts: Duration,
    /// By how many seconds a clock is wrong.
    pub skew: i64,
    /// What operators do, one after another.
    pub resets: Vec<Reset>,
}

impl Incident {
    pub fn end(&self) -> Moment {
        self.at + self.lasts
    }
}

/// The parameters of a plan.
#[derive(Clone, Debug)]
pub struct Scale {
    pub instances: u32,
    pub partitions: u16,
    pub lease_duration: Duration,
    /// No incident begins before, so that all instances can start.
    pub warm_up: Duration,
    /// All incidents end within this time.
    pub length: Duration,
    /// Average time between two incidents.
    pub fault_interval: Duration,
    /// Only this fault.
    pub only: Option<Fault>,
}

impl Fault {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns whether events may be processed again because of it: checkpoints cannot be written, or the instance does
    /// not detect that it was displaced. A fault of the hub, a wrong clock or a graceful shutdown are no reason. Events
    /// that are redelivered because of a reset are attributed by the writes of operators.
    pub fn explains_duplicates(self) -> bool {
        !matches!(self, Self::Kill | Self::Restart | Self::Clock | Self::HubCut | Self::HubStall | Self::Reset)
    }

    /// Returns whether a displaced owner may not detect its loss during the fault, or its successor may not displace
    /// it. During storage faults the broker reports the loss.
    pub fn delays_loss_detection(self) -> bool {
        matches!(self, Self::Freeze | Self::Cpu | Self::HubCut | Self::HubStall)
    }

    pub fn place(self) -> Place {
        match self {
            Self::Kill | Self::Restart | Self::Freeze | Self::Isolate | Self::Clock => Place::Instance,
            Self::Outage | Self::Hang | Self::LostResponses | Self::Delay | Self::Throttle | Self::StorageRestart => {
                Place::Storage
            }
            Self::HubCut | Self::HubStall => Place::Hub,
            Self::Cpu => Place::Machine,
            Self::Reset => Place::Checkpoints,
        }
    }

    /// Returns whether it may affect one instance as well as all.
    fn may_strike_one(self) -> bool {
        matches!(self, Self::Hang | Self::LostResponses | Self::Delay | Self::Throttle | Self::HubCut | Self::HubStall)
    }

    /// Returns the minimum and the maximum duration in lease durations. A kill and a restart last until the process is
    /// started again.
    fn lasts(self) -> (f64, f64) {
        match self {
            Self::Kill => (0.1, 1.5),
            Self::Restart => (0.1, 0.5),
            Self::Freeze => (1.3, 2.0),
            Self::Isolate | Self::Outage => (1.5, 1.5),
            Self::Hang | Self::HubStall | Self::Reset => (0.5, 1.5),
            Self::LostResponses | Self::Delay | Self::Throttle | Self::Cpu => (0.7, 1.3),
            Self::StorageRestart => (0.8, 1.2),
            Self::HubCut => (0.01, 0.3),
            Self::Clock => (1.0, 2.0),
        }
    }
}

/// Returns the incidents of a seed, in the order in which they begin.
pub fn draw(seed: u64, scale: &Scale) -> Vec<Incident> {
    let mut drawing = Drawing {
        rng: StdRng::seed_from_u64(seed),
        scale,
        busy: vec![Moment::ZERO; scale.instances as usize],
        places: Vec::new(),
    };
    let mut incidents = Vec::new();
    let mut bag = Vec::new();
    let mut at = scale.warm_up;
    while at < scale.length {
        let fault = drawing.next_fault(&mut bag);
        // An incident that does not fit before the end is skipped in favor of others that may.
        if let Some(incident) = drawing.incident(fault, at) {
            at = if scale.only.is_some() { incident.end() } else { at };
            incidents.push(incident);
        }
        at += scale.fault_interval.mul_f64(drawing.rng.random_range(0.5..1.5));
    }
    incidents.sort_by_key(|incident| incident.at);
    incidents
}

struct Drawing<'a> {
    rng: StdRng,
    scale: &'a Scale,
    /// When the fault of each instance ends.
    busy: Vec<Moment>,
    /// When the fault of each shared place ends.
    places: Vec<(Place, Moment)>,
}

impl Drawing<'_> {
    /// Every fault occurs once before one occurs again.
    fn next_fault(&mut self, bag: &mut Vec<Fault>) -> Fault {
        if let Some(fault) = bag.pop().or(self.scale.only) {
            return fault;
        }
        *bag = Fault::value_variants().to_vec();
        bag.shuffle(&mut self.rng);
        bag.pop().unwrap_or(Fault::Kill)
    }

    fn incident(&mut self, fault: Fault, not_before: Moment) -> Option<Incident> {
        let (least, most) = fault.lasts();
        let lasts =
            self.scale.lease_duration.mul_f64(if least < most { self.rng.random_range(least..most) } else { least });
        let place = fault.place();
        let instance = self.instance(fault);
        let free = match (place, instance) {
            (Place::Instance, Some(instance)) => self.busy[instance as usize],
            _ => self
                .places
                .iter()
                .filter(|(taken, _)| *taken == place)
                .map(|(_, until)| *until)
                .max()
                .unwrap_or_default(),
        };
        let resets = self.resets(fault, lasts);
        let incident = Incident { at: not_before.max(free), fault, instance, lasts, skew: self.skew(fault), resets };
        if incident.end() > self.scale.length {
            return None;
        }
        match (place, instance) {
            (Place::Instance, Some(instance)) => self.busy[instance as usize] = incident.end(),
            _ => self.places.push((place, incident.end())),
        }
        Some(incident)
    }

    /// The first instance never ends, so that its memory can be watched, unless it is the only one.
    fn instance(&mut self, fault: Fault) -> Option<u32> {
        let ends = matches!(fault, Fault::Kill | Fault::Restart);
        let first = u32::from(ends && self.scale.instances > 1);
        let strikes_one = fault.place() == Place::Instance || fault.may_strike_one() && self.rng.random_bool(0.5);
        strikes_one.then(|| self.rng.random_range(first..self.scale.instances))
    }

    /// More or less than the tolerance of the storage for a signature, which is 15 minutes.
    fn skew(&mut self, fault: Fault) -> i64 {
        let seconds = [-3600, -1200, -200, 200, 1200, 3600];
        if fault == Fault::Clock { seconds[self.rng.random_range(0..seconds.len())] } else { 0 }
    }

    fn resets(&mut self, fault: Fault, lasts: Duration) -> Vec<Reset> {
        if fault == Fault::Reset { resets::draw(&mut self.rng, self.scale.partitions, lasts) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale() -> Scale {
        let seconds = Duration::from_secs;
        Scale {
            instances: 4,
            partitions: 16,
            lease_duration: seconds(8),
            warm_up: seconds(5),
            length: seconds(120),
            fault_interval: seconds(5),
            only: None,
        }
    }

    #[test]
    fn a_seed_determines_the_plan() {
        assert_eq!(draw(1, &scale()), draw(1, &scale()));
        assert_ne!(draw(1, &scale()), draw(2, &scale()));
    }

    #[test]
    fn all_is_within_the_time_and_most_faults_occur() {
        for seed in 0..50 {
            let plan = draw(seed, &scale());
            assert!(plan.iter().all(|incident| incident.at >= scale().warm_up && incident.end() <= scale().length));
            let mut faults: Vec<_> = plan.iter().map(|incident| incident.fault).collect();
            faults.sort();
            faults.dedup();
            assert!(faults.len() >= 9, "seed {seed}: {faults:?}");
        }
    }

    #[test]
    fn nothing_overlaps_in_one_place() {
        let of_place = |plan: &[Incident], place| {
            plan.iter().filter(|incident| incident.fault.place() == place).cloned().collect::<Vec<_>>()
        };
        for seed in 0..50 {
            let plan = draw(seed, &scale());
            for place in [Place::Storage, Place::Hub, Place::Machine, Place::Checkpoints] {
                assert!(of_place(&plan, place).windows(2).all(|pair| pair[0].end() <= pair[1].at), "seed {seed}");
            }
            for instance in 0..4 {
                let mut own = of_place(&plan, Place::Instance);
                own.retain(|incident| incident.instance == Some(instance));
                assert!(own.windows(2).all(|pair| pair[0].end() <= pair[1].at), "seed {seed}");
            }
        }
    }

    #[test]
    fn the_first_instance_never_ends() {
        let ends = |incident: &Incident| matches!(incident.fault, Fault::Kill | Fault::Restart);
        for seed in 0..50 {
            let plan = draw(seed, &scale());
            assert!(plan.iter().filter(|incident| ends(incident)).all(|incident| incident.instance != Some(0)));
        }
    }

    #[test]
    fn a_single_fault_is_repeated_without_overlap() {
        for fault in Fault::value_variants() {
            let plan = draw(3, &Scale { only: Some(*fault), ..scale() });
            assert!(plan.len() >= 3, "{fault:?}: {plan:?}");
            assert!(plan.iter().all(|incident| incident.fault == *fault));
            assert!(plan.windows(2).all(|pair| pair[0].end() < pair[1].at));
        }
    }
}
