//! For how long events waited while no event of their partition was processed.

use std::collections::BTreeMap;

use crate::chaos::clock::Moment;
use crate::chaos::event_log::LogEntryKind;
use crate::chaos::run_data::RunData;

/// Returns the first of the events that were published together, for each time: successive events have the same one.
pub fn publications<T: PartialEq>(events: impl Iterator<Item = (i64, T)>) -> Vec<(i64, T)> {
    let mut firsts: Vec<_> = events.collect();
    firsts.dedup_by(|next, first| next.1 == first.1);
    firsts
}

/// Returns the longest time of a run in which a partition had unprocessed events and none was processed. The time until
/// the first event of a partition does not count.
pub fn longest_wait(run_data: &RunData) -> Moment {
    let mut by_partition: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for session in run_data.sessions() {
        by_partition.entry(session.partition).or_default().extend(session.runs);
    }
    let longest =
        by_partition.into_iter().map(|(partition, runs)| longest_of_partition(runs, &published(run_data, &partition)));
    longest.max().unwrap_or_default()
}

/// Returns when the events of a partition were published, by the first ones.
fn published(run_data: &RunData, partition: &str) -> BTreeMap<i64, Moment> {
    let entries = run_data.event_logs.values().flatten();
    let published = entries.filter_map(|entry| match &entry.kind {
        LogEntryKind::Published(of, first, at) if of == partition => Some((*first, Moment::from_micros(*at))),
        _ => None,
    });
    published.collect()
}

/// A run of events waits from its first new event's publication on. One that brings only repeated events ends no wait:
/// the events of the next run wait on.
fn longest_of_partition(mut runs: Vec<(Moment, i64, i64)>, published: &BTreeMap<i64, Moment>) -> Moment {
    runs.sort_by_key(|(at, ..)| *at);
    let mut next = i64::MIN;
    let mut waits: Vec<Option<Moment>> = Vec::new();
    for (_, first, last) in &runs {
        let since = published.range(..=(*first).max(next)).next_back();
        waits.push((*last >= next).then(|| since.map_or(Moment::ZERO, |(_, at)| *at)));
        next = next.max(last + 1);
    }
    let (mut longest, mut since) = (Moment::ZERO, None);
    for (pair, wait) in runs.windows(2).zip(waits.iter().skip(1)).rev() {
        since = wait.or(since);
        if let Some(since) = since {
            longest = longest.max(pair[1].0.saturating_sub(pair[0].0.max(since)));
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::run_data::tests::{entry, in_order};
    use crate::chaos::writes::tests::incarnation;

    #[test]
    fn only_time_with_unprocessed_events_counts() {
        for (what, runs, published, expected) in [
            ("nothing is published meanwhile", vec![(20, 0, 5), (80, 6, 9)], vec![(0, 10), (6, 75)], 5),
            ("an event waits", vec![(20, 0, 5), (80, 6, 9)], vec![(0, 10), (6, 25)], 55),
            ("an event waits all the time", vec![(20, 0, 5), (80, 6, 9)], vec![(0, 10), (6, 15)], 60),
            ("no event", vec![], vec![], 0),
            ("the first event waits", vec![(80, 0, 5)], vec![(0, 10)], 0),
            ("two sessions in another order", vec![(80, 6, 9), (20, 0, 5)], vec![(6, 25), (0, 10)], 55),
            ("only repeated events", vec![(20, 0, 5), (80, 4, 5)], vec![(0, 10), (4, 10)], 0),
            ("repeated events first", vec![(20, 0, 5), (80, 4, 9)], vec![(0, 10), (4, 10), (6, 75)], 5),
            ("others wait for repeated ones", vec![(20, 0, 5), (70, 4, 5), (80, 6, 9)], vec![(0, 10), (6, 30)], 40),
            ("skipped events do not wait", vec![(20, 0, 5), (80, 8, 9)], vec![(0, 10), (8, 60)], 20),
        ] {
            let millis = Moment::from_millis;
            let runs = runs.into_iter().map(|(at, first, last)| (millis(at), first, last)).collect();
            let published = published.into_iter().map(|(first, at)| (first, millis(at))).collect();
            assert_eq!(longest_of_partition(runs, &published), millis(expected), "{what}");
        }
    }

    #[test]
    fn the_partition_that_waits_longest_counts() {
        let mut run_data = in_order();
        let log = run_data.event_logs.get_mut(&incarnation(1)).unwrap();
        log.insert(1, entry(50, LogEntryKind::Published("0".to_owned(), 6, 35_000)));
        assert_eq!(longest_wait(&run_data), Moment::from_millis(15));
        let log = run_data.event_logs.get_mut(&incarnation(0)).unwrap();
        log.extend([
            entry(10, LogEntryKind::Started("1".to_owned())),
            entry(20, LogEntryKind::Published("1".to_owned(), 0, 15_000)),
            entry(20, LogEntryKind::Processed("1".to_owned(), 0, 1)),
            entry(90, LogEntryKind::Published("1".to_owned(), 2, 40_000)),
            entry(90, LogEntryKind::Processed("1".to_owned(), 2, 3)),
        ]);
        assert_eq!(longest_wait(&run_data), Moment::from_millis(50));
    }

    #[test]
    fn events_of_one_time_are_one_publication() {
        assert_eq!(
            publications([(4, 'a'), (5, 'a'), (6, 'b'), (7, 'c'), (8, 'c')].into_iter()),
            [(4, 'a'), (6, 'b'), (7, 'c')]
        );
    }
}
