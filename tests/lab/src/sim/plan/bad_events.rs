//! Events that a handler cannot process.

use std::time::Duration;

use eventhubs_checkpoint::processor::OnFailure;
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Member, OwnPositions, Role, Scale, Settings, Tuning};

/// The longest wait for a full batch.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// One event in so many fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEvents {
    /// Of how many events one is bad.
    pub every: u32,
    /// Whether it always fails. The handler then says so, and the event becomes a dead letter. Otherwise it fails once
    /// in each incarnation.
    pub always: bool,
}

impl BadEvents {
    /// Returns whether the event is bad.
    #[must_use]
    pub fn include(&self, event: &MemoryEvent) -> bool {
        (event.sequence_number + 1) % i64::from(self.every.max(1)) == 0
    }
}

/// Draws the members whose handlers fail at some events, unless a failure costs so much that the group cannot keep up:
/// each gives the partition to another owner, or is followed by a long wait for a full batch. Uses its own random
/// numbers, so that the rest of the plan stays the same.
pub(super) fn draw(members: &mut [Member], settings: &Settings, seed: u64, scale: &Scale) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0xbadd);
    let Tuning { on_failure, batch_wait, .. } = settings.tuning;
    let keeps_up = !matches!(on_failure, OnFailure::Release { .. }) && batch_wait <= LONGEST_WAIT;
    if !scale.failures || !keeps_up || settings.own_positions != OwnPositions::None {
        return;
    }
    for member in members.iter_mut().filter(|member| member.role == Role::CrateProcessor) {
        let bad_events = BadEvents { every: rng.random_range(50..300), always: rng.random_bool(0.5) };
        if rng.random_bool(0.3) {
            (member.bad_events, member.tracks) = (Some(bad_events), false);
        }
    }
}
