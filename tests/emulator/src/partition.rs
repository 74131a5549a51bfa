//! A partition: its log of events, and its receivers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use time::OffsetDateTime;
use tokio::sync::watch;

use super::bad_start::BadStart;
use super::event::Event;
use super::log::{Log, StoredEvent};
use super::receivers::Receivers;
use super::selector::Selector;
use super::settings::HubSettings;
use crate::emptied::EmptiedReport;
use crate::lock::lock;

/// The properties of a partition, as a client receives them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionProperties {
    /// The partition's id.
    pub partition_id: String,
    /// The sequence number of the oldest event that has not expired, 0 before the first event. After all events have
    /// expired, it depends on [`HubSettings::with_emptied_report`](super::HubSettings::with_emptied_report).
    pub beginning_sequence_number: i64,
    /// The sequence number of the newest event, expired or not; -1 if there has been none.
    pub last_enqueued_sequence_number: i64,
    /// The offset of the newest event, expired or not; `"-1"` if there has been none.
    pub last_enqueued_offset: String,
    /// The time at which the newest event was appended, expired or not; `None` if there has been none.
    pub last_enqueued_time: Option<OffsetDateTime>,
    /// Whether there are no events: there have been none, or all have expired.
    pub is_empty: bool,
}

pub(super) struct Partition {
    id: String,
    log: Mutex<Log>,
    emptied: EmptiedReport,
    /// The sequence number of the next event, for receivers that wait for more.
    end: watch::Sender<i64>,
    receivers: Arc<Receivers>,
    /// The number of events sent to all receivers.
    sent: AtomicU64,
}

impl Partition {
    pub(super) fn new(id: String, settings: &HubSettings) -> Self {
        Self {
            id,
            log: Mutex::new(Log::new(settings)),
            emptied: settings.emptied,
            end: watch::channel(0).0,
            receivers: Arc::default(),
            sent: AtomicU64::new(0),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn receivers(&self) -> &Arc<Receivers> {
        &self.receivers
    }

    pub(super) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Appends these events in order, without others in between. Returns the sequence number of the next event.
    pub(super) fn append(&self, events: &[Event<'_>], partition_key: Option<&str>, now: OffsetDateTime) -> i64 {
        let mut log = self.log();
        for event in events {
            log.append(event, partition_key, now);
        }
        self.end.send_replace(log.end());
        log.end()
    }

    /// Removes the event with this sequence number. Returns whether it existed.
    pub(super) fn remove(&self, sequence_number: i64) -> bool {
        self.log().remove(sequence_number)
    }

    /// Returns the event with this sequence number, or the next one if that event does not exist anymore. If there is
    /// none yet, returns the sequence number to wait for.
    pub(super) fn at_or_after(&self, sequence_number: i64) -> Result<Arc<StoredEvent>, i64> {
        self.log().at_or_after(sequence_number)
    }

    /// Returns a receiver of the sequence number of the next event.
    pub(super) fn end(&self) -> watch::Receiver<i64> {
        self.end.subscribe()
    }

    /// Returns the sequence number of the first event for a receiver with this selector.
    pub(super) fn start(&self, selector: Selector) -> Result<i64, BadStart> {
        self.log().start(selector)
    }

    /// Begins the next epoch of a geo-replicated event hub without the newest `lost` events.
    pub(super) fn promote(&self, lost: usize) {
        let mut log = self.log();
        log.promote(lost);
        self.end.send_replace(log.end());
    }

    /// Returns the epoch of a geo-replicated event hub.
    pub(super) fn epoch(&self) -> Option<i32> {
        self.log().epoch()
    }

    /// Returns the number of expired events.
    pub(super) fn expire_before(&self, sequence_number: i64) -> usize {
        self.log().expire_before(sequence_number)
    }

    pub(super) fn event_count(&self) -> usize {
        self.log().len()
    }

    pub(super) fn properties(&self) -> PartitionProperties {
        let (begin, last, is_empty) = {
            let log = self.log();
            (log.begin(), log.last(), log.len() == 0)
        };
        let begin = last.filter(|_| is_empty).map_or(begin, |last| self.emptied.beginning(last.sequence_number));
        PartitionProperties {
            partition_id: self.id.clone(),
            beginning_sequence_number: begin,
            last_enqueued_sequence_number: last.map_or(-1, |last| last.sequence_number),
            last_enqueued_offset: last.map_or(-1, |last| last.offset).to_string(),
            last_enqueued_time: last.map(|last| last.enqueued_at),
            is_empty,
        }
    }
}

/// Short, because the log contains it for every link.
impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = *self.end.borrow();
        f.debug_struct("Partition").field("id", &self.id).field("end", &end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;
    use time::macros::datetime;

    const BASE: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    const TEN_BYTES: &[u8] = b"\x00\x53\x75\xa0\x0a0123456789";
    const EMPTY: &[u8] = b"\x00\x53\x75\xa0\x00";

    fn append(partition: &Partition, events: &[&[u8]], now: OffsetDateTime) {
        let events: Vec<_> = events.iter().map(|event| Event::parse(event).expect("an event")).collect();
        partition.append(&events, None, now);
    }

    #[test]
    fn appended_events_get_numbers_and_times() {
        let partition = Partition::new("7".into(), &HubSettings::new("hub").with_retention_count(2));
        assert_eq!(partition.properties().last_enqueued_offset, "-1");
        assert!(partition.properties().is_empty);

        append(&partition, &[TEN_BYTES, EMPTY], BASE);
        append(&partition, &[EMPTY], BASE - Duration::HOUR);

        let expected = PartitionProperties {
            partition_id: "7".into(),
            beginning_sequence_number: 1,
            last_enqueued_sequence_number: 2,
            last_enqueued_offset: "138".into(),
            last_enqueued_time: Some(BASE),
            is_empty: false,
        };
        assert_eq!(partition.properties(), expected);
        assert_eq!((partition.event_count(), *partition.end().borrow()), (2, 3));
        assert!(partition.at_or_after(2).is_ok() && partition.at_or_after(3).is_err());
    }

    #[test]
    fn emptied_partition_reports_as_configured() {
        for (report, begin) in [(EmptiedReport::BeginIsLast, 2), (EmptiedReport::BeginAfterLast, 3)] {
            let partition = Partition::new("7".into(), &HubSettings::new("hub").with_emptied_report(report));
            assert_eq!(partition.properties().beginning_sequence_number, 0, "never used");
            append(&partition, &[EMPTY; 3], BASE);
            partition.expire_before(2);
            assert_eq!((partition.properties().beginning_sequence_number, partition.properties().is_empty), (2, false));
            partition.expire_before(3);
            let expected = PartitionProperties {
                partition_id: "7".into(),
                beginning_sequence_number: begin,
                last_enqueued_sequence_number: 2,
                last_enqueued_offset: "128".into(),
                last_enqueued_time: Some(BASE),
                is_empty: true,
            };
            assert_eq!(partition.properties(), expected);
        }
    }
}
