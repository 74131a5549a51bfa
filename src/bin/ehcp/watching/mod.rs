//! Looks at a group again and again.

mod changes;
mod history;

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::EventHubSource;
use eventhubs_checkpoint::admin::{GroupDescription, HubRanges, Operator};
use futures::Stream;
use futures::stream::unfold;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub use self::changes::{Change, ChangeKind};
pub use self::history::{Described, History, Rates, Slot, Watched};
use crate::connection::Connection;
use crate::exit::Result;

/// How long a look waits for an event hub that was read before. A healthy one needs less.
const HUB_WAIT: Duration = Duration::from_secs(1);

/// How often to look.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between two readings of the event hub. The storage is read at every look.
    pub hub: Duration,
}

/// A group that is looked at. It reads, and writes nothing.
pub struct Watcher {
    connection: Arc<Connection>,
    operator: Operator,
    hub: Hub,
    pace: Pace,
}

/// The event hub, which is read in a task of its own: while it does not respond, the storage is read all the same.
#[derive(Default)]
struct Hub {
    source: Option<EventHubSource>,
    ranges: Option<HubRanges>,
    failure: Option<String>,
    reading: JoinSet<HubReading>,
    /// When it was read last, with or without success.
    read_at: Option<Instant>,
}

struct HubReading {
    source: Option<EventHubSource>,
    ranges: Result<Option<HubRanges>>,
}

/// What one look found.
pub struct Look {
    pub group: GroupDescription,
    /// Why the event hub could not be read, until it is read again. The numbers of its last events are then old, or
    /// missing.
    pub hub_failure: Option<String>,
}

/// One of several looks.
pub struct Seen {
    pub look: Result<Look>,
    /// How many requests to the storage all looks until now have made.
    pub storage_requests: u64,
}

impl Watcher {
    /// Connects to the storage. The event hub is connected at the first look.
    pub async fn connect(connection: Connection, pace: Pace) -> Result<Self> {
        let operator = connection.operator().await?;
        Ok(Self { connection: Arc::new(connection), operator, hub: Hub::default(), pace })
    }

    /// Reads the records of the group, and the event hub if that is due. A group without any record is described, too.
    ///
    /// Fails if the storage fails. A failure of the event hub is part of the look, and it is read again when it is due.
    pub async fn look(&mut self) -> Result<Look> {
        let records = self.operator.read().await?;
        if !self.connection.global.no_hub {
            self.hub.advance(&self.connection, self.pace).await;
        }
        let hub_failure = self.hub.failure.clone();
        Ok(Look { group: records.describe(self.hub.ranges.as_ref()), hub_failure })
    }

    /// Looks at this interval, and at once if a look took longer. A look that fails is followed by another one.
    pub fn looks(self, every: Duration) -> impl Stream<Item = Seen> {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        unfold((self, ticks), |(mut watcher, mut ticks)| async move {
            ticks.tick().await;
            let look = watcher.look().await;
            let storage_requests = watcher.storage_requests();
            Some((Seen { look, storage_requests }, (watcher, ticks)))
        })
    }

    /// Returns how many requests to the storage were made.
    pub fn storage_requests(&self) -> u64 {
        self.operator.request_counts().sum()
    }
}

impl Hub {
    /// Begins to read if that is due, and waits for the result: the first time as long as it takes.
    async fn advance(&mut self, connection: &Arc<Connection>, pace: Pace) {
        let is_due = self.read_at.is_none_or(|read_at| read_at.elapsed() >= pace.hub);
        if self.reading.is_empty() && is_due {
            self.reading.spawn(read_hub(connection.clone(), self.source.take()));
        }
        let limit = if self.read_at.is_some() { HUB_WAIT } else { Duration::MAX };
        if let Ok(Some(read)) = timeout(limit, self.reading.join_next()).await {
            self.read_at = Some(Instant::now());
            match read {
                Ok(reading) => self.keep(reading),
                Err(stopped) => self.failure = Some(stopped.to_string()),
            }
        }
    }

    fn keep(&mut self, reading: HubReading) {
        self.source = reading.source;
        match reading.ranges {
            Ok(ranges) => (self.ranges, self.failure) = (ranges, None),
            Err(failure) => {
                // A broken connection may be the cause.
                self.source = None;
                self.failure = Some(failure.to_string());
            }
        }
    }
}

async fn read_hub(connection: Arc<Connection>, source: Option<EventHubSource>) -> HubReading {
    let source = match source {
        Some(source) => Ok(Some(source)),
        None => connection.hub().await,
    };
    match source {
        Ok(Some(source)) => {
            let ranges = connection.ranges(&source).await.map(Some);
            HubReading { source: Some(source), ranges }
        }
        Ok(None) => HubReading { source: None, ranges: Ok(None) },
        Err(failure) => HubReading { source: None, ranges: Err(failure) },
    }
}
