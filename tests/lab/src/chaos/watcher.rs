//! Looks at the records all the time, and notes what must not happen.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::chaos::Failure;
use crate::chaos::clock::{Clock, Moment};
use crate::chaos::faults::Stage;
use crate::chaos::outside::{self, Look};
use crate::history::listed;

const EVERY: Duration = Duration::from_millis(250);

/// An emulator that restarts does not answer.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub last: Look,
    pub looks: u64,
    /// What was seen to move backwards or to vanish, and when.
    pub backwards: Vec<(Moment, String)>,
}

/// Until everybody has lost interest.
pub async fn watch(stage: Arc<Stage>, container: String, seen: watch::Sender<Seen>) {
    let client = reqwest::Client::new();
    while !seen.is_closed() {
        sleep(EVERY).await;
        // A storage that does not answer is tried again: what it said before holds.
        if let Ok(Ok(look)) = timeout(LIMIT, look(&client, &stage, &container)).await {
            seen.send_modify(|seen| seen.add(look, stage.clock));
        }
    }
}

async fn look(client: &reqwest::Client, stage: &Stage, container: &str) -> Result<Look, Failure> {
    let endpoint = stage.storage().await.ok_or("there is no storage")?;
    outside::look(client, &endpoint, container).await
}

impl Seen {
    fn add(&mut self, look: Look, clock: Clock) {
        let breaches = listed(&self.last.positions, &look.positions).into_iter().filter_map(|verdict| verdict.breach);
        self.backwards.extend(breaches.map(|breach| (clock.now(), breach)));
        self.looks += 1;
        self.last = look;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(positions: &[(&str, i64)]) -> Look {
        let positions = positions.iter().map(|(partition, position)| ((*partition).to_owned(), *position)).collect();
        Look { positions, ..Look::default() }
    }

    #[test]
    fn a_checkpoint_that_moves_back_or_vanishes_is_noted() {
        let (mut seen, clock) = (Seen::default(), Clock::start());
        for look in [at(&[("0", 5)]), at(&[("0", 5), ("1", -1)]), at(&[("0", 7), ("1", 2)])] {
            seen.add(look, clock);
        }
        assert!(seen.backwards.is_empty());
        seen.add(at(&[("0", 6)]), clock);
        let told: Vec<_> = seen.backwards.iter().map(|(_, what)| what.as_str()).collect();
        assert_eq!(
            told,
            [
                "moved the checkpoint of partition 0 from 7 to Some(6)",
                "moved the checkpoint of partition 1 from 2 to None"
            ]
        );
        assert_eq!(seen.looks, 4);
    }
}
