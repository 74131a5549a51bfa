//! Concurrent calls: no call waits for another one without need.

use std::time::Duration;

use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use tokio::time::{Instant, sleep};

use super::records::{NONE, adapter, checkpoint, cycle, faulty, name_of, put, refused, settled, writes};

/// The default timeout of one request.
const DEADLINE: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn renewals_are_concurrent() {
    let (faulty, _) = faulty();
    let a = adapter(faulty.clone());
    assert_eq!(cycle(&*a, "a", 0..32).await.len(), 32);
    // One of them hangs; the others do not wait for it to be sent.
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("ownership"), Fault::Latency(Duration::from_secs(2))));
    let started = Instant::now();
    assert_eq!(cycle(&*a, "a", 0..32).await.len(), 32);
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_hung_checkpoint_delays_no_renewal() {
    let (faulty, _) = faulty();
    let a = settled(faulty.clone()).await;
    cycle(&*a, "a", [0, 1]).await;
    faulty.inject_on(writes("checkpoint"), Fault::Hang);
    let hanging = async {
        // The missing response is verified, and the checkpoint is written after all.
        checkpoint(&*a, 0, 6).await.unwrap();
        Instant::now()
    };
    let renewing = async {
        sleep(Duration::from_millis(10)).await;
        let started = Instant::now();
        assert_eq!(cycle(&*a, "a", [0, 1]).await, [0, 1]);
        assert_eq!(started.elapsed(), Duration::ZERO);
        Instant::now()
    };
    let (hung_until, renewed_at) = tokio::join!(hanging, renewing);
    assert!(hung_until - renewed_at >= DEADLINE / 2);
}

/// The others' renewals got their responses long before: the processor must be notified.
#[tokio::test(start_paused = true)]
async fn a_hanging_adoption_delays_for_two_timeouts_at_most() {
    let (faulty, container) = faulty();
    let a = settled(faulty.clone()).await;
    // Partition 1 has a checkpoint of an earlier owner, which must be adopted.
    put(&container, &name_of("checkpoint", 1), [("sequencenumber", "7"), ("offset", "700")]).await;
    faulty.set_plan(FaultPlan::default().with_on(1.0, writes("checkpoint"), Fault::Hang));
    let started = Instant::now();
    assert_eq!(cycle(&*a, "a", [0, 1]).await, [0]);
    // The second write begins after a short wait and a read.
    assert!(started.elapsed() <= 2 * DEADLINE + Duration::from_millis(100), "{:?}", started.elapsed());
    faulty.set_plan(FaultPlan::default());
    assert_eq!(cycle(&*a, "a", [0, 1]).await, [0, 1]);
    checkpoint(&*a, 1, 8).await.unwrap();
}

/// Two checkpoints of an old client are in progress when the partition is lost and won again.
#[tokio::test(start_paused = true)]
async fn an_old_clients_rejection_keeps_the_new_ownership() {
    let (faulty, container) = faulty();
    let (a, b) = (settled(faulty.clone()).await, adapter(container));
    faulty.inject_on(writes("checkpoint"), Fault::Latency(Duration::from_secs(3)));
    let first = checkpoint(&*a, 0, 6);
    let second = async {
        sleep(Duration::from_millis(10)).await;
        checkpoint(&*a, 0, 7).await
    };
    let moving = async {
        sleep(Duration::from_millis(20)).await;
        cycle(&*b, "b", [0]).await;
        b.release_all().await;
        assert_eq!(cycle(&*a, "a", [0]).await, NONE);
        assert_eq!(cycle(&*a, "a", [0]).await, [0]);
    };
    let (_, second, ()) = tokio::join!(first, second, moving);
    refused(second);
    checkpoint(&*a, 0, 8).await.unwrap();
    assert_eq!(cycle(&*a, "a", [0]).await, [0]);
}
