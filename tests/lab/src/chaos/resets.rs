//! What operators are to do, drawn from a seed.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

/// The maximum number of operators of one incident.
const MOST_OPERATORS: u32 = 5;

/// A reset of one partition takes about ten milliseconds without faults.
const KILLED_WITHIN: Duration = Duration::from_millis(150);

/// What one operator is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reset {
    /// The time from the end of the previous operator to its start.
    pub after: Duration,
    /// The first of its partitions; the others follow.
    pub first: u16,
    pub count: u16,
    /// Whether to reset to a later position, if there is one.
    pub ahead: bool,
    /// How far, from 0 to 1.
    pub share: f64,
    /// When it is killed, counted from its start.
    pub killed_after: Option<Duration>,
}

/// The events of one partition, and its checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub oldest: i64,
    pub last: i64,
    pub checkpoint: i64,
}

impl Reset {
    /// Returns its partitions of a hub with `all` partitions.
    pub fn partitions(&self, all: u16) -> impl Iterator<Item = u16> {
        let first = self.first;
        (0..self.count.min(all)).map(move |index| (first + index) % all)
    }

    /// Returns the new position; `None` if the checkpoint must stay. Short ways back are more frequent than long ones.
    pub fn position(&self, partition: u16, extent: Extent) -> Option<i64> {
        let Extent { oldest, last, checkpoint } = extent;
        let share = (self.share + 0.389 * f64::from(partition)).fract();
        let (back, ahead) = (checkpoint - oldest + 1, last - checkpoint);
        if ahead > 0 && (self.ahead || back <= 0) {
            return Some(checkpoint + steps(ahead, share));
        }
        (back > 0).then(|| checkpoint - steps(back, share * share))
    }
}

/// Returns a share of all steps, at least one and at most all of them.
#[expect(clippy::cast_possible_truncation, reason = "a share of an i64")]
fn steps(all: i64, share: f64) -> i64 {
    ((all as f64 * share).ceil() as i64).clamp(1, all)
}

/// Returns the operators of one incident, which run one after another within this time.
pub fn draw(rng: &mut StdRng, partitions: u16, within: Duration) -> Vec<Reset> {
    let operators = rng.random_range(1..=MOST_OPERATORS);
    (0..operators)
        .map(|_| Reset {
            after: (within / operators).mul_f64(rng.random()),
            first: rng.random_range(0..partitions),
            count: match rng.random_range(0..3) {
                0 => 1,
                1 => rng.random_range(1..=partitions.div_ceil(2)),
                _ => partitions,
            },
            ahead: rng.random_bool(0.2),
            share: rng.random(),
            killed_after: rng.random_bool(0.2).then(|| KILLED_WITHIN.mul_f64(rng.random())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn reset(ahead: bool, share: f64) -> Reset {
        Reset { after: Duration::ZERO, first: 2, count: 3, ahead, share, killed_after: None }
    }

    #[test]
    fn a_position_is_a_different_existing_one() {
        let extent = |oldest, last, checkpoint| Extent { oldest, last, checkpoint };
        for (ahead, share, extent, position) in [
            (false, 0.0, extent(0, 99, 50), Some(49)),
            (false, 0.999_999, extent(0, 99, 50), Some(-1)),
            (false, 0.5, extent(11, 99, 50), Some(40)),
            (false, 0.5, extent(0, 99, -1), Some(49)),
            (false, 0.5, extent(0, -1, -1), None),
            (false, 0.5, extent(11, 10, 10), None),
            (true, 0.0, extent(0, 99, 50), Some(51)),
            (true, 0.999_999, extent(0, 99, 50), Some(99)),
            (true, 0.0, extent(0, 50, 50), Some(49)),
        ] {
            assert_eq!(reset(ahead, share).position(0, extent), position, "{ahead} {share} {extent:?}");
        }
    }

    #[test]
    fn partitions_are_consecutive_and_unique() {
        assert_eq!(reset(false, 0.0).partitions(4).collect::<Vec<_>>(), [2, 3, 0]);
        assert_eq!(reset(false, 0.0).partitions(2).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn resets_of_one_and_of_all_partitions_are_drawn() {
        let mut rng = StdRng::seed_from_u64(1);
        let within = Duration::from_secs(8);
        let drawn: Vec<_> = (0..50).flat_map(|_| draw(&mut rng, 16, within)).collect();
        for wanted in [
            |reset: &Reset| reset.count == 1,
            |reset: &Reset| (2..=8).contains(&reset.count),
            |reset: &Reset| reset.count == 16,
            |reset: &Reset| reset.ahead,
            |reset: &Reset| reset.killed_after.is_some(),
        ] {
            assert!((5..=130).contains(&drawn.iter().filter(|reset| wanted(reset)).count()));
        }
        assert!(draw(&mut rng, 1, within).iter().all(|reset| (reset.first, reset.count) == (0, 1)));
    }
}
