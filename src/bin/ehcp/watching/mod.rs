//! Looks at a group again and again.

mod changes;
mod history;
mod hub;
mod pace;
mod partition;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::admin::Reader;
use eventhubs_checkpoint::admin::describe::GroupDescription;
use eventhubs_checkpoint::store::{RequestCounts, StorageOperation};
use futures::Stream;
use futures::stream::unfold;
use tokio::sync::Notify;

pub use self::changes::{ChangeKind, GroupChange};
pub use self::history::{DescribedGroup, GroupHistory, GroupSnapshot};
use self::hub::HubReader;
pub use self::partition::{Rates, Slot, WaitingTime};
pub use self::timer::LookTimer;
use crate::args::LookIntervals;
use crate::connection::GroupConnection;
use crate::exit::Result;

/// A group that is looked at. It reads, and writes nothing.
pub struct Watcher {
    reader: Reader,
    hub: HubReader,
}

/// What one look found.
pub struct Look {
    pub group: GroupDescription,
    /// Whether the event hub was read for this look. If not, its numbers come from an earlier look, or are missing.
    pub is_hub_read: bool,
    /// Why the event hub was not read, until it is read again.
    pub hub_failure: Option<String>,
    /// How many readings of the event hub have failed until now.
    pub hub_failures: u64,
    /// Whether the event hub was not read for several intervals: the lag is not known then.
    pub is_hub_stale: bool,
}

/// One of several looks.
pub struct CountedLook {
    pub look: Result<Look>,
    /// How many requests the listing of the records took.
    pub list_requests: u64,
}

impl Watcher {
    /// Connects to the storage. The event hub is connected at the first look. It is read at looks, but not more often
    /// than at this interval; the storage is read at every look.
    pub async fn connect(connection: GroupConnection, hub_interval: Duration) -> Result<Self> {
        let reader = connection.connect_reader().await?;
        Ok(Self { reader, hub: HubReader::new(Arc::new(connection), hub_interval) })
    }

    /// Reads the records of the group, and the event hub if that is due. A group without any record is described, too.
    ///
    /// Fails if the storage fails. A failure of the event hub is part of the look, and it is read again when it is due.
    pub async fn look(&mut self) -> Result<Look> {
        let records = self.reader.read().await?;
        let is_hub_read = self.hub.refresh().await;
        Ok(Look {
            group: records.describe(self.hub.ranges()),
            is_hub_read,
            hub_failure: self.hub.failure().map(str::to_owned),
            hub_failures: self.hub.failures(),
            is_hub_stale: self.hub.is_stale(),
        })
    }

    /// Looks whenever a look is due, or `wanted` by the user. A look that fails is followed by another one.
    pub fn looks(self, intervals: LookIntervals, wanted: Arc<Notify>) -> impl Stream<Item = CountedLook> {
        unfold((self, LookTimer::new(intervals, wanted)), |(mut watcher, mut timer)| async move {
            timer.wait(Some(&watcher.reader)).await;
            let before = watcher.request_counts().total(StorageOperation::List);
            let look = watcher.look().await;
            timer.on_look_ended(look.is_ok());
            let list_requests = watcher.request_counts().total(StorageOperation::List) - before;
            Some((CountedLook { look, list_requests }, (watcher, timer)))
        })
    }

    /// Returns what reads the records and the beacon.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns how many requests to the storage were made, by operation and outcome.
    pub fn request_counts(&self) -> RequestCounts {
        self.reader.request_counts()
    }
}

#[cfg(test)]
pub mod tests;
