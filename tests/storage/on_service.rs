//! The store on the HTTP clients of both SDKs, and behind them a [`Service`] with its manners.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::store::protocol::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::store::protocol::membership::HeartbeatOutcome;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, CheckpointOutcome, Claim, ClaimOutcome, ReleaseOutcome};
use eventhubs_checkpoint::store::{GroupStore, StorageWarning, StoreConfig};
use eventhubs_checkpoint::testing::conformance::Container;
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, LeaseScope, OwnerId, Position, Result, conformance_tests};
use tokio::time::Instant;

use crate::service::{Manners, Service};

const SECOND: Duration = Duration::from_secs(1);
const GROUP: &str = "ns/hub/g/";

/// The service is one, as far as the contract of a container goes.
mod azure {
    use super::*;

    conformance_tests!(Arc::new(missing(Manners { page_size: 5, ..Manners::default() }).azure()));
}

#[cfg(feature = "legacy-sdk")]
mod legacy {
    use super::*;

    conformance_tests!(Arc::new(missing(Manners { page_size: 5, ..Manners::default() }).legacy()));
}

/// Returns a service without the container.
fn missing(manners: Manners) -> Service {
    let service = Service::new(manners);
    service.container.delete_container();
    service
}

/// Returns the containers of both SDKs on a service.
fn clients(service: &Service) -> Vec<Container> {
    vec![
        Arc::new(service.azure()),
        #[cfg(feature = "legacy-sdk")]
        Arc::new(service.legacy()),
    ]
}

async fn connect(container: &Container, owner: &str, config: StoreConfig) -> Result<GroupStore> {
    let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
    GroupStore::builder(container.clone(), group, OwnerId::new(owner).unwrap()).with_config(config).connect().await
}

/// Runs a check with the default settings and with those for a fast failover, through each client, each on a service of
/// its own.
async fn on_each(manners: Manners, check: impl AsyncFn(Service, Container, StoreConfig)) {
    for config in [StoreConfig::default(), StoreConfig::fast_failover()] {
        for client in 0.. {
            let service = Service::new(manners.clone());
            let Some(container) = clients(&service).into_iter().nth(client) else { break };
            check(service, container, config.clone()).await;
        }
    }
}

/// What an instance does from its start to its end, and another one that takes over.
async fn live(container: &Container, config: &StoreConfig) {
    let (a, b) = (
        connect(container, "a", config.clone()).await.unwrap(),
        connect(container, "b", config.clone()).await.unwrap(),
    );
    for _ in 0..2 {
        assert_eq!(a.send_heartbeat().await.unwrap(), HeartbeatOutcome::Written);
    }
    let claim = Claim::unowned(0.into()).with_cooperative(true).with_lease_scope(LeaseScope::Instance);
    let ClaimOutcome::Won(lease) = a.claim(&claim).await else { panic!("not won") };
    assert!(matches!(b.claim(&claim).await, ClaimOutcome::Lost { by: Some(by) } if by.as_str() == "a"));
    let start = Position::new(4, "4");
    let AdoptOutcome::Adopted(mut adoption) = a.adopt(&0.into(), lease.epoch(), Some(&start)).await.unwrap() else {
        panic!("not adopted")
    };
    assert_eq!(a.checkpoint(&mut adoption, &Position::new(5, "5")).await.unwrap(), CheckpointOutcome::Written);
    let ClaimOutcome::Won(lease) = a.renew(&lease).await else { panic!("not renewed") };
    let seen = b.list_ownerships().await.unwrap().records.remove(0);
    let requested = b.request_handoff(&seen).await.unwrap();
    assert!(matches!(requested, HandoffRequestOutcome::Requested(_)), "{requested:?}");
    let ClaimOutcome::Won(lease) = a.renew(&lease).await else { panic!("not renewed") };
    assert_eq!(lease.handoff_requested_by().map(OwnerId::as_str), Some("b"));
    assert!(matches!(a.release(&lease).await, ReleaseOutcome::Released));
    a.end_heartbeat().await.unwrap();

    let seen = b.list_ownerships().await.unwrap().records.remove(0);
    let ClaimOutcome::Won(lease) = b.claim(&Claim::over(&seen)).await else { panic!("not taken over") };
    let AdoptOutcome::Adopted(adoption) = b.adopt(&0.into(), lease.epoch(), None).await.unwrap() else {
        panic!("not adopted")
    };
    assert_eq!(adoption.record().sequence_number, Some(5));
}

#[tokio::test(start_paused = true)]
async fn an_instance_lives_on_the_plain_service() {
    on_each(Manners::default(), async |_, container, config| live(&container, &config).await).await;
}

/// A proxy, or a client of another SDK.
#[tokio::test(start_paused = true)]
async fn an_instance_lives_with_capital_keys() {
    let manners = Manners { capital_keys: true, ..Manners::default() };
    on_each(manners, async |_, container, config| live(&container, &config).await).await;
}

