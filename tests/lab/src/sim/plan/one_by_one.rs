//! Handlers of single events.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Member, OwnPositions, Role, Settings};

/// How a member processes its events one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneByOne {
    /// How many events of a partition are processed at once.
    pub places: usize,
    /// Which events are processed one after another.
    pub order: DrawnOrder,
}

/// Which events of a partition are processed one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawnOrder {
    /// All of them.
    Partition,
    /// Those with the same key, of this many.
    Keys(u32),
    /// None of them.
    None,
}

impl DrawnOrder {
    /// Returns the key of an event: events with the same key are processed in order.
    #[must_use]
    pub fn key_of(self, sequence_number: i64) -> Option<i64> {
        match self {
            Self::Partition => Some(0),
            Self::Keys(keys) => Some(sequence_number % i64::from(keys.max(1))),
            Self::None => None,
        }
    }
}

/// Draws the members that process single events, unless the application keeps its own positions. Uses its own random
/// numbers, so that the rest of the plan stays the same.
pub(super) fn draw(members: &mut [Member], settings: &Settings, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0eb0);
    if settings.own_positions != OwnPositions::None {
        return;
    }
    for member in members.iter_mut().filter(|member| member.role == Role::CrateProcessor) {
        let order = match rng.random_range(0..4) {
            0 => DrawnOrder::Partition,
            1 => DrawnOrder::None,
            _ => DrawnOrder::Keys(rng.random_range(1..20)),
        };
        let one_by_one = OneByOne { places: rng.random_range(1..=64), order };
        if rng.random_bool(0.4) {
            (member.one_by_one, member.tracks) = (Some(one_by_one), false);
        }
    }
}
