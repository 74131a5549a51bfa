//! What happens to a group during the run.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use super::args::Args;

#[derive(Clone, Copy, Debug)]
pub(super) enum Incident {
    /// Another instance joins.
    Join,
    /// The instance that joined shuts down.
    Leave,
    /// The service detaches the reader of a partition, as when it moves the partition to another node.
    Detach,
    /// All connections are cut.
    Cut,
}

/// Returns the incidents of a run in their order, each at a random moment of its part of the hour.
pub(super) fn incidents(args: &Args, rng: &mut StdRng) -> Vec<(Duration, Incident)> {
    let mut all = Vec::new();
    for (incident, per_hour, from, to) in [
        (Incident::Join, args.visits_per_hour, 0.0, 0.4),
        (Incident::Leave, args.visits_per_hour, 0.5, 0.9),
        (Incident::Detach, args.detaches_per_hour, 0.0, 1.0),
        (Incident::Cut, args.cuts_per_hour, 0.0, 1.0),
    ] {
        if per_hour <= 0.0 {
            continue;
        }
        let every = Duration::from_secs_f64(3600.0 / per_hour);
        let mut slot = Duration::ZERO;
        while slot + every <= args.duration() {
            all.push((slot + every.mul_f64(rng.random_range(from..to)), incident));
            slot += every;
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}
