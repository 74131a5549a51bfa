//! A balancing loop over some partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{
    Balancer, BalancerConfig, BalancerHandle, LoadBalancingStrategy, PartitionOwner, Snapshot, Snapshots,
};
use eventhubs_checkpoint::{PartitionId, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::bench::Owner;
use crate::wire::Sent;

/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

pub struct Group {
    handle: BalancerHandle,
    snapshots: Snapshots,
    running: JoinHandle<Result<()>>,
    _partitions: watch::Sender<Arc<[PartitionId]>>,
}

impl Group {
    /// Lets this owner take its share of this many partitions, as soon as it can.
    pub fn run(owner: &Owner, partitions: u32) -> Self {
        let config = BalancerConfig::default()
            .with_load_balancing_interval(Duration::from_millis(40))
            .with_load_balancing_strategy(LoadBalancingStrategy::Greedy)
            .with_seed(7);
        let (sender, named) = watch::channel((0..partitions).map(PartitionId::from).collect());
        let (balancer, handle) = Balancer::new(owner.store.clone(), config, named).unwrap();
        let running = tokio::spawn(balancer.run());
        Self { snapshots: handle.snapshots(), handle, running, _partitions: sender }
    }

    pub async fn until(&mut self, what: &str, condition: impl FnMut(&Snapshot) -> bool) {
        let waited = timeout(TIMEOUT, self.snapshots.wait_for(condition)).await;
        drop(waited.unwrap_or_else(|_| panic!("timed out: {what}")).unwrap());
    }

    pub async fn until_it_holds(&mut self, partitions: &[u32]) {
        let partitions: Vec<PartitionId> = partitions.iter().copied().map(PartitionId::from).collect();
        let what = format!("{partitions:?} held");
        self.until(&what, |snapshot| snapshot.owned.keys().eq(&partitions)).await;
    }

    /// Returns the partitions held, with their epochs.
    pub fn held(&self) -> BTreeMap<PartitionId, i64> {
        self.snapshots.borrow().owned.clone()
    }

    /// Waits until this many matching requests were sent, and discards them.
    pub async fn until_sent(&self, owner: &Owner, what: &str, wanted: impl Fn(&Sent) -> bool, times: usize) {
        let waiting = async {
            let mut seen = 0;
            while seen < times {
                sleep(Duration::from_millis(20)).await;
                seen += owner.sent().iter().filter(|sent| wanted(sent)).count();
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
    }

    /// Runs enough more cycles to see what does not happen, and returns the owners.
    pub async fn settled(&mut self) -> Vec<PartitionOwner> {
        let cycles = self.snapshots.borrow().cycles;
        self.until("more cycles", |snapshot| snapshot.cycles >= cycles + 3).await;
        self.snapshots.borrow().partitions.iter().map(|view| view.owner.clone()).collect()
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> Result<()> {
        timeout(TIMEOUT, self.running).await.expect("timed out: the end").unwrap()
    }

    pub async fn stop(self) {
        self.handle.shutdown().await;
        self.running.await.unwrap().unwrap();
    }
}
