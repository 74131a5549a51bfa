//! Owners that behave like those of the other SDKs, as far as other instances can observe.
//!
//! All of them compare the server's times with their own wall clock, renew their partitions in every cycle, write only
//! `ownerid` (which erases all other keys), and write checkpoints without conditions. Their differences are in their
//! [`Rules`], which were taken from their sources in November 2026. Which of them read on after the loss of an
//! ownership was seen with the published SDKs (`tests/official/mixed_fleet/sharing.rs`).
//!
//! # Simplified
//!
//! - All of them list first, then renew and claim, and then wait for the interval, regardless of how long that took.
//! - An error never ends the process, even if it would end that of the SDK. Every owner keeps the name that the plan
//!   gives it.

mod choice;
mod reading;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use self::choice::{Seen, choose};
pub(super) use self::reading::Reading;
pub use self::rules::Sdk;
use self::rules::{OnError, Rules};
use super::host::{ExitStatus, Host, InstanceFuture, InstanceKind};
use eventhubs_checkpoint::blob::{Condition, ETag, Metadata};
use eventhubs_checkpoint::internal::codec::{BlobNames, NameCase, RecordKind};
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::{ErrorKind, PartitionId, Result};

/// The request timeout.
const DEADLINE: Duration = Duration::from_secs(30);

/// An owner that behaves like that of another SDK.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    rules: Rules,
}

impl Foreign {
    /// Creates an owner that behaves like that of this SDK, with the SDK's defaults.
    #[must_use]
    pub fn like(sdk: Sdk) -> Self {
        Self { rules: Rules::of(sdk) }
    }
}

impl InstanceKind for Foreign {
    fn is_crate_processor(&self) -> bool {
        false
    }

    fn live(&self, host: Host) -> InstanceFuture {
        let instance = Instance::new(self.rules, host);
        Box::pin(instance.run())
    }
}

struct Instance {
    rules: Rules,
    host: Arc<Host>,
    names: BlobNames,
    rng: StdRng,
    readings: BTreeMap<PartitionId, Reading>,
}

impl Instance {
    fn new(rules: Rules, host: Host) -> Self {
        let names = BlobNames::new(&host.group, NameCase::Lower);
        let rng = StdRng::seed_from_u64(host.seed);
        Self { rules, host: Arc::new(host), names, rng, readings: BTreeMap::new() }
    }

    async fn run(mut self) -> ExitStatus {
        let requested = self.host.shut_down();
        tokio::pin!(requested);
        loop {
            self.host.runs().await;
            // An error does not end this owner: in practice a process that an error ended is restarted.
            let claimed = tokio::select! {
                biased;
                () = &mut requested => break,
                cycle = self.cycle() => cycle.unwrap_or(false),
            };
            let pause = self.rules.again_after.filter(|_| claimed).unwrap_or(self.rules.interval);
            let pause = pause.mul_f64(self.rng.random_range(1.0..1.0 + self.rules.jitter));
            tokio::select! {
                biased;
                () = &mut requested => break,
                () = sleep(pause) => {}
            }
        }
        let owned: Vec<_> = std::mem::take(&mut self.readings).into_keys().collect();
        if self.rules.releases {
            self.release(owned).await;
        }
        ExitStatus::Shutdown { clean: true, report: String::new() }
    }

    /// Lists, renews and claims. Returns whether it tried to claim anything.
    async fn cycle(&mut self) -> Result<bool> {
        let partitions = self.host.source.event_hub_properties().await?.partitions;
        let seen = self.list().await?;
        let choice = choose(&self.rules, self.host.owner.as_str(), &partitions, &seen, &mut self.rng);
        if self.rules.stops_when_taken {
            self.readings.retain(|partition, _| choice.owned.contains(partition));
        }
        let due = |partition: &PartitionId| {
            !self.rules.renews_only_old || seen.get(partition).is_none_or(|seen| seen.age > self.rules.interval)
        };
        let (due, fresh): (Vec<_>, Vec<_>) = choice.owned.into_iter().partition(due);
        for partition in fresh {
            self.read(partition);
        }
        self.claim_all(due.into_iter().chain(choice.wanted.iter().cloned()).collect(), &seen).await?;
        Ok(!choice.wanted.is_empty())
    }

    async fn claim_all(&mut self, partitions: Vec<PartitionId>, seen: &BTreeMap<PartitionId, Seen>) -> Result<()> {
        let at_once = if self.rules.concurrent { partitions.len().max(1) } else { 1 };
        for some in partitions.chunks(at_once) {
            let claims = join_all(some.iter().map(|partition| self.claim(partition, seen.get(partition)))).await;
            for (partition, claimed) in some.iter().zip(claims) {
                match (claimed, self.rules.on_error) {
                    (Ok(true), _) | (Err(_), OnError::Keeps) => self.read(partition.clone()),
                    (Ok(false), _) if self.rules.stops_when_taken => drop(self.readings.remove(partition)),
                    (Ok(false), _) | (Err(_), OnError::GoesOn) => {}
                    (Err(error), OnError::EndsCycle) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Starts to read the partition, unless it is read already.
    fn read(&mut self, partition: PartitionId) {
        if !self.readings.get(&partition).is_some_and(Reading::goes_on) {
            let reading = Reading::begin(Arc::clone(&self.host), &self.names, partition.clone());
            self.readings.insert(partition, reading);
        }
    }

    async fn list(&self) -> Result<BTreeMap<PartitionId, Seen>> {
        let prefix = self.names.record_prefix(RecordKind::Ownership);
        let listing = within(self.host.container.list(prefix)).await?;
        if self.rules.lists_checkpoints {
            within(self.host.container.list(self.names.record_prefix(RecordKind::Checkpoint))).await?;
        }
        let now = self.host.clock.now();
        let mut seen = BTreeMap::new();
        for blob in listing.blobs {
            let Ok(partition) = self.names.parse_partition(RecordKind::Ownership, &blob.name) else { continue };
            let owner = blob.metadata.get("ownerid").map(str::to_owned).unwrap_or_default();
            let age = now - blob.last_modified;
            let live = age < time::Duration::try_from(self.rules.expiry).unwrap_or(time::Duration::MAX);
            seen.insert(partition, Seen { owner, age, live, etag: blob.etag });
        }
        Ok(seen)
    }

    /// Returns whether the claim or the renewal succeeded.
    async fn claim(&self, partition: &PartitionId, seen: Option<&Seen>) -> Result<bool> {
        let condition = match seen {
            Some(seen) => Condition::IfMatch(seen.etag.clone()),
            None => Condition::Create,
        };
        match self.write(partition, self.host.owner.as_str(), &condition).await {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, owned: Vec<PartitionId>) {
        let Ok(seen) = self.list().await else { return };
        for partition in owned {
            let etag: Option<&ETag> =
                seen.get(&partition).filter(|seen| seen.owner == self.host.owner.as_str()).map(|seen| &seen.etag);
            if let Some(etag) = etag {
                // If the release fails, the lease expires.
                let _ = self.write(&partition, "", &Condition::IfMatch(etag.clone())).await;
            }
        }
    }

    async fn write(&self, partition: &PartitionId, owner: &str, condition: &Condition) -> Result<()> {
        let name = self.names.record_name(RecordKind::Ownership, partition);
        let metadata = Metadata::from([("ownerid".to_owned(), owner.to_owned())]);
        within(self.host.container.write(&name, &metadata, condition)).await.map(drop)
    }
}

pub(super) async fn within<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(DEADLINE, request)
        .await
        .unwrap_or_else(|_| Err(eventhubs_checkpoint::Error::new(ErrorKind::Indeterminate, "the request timed out")))
}
