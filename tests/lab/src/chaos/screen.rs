//! Tells what happens, with the time since the run began.

use crate::chaos::clock::Clock;
use crate::chaos::faults::Happened;
use crate::chaos::life::owner;
use crate::chaos::plan::{Fault, Incident};

pub struct Screen {
    clock: Clock,
}

impl Screen {
    pub fn new(clock: Clock) -> Self {
        Self { clock }
    }

    pub fn say(&self, what: &str) {
        println!("{:>7.1} s  {what}", self.clock.now().as_secs_f64());
    }

    pub fn incident(&self, incident: &Incident) {
        self.say(&told(incident));
    }

    pub fn over(&self, happened: &Happened) {
        let lasted = happened.to.saturating_sub(happened.from).as_secs_f64();
        self.say(&format!("{} {} is over after {lasted:.1} s", happened.fault.name(), whom(happened.instance)));
    }
}

/// One line of a plan.
pub fn told(incident: &Incident) -> String {
    let (name, whom, seconds) = (incident.fault.name(), whom(incident.instance), incident.lasts.as_secs_f64());
    match incident.fault {
        Fault::Kill | Fault::Restart => format!("{name} {whom}, back after {seconds:.1} s"),
        Fault::Clock => format!("{name} {whom}, by {:+} s for {seconds:.1} s", incident.skew),
        Fault::StorageRestart => format!("{name} {whom}"),
        _ => format!("{name} {whom}, for {seconds:.1} s"),
    }
}

fn whom(instance: Option<u32>) -> String {
    instance.map_or_else(|| "all".to_owned(), owner)
}
