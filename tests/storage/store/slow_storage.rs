//! A slow storage: what several requests in a row need is not limited as long as each of them is answered in time.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition};
use eventhubs_checkpoint::store::protocol::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::protocol::membership::{DeclareDeadOutcome, HeartbeatOutcome};
use eventhubs_checkpoint::store::protocol::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, InitOutcome, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::testing::faulty::{Latency, Platform};
use eventhubs_checkpoint::{LeaseScope, OwnerId, Position};

use super::{group, zero};

const CHECKPOINT: &str = "ns.servicebus.windows.net/hub/$default/checkpoint/0";

fn position(number: i64) -> Position {
    Position::new(number, number.to_string())
}

/// The settings of a store, what keeps its leases alive, and how long each request takes.
#[derive(Clone, Debug)]
struct Terms {
    config: StoreConfig,
    scope: LeaseScope,
    latency: Duration,
}

/// Two owners in one container.
struct Slow {
    terms: Terms,
    container: MemoryContainer,
    a: GroupStore,
    b: GroupStore,
}

impl Slow {
    async fn new(terms: Terms) -> Self {
        let container = MemoryContainer::new();
        let (a, b) = (terms.connect(&container, "a").await, terms.connect(&container, "b").await);
        Self { terms, container, a, b }
    }

    fn claim(&self) -> Claim {
        Claim::unowned(zero()).with_lease_scope(self.terms.scope)
    }

    async fn won(&self) -> Lease {
        match self.a.claim(&self.claim()).await {
            ClaimOutcome::Won(lease) => lease,
            other => panic!("not won: {other:?}"),
        }
    }

    async fn adopted(&self) -> Adoption {
        let epoch = self.won().await.epoch();
        match self.a.adopt(&zero(), epoch, Some(&position(4))).await.unwrap() {
            AdoptOutcome::Adopted(adoption) => adoption,
            other @ AdoptOutcome::Lost { .. } => panic!("not adopted: {other:?}"),
            _ => unreachable!(),
        }
    }

    /// Changes the version of the checkpoint, as a late write does.
    async fn touch_checkpoint(&self) {
        let blob = self.container.get(CHECKPOINT).await.unwrap();
        self.container.write(CHECKPOINT, &blob.metadata, &Condition::IfMatch(blob.etag)).await.unwrap();
    }
}

impl Terms {
    async fn connect(&self, container: &MemoryContainer, owner: &str) -> GroupStore {
        let slow = Platform::new(Arc::new(container.clone()), 7).with_latency(Latency::constant(self.latency));
        let builder = GroupStore::builder(Arc::new(slow), group(), OwnerId::new(owner).unwrap());
        builder.with_config(self.config.clone()).connect().await.unwrap()
    }
}

/// Each request takes almost as long as it may, or less.
async fn latencies(check: impl AsyncFn(Slow)) {
    let (config, fast) = (StoreConfig::default(), StoreConfig::fast_failover());
    for (config, scope, milliseconds) in [
        (&config, LeaseScope::Partition, [100, 1000, 2600, 3400, 4900]),
        (&config, LeaseScope::Instance, [100, 1000, 2600, 3400, 4900]),
        (&fast, LeaseScope::Instance, [100, 500, 1100, 1500, 1900]),
    ] {
        for latency in milliseconds.map(Duration::from_millis) {
            check(Slow::new(Terms { config: config.clone(), scope, latency }).await).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_although_responses_are_slow() {
    latencies(async |slow| {
        let lease = slow.won().await;
        let ClaimOutcome::Won(lease) = slow.a.renew(&lease).await else { panic!("not renewed") };
        let released = slow.a.release(&lease).await;
        assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_is_adopted_by_slow_requests() {
    latencies(async |slow| {
        let adoption = slow.adopted().await;
        assert_eq!(adoption.record().sequence_number, Some(4));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_is_written_by_slow_requests() {
    latencies(async |slow| {
        let mut adoption = slow.adopted().await;
        slow.touch_checkpoint().await;
        let written = slow.a.checkpoint(&mut adoption, &position(5)).await.unwrap();
        assert_eq!(written, CheckpointOutcome::Written);
        slow.a.replace_checkpoint(&mut adoption, &position(3)).await.unwrap();
        assert_eq!(slow.a.init_checkpoint(&1.into(), &position(0)).await.unwrap(), InitOutcome::Written);
        assert_eq!(slow.a.init_checkpoint(&zero(), &position(0)).await.unwrap(), InitOutcome::Exists);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_handoff_is_requested_by_slow_requests() {
    latencies(async |slow| {
        drop(slow.a.claim(&slow.claim().with_cooperative(true)).await);
        let seen = slow.b.read_ownership(&zero()).await.unwrap().unwrap();
        let requested = slow.b.request_handoff(&seen).await.unwrap();
        let HandoffRequestOutcome::Requested(mut handoff) = requested else { panic!("{requested:?}") };
        slow.b.poll_handoff(&mut handoff).await.unwrap();
    })
    .await;
}

/// The heartbeat of an earlier incarnation is in the way.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_is_sent_by_slow_requests() {
    latencies(async |slow| {
        assert_eq!(slow.a.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
        let restarted = slow.terms.connect(&slow.container, "a").await;
        assert_eq!(restarted.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
        drop(restarted.claim(&slow.claim()).await);
        tokio::time::sleep(Duration::from_secs(70)).await;
        let seen = slow.b.read_ownership(&zero()).await.unwrap().unwrap();
        let declared = slow.b.declare_dead(&seen, None).await.unwrap();
        assert_eq!(declared, DeclareDeadOutcome::Declared);
        restarted.end_heartbeat().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn records_are_read_and_listed_by_slow_requests() {
    latencies(async |slow| {
        let _ = (slow.adopted().await, slow.a.send_heartbeat().await.unwrap());
        assert_eq!(slow.b.list_ownerships().await.unwrap().records.len(), 1);
        assert_eq!(slow.b.list_checkpoints().await.unwrap().records.len(), 1);
        assert_eq!(slow.b.list_heartbeats().await.unwrap().records.len(), 1);
        assert!(slow.b.checkpoint_of(&zero()).await.unwrap().is_some());
        assert!(slow.b.read_ownership(&zero()).await.unwrap().is_some());
    })
    .await;
}

/// Ten lease durations later.
#[tokio::test(start_paused = true)]
async fn stale_heartbeats_are_deleted_by_slow_requests() {
    latencies(async |slow| {
        let _ = slow.a.send_heartbeat().await.unwrap();
        tokio::time::sleep(Duration::from_secs(700)).await;
        let seen = slow.b.list_heartbeats().await.unwrap().records;
        assert_eq!(slow.b.delete_stale_heartbeats(&seen).await.unwrap().len(), 1);
    })
    .await;
}
