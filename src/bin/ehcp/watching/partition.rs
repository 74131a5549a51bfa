//! The last hour of one partition, by the looks at it: pure.

use std::collections::VecDeque;
use std::fmt;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::admin::describe::{CheckpointDescription, OwnershipState, PartitionDescription};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use crate::text::format_seconds;

/// How far the history goes back.
const KEPT: Duration = Duration::HOUR;
/// The time that one slot stands for.
const SLOT: Duration = Duration::seconds(30);
/// Between looks that are further apart it is unknown how a partition was.
const MAX_GAP: Duration = Duration::minutes(3);
/// The time over which a rate is measured, or that between two looks: longer than the interval of checkpoints.
const RATE_WINDOW: Duration = Duration::seconds(30);

/// How many checkpoints are kept.
const MAX_CHECKPOINTS: usize = 200;

/// The last hour of a partition.
#[derive(Debug, Default)]
pub struct PartitionHistory {
    /// The checkpoints of the last seconds, for the rate.
    checkpoints: VecDeque<(OffsetDateTime, Option<i64>)>,
    /// The last events of the last readings of the event hub, for the rate.
    lasts: VecDeque<(OffsetDateTime, Option<i64>)>,
    /// When which event was the last one, for the time that the checkpoint lags behind.
    ends: VecDeque<LastEvent>,
    slots: VecDeque<Slot>,
    spans: VecDeque<Span>,
    recorded: VecDeque<RecordedCheckpoint>,
    /// The checkpoint at the last reading of the event hub, if it was after the last event.
    beyond_end: Option<i64>,
    is_beyond_end: bool,
}

/// A checkpoint as one look or more found it. Those that were replaced between two looks are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCheckpoint {
    /// When it was written, by the server's clock.
    pub updated: OffsetDateTime,
    pub sequence_number: Option<i64>,
    pub offset: Option<String>,
    /// The owner that had written or adopted it when it was first seen, if it is of this crate.
    pub owner: Option<OwnerId>,
}

/// The last event of a partition, as the event hub was read one or more times.
#[derive(Debug)]
struct LastEvent {
    last: i64,
    /// When the event was enqueued, at the latest.
    enqueued: OffsetDateTime,
    /// When the event hub was read last with this last event. The next event came later.
    read: OffsetDateTime,
    /// Whether `enqueued` is the exact time.
    is_exact: bool,
}

/// How a partition was in a part of the last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// When the part began.
    #[serde(with = "time::serde::rfc3339")]
    pub from: OffsetDateTime,
    /// The owner in the record, alive or not.
    pub owner: Option<OwnerId>,
    pub state: OwnershipState,
    pub lag: Option<u64>,
}

/// A time in which the owner and the state of a partition did not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The time of the first look.
    #[serde(with = "time::serde::rfc3339")]
    pub from: OffsetDateTime,
    /// The time of the last refresh.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// The owner in the record, alive or not.
    pub owner: Option<OwnerId>,
    pub state: OwnershipState,
}

/// How fast a partition is processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Events per second by which the checkpoint advanced. Unknown until there are two looks, and after it went back.
    pub processed: Option<f64>,
    /// Events per second that were enqueued.
    pub enqueued: Option<f64>,
    /// How long ago the event after the checkpoint was enqueued, in seconds; 0 if no event waits. Unknown if that was
    /// before the first look.
    pub behind_s: Option<f64>,
    /// Whether the checkpoint is after the last event: the event hub was recreated. Its lag is no measure then.
    pub is_beyond_end: bool,
}

/// How long the event after the checkpoint has waited.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaitingTime {
    pub seconds: f64,
    /// Whether it is known when the event was enqueued. Otherwise it has waited for at least this long.
    pub is_exact: bool,
}

impl fmt::Display for WaitingTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_exact { "" } else { ">" }, format_seconds(self.seconds))
    }
}