/// The adoption of a group without checkpoints reads what is not there.
#[tokio::test(start_paused = true)]
async fn an_instance_lives_without_error_codes() {
    let manners = Manners { without_codes: true, ..Manners::default() };
    on_each(manners, async |_, container, config| live(&container, &config).await).await;
}

/// Each page is empty and has a marker, until the first blob comes.
#[tokio::test(start_paused = true)]
async fn an_instance_lives_among_deleted_blobs() {
    let manners = Manners { kept: 95, page_size: 10, ..Manners::default() };
    on_each(manners, async |service, container, config| {
        live(&container, &config).await;
        service.requests();
        assert_eq!(container.list(GROUP).await.unwrap().blobs.len(), 2);
        assert_eq!(service.requests().len(), 10);
    })
    .await;
}

/// The least permissions: to read, write and list.
#[tokio::test(start_paused = true)]
async fn an_instance_lives_without_other_permissions() {
    let manners = Manners { refuses_deletions: true, refuses_creation: true, ..Manners::default() };
    on_each(manners, async |service, container, config| {
        let config = config.with_create_container(true);
        live(&container, &config).await;
        let heartbeats = connect(&container, "c", config).await.unwrap();
        assert!(heartbeats.storage_warnings().contains(&StorageWarning::CannotDelete));
        let ended = heartbeats.list_heartbeats().await.unwrap().records.remove(0).record;
        assert_eq!(ended.declared_dead_by.as_ref().map(OwnerId::as_str), Some("a"));
        assert!(service.requests().iter().all(|request| request != "PUT "), "the container exists");
    })
    .await;
}

/// The credentials of a container cannot create it.
#[tokio::test(start_paused = true)]
async fn a_missing_container_needs_the_permission() {
    let service = missing(Manners { refuses_creation: true, ..Manners::default() });
    for container in clients(&service) {
        let config = StoreConfig::default().with_create_container(true);
        assert_eq!(connect(&container, "a", config).await.unwrap_err().kind(), ErrorKind::Unauthorized);
        let found = connect(&container, "a", StoreConfig::default()).await.unwrap_err();
        assert_eq!(found.kind(), ErrorKind::ContainerNotFound);
    }
}

/// Each page is faster than a request may be; their sum is not. Or one page is slower.
#[tokio::test(start_paused = true)]
async fn a_slow_listing_has_more_time_when_repeated() {
    on_each(Manners::default(), async |service, container, config| {
        let store = connect(&container, "a", config.clone()).await.unwrap();
        let limit = config.lease_duration / 2;
        for (kept, page_latency) in [(2000, limit / 4), (0, limit.mul_f64(0.9))] {
            service
                .change(|manners| (manners.kept, manners.page_size, manners.page_latency) = (kept, 1000, page_latency));
            let mut failed = 0;
            while let Err(error) = store.list_ownerships().await {
                assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
                failed += 1;
                assert!(failed <= 4, "{kept} kept blobs, {page_latency:?} for a page: {error}");
            }
            assert!(failed > 0, "it is no test");
            service.change(|manners| (manners.kept, manners.page_latency) = (0, Duration::ZERO));
            store.list_ownerships().await.unwrap();
        }
    })
    .await;
}

/// A restart must not fail where a running instance goes on.
#[tokio::test(start_paused = true)]
async fn an_instance_starts_although_listings_are_slow() {
    on_each(Manners::default(), async |service, container, config| {
        let page_latency = config.lease_duration.mul_f64(0.45);
        service.change(|manners| manners.page_latency = page_latency);
        let config = config.with_verify_storage(false);
        connect(&container, "a", config).await.unwrap();
    })
    .await;
}

/// Once the markers are known, and not when the time is over.
#[tokio::test(start_paused = true)]
async fn a_cycle_of_markers_ends_the_listing() {
    let manners = Manners { kept: 5, page_size: 2, markers_repeat: true, latency: SECOND / 10, ..Manners::default() };
    let service = Service::new(manners);
    for container in clients(&service) {
        let began = Instant::now();
        let error = container.list("").await.unwrap_err();
        assert!(error.to_string().contains("the marker of the next page repeats"), "{error}");
        assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
    }
}

/// Everything but the creation of a container, in time.
#[tokio::test(start_paused = true)]
async fn an_instance_lives_just_below_the_timeout() {
    on_each(Manners::default(), async |service, container, config| {
        let latency = config.request_timeout.unwrap_or(5 * SECOND).mul_f64(0.98);
        service.change(|manners| manners.latency = latency);
        live(&container, &config).await;
    })
    .await;
}

/// Not applied, and not even tried again by the client.
#[tokio::test(start_paused = true)]
async fn a_write_without_permission_changes_nothing() {
    let service = Service::new(Manners { refuses_deletions: true, ..Manners::default() });
    for (name, container) in ["a", "b"].into_iter().zip(clients(&service)) {
        let written = container.write(name, &Metadata::new(), &Condition::Create).await.unwrap();
        service.requests();
        let error = container.delete(name, &written.etag).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        assert_eq!(service.requests(), [format!("DELETE {name}")]);
        assert!(container.get(name).await.is_ok());
    }
}
