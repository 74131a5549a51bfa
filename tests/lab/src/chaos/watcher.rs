//! Continuously reads the records, and records violations.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::chaos::Failure;
use crate::chaos::clock::Moment;
use crate::chaos::faults::Stage;
use crate::chaos::raw_storage::{self, Observation};
use crate::history::listed;

const EVERY: Duration = Duration::from_millis(250);

/// An emulator that restarts does not respond.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub last: Observation,
    pub observations: u64,
    pub backward: Vec<StepBack>,
    /// When the last observation began.
    pub began: Moment,
}

/// A checkpoint that moved back or disappeared.
#[derive(Clone, Debug, PartialEq)]
pub struct StepBack {
    pub partition: String,
    /// When the previous observation began, and when this one had ended.
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
        if let Ok(Ok(observation)) = timeout(LIMIT, observe(&client, &stage, &container)).await {
            stage.seen.send_modify(|seen| seen.add(observation, (began, stage.clock.now())));
        }
    }
}

async fn observe(client: &reqwest::Client, stage: &Stage, container: &str) -> Result<Observation, Failure> {
    let endpoint = stage.storage().await.ok_or("there is no storage")?;
    raw_storage::observe(client, &endpoint, container).await
}

impl Seen {
    fn add(&mut self, observation: Observation, (began, ended): (Moment, Moment)) {
        let verdicts = listed(&self.last.positions, &observation.positions);
        let backward = self.last.positions.keys().zip(verdicts).filter_map(|(partition, verdict)| {
            Some(StepBack {
                partition: partition.clone(),
                from: self.began,
                to: ended,
                position: observation.positions.get(partition).copied(),
                breach: verdict.breach?,
            })
        });
        self.backward.extend(backward);
        self.observations += 1;
        self.began = began;
        self.last = observation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(positions: &[(&str, i64)]) -> Observation {
        let positions = positions.iter().map(|(partition, position)| ((*partition).to_owned(), *position)).collect();
        Observation { positions, ..Observation::default() }
    }

    #[test]
    fn a_checkpoint_that_moves_back_is_recorded() {
        let mut seen = Seen::default();
        let second = |second| (Moment::from_secs(second), Moment::from_secs(second + 1));
        for (observation, began) in
            [at(&[("0", 5)]), at(&[("0", 5), ("1", -1)]), at(&[("0", 7), ("1", 2)])].into_iter().zip(0..)
        {
            seen.add(observation, second(began));
        }
        assert!(seen.backward.is_empty());
        seen.add(at(&[("0", 6)]), second(3));
        let backward = |step: &StepBack| (step.from, step.to, step.position);
        let expected = [Some(6), None].map(|position| (Moment::from_secs(2), Moment::from_secs(4), position));
        assert_eq!(seen.backward.iter().map(backward).collect::<Vec<_>>(), expected);
        let breaches: Vec<_> = seen.backward.iter().map(|step| step.breach.as_str()).collect();
        assert_eq!(
            breaches,
            [
                "moved the checkpoint of partition 0 from 7 to Some(6)",
                "moved the checkpoint of partition 1 from 2 to None"
            ]
        );
        assert_eq!(seen.observations, 4);
    }
}