impl PartitionHistory {
    /// Adds a look. Its range of events is new only if the event hub was read for it.
    pub fn add_look(&mut self, partition: &PartitionDescription, at: OffsetDateTime, is_hub_read: bool) {
        add_sample(&mut self.checkpoints, (at, checkpoint_number(partition)));
        if is_hub_read && let Some(hub) = &partition.hub {
            add_sample(&mut self.lasts, (at, Some(hub.last.unwrap_or(-1))));
            self.add_end(hub.last.unwrap_or(-1), hub.last_enqueued_at, at);
            // A checkpoint may be newer than one reading, but not than the next one if it stays the same.
            let beyond = checkpoint_number(partition).filter(|number| *number > hub.last.unwrap_or(-1));
            self.is_beyond_end = beyond.is_some() && beyond == self.beyond_end;
            self.beyond_end = beyond;
        }
        self.add_slot(partition, at);
        self.add_span(partition, at);
        self.add_checkpoint(partition);
    }

    /// Returns the slots, the latest one last.
    pub fn slots(&self) -> &VecDeque<Slot> {
        &self.slots
    }

    /// Returns the spans, the latest one last.
    pub fn spans(&self) -> &VecDeque<Span> {
        &self.spans
    }

    /// Starts the rate with the next look: the checkpoint was set, so that no events were processed.
    pub fn restart_rate(&mut self) {
        self.checkpoints.clear();
    }

    /// Returns the checkpoints that were seen, the latest one last.
    pub fn recorded_checkpoints(&self) -> &VecDeque<RecordedCheckpoint> {
        &self.recorded
    }

