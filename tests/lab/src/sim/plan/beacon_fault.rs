//! What is wrong with the beacon of a group.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// How late a beacon shows what was written to it.
const LATE: Duration = Duration::from_secs(20);

/// What is wrong with the beacon, for all instances and as long as the group runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeaconFault {
    /// It cannot be created.
    Missing,
    /// No read succeeds.
    NotReadable,
    /// Reads show its first state for ever.
    Frozen,
    /// Reads show its state of some time ago.
    Late,
    /// Each read shows a change.
    AlwaysNew,
    /// Another program writes something else into it, again and again.
    Foreign,
}

impl BeaconFault {
    const ALL: [Self; 6] = [Self::Missing, Self::NotReadable, Self::Frozen, Self::Late, Self::AlwaysNew, Self::Foreign];

    /// Half of the groups have one. Uses its own random numbers, so that the rest of the plan stays the same.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xbeac);
        rng.random_bool(0.5).then(|| Self::ALL[rng.random_range(0..Self::ALL.len())])
    }

    /// Returns by how much later an instance may notice a change: a frozen beacon is trusted until it is too old. A
    /// late beacon may be as bad, because it shows old versions, and a write under an old version fails.
    pub(crate) fn delay(self, lease_duration: Duration) -> Duration {
        match self {
            Self::Frozen => 2 * lease_duration,
            Self::Late => 2 * lease_duration + LATE,
            Self::Missing | Self::NotReadable | Self::AlwaysNew | Self::Foreign => Duration::ZERO,
        }
    }

    /// Returns the container with such a beacon.
    pub(crate) fn over(self, container: Arc<dyn BlobContainer>) -> Arc<dyn BlobContainer> {
        Arc::new(LyingBeacon { inner: container, fault: self, shown: Arc::default() })
    }
}

#[derive(Clone)]
struct LyingBeacon {
    inner: Arc<dyn BlobContainer>,
    fault: BeaconFault,
    /// The states of the beacon that were read, with the time of each.
    shown: Arc<Mutex<Vec<(Instant, Blob)>>>,
}

impl LyingBeacon {
    /// Returns what a read shows instead of the true state.
    fn shown_for(&self, mut truth: Blob) -> Blob {
        let mut shown = lock(&self.shown);
        let now = Instant::now();
        shown.push((now, truth.clone()));
        let earlier = match self.fault {
            BeaconFault::Frozen => shown.first(),
            BeaconFault::Late => shown.iter().rev().find(|(read, _)| *read + LATE <= now).or(shown.first()),
            _ => None,
        };
        if let Some((_, earlier)) = earlier {
            truth.metadata = earlier.metadata.clone();
            truth.etag = earlier.etag.clone();
            truth.last_modified = earlier.last_modified;
        }
        match self.fault {
            BeaconFault::AlwaysNew => truth.metadata = Metadata::from([("ehcchange", format!("{}9", shown.len()))]),
            BeaconFault::Foreign => truth.metadata = Metadata::from([("written", "by another program")]),
            _ => {}
        }
        truth
    }
}

impl fmt::Debug for LyingBeacon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LyingBeacon").field("inner", &self.inner).field("fault", &self.fault).finish_non_exhaustive()
    }
}

fn is_beacon(name: &str) -> bool {
    name.ends_with("/beacon")
}

#[async_trait]
impl BlobContainer for LyingBeacon {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        if is_beacon(name) && self.fault == BeaconFault::NotReadable {
            return Err(Error::new(ErrorKind::Unavailable, "the beacon is not readable"));
        }
        let truth = self.inner.get(name).await?;
        Ok(if is_beacon(name) { self.shown_for(truth) } else { truth })
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        if is_beacon(name) && self.fault == BeaconFault::Missing {
            return Err(Error::new(ErrorKind::Unauthorized, "the beacon cannot be created"));
        }
        self.inner.write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.inner.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}
