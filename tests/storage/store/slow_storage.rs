//! A slow storage: what several requests in a row need is not limited as long as each of them is answered in time.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition};
use eventhubs_checkpoint::store::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::membership::{DeclareDeadOutcome, HeartbeatOutcome};
use eventhubs_checkpoint::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, InitOutcome, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::{OwnerId, Position};

use super::{group, zero};
use crate::slow::Latency;

const CHECKPOINT: &str = "ns.servicebus.windows.net/hub/$default/checkpoint/0";

fn position(number: i64) -> Position {
    Position::new(number, number.to_string())
}

/// Two owners in one container, whose requests take as long as the latency says.
struct Slow {
    container: MemoryContainer,
    a: GroupStore,
    b: GroupStore,
}

impl Slow {
    async fn new(latency: Duration) -> Self {
        let (container, slow) = (MemoryContainer::new(), Latency::default());
        slow.set(latency);
        let connect = async |owner| {
            let container = slow.before(Arc::new(container.clone()));
            GroupStore::builder(container, group(), OwnerId::new(owner).unwrap()).connect().await.unwrap()
        };
        let (a, b) = (connect("a").await, connect("b").await);
        Self { container, a, b }
    }

    async fn won(&self) -> Lease {
        match self.a.claim(&Claim::unowned(zero())).await {
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

/// Each request takes almost as long as it may, 5 s, or less.
async fn latencies(check: impl AsyncFn(Slow)) {
    for milliseconds in [100, 1000, 2600, 3400, 4900] {
        check(Slow::new(Duration::from_millis(milliseconds)).await).await;
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
        drop(slow.a.claim(&Claim::unowned(zero()).with_cooperative(true)).await);
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
        let latency = Latency::default();
        latency.set(Duration::from_millis(4900));
        let container = latency.before(Arc::new(slow.container.clone()));
        let restarted = GroupStore::builder(container, group(), OwnerId::new("a").unwrap()).connect().await.unwrap();
        assert_eq!(restarted.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
        drop(restarted.claim(&Claim::unowned(zero())).await);
        tokio::time::sleep(Duration::from_secs(70)).await;
        let seen = slow.b.read_ownership(&zero()).await.unwrap().unwrap();
        let declared = slow.b.declare_dead(&seen, None).await.unwrap();
        assert_eq!(declared, DeclareDeadOutcome::Declared);
        restarted.remove_heartbeat().await.unwrap();
    })
    .await;
}
