//! Restarts that move no partition: [`OnShutdown::Keep`].

use std::time::Duration;

use eventhubs_checkpoint::balancer::{ClaimReason, LoadBalancingStrategy, OwnershipEvent};
use eventhubs_checkpoint::processor::{HealthIssue, OnShutdown, ProcessorConfig};
use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan};
use eventhubs_checkpoint::{LeaseScope, OwnerId};
use tokio::time::{Instant, sleep};

use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// Two instances that share six partitions, and keep theirs when they shut down.
fn keeping() -> World {
    let mut world = World::new(6);
    world.config = ProcessorConfig::default()
        .with_checkpoint_policy(world.config.checkpoint_policy)
        .with_on_shutdown(OnShutdown::Keep)
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    world
}

mod kept {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_return_without_a_move() {
        let world = keeping();
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        let (before, mut seen_by_a) = (world.owners().await, a.handle.ownership_events());
        let report = b.shut_down().await.unwrap();
        assert!(report.is_clean() && report.kept == 3 && report.unreleased == 0, "{report:?}");
        assert_eq!(world.owners().await, before);

        sleep(20 * SECOND).await;
        let b = OwnerId::new("b").unwrap();
        let away = HealthIssue::OwnerAway { owner: b.clone(), partitions: 3 };
        assert!(a.handle.health().issues.contains(&away), "{:?}", a.handle.health());
        assert_eq!(a.handle.snapshots().borrow().away(), [(b, 3)].into());

        let began = Instant::now();
        let mut b = world.start("b").await;
        let mut claims = b.handle.ownership_events();
        b.wait_until_it_holds(3).await;
        assert!(began.elapsed() <= SECOND, "in its first cycle, after {:?}", began.elapsed());
        assert_eq!(world.owners().await, before);
        while let Ok(event) = claims.try_recv() {
            assert!(
                !matches!(&event, OwnershipEvent::Claimed { reason, .. } if *reason != ClaimReason::Reclaimed),
                "{event:?}"
            );
        }
        sleep(40 * SECOND).await;
        assert!(a.handle.health().issues.is_empty(), "{:?}", a.handle.health());
        let mut away = Vec::new();
        while let Ok(event) = seen_by_a.try_recv() {
            match event {
                OwnershipEvent::OwnerAway { partitions, .. } => away.push(partitions),
                event => panic!("unexpected event: {event:?}"),
            }
        }
        assert_eq!(away, [3, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_processed_twice() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.hub.publish(0, "before");
        world.log.wait_for("before", |log| log.times("before") == 1).await;
        a.shut_down().await.unwrap();
        world.hub.publish(0, "meanwhile");
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.log.wait_for("meanwhile", |log| log.times("meanwhile") == 1).await;
        assert_eq!(world.log.times("before"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_joins_meanwhile_waits() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        a.shut_down().await.unwrap();
        let mut b = world.start("b").await;
        sleep(50 * SECOND).await;
        assert!(b.handle.snapshots().borrow().owned.is_empty(), "{:?}", b.handle.snapshots().borrow());
        let mut a = world.start("a").await;
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
    }

    #[tokio::test(start_paused = true)]
    async fn with_instance_leases_too() {
        let mut world = keeping();
        world.config.balancer.lease_scope = LeaseScope::Instance;
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        // The last heartbeat was half a lease duration before the shutdown.
        sleep(29 * SECOND).await;
        let before = world.owners().await;
        assert_eq!(b.shut_down().await.unwrap().kept, 3);
        sleep(50 * SECOND).await;
        assert_eq!(world.owners().await, before);
        let mut b = world.start("b").await;
        b.wait_until_it_holds(3).await;
        assert_eq!(world.owners().await, before);
        assert_eq!(a.handle.snapshots().borrow().owned.len(), 3);
    }
}

mod not_kept {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unclaimed_partitions_expire() {
        let world = keeping();
        let (mut a, mut b) = (world.start("a").await, world.start("b").await);
        a.wait_until_it_holds(3).await;
        b.wait_until_it_holds(3).await;
        b.shut_down().await.unwrap();
        let began = Instant::now();
        a.wait_until_it_holds(6).await;
        let took = began.elapsed();
        assert!((60 * SECOND..=95 * SECOND).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_that_cannot_be_renewed_are_reported() {
        let world = keeping();
        let mut a = world.start("a").await;
        a.wait_until_it_holds(6).await;
        world.faulty.set_plan(FaultPlan::always(Fault::Hang));
        let report = a.shut_down().await.unwrap();
        assert_eq!((report.kept, report.unreleased), (0, 6), "{report:?}");
        assert!(!report.is_clean());
    }

    #[tokio::test(start_paused = true)]
    async fn a_processor_that_fails_releases() {
        let world = keeping();
        let mut first = world.start("a").await;
        first.wait_until_it_holds(6).await;
        // A later incarnation ends the first one, which keeps nothing for itself.
        let mut second = world.start("a").await;
        assert!(first.ended().await.is_err());
        second.wait_until_it_holds(6).await;
        let report = second.shut_down().await.unwrap();
        assert_eq!(report.kept, 6);
    }
}
