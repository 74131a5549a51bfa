//! Continuously lists the checkpoints of a group.

use std::time::Duration;

use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint_lab::history::{Positions, listed};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const EVERY: Duration = Duration::from_millis(50);

/// Panics as soon as a checkpoint has moved back or disappeared.
pub struct Watcher {
    positions: watch::Receiver<Positions>,
    stop: oneshot::Sender<()>,
    watching: JoinHandle<u32>,
}

impl Watcher {
    pub fn start(store: GroupStore) -> Self {
        let (seen, positions) = watch::channel(Positions::new());
        let (stop, stopped) = oneshot::channel();
        let watching = tokio::spawn(watch(store, seen, stopped));
        Self { positions, stop, watching }
    }

    /// Waits until every partition's checkpoint has the wanted position.
    pub async fn wait_for(&mut self, wanted: &Positions, deadline: Duration) {
        let mut seen = self.positions.clone();
        let there = timeout(deadline, seen.wait_for(|seen| seen == wanted)).await;
        let there = there.unwrap_or_else(|_| panic!("checkpoints are {:?}, not {wanted:?}", self.positions.borrow()));
        there.expect("the watcher has ended");
    }

    /// Lists a last time. Returns this listing and the number of listings.
    pub async fn finish(self) -> (Positions, u32) {
        // An error means that it has panicked, which is reported below.
        let _ = self.stop.send(());
        let observations = self.watching.await.unwrap();
        (self.positions.borrow().clone(), observations)
    }
}

async fn watch(store: GroupStore, positions: watch::Sender<Positions>, mut stopped: oneshot::Receiver<()>) -> u32 {
    let mut observations = 0;
    loop {
        let is_last = !matches!(stopped.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let seen = checkpoints(&store).await;
        for verdict in listed(&positions.borrow(), &seen) {
            assert_eq!(verdict.breach, None);
        }
        positions.send_replace(seen);
        observations += 1;
        if is_last {
            return observations;
        }
        sleep(EVERY).await;
    }
}

/// A checkpoint before the first event counts as -1.
async fn checkpoints(store: &GroupStore) -> Positions {
    let listing = store.list_checkpoints().await.unwrap();
    assert!(listing.malformed.is_empty(), "{:?}", listing.malformed);
    let positions = listing.records.into_iter().map(|checkpoint| {
        let position = checkpoint.record.sequence_number.unwrap_or(-1);
        (checkpoint.partition.to_string(), position)
    });
    positions.collect()
}
