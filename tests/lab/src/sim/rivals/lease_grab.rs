//! Lease grabbing: the host that holds the fewest partitions is the first to respond to a challenge.
//!
//! This algorithm is not from the world of event hubs; it uses a key-value store with conditional writes and
//! notifications. A host challenges for every partition that it does not process. Every host then waits, longer the
//! more partitions it holds, and tries to write its name. The host that processes the partition has an advantage of one
//! partition; if it loses nevertheless it stops, and the winner starts. The author withdrew the algorithm: a host under
//! heavy load responds late and loses its partitions.
//!
//! # Simplified
//!
//! - The keys are blobs; each access is one request. Notifications cost nothing, arrive at once and are never lost.
//! - Challenges are spread over the lease. Otherwise a new host would win all partitions at once.
//! - The host that processes a partition wins a tie. Otherwise the partition would move forever if shares are uneven by
//!   one, although the algorithm claims that a single partition never moves.
//! - A loser stops at once, so that a winner waits only for crashed hosts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use eventhubs_checkpoint::blob::{Condition, Metadata};
use eventhubs_checkpoint::internal::codec::{BlobNames, NameCase, RecordKind};
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::{ErrorKind, PartitionId, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::sim::foreign::{Reading, within};
use crate::sim::host::{ExitStatus, Host, InstanceFuture, InstanceKind};

/// How often a host challenges for each partition.
const LEASE: Duration = Duration::from_secs(60);

/// A partition that was not challenged for this long is stuck: its winner crashed before it had finished.
const LONGEST_LEASE: Duration = Duration::from_secs(180);

/// How long a winner waits for the loser to stop.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(10);

/// How long a partition is not challenged again after it was won.
const SHORTEST_GRAB: Duration = Duration::from_secs(30);

/// By how much the response is delayed for each partition held.
const DELAY_PER_PARTITION: Duration = Duration::from_millis(500);

/// The extra delay of hosts that do not process the partition, so that a tie does not depend on the order of
/// notifications.
const TIE_BREAK: Duration = Duration::from_millis(100);

/// How many notifications may wait for a host.
const WAITING: usize = 4096;

/// An instance of a group that uses lease grabbing. Clones belong to the same group: they share the notifications.
#[derive(Clone, Debug)]
pub struct LeaseGrab {
    notices: broadcast::Sender<Notice>,
}

impl Default for LeaseGrab {
    fn default() -> Self {
        Self { notices: broadcast::Sender::new(WAITING) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Notice {
    /// A host challenges.
    Grab(PartitionId),
    /// The loser has stopped.
    AllocatedEnded(PartitionId),
}

impl InstanceKind for LeaseGrab {
    fn is_crate_processor(&self) -> bool {
        false
    }

    fn live(&self, host: Host) -> InstanceFuture {
        let instance = Instance {
            names: BlobNames::new(&host.group, NameCase::Lower),
            host: Arc::new(host),
            notices: self.notices.clone(),
            readings: Mutex::default(),
            challenged: Mutex::default(),
        };
        Box::pin(run(Arc::new(instance)))
    }
}

struct Instance {
    names: BlobNames,
    host: Arc<Host>,
    notices: broadcast::Sender<Notice>,
    readings: Mutex<BTreeMap<PartitionId, Reading>>,
    /// When the last challenge for each partition was received.
    challenged: Mutex<BTreeMap<PartitionId, Instant>>,
}

async fn run(instance: Arc<Instance>) -> ExitStatus {
    let requested = instance.host.shut_down();
    tokio::pin!(requested);
    let mut heard = instance.notices.subscribe();
    let mut contests = JoinSet::new();
    contests.spawn(challenge_repeatedly(Arc::clone(&instance)));
    loop {
        tokio::select! {
            biased;
            () = &mut requested => break,
            notice = heard.recv() => match notice {
                Ok(Notice::Grab(partition)) => drop(contests.spawn(contend(Arc::clone(&instance), partition))),
                Ok(Notice::AllocatedEnded(_)) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
        }
        while contests.try_join_next().is_some() {}
    }
    contests.shutdown().await;
    let owned: Vec<_> = std::mem::take(&mut *instance.readings()).into_keys().collect();
    for partition in owned {
        // If the write fails, the next challenge reassigns the partition.
        let _ = instance.give_up(&partition).await;
    }
    ExitStatus::Shutdown { clean: true, report: String::new() }
}

/// Challenges once per lease, partition by partition.
async fn challenge_repeatedly(instance: Arc<Instance>) {
    let mut rng = StdRng::seed_from_u64(instance.host.seed);
    loop {
        let Ok(hub) = instance.host.source.event_hub_properties().await else {
            sleep(LEASE).await;
            continue;
        };
        let (begin, mut partitions) = (Instant::now(), hub.partitions);
        let step = LEASE / u32::try_from(partitions.len().max(1)).unwrap_or(1);
        for turn in 1.. {
            if partitions.is_empty() {
                break;
            }
            let partition = partitions.swap_remove(rng.random_range(0..partitions.len()));
            instance.host.runs().await;
            if instance.processes(&partition) {
                instance.reads_on(&partition);
            } else {
                // The next round tries it again.
                let _ = instance.challenge(&partition).await;
            }
            sleep_until(begin + step * turn).await;
        }
    }
}

/// Responds to a challenge. Every host does this.
async fn contend(instance: Arc<Instance>, partition: PartitionId) {
    instance.challenged().insert(partition.clone(), Instant::now());
    // Two statements: a guard of the first one would be held until its end.
    let held = instance.readings().len();
    let processes = instance.processes(&partition);
    let doubled = u32::try_from(2 * held).unwrap_or(u32::MAX);
    let halves = if processes { doubled.saturating_sub(1) } else { doubled + 1 };
    let tie_break = if processes { Duration::ZERO } else { TIE_BREAK };
    sleep(DELAY_PER_PARTITION * halves / 2 + tie_break).await;
    instance.host.runs().await;
    // An error is not a defeat: the outcome is unknown.
    let Ok(won) = instance.grab(&partition).await else { return };
    let _ = match (won, processes) {
        (true, false) => instance.take_over(&partition).await,
        (false, true) => instance.lose(&partition).await,
        _ => Ok(()),
    };
    if won {
        sleep(SHORTEST_GRAB).await;
        let _ = instance.end_of_grab(&partition).await;
    }
}

impl Instance {
    fn readings(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Reading>> {
        lock(&self.readings)
    }

    fn challenged(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Instant>> {
        lock(&self.challenged)
    }

    fn processes(&self, partition: &PartitionId) -> bool {
        self.readings().contains_key(partition)
    }

    fn allocation_key(&self, partition: &PartitionId) -> String {
        self.names.record_name(RecordKind::Ownership, partition)
    }

    fn grab_key(&self, partition: &PartitionId) -> String {
        format!("{}/grab", self.allocation_key(partition).replace("/ownership/", "/grabs/"))
    }

    async fn challenge(&self, partition: &PartitionId) -> Result<()> {
        match within(self.host.container.get(&self.grab_key(partition))).await {
            Ok(_) if !self.is_stuck(partition) => return Ok(()),
            Ok(_) => self.end_of_grab(partition).await?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Sending fails only if there are no receivers.
        let _ = self.notices.send(Notice::Grab(partition.clone()));
        Ok(())
    }

    fn is_stuck(&self, partition: &PartitionId) -> bool {
        let mut challenged = self.challenged();
        let last = *challenged.entry(partition.clone()).or_insert_with(Instant::now);
        last.elapsed() > LONGEST_LEASE
    }

    /// Returns whether this host won.
    async fn grab(&self, partition: &PartitionId) -> Result<bool> {
        match self.write(&self.grab_key(partition), self.host.owner.as_str(), &Condition::Create).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn end_of_grab(&self, partition: &PartitionId) -> Result<()> {
        within(self.host.container.remove(&self.grab_key(partition))).await.map(drop)
    }

    async fn take_over(self: &Arc<Self>, partition: &PartitionId) -> Result<()> {
        let mut heard = self.notices.subscribe();
        if self.is_allocated(partition).await? {
            let ended = Notice::AllocatedEnded(partition.clone());
            let stopped = async { while heard.recv().await.is_ok_and(|notice| notice != ended) {} };
            // A crashed host does not respond.
            let _ = timeout(LONGEST_SHUTDOWN, stopped).await;
        }
        self.allocate(partition, self.host.owner.as_str()).await?;
        self.readings().insert(partition.clone(), self.read(partition));
        Ok(())
    }

    fn read(&self, partition: &PartitionId) -> Reading {
        Reading::begin(Arc::clone(&self.host), &self.names, partition.clone())
    }

    /// Opens the reading again if it broke.
    fn reads_on(&self, partition: &PartitionId) {
        if let Some(reading) = self.readings().get_mut(partition).filter(|reading| !reading.goes_on()) {
            *reading = self.read(partition);
        }
    }

    async fn is_allocated(&self, partition: &PartitionId) -> Result<bool> {
        match within(self.host.container.get(&self.allocation_key(partition))).await {
            Ok(blob) => Ok(blob.metadata.get("ownerid").is_some_and(|owner| !owner.is_empty())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn lose(&self, partition: &PartitionId) -> Result<()> {
        drop(self.readings().remove(partition));
        self.give_up(partition).await
    }

    async fn give_up(&self, partition: &PartitionId) -> Result<()> {
        self.allocate(partition, "").await?;
        let _ = self.notices.send(Notice::AllocatedEnded(partition.clone()));
        Ok(())
    }

    async fn allocate(&self, partition: &PartitionId, owner: &str) -> Result<()> {
        let metadata = Metadata::from([("ownerid".to_owned(), owner.to_owned())]);
        within(self.host.container.overwrite(&self.allocation_key(partition), &metadata)).await.map(drop)
    }

    async fn write(&self, name: &str, owner: &str, condition: &Condition) -> Result<()> {
        let metadata = Metadata::from([("ownerid".to_owned(), owner.to_owned())]);
        within(self.host.container.write(name, &metadata, condition)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{InstanceFactory, Plan, Role, Scale, TimelineEvent, run};

    struct Grabbing(LeaseGrab);

    impl InstanceFactory for Grabbing {
        fn kind_of(&self, _: Role) -> Arc<dyn InstanceKind> {
            Arc::new(self.0.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_shares_all_partitions() {
        let scale = Scale { instances: 2, partitions: 4, storm: Duration::from_secs(900), ..Scale::default() };
        let report = run(&Plan::calm(1, &scale), &Grabbing(LeaseGrab::default()), false).await.unwrap();
        let mut owners = BTreeMap::new();
        for entry in report.timeline.iter().take_while(|entry| entry.event != TimelineEvent::Calm) {
            if let TimelineEvent::Owner { partition } = entry.event {
                owners.insert(partition, entry.member);
            }
        }
        let held = |member| owners.values().filter(|owner| **owner == Some(member)).count();
        assert!(held(0) + held(1) == 4 && held(0) > 0 && held(1) > 0, "{owners:?}");
    }
}
