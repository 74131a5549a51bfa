//! What a picture of the run shows.

use std::time::Duration;

use super::State;

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEntry {
    /// When, counted from the beginning.
    pub at: Duration,
    /// The member that it happened to, if it is about one. Operators are none.
    pub member: Option<u32>,
    /// Counts the lives of all members.
    pub incarnation: Option<usize>,
    /// What.
    pub event: TimelineEvent,
}

/// What can be shown.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what their names say; partitions are numbers, owners are members")]
pub enum TimelineEvent {
    /// A life begins.
    Started,
    /// It dies.
    Crashed,
    /// It ends by itself.
    Ended,
    /// Its process is frozen.
    Frozen,
    /// Its process runs again.
    Woke,
    /// The ownership of a partition names this life from now on: that of the entry; nothing: nobody.
    Owner { partition: usize },
    /// It took a partition from a life that goes on.
    Took { partition: usize, from: usize },
    /// A handler starts.
    HandlerStarted { partition: usize },
    /// A handler has stopped.
    HandlerStopped { partition: usize },
    /// A checkpoint was put elsewhere.
    Reset { partition: usize, to: i64 },
    /// An incident begins: its name, and how long it goes on.
    Incident { name: &'static str, lasts: Duration, partition: Option<u32> },
    /// How many events the checkpoint is behind the end.
    Lag { partition: usize, events: i64 },
    /// From now on nothing goes wrong any more.
    Calm,
    /// Everything is owned and processed, in fair shares.
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

    /// Writes down how far the checkpoints are behind.
    pub(in super::super) fn record_lags(&mut self) {
        let lags: Vec<_> =
            self.partitions.iter().map(|book| book.history.end() - 1 - book.history.stored().unwrap_or(-1)).collect();
        for (partition, events) in lags.into_iter().enumerate() {
            self.record_without_incarnation(None, TimelineEvent::Lag { partition, events });
        }
    }
}
