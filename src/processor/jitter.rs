//! Random waits, so that instances that start together, or fail together, do not send their requests at the same time.

use std::time::Duration;

/// Random numbers are divided into this many steps, which is random enough.
const STEPS: u32 = 100;

/// Returns the wait with jitter, up to a quarter shorter.
pub(super) fn jittered(wait: Duration, random: u64) -> Duration {
    wait.saturating_sub(part(wait / 4, random))
}

/// Returns the wait before the first of periodic requests: any part of the period.
pub(super) fn first_wait(period: Duration, random: u64) -> Duration {
    part(period, random)
}

fn part(of: Duration, random: u64) -> Duration {
    of / STEPS * u32::try_from(random % u64::from(STEPS)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const WAIT: Duration = Duration::from_secs(30);

    #[test]
    fn jitter_shortens_a_wait_by_a_quarter_at_most() {
        let waits: BTreeSet<_> = (0..1000).map(|random| jittered(WAIT, random)).collect();
        assert_eq!(waits.len(), 100);
        assert!(waits.first() > Some(&(WAIT * 3 / 4)) && waits.last() == Some(&WAIT));
        assert_eq!(jittered(Duration::ZERO, 50), Duration::ZERO);
    }

    #[test]
    fn the_first_wait_is_any_part_of_the_period() {
        let waits: BTreeSet<_> = (0..1000).map(|random| first_wait(WAIT, random)).collect();
        assert_eq!((waits.len(), waits.first()), (100, Some(&Duration::ZERO)));
        assert!(waits.last() > Some(&(WAIT * 9 / 10)) && waits.last() < Some(&WAIT));
    }
}
