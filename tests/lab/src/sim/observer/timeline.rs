//! What a picture of the run shows.

use std::time::Duration;

use super::State;

/// An event and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEntry {
    /// Time since the beginning.
    pub at: Duration,
    /// The member, if the event concerns one. Operators are not members.
    pub member: Option<u32>,
    /// Counts the incarnations of all members.
    pub incarnation: Option<usize>,
    /// What happened.
    pub event: TimelineEvent,
}

/// An event of the timeline.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the field names are self-explanatory; partitions are numbers, owners are members")]
pub enum TimelineEvent {
    /// An incarnation starts.
    Started,
    /// It crashes.
    Crashed,
    /// It ends by itself.
    Ended,
    /// Its process is frozen.
    Frozen,
    /// Its process continues.
    Woke,
    /// The ownership of a partition names the incarnation of the entry from now on, or no owner if the entry has none.
    Owner { partition: usize },
    /// It took a partition from a running incarnation.
    Took { partition: usize, from: usize },
    /// A handler starts.
    HandlerStarted { partition: usize },
    /// A handler has stopped.
    HandlerStopped { partition: usize },
    /// A checkpoint was reset.
    Reset { partition: usize, to: i64 },
    /// An incident begins: its name and its duration.
    Incident { name: &'static str, lasts: Duration, partition: Option<u32> },
    /// How many events the checkpoint lags behind the end of the partition.
    Lag { partition: usize, events: i64 },
    /// From now on there are no faults.
    Calm,
    /// Every partition is owned and processed, in fair shares.
    Balanced,
}

impl State {
    pub(in super::super) fn record(&mut self, incarnation: usize, event: TimelineEvent) {
        let member = self.incarnations.get(incarnation).and_then(|incarnation| incarnation.member);
        self.timeline.push(TimelineEntry { at: self.elapsed(), member, incarnation: Some(incarnation), event });
    }

    pub(in super::super) fn record_without_incarnation(&mut self, member: Option<u32>, event: TimelineEvent) {
        self.timeline.push(TimelineEntry { at: self.elapsed(), member, incarnation: None, event });
    }

    pub(super) fn record_owner(&mut self, partition: usize, holder: Option<usize>) {
        match holder {
            Some(incarnation) => self.record(incarnation, TimelineEvent::Owner { partition }),
            None => self.record_without_incarnation(None, TimelineEvent::Owner { partition }),
        }
    }

    /// Records the lag of every checkpoint.
    pub(in super::super) fn record_lags(&mut self) {
        let lags: Vec<_> =
            self.partitions.iter().map(|book| book.history.end() - 1 - book.history.stored().unwrap_or(-1)).collect();
        for (partition, events) in lags.into_iter().enumerate() {
            self.record_without_incarnation(None, TimelineEvent::Lag { partition, events });
        }
    }
}
