//! Prints what happens, with the time since the run began.

use crate::chaos::clock::Clock;
use crate::chaos::faults::Happened;
use crate::chaos::incarnation::owner;
use crate::chaos::plan::{Fault, Incident};
use crate::chaos::resets::Reset;

pub struct Screen {
    clock: Clock,
}

impl Screen {
    pub fn new(clock: Clock) -> Self {
        Self { clock }
    }

    pub fn print(&self, text: &str) {
        println!("{:>7.1} s  {text}", self.clock.now().as_secs_f64());
    }

    pub fn incident(&self, incident: &Incident) {
        self.print(&describe(incident));
    }

    pub fn over(&self, happened: &Happened) {
        let lasted = happened.to.saturating_sub(happened.from).as_secs_f64();
        self.print(&format!("{} {} is over after {lasted:.1} s", happened.fault.name(), target(happened.instance)));
    }
}

/// Returns one line of a plan.
pub fn describe(incident: &Incident) -> String {
    let (name, target, seconds) = (incident.fault.name(), target(incident.instance), incident.lasts.as_secs_f64());
    match incident.fault {
        Fault::Kill | Fault::Restart => format!("{name} {target}, restarted after {seconds:.1} s"),
        Fault::Clock => format!("{name} {target}, by {:+} s for {seconds:.1} s", incident.skew),
        Fault::StorageRestart => format!("{name} {target}"),
        Fault::Reset => format!("{name} {}", incident.resets.iter().map(goal).collect::<Vec<_>>().join(", then ")),
        _ => format!("{name} {target}, for {seconds:.1} s"),
    }
}

fn goal(reset: &Reset) -> String {
    let way = if reset.ahead { "ahead" } else { "back" };
    let killed = if reset.killed_after.is_some() { " by an operator that is killed" } else { "" };
    format!("{} from {} {way}{killed}", reset.count, reset.first)
}

fn target(instance: Option<u32>) -> String {
    instance.map_or_else(|| "all".to_owned(), owner)
}
