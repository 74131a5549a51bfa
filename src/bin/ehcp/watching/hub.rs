//! Reads the event hub from time to time, without holding up the looks.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::EventHubSource;
use eventhubs_checkpoint::admin::HubRanges;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::connection::GroupConnection;
use crate::exit::{Failure, Result};

/// How long a look waits for an event hub that was read before. A healthy one needs less, also for a new connection.
const WAIT: Duration = Duration::from_secs(3);

/// The ranges of events of a group's event hub, as they were read last.
pub struct HubReader {
    connection: Arc<GroupConnection>,
    interval: Duration,
    due: Instant,
    source: Option<EventHubSource>,
    /// At most one.
    reading: JoinSet<EndedReading>,
    ranges: Option<HubRanges>,
    failure: Option<String>,
    /// Whether a reading has ended, with or without success.
    has_read: bool,
    /// How many readings failed.
    failures: u64,
    /// When the ranges were read.
    read_at: Option<Instant>,
}

/// A reading that has ended.
struct EndedReading {
    /// The connection. `None` if it failed: it may be the cause.
    source: Option<EventHubSource>,
    read: Result<HubRanges>,
    at: Instant,
}

impl HubReader {
    pub fn new(connection: Arc<GroupConnection>, interval: Duration) -> Self {
        Self {
            connection,
            interval,
            due: Instant::now(),
            source: None,
            reading: JoinSet::new(),
            ranges: None,
            failure: None,
            has_read: false,
            failures: 0,
            read_at: None,
        }
    }

    /// Reads the event hub if that is due. A reading that takes longer continues, and a later call finds its result.
    /// The first one takes as long as it takes. Returns whether there are new ranges, not older than an interval.
    pub async fn refresh(&mut self) -> bool {
        if self.connection.global.no_hub {
            return false;
        }
        let mut is_read = false;
        if let Some(ended) = self.reading.try_join_next() {
            is_read = self.keep_reading(ended);
        }
        if self.reading.is_empty() && Instant::now() >= self.due {
            self.due = Instant::now() + self.interval;
            self.reading.spawn(read_hub(self.connection.clone(), self.source.take()));
        }
        let wait = if self.has_read { WAIT } else { Duration::MAX };
        if let Ok(Some(ended)) = timeout(wait, self.reading.join_next()).await {
            is_read |= self.keep_reading(ended);
        }
        is_read
    }

    /// Keeps what was read, and returns whether there are new ranges, not older than an interval.
    fn keep_reading(&mut self, ended: std::result::Result<EndedReading, JoinError>) -> bool {
        let EndedReading { source, read, at } = ended.unwrap_or_else(|error| {
            let read = Err(Failure::failed(error.to_string()));
            EndedReading { source: None, read, at: Instant::now() }
        });
        self.source = source;
        self.has_read = true;
        match read {
            Ok(ranges) => {
                self.ranges = Some(ranges);
                self.failure = None;
                self.read_at = Some(at);
                at.elapsed() <= self.interval
            }
            Err(failure) => {
                self.failure = Some(failure.to_string());
                self.failures += 1;
                false
            }
        }
    }

    /// Returns what was read last.
    pub fn ranges(&self) -> Option<&HubRanges> {
        self.ranges.as_ref()
    }

    /// Returns how many readings failed.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns whether the last ranges are too old: readings fail, or take long.
    pub fn is_stale(&self) -> bool {
        self.read_at.is_none_or(|read_at| read_at.elapsed() > self.interval * 3 + WAIT)
    }

    /// Returns why the last reading failed, until one succeeds.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

async fn read_hub(connection: Arc<GroupConnection>, source: Option<EventHubSource>) -> EndedReading {
    let read = async {
        let source = match source {
            Some(source) => source,
            None => connection.require_hub().await?,
        };
        let ranges = connection.read_ranges(&source).await?;
        Ok((source, ranges))
    };
    let (source, read) = match read.await {
        Ok((source, ranges)) => (Some(source), Ok(ranges)),
        Err(failure) => (None, Err(failure)),
    };
    EndedReading { source, read, at: Instant::now() }
}