    /// Returns how long the event after the checkpoint has waited, as of this look, which was added last. 0 if no event
    /// waits.
    pub fn waiting_time(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Option<WaitingTime> {
        match self.rates(partition, now).behind_s {
            Some(seconds) => Some(WaitingTime { seconds, is_exact: true }),
            None => Some(WaitingTime { seconds: self.waited_at_least(partition, now)?, is_exact: false }),
        }
    }

    /// Returns how many seconds at least the event after the checkpoint has waited, as of this look, which was added
    /// last: since the last event of the first reading with that event was enqueued. 0 if no event waits.
    pub fn waited_at_least(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Option<f64> {
        if partition.lag.events? == 0 {
            return Some(0.0);
        }
        let next = next_event(partition)?;
        let end = self.ends.iter().find(|end| end.last >= next)?;
        Some((now - end.enqueued).as_seconds_f64().max(0.0))
    }

    /// Returns how fast the partition is processed, as of this look, which was added last.
    pub fn rates(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Rates {
        Rates {
            processed: measure_rate(&self.checkpoints),
            enqueued: measure_rate(&self.lasts),
            behind_s: self.seconds_behind(partition, now).filter(|_| !self.is_beyond_end),
            is_beyond_end: self.is_beyond_end,
        }
    }

    fn add_end(&mut self, last: i64, enqueued: Option<OffsetDateTime>, read: OffsetDateTime) {
        match self.ends.back_mut() {
            Some(seen) if seen.last == last => {
                seen.read = read;
                return;
            }
            // The event hub was recreated.
            Some(seen) if seen.last > last => self.ends.clear(),
            _ => {}
        }
        // The clocks of the event hub and of the storage may differ, and the event came after the earlier reading.
        let earliest = self.ends.back().map_or(OffsetDateTime::UNIX_EPOCH, |before| before.read);
        self.ends.push_back(LastEvent {
            last,
            enqueued: enqueued.map_or(read, |enqueued| enqueued.min(read).max(earliest)),
            read,
            is_exact: enqueued.is_some(),
        });
        while self.ends.get(1).is_some_and(|next| read - next.enqueued >= KEPT) {
            self.ends.pop_front();
        }
    }

    fn add_slot(&mut self, partition: &PartitionDescription, at: OffsetDateTime) {
        let slot = Slot {
            from: at,
            owner: partition.owner.as_ref().map(|owner| owner.id.clone()),
            state: partition.state,
            lag: partition.lag.events,
        };
        match self.slots.back_mut() {
            // A slot shows how it was at its end.
            Some(open) if at - open.from < SLOT => *open = Slot { from: open.from, ..slot },
            _ => self.slots.push_back(slot),
        }
        while self.slots.front().is_some_and(|first| at - first.from > KEPT) {
            self.slots.pop_front();
        }
    }

    fn add_checkpoint(&mut self, partition: &PartitionDescription) {
        let Some(CheckpointDescription { updated, position, owner, .. }) = &partition.checkpoint else { return };
        // An adoption replaces the owner only.
        let is_recorded = self.recorded.back().is_some_and(|last| {
            last.updated == *updated
                && last.sequence_number == position.sequence_number
                && last.offset == position.offset
        });
        if is_recorded {
            return;
        }
        self.recorded.push_back(RecordedCheckpoint {
            updated: *updated,
            sequence_number: position.sequence_number,
            offset: position.offset.clone(),
            owner: owner.clone(),
        });
        if self.recorded.len() > MAX_CHECKPOINTS {
            self.recorded.pop_front();
        }
    }

    fn add_span(&mut self, partition: &PartitionDescription, at: OffsetDateTime) {
        let owner = partition.owner.as_ref().map(|owner| &owner.id);
        match self.spans.back_mut() {
            Some(open)
                if open.owner.as_ref() == owner && open.state == partition.state && at - open.until < MAX_GAP =>
            {
                open.until = at;
            }
            _ => {
                let state = partition.state;
                self.spans.push_back(Span { from: at, until: at, owner: owner.cloned(), state });
            }
        }
        while self.spans.front().is_some_and(|first| at - first.until > KEPT) {
            self.spans.pop_front();
        }
    }

    /// Returns how long ago the event after the checkpoint was enqueued.
    fn seconds_behind(&self, partition: &PartitionDescription, now: OffsetDateTime) -> Option<f64> {
        if partition.lag.events? == 0 {
            return Some(0.0);
        }
        let next = next_event(partition)?;
        let index = self.ends.iter().position(|end| end.last >= next)?;
        let end = &self.ends[index];
        let enqueued = match index.checked_sub(1).and_then(|before| self.ends.get(before)) {
            Some(before) => estimate_time(before, end, next),
            // Before the first look it is unknown when an event came, except the last one.
            None if end.last == next && end.is_exact => end.enqueued,
            None => return None,
        };
        Some((now - enqueued).as_seconds_f64().max(0.0))
    }
}

/// Returns the number of the event after the checkpoint. Expired events do not wait.
fn next_event(partition: &PartitionDescription) -> Option<i64> {
    let first = partition.hub.as_ref()?.first;
    Some(checkpoint_number(partition).map_or(first, |number| first.max(number.saturating_add(1))))
}

/// Estimates when an event came, as if all events between two readings came at an even rate.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn estimate_time(before: &LastEvent, end: &LastEvent, event: i64) -> OffsetDateTime {
    let part = event.saturating_sub(before.last) as f64 / end.last.saturating_sub(before.last) as f64;
    before.read + (end.enqueued - before.read) * part
}

/// Returns the number of the last processed event. `None` if the checkpoint was written before the event hub was
/// recreated: its number then stands for another event.
fn checkpoint_number(partition: &PartitionDescription) -> Option<i64> {
    partition.checkpoint.as_ref().filter(|checkpoint| !checkpoint.of_former_hub)?.position.sequence_number
}

fn add_sample(samples: &mut VecDeque<(OffsetDateTime, Option<i64>)>, sample: (OffsetDateTime, Option<i64>)) {
    samples.push_back(sample);
    // One sample before the window, so that it is covered completely.
    while samples.get(1).is_some_and(|next| sample.0 - next.0 >= RATE_WINDOW) {
        samples.pop_front();
    }
}

/// Returns the rate since the number was missing or went back.
#[expect(clippy::cast_precision_loss, reason = "a rate has three digits")]
fn measure_rate(samples: &VecDeque<(OffsetDateTime, Option<i64>)>) -> Option<f64> {
    let mut known = samples.iter().rev().map_while(|(at, number)| Some((*at, (*number)?)));
    let last = known.next()?;
    let mut first = last;
    for sample in known {
        if sample.1 > first.1 {
            break;
        }
        first = sample;
    }
    let seconds = (last.0 - first.0).as_seconds_f64();
    (seconds > 0.0).then(|| last.1.saturating_sub(first.1) as f64 / seconds)
}
