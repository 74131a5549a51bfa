//! Continuously reads the records, and records violations.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::chaos::Failure;
use crate::chaos::clock::Moment;
use crate::chaos::faults::Stage;
use crate::chaos::raw_storage::{self, Look};
use crate::history::listed;

const EVERY: Duration = Duration::from_millis(250);

/// An emulator that restarts does not respond.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub last: Look,
    pub looks: u64,
    pub backwards: Vec<StepBack>,
    /// When the last look began.
    pub began: Moment,
}

/// A checkpoint that moved back or disappeared.
#[derive(Clone, Debug, PartialEq)]
pub struct StepBack {
    pub partition: String,
    /// When the previous look began, and when this one had ended.
    pub from: Moment,
    pub to: Moment,
    /// Its position then.
    pub position: Option<i64>,
    pub breach: String,
}

/// Runs until no receiver is left.
pub async fn watch(stage: Arc<Stage>, container: String) {
    let client = reqwest::Client::new();
    while !stage.seen.is_closed() {
        sleep(EVERY).await;
        let began = stage.clock.now();
        // A storage that does not respond is tried again: its earlier responses remain valid.
        if let Ok(Ok(look)) = timeout(LIMIT, look(&client, &stage, &container)).await {
            stage.seen.send_modify(|seen| seen.add(look, (began, stage.clock.now())));
        }
    }
}

async fn look(client: &reqwest::Client, stage: &Stage, container: &str) -> Result<Look, Failure> {
    let endpoint = stage.storage().await.ok_or("there is no storage")?;
    raw_storage::look(client, &endpoint, container).await
}

impl Seen {
    fn add(&mut self, look: Look, (began, ended): (Moment, Moment)) {
        let verdicts = listed(&self.last.positions, &look.positions);
        let backwards = self.last.positions.keys().zip(verdicts).filter_map(|(partition, verdict)| {
            Some(StepBack {
                partition: partition.clone(),
                from: self.began,
                to: ended,
                position: look.positions.get(partition).copied(),
                breach: verdict.breach?,
            })
        });
        self.backwards.extend(backwards);
        self.looks += 1;
        self.began = began;
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
    fn a_checkpoint_that_moves_back_is_recorded() {
        let mut seen = Seen::default();
        let second = |second| (Moment::from_secs(second), Moment::from_secs(second + 1));
        for (look, began) in
            [at(&[("0", 5)]), at(&[("0", 5), ("1", -1)]), at(&[("0", 7), ("1", 2)])].into_iter().zip(0..)
        {
            seen.add(look, second(began));
        }
        assert!(seen.backwards.is_empty());
        seen.add(at(&[("0", 6)]), second(3));
        let backwards = |step: &StepBack| (step.from, step.to, step.position);
        let expected = [Some(6), None].map(|position| (Moment::from_secs(2), Moment::from_secs(4), position));
        assert_eq!(seen.backwards.iter().map(backwards).collect::<Vec<_>>(), expected);
        let breaches: Vec<_> = seen.backwards.iter().map(|step| step.breach.as_str()).collect();
        assert_eq!(
            breaches,
            [
                "moved the checkpoint of partition 0 from 7 to Some(6)",
                "moved the checkpoint of partition 1 from 2 to None"
            ]
        );
        assert_eq!(seen.looks, 4);
    }
}
