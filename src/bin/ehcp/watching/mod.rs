//! Looks at a group again and again.

mod changes;
mod history;
mod hub;
mod partition;

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::admin::{GroupDescription, Operator};
use eventhubs_checkpoint::store::RequestCounts;

#[allow(unused_imports, reason = "for the terminal view")]
pub use self::changes::{Change, ChangeKind};
pub use self::history::{History, Watched};
use self::hub::HubReader;
#[allow(unused_imports, reason = "for the terminal view")]
pub use self::partition::{Rates, Slot, Span};
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
    operator: Operator,
    hub: HubReader,
}

/// What one look found.
pub struct Look {
    pub group: GroupDescription,
    /// Whether the event hub was read for this look. If not, its numbers are those of an earlier look, or missing.
    pub is_hub_read: bool,
    /// Why the event hub was not read, until it is read again.
    pub hub_failure: Option<String>,
}

impl Watcher {
    /// Connects to the storage. The event hub is connected at the first look.
    pub async fn connect(connection: Connection, pace: Pace) -> Result<Self> {
        let operator = connection.operator().await?;
        Ok(Self { operator, hub: HubReader::new(Arc::new(connection), pace.hub) })
    }

    /// Reads the records of the group, and the event hub if that is due. A group without any record is described, too.
    ///
    /// Fails if the storage fails. A failure of the event hub is part of the look, and it is read again when it is due.
    pub async fn look(&mut self) -> Result<Look> {
        let records = self.operator.read().await?;
        let is_hub_read = self.hub.refresh().await;
        let group = records.describe(self.hub.ranges());
        Ok(Look { group, is_hub_read, hub_failure: self.hub.failure().map(str::to_owned) })
    }

    /// Returns how many requests to the storage were made.
    #[allow(dead_code, reason = "for the terminal view")]
    pub fn storage_requests(&self) -> u64 {
        self.request_counts().sum()
    }

    /// Returns the same by operation and outcome.
    pub fn request_counts(&self) -> RequestCounts {
        self.operator.request_counts()
    }
}

#[cfg(test)]
mod tests;
