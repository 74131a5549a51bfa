//! Looks at a group again and again.

mod changes;
mod history;

use std::time::Duration;

use eventhubs_checkpoint::EventHubSource;
use eventhubs_checkpoint::admin::{GroupDescription, HubRanges, Operator};
use tokio::time::Instant;

pub use self::changes::{Change, ChangeKind};
pub use self::history::{History, Slot, Watched};
use crate::connection::Connection;
use crate::exit::Result;

/// How often to look.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between two readings of the event hub. The storage is read at every look.
    pub hub: Duration,
}

/// A group that is looked at. It reads, and writes nothing.
pub struct Watcher {
    connection: Connection,
    operator: Operator,
    source: Option<EventHubSource>,
    ranges: Option<HubRanges>,
    pace: Pace,
    hub_due: Instant,
}

/// What one look found.
pub struct Look {
    pub group: GroupDescription,
    /// Why the event hub was not read. The numbers of its last events are then old, or missing.
    pub hub_failure: Option<String>,
}

impl Watcher {
    /// Connects to the storage. The event hub is connected at the first look.
    pub async fn connect(connection: Connection, pace: Pace) -> Result<Self> {
        let operator = connection.operator().await?;
        Ok(Self { connection, operator, source: None, ranges: None, pace, hub_due: Instant::now() })
    }

    /// Reads the records of the group, and the event hub if that is due. A group without any record is described, too.
    ///
    /// Fails if the storage fails. A failure of the event hub is part of the look, and it is read again when it is due.
    pub async fn look(&mut self) -> Result<Look> {
        let records = self.operator.read().await?;
        let mut hub_failure = None;
        if !self.connection.global.no_hub && Instant::now() >= self.hub_due {
            self.hub_due = Instant::now() + self.pace.hub;
            match self.read_hub().await {
                Ok(ranges) => self.ranges = ranges,
                Err(failure) => {
                    // A broken connection may be the cause.
                    self.source = None;
                    hub_failure = Some(failure.to_string());
                }
            }
        }
        Ok(Look { group: records.describe(self.ranges.as_ref()), hub_failure })
    }

    async fn read_hub(&mut self) -> Result<Option<HubRanges>> {
        if self.source.is_none() {
            self.source = self.connection.hub().await?;
        }
        match &self.source {
            Some(source) => self.connection.ranges(source).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns how many requests to the storage were made.
    pub fn storage_requests(&self) -> u64 {
        self.operator.request_counts().sum()
    }
}
