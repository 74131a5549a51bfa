//! What the journals of the sample show together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use eventhubs_checkpoint_lab::history::{Partition, Positions};

/// Successive events of one partition, processed at once.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub partition: String,
    pub first: i64,
    pub last: i64,
}

/// Returns the runs in a journal, which may not exist yet. An incomplete last line is skipped.
pub fn read(path: &Path) -> Vec<Run> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole.lines().map(run).collect()
}

fn run(line: &str) -> Run {
    let words: Vec<_> = line.split(' ').collect();
    let [partition, first, last, _owner] = words[..] else { panic!("{line:?} is not a line of a journal") };
    Run { partition: partition.to_owned(), first: first.parse().unwrap(), last: last.parse().unwrap() }
}

/// Returns whether the last event of every partition was processed, regardless of earlier events.
pub fn reaches(runs: &[Run], last: &Positions) -> bool {
    last.iter().all(|(partition, last)| runs.iter().any(|run| run.partition == *partition && run.last == *last))
}

/// How often events were processed, compared with the published events.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    pub processed: u64,
    /// Events that were never processed: partition, first and last.
    pub lost: Vec<(String, i64, i64)>,
    pub duplicates: u64,
}

impl Summary {
    /// The events up to `last` of every partition were published.
    pub fn of(runs: &[Run], last: &Positions) -> Self {
        let mut summary = Self { processed: 0, lost: Vec::new(), duplicates: 0 };
        let mut histories: BTreeMap<&str, Partition<()>> = BTreeMap::new();
        for (partition, last) in last {
            histories.entry(partition).or_default().published(last + 1);
        }
        for run in runs {
            let history =
                histories.get_mut(run.partition.as_str()).filter(|history| run.first >= 0 && run.last < history.end());
            let history = history.unwrap_or_else(|| panic!("{run:?} was never published"));
            summary.processed += u64::try_from(run.last - run.first + 1).unwrap();
            summary.duplicates += history.processed(Some(0), run.first, run.last);
        }
        for (partition, history) in histories {
            let gaps = history.unprocessed().into_iter();
            summary.lost.extend(gaps.map(|(first, last)| (partition.to_owned(), first, last)));
        }
        summary
    }
}

#[test]
fn lost_and_repeated_events_are_found() {
    let run = |partition: &str, first, last| Run { partition: partition.to_owned(), first, last };
    let runs = [run("0", 0, 4), run("1", 2, 3), run("0", 3, 5)];
    let published = Positions::from([("0".to_owned(), 6), ("1".to_owned(), 3), ("2".to_owned(), -1)]);
    let lost = [("0", 6, 6), ("1", 0, 1)].map(|(partition, first, last)| (partition.to_owned(), first, last)).to_vec();
    assert!(!reaches(&runs, &published));
    assert_eq!(Summary::of(&runs, &published), Summary { processed: 10, lost, duplicates: 2 });
}
