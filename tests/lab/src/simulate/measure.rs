//! Computes from a timeline the values by which groups are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::sim::{TimelineEntry, TimelineEvent};

/// A range of times since the beginning.
pub type Window = Range<Duration>;

/// Returns how long it took from the beginning of the window until every partition had a running owner, in fair shares,
/// or `None` if this never was the case.
pub fn convergence(timeline: &[TimelineEntry], partitions: usize, window: &Window) -> Option<Duration> {
    let mut state = State::new(partitions);
    for entry in timeline.iter().take_while(|entry| entry.at < window.end) {
        state.apply(entry);
        if entry.at > window.start && state.is_balanced() {
            return Some(entry.at - window.start);
        }
    }
    None
}

/// Returns how long it took from the beginning of the window until every partition was read, or `None` if this never
/// was the case.
pub fn read_again(timeline: &[TimelineEntry], partitions: usize, window: &Window) -> Option<Duration> {
    let mut state = State::new(partitions);
    for entry in timeline.iter().take_while(|entry| entry.at < window.end) {
        state.apply(entry);
        if entry.at > window.start && state.unread() == 0 {
            return Some(entry.at - window.start);
        }
    }
    None
}

/// Returns how often a partition got a different owner.
pub fn owner_changes(timeline: &[TimelineEntry], partitions: usize, window: &Window) -> usize {
    let mut owners: Vec<Option<usize>> = vec![None; partitions];
    let mut changes = 0;
    for entry in timeline.iter().take_while(|entry| entry.at < window.end) {
        let (TimelineEvent::Owner { partition }, Some(incarnation)) = (&entry.event, entry.incarnation) else {
            continue;
        };
        let before = owners[*partition].replace(incarnation);
        changes += usize::from(entry.at >= window.start && before.is_some_and(|before| before != incarnation));
    }
    changes
}

/// Returns how often the member lost a partition while it was running.
pub fn losses(timeline: &[TimelineEntry], partitions: usize, member: u32, window: &Window) -> usize {
    let mut state = State::new(partitions);
    let mut lost = 0;
    for entry in timeline.iter().take_while(|entry| entry.at < window.end) {
        if let TimelineEvent::Owner { partition } = entry.event {
            let before = state.holders[partition].filter(|before| entry.incarnation != Some(*before));
            let was_its_own = before.is_some_and(|before| state.alive.get(&before) == Some(&member));
            lost += usize::from(entry.at >= window.start && was_its_own);
        }
        state.apply(entry);
    }
    lost
}

/// Returns the sum, over the partitions, of the time without a reader.
pub fn unread_time(timeline: &[TimelineEntry], partitions: usize, window: &Window) -> Duration {
    let (mut state, mut sum, mut since) = (State::new(partitions), Duration::ZERO, window.start);
    for entry in timeline.iter().take_while(|entry| entry.at < window.end) {
        if entry.at > since {
            sum += (entry.at - since) * state.unread();
            since = entry.at;
        }
        state.apply(entry);
    }
    sum + (window.end - since) * state.unread()
}

/// Returns the largest total lag of all checkpoints at one moment.
pub fn most_behind(timeline: &[TimelineEntry], window: &Window) -> i64 {
    let mut sums: BTreeMap<Duration, i64> = BTreeMap::new();
    for entry in timeline.iter().filter(|entry| window.contains(&entry.at)) {
        if let TimelineEvent::Lag { events, .. } = entry.event {
            *sums.entry(entry.at).or_default() += events;
        }
    }
    sums.into_values().max().unwrap_or(0)
}

/// The running incarnations, the owners and the readers.
struct State {
    alive: BTreeMap<usize, u32>,
    holders: Vec<Option<usize>>,
    readers: Vec<BTreeSet<usize>>,
}

impl State {
    fn new(partitions: usize) -> Self {
        Self { alive: BTreeMap::new(), holders: vec![None; partitions], readers: vec![BTreeSet::new(); partitions] }
    }

    fn apply(&mut self, entry: &TimelineEntry) {
        let incarnation = entry.incarnation;
        match (&entry.event, incarnation) {
            (TimelineEvent::Started, Some(incarnation)) => {
                if let Some(member) = entry.member {
                    self.alive.insert(incarnation, member);
                }
            }
            (TimelineEvent::Crashed | TimelineEvent::Ended, Some(incarnation)) => {
                self.alive.remove(&incarnation);
                for readers in &mut self.readers {
                    readers.remove(&incarnation);
                }
            }
            (TimelineEvent::Owner { partition }, incarnation) => self.holders[*partition] = incarnation,
            (TimelineEvent::HandlerStarted { partition }, Some(incarnation))
                if self.alive.contains_key(&incarnation) =>
            {
                self.readers[*partition].insert(incarnation);
            }
            (TimelineEvent::HandlerStopped { partition }, Some(incarnation)) => {
                self.readers[*partition].remove(&incarnation);
            }
            _ => {}
        }
    }

