//! How continuously the partitions of a fleet are read and owned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eventhubs_checkpoint::store::{GroupStore, NameCase};
use eventhubs_emulator::EventHubEmulator;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

use super::fleet::{Fleet, owners_in};

const READER_POLL: Duration = Duration::from_millis(10);
const RECORD_POLL: Duration = Duration::from_millis(200);

/// Observes until it is asked what it has seen.
pub struct Continuity {
    ended: watch::Sender<bool>,
    readers: JoinHandle<BTreeMap<String, Gap>>,
    records: JoinHandle<Records>,
}

/// What was seen of all partitions.
#[derive(Debug)]
pub struct Observed {
    /// The longest time in which a partition had no reader.
    pub unread: Duration,
    /// The longest time in which a partition had no live ownership, in either casing of the names.
    pub unowned: Duration,
    /// The partitions that had two live ownerships, one in each casing of the names.
    pub owned_twice: BTreeSet<String>,
}

/// A time in which something was absent.
#[derive(Default)]
struct Gap {
    since: Option<Instant>,
    longest: Duration,
}

#[derive(Default)]
struct Records {
    unowned: BTreeMap<String, Gap>,
    owned_twice: BTreeSet<String>,
}

impl Continuity {
    pub fn of(fleet: &Fleet) -> Self {
        let (ended, end) = watch::channel(false);
        let readers = tokio::spawn(watch_readers(fleet.hub.clone(), end.clone()));
        let stores = [NameCase::Lower, NameCase::Verbatim].map(|case| fleet.observer(case).clone());
        let records = tokio::spawn(watch_records(stores, fleet.hub.partition_ids(), fleet.expiry, end));
        Self { ended, readers, records }
    }

    pub async fn observed(self) -> Observed {
        self.ended.send_replace(true);
        let (readers, records) = (self.readers.await.unwrap(), self.records.await.unwrap());
        Observed { unread: longest(readers), unowned: longest(records.unowned), owned_twice: records.owned_twice }
    }
}

impl Gap {
    fn see(&mut self, is_present: bool) {
        if is_present {
            self.close();
        } else {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    fn close(&mut self) {
        if let Some(since) = self.since.take() {
            self.longest = self.longest.max(since.elapsed());
        }
    }
}

fn longest(gaps: BTreeMap<String, Gap>) -> Duration {
    let longest = gaps.into_values().map(|mut gap| {
        gap.close();
        gap.longest
    });
    longest.max().unwrap_or_default()
}

async fn watch_readers(hub: EventHubEmulator, end: watch::Receiver<bool>) -> BTreeMap<String, Gap> {
    let (mut gaps, partitions) = (BTreeMap::<_, Gap>::new(), hub.partition_ids());
    let mut poll = interval(READER_POLL);
    while !*end.borrow() {
        poll.tick().await;
        for partition in &partitions {
            let has_reader = hub.open_receivers("$Default", partition).unwrap() > 0;
            gaps.entry(partition.clone()).or_default().see(has_reader);
        }
    }
    gaps
}

async fn watch_records(
    stores: [GroupStore; 2],
    partitions: Vec<String>,
    expiry: Duration,
    end: watch::Receiver<bool>,
) -> Records {
    let mut records = Records::default();
    while !*end.borrow() {
        let listed = [owners_in(&stores[0]).await, owners_in(&stores[1]).await];
        for partition in &partitions {
            let live = listed.iter().filter_map(|listed| listed.get(partition));
            let live = live.filter(|(owner, age)| !owner.is_empty() && *age <= expiry).count();
            records.unowned.entry(partition.clone()).or_default().see(live > 0);
            if live > 1 {
                records.owned_twice.insert(partition.clone());
            }
        }
        sleep(RECORD_POLL).await;
    }
    records
}