    fn is_balanced(&self) -> bool {
        let mut held: BTreeMap<usize, usize> = self.alive.keys().map(|incarnation| (*incarnation, 0)).collect();
        for holder in &self.holders {
            let Some(count) = holder.and_then(|holder| held.get_mut(&holder)) else { return false };
            *count += 1;
        }
        let (least, most) = (held.values().min(), held.values().max());
        least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }

    fn unread(&self) -> u32 {
        let unread = self.readers.iter().filter(|readers| readers.is_empty()).count();
        u32::try_from(unread).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, incarnation: usize, event: TimelineEvent) -> TimelineEntry {
        let member = u32::try_from(incarnation).ok();
        TimelineEntry { at: Duration::from_secs(at), member, incarnation: Some(incarnation), event }
    }

    fn seconds(range: Range<u64>) -> Window {
        Duration::from_secs(range.start)..Duration::from_secs(range.end)
    }

    /// One instance starts, a second one takes one of two partitions, the first one crashes, and the second one takes
    /// the other.
    fn timeline() -> Vec<TimelineEntry> {
        vec![
            entry(0, 0, TimelineEvent::Started),
            entry(1, 0, TimelineEvent::Owner { partition: 0 }),
            entry(1, 0, TimelineEvent::HandlerStarted { partition: 0 }),
            entry(2, 0, TimelineEvent::Owner { partition: 1 }),
            entry(3, 0, TimelineEvent::HandlerStarted { partition: 1 }),
            entry(10, 1, TimelineEvent::Started),
            entry(14, 1, TimelineEvent::Owner { partition: 1 }),
            entry(14, 0, TimelineEvent::HandlerStopped { partition: 1 }),
            entry(15, 1, TimelineEvent::HandlerStarted { partition: 1 }),
            entry(20, 0, TimelineEvent::Crashed),
            entry(50, 1, TimelineEvent::Owner { partition: 0 }),
            entry(51, 1, TimelineEvent::HandlerStarted { partition: 0 }),
        ]
    }

    #[test]
    fn convergence_starts_at_the_disturbance() {
        assert_eq!(convergence(&timeline(), 2, &seconds(0..10)), Some(Duration::from_secs(2)));
        assert_eq!(convergence(&timeline(), 2, &seconds(10..20)), Some(Duration::from_secs(4)));
        assert_eq!(convergence(&timeline(), 2, &seconds(20..60)), Some(Duration::from_secs(30)));
        assert_eq!(convergence(&timeline(), 2, &seconds(20..50)), None);
    }

    #[test]
    fn reading_resumes_with_the_last_handler() {
        assert_eq!(read_again(&timeline(), 2, &seconds(20..60)), Some(Duration::from_secs(31)));
        assert_eq!(read_again(&timeline(), 2, &seconds(20..51)), None);
    }

    #[test]
    fn changes_count_from_the_second_owner_on() {
        assert_eq!(owner_changes(&timeline(), 2, &seconds(0..60)), 2);
        assert_eq!(owner_changes(&timeline(), 2, &seconds(20..60)), 1);
    }

    #[test]
    fn a_crashed_member_loses_nothing() {
        assert_eq!(losses(&timeline(), 2, 0, &seconds(0..60)), 1);
        assert_eq!(losses(&timeline(), 2, 1, &seconds(0..60)), 0);
    }

    #[test]
    fn a_partition_without_a_reader_is_unread() {
        assert_eq!(unread_time(&timeline(), 2, &seconds(0..3)), Duration::from_secs(4));
        assert_eq!(unread_time(&timeline(), 2, &seconds(10..60)), Duration::from_secs(1 + 31));
    }

    #[test]
    fn lags_of_one_moment_are_added() {
        let lag = |at: u64, partition: usize, events: i64| entry(at, 0, TimelineEvent::Lag { partition, events });
        let timeline = [lag(1, 0, 100), lag(2, 0, 3), lag(2, 1, 4), lag(3, 0, 1), lag(4, 1, 50)];
        assert_eq!(most_behind(&timeline, &seconds(2..4)), 7);
        assert_eq!(most_behind(&timeline, &seconds(5..6)), 0);
    }

    #[test]
    fn a_crashed_reader_leaves_its_partitions_unread() {
        let timeline = [
            entry(0, 0, TimelineEvent::Started),
            entry(0, 0, TimelineEvent::HandlerStarted { partition: 0 }),
            entry(5, 0, TimelineEvent::Crashed),
            entry(6, 0, TimelineEvent::HandlerStarted { partition: 0 }),
        ];
        assert_eq!(unread_time(&timeline, 1, &seconds(0..8)), Duration::from_secs(3));
    }
}
