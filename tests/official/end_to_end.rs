//! The whole path on real components: official client and AMQP, Azurite and HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use azure_messaging_eventhubs::{ConsumerClient, OpenReceiverOptions, StartLocation, StartPosition};
use eventhubs_checkpoint::balancer::Snapshots;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::eventhubs::EventHubSource;
use eventhubs_checkpoint::processor::{
    CheckpointPolicy, Handler, HandlerError, PartitionContext, Processor, ProcessorConfig, ShutdownReport,
};
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, OwnerId, Result};
use eventhubs_emulator::EventHubEmulator;
use futures::StreamExt;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::publishing::publish;
use crate::sas::{FUTURE, account_sas, fresh_name};
use crate::support::azurite;

/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "localhost";

/// How often every body was processed.
type Seen = Arc<watch::Sender<BTreeMap<String, usize>>>;

struct Recorder(Seen);

impl Handler<ReceivedEventData> for Recorder {
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for event in &events {
            let body = String::from_utf8_lossy(event.event_data().body().unwrap_or_default()).into_owned();
            self.0.send_modify(|seen| *seen.entry(body).or_default() += 1);
            context.checkpoint(event);
        }
        Ok(())
    }
}

struct World {
    hub: EventHubEmulator,
    container: Arc<AzureContainer>,
    container_name: String,
    lease_duration: Duration,
    seen: Seen,
}

impl World {
    async fn new(partitions: u16) -> Self {
        let hub = EventHubEmulator::builder("hub").with_partitions(partitions).start("127.0.0.1:0").await.unwrap();
        let container_name = fresh_name();
        let connection_string = azurite::shared().await.unwrap().connection_string();
        let container = Arc::new(AzureContainer::from_connection_string(connection_string, &container_name).unwrap());
        container.create_container().await.unwrap();
        let lease_duration = Duration::from_secs(60);
        Self { hub, container, container_name, lease_duration, seen: Seen::default() }
    }

    async fn client(&self, group: &str, connection_string: &str) -> ConsumerClient {
        let builder =
            ConsumerClient::builder().with_consumer_group(group.to_owned()).with_custom_endpoint(self.hub.endpoint());
        timeout(TIMEOUT, builder.open_with_connection_string(connection_string, None)).await.unwrap().unwrap()
    }

    async fn start_with(&self, owner: &str, group: ConsumerGroup, connection_string: &str) -> Instance {
        let endpoint = self.hub.endpoint();
        let source = EventHubSource::from_connection_string(&group, connection_string)
            .with_client_builder(move |client| client.with_custom_endpoint(endpoint.clone()))
            .connect()
            .await
            .unwrap();
        let store = GroupStore::builder(self.container.clone(), group, OwnerId::new(owner).unwrap())
            .with_config(StoreConfig::default().with_lease_duration(self.lease_duration))
            .connect()
            .await
            .unwrap();
        let config = ProcessorConfig::default()
            .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_secs(1)))
            .with_checkpoint_policy(CheckpointPolicy::default().with_interval(Duration::from_millis(200)));
        let processor =
            Processor::builder(source, store, Recorder(self.seen.clone())).with_config(config).build().unwrap();
        let snapshots = processor.handle().snapshots();
        let (shutdown, requested) = oneshot::channel();
        let running = tokio::spawn(processor.run(async {
            let _ = requested.await;
        }));
        Instance { snapshots, shutdown, running }
    }

    async fn start(&self, owner: &str) -> Instance {
        let group = ConsumerGroup::new(NAMESPACE, "hub", "$Default").unwrap();
        self.start_with(owner, group, &self.hub.connection_string()).await
    }

    /// Publishes one event per number, evenly over all partitions. On its own thread: on several threads the client can
    /// miss the response to a send.
    async fn publish(&self, numbers: std::ops::Range<u32>) {
        let (endpoint, connection_string) = (self.hub.endpoint(), self.hub.connection_string());
        let partitions = self.hub.partition_ids();
        let publishing = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(publish(&endpoint, &connection_string, &partitions, numbers));
        });
        publishing.await.unwrap();
    }

    async fn wait_for_all(&self, numbers: std::ops::Range<u32>) {
        let mut seen = self.seen.subscribe();
        let all = seen.wait_for(|seen| numbers.clone().all(|number| seen.contains_key(&number.to_string())));
        timeout(TIMEOUT, all).await.expect("events are missing").unwrap();
    }

    /// Returns a URL in the container, with a signature made by hand.
    async fn raw_url(&self, path: &str, query: &str) -> String {
        let endpoint = azurite::shared().await.unwrap().endpoint();
        format!("{endpoint}/{}{path}?{query}{}", self.container_name, account_sas("rl", FUTURE))
    }

    /// Returns the names of all blobs, by raw HTTP.
    async fn raw_names(&self) -> Vec<String> {
        let url = self.raw_url("", "restype=container&comp=list&").await;
        let listing = reqwest::get(url).await.unwrap().error_for_status().unwrap().text().await.unwrap();
        let names = listing.split("<Name>").skip(1).map(|rest| rest.split("</Name>").next().unwrap().to_owned());
        names.collect()
    }

    /// Returns the metadata of one blob, by raw HTTP; checks that it is an empty block blob.
    async fn raw_metadata(&self, name: &str) -> BTreeMap<String, String> {
        let url = self.raw_url(&format!("/{}", name.replace('$', "%24")), "").await;
        let response = reqwest::Client::new().head(url).send().await.unwrap().error_for_status().unwrap();
        let header = |key: &str| response.headers()[key].to_str().unwrap().to_owned();
        assert_eq!((header("content-length").as_str(), header("x-ms-blob-type").as_str()), ("0", "BlockBlob"));
        let metadata = response.headers().iter().filter_map(|(key, value)| {
            let key = key.as_str().strip_prefix("x-ms-meta-")?;
            Some((key.to_owned(), value.to_str().unwrap().to_owned()))
        });
        metadata.collect()
    }
}

struct Instance {
    snapshots: Snapshots,
    shutdown: oneshot::Sender<()>,
    running: JoinHandle<Result<ShutdownReport>>,
}

impl Instance {
    async fn wait_until_it_holds(&mut self, at_least: usize) {
        let held = self.snapshots.wait_for(|snapshot| snapshot.owned.len() >= at_least);
        timeout(TIMEOUT, held).await.expect("partitions are missing").unwrap();
    }

    async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    async fn shut_down(self) {
        let _ = self.shutdown.send(());
        timeout(TIMEOUT, self.running).await.expect("the shutdown timed out").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_one_of_three_loses_nothing() {
    let world = World { lease_duration: Duration::from_secs(10), ..World::new(8).await };
    let (mut a, mut b, mut c) = (world.start("a").await, world.start("b").await, world.start("c").await);
    world.publish(0..400).await;
    world.wait_for_all(0..400).await;
    c.wait_until_it_holds(2).await;
    c.crash().await;
    world.publish(400..800).await;
    a.wait_until_it_holds(4).await;
    b.wait_until_it_holds(4).await;
    world.wait_for_all(0..800).await;
    a.shut_down().await;
    b.shut_down().await;
}

#[tokio::test]
async fn the_blobs_are_exactly_the_shared_records() {
    let world = World::new(2).await;
    let mut a = world.start("pod-1").await;
    a.wait_until_it_holds(2).await;
    world.publish(0..4).await;
    world.wait_for_all(0..4).await;
    a.wait_until_it_holds(2).await;

    let prefix = "localhost/hub/$default";
    let claimed = world.raw_metadata(&format!("{prefix}/ownership/1")).await;
    assert_eq!(
        claimed.keys().collect::<Vec<_>>(),
        ["ehcclaimedat", "ehccooperative", "ehcepoch", "ehcincarnation", "ehcleaseduration", "ownerid"]
    );
    assert_eq!(claimed["ownerid"], "pod-1");
    let (began, random) = claimed["ehcincarnation"].split_once('-').unwrap();
    assert_eq!((began.len(), began.ends_with('Z'), random.len()), (16, true, 8), "{claimed:?}");
    assert!(claimed["ehcclaimedat"].ends_with('Z') && claimed["ehcclaimedat"].len() == 20, "{claimed:?}");

    a.shut_down().await;
    let names = ["beacon", "checkpoint/0", "checkpoint/1", "ownership/0", "ownership/1"];
    assert_eq!(world.raw_names().await, names.map(|name| format!("{prefix}/{name}")));
    let beacon = world.raw_metadata(&format!("{prefix}/beacon")).await;
    assert_eq!(beacon.keys().collect::<Vec<_>>(), ["ehcchange", "ehclitby"]);
    assert_eq!(beacon["ehclitby"], "pod-1");
    let released = world.raw_metadata(&format!("{prefix}/ownership/1")).await;
    let kept = ["ehcleaseduration", "ehcepoch"].map(|key| (key.to_owned(), claimed[key].clone()));
    let expected = kept.into_iter().chain([("ownerid".to_owned(), String::new())]);
    assert_eq!(released, expected.collect::<BTreeMap<_, _>>());
    let checkpoint = world.raw_metadata(&format!("{prefix}/checkpoint/1")).await;
    let keys = ["ehchubcreated", "ehcupdatedat", "offset", "ownerid", "sequencenumber"];
    assert_eq!(checkpoint.keys().collect::<Vec<_>>(), keys);
    let last = world.hub.partition_properties("1").unwrap();
    assert_eq!(checkpoint["sequencenumber"], last.last_enqueued_sequence_number.to_string());
    assert_eq!(checkpoint["offset"], last.last_enqueued_offset);
    assert_eq!(checkpoint["ownerid"], "pod-1");
}

#[tokio::test]
async fn a_restart_continues_after_the_checkpoint() {
    let world = World::new(2).await;
    let mut a = world.start("a").await;
    a.wait_until_it_holds(2).await;
    world.publish(0..100).await;
    world.wait_for_all(0..100).await;
    a.shut_down().await;
    world.publish(100..200).await;
    let b = world.start("b").await;
    world.wait_for_all(0..200).await;
    b.shut_down().await;
    let seen = world.seen.borrow();
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
}

/// Any client may open a receiver; the records define the owner of the partition.
#[tokio::test]
async fn a_displaced_reader_takes_its_partition_back() {
    let world = World::new(1).await;
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    world.publish(0..10).await;
    world.wait_for_all(0..10).await;

    let rival = world.client("$Default", &world.hub.connection_string()).await;
    let latest = StartPosition { location: StartLocation::Latest, inclusive: false };
    let options =
        OpenReceiverOptions { owner_level: Some(0), start_position: Some(latest), ..OpenReceiverOptions::default() };
    let receiver = rival.open_receiver_on_partition("0".into(), Some(options)).await.unwrap();
    let displaced = tokio::spawn(async move { receiver.stream_events().next().await.unwrap().is_err() });
    assert!(timeout(TIMEOUT, displaced).await.expect("the rival keeps the partition").unwrap());

    world.publish(10..20).await;
    world.wait_for_all(0..20).await;
    a.shut_down().await;
}

#[tokio::test]
async fn configuration_errors_are_reported_before_any_write() {
    let world = World::new(1).await;
    let good = world.hub.connection_string();
    let cases = [
        ("hub", "unknown", good.clone(), ErrorKind::Config, "the consumer group or the partition does not exist"),
        ("nohub", "$Default", good.replace("EntityPath=hub", "EntityPath=nohub"), ErrorKind::Config, "does not exist"),
        ("hub", "$Default", good.replace("SharedAccessKey=", "SharedAccessKey=AA"), ErrorKind::Unauthorized, "the key"),
    ];
    for (hub, group, connection_string, kind, expected) in cases {
        let group = ConsumerGroup::new(NAMESPACE, hub, group).unwrap();
        let instance = world.start_with("a", group, &connection_string).await;
        let error = timeout(TIMEOUT, instance.running).await.expect("does not end").unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        let key = connection_string.split("SharedAccessKey=").nth(1).unwrap().split(';').next().unwrap();
        assert!(!format!("{error:?} {error}").contains(key), "{error:?}");
    }
    assert_eq!(world.raw_names().await, Vec::<String>::new());
}

/// A wrong storage is reported before anything starts, with the remedy, without the secret.
#[tokio::test]
async fn an_unusable_storage_is_reported_before_any_start() {
    let azurite = azurite::shared().await.unwrap();
    let good = azurite.connection_string();
    let connect = |connection_string: String, container: &'static str| async move {
        let container: Arc<dyn BlobContainer> =
            Arc::new(AzureContainer::from_connection_string(connection_string, container)?);
        let group = ConsumerGroup::new(NAMESPACE, "hub", "$Default")?;
        GroupStore::builder(container, group, OwnerId::new("a")?).connect().await.map(drop)
    };
    let cases = [
        (good.clone(), "Bad_Name", ErrorKind::Config, "Bad_Name"),
        (good.clone(), "not-there", ErrorKind::ContainerNotFound, "not-there"),
        (good.replace("AccountKey=", "AccountKey=AAAA"), "not-there", ErrorKind::Unauthorized, "wrong key"),
        (good.replace("AccountKey=", "AcountKey="), "not-there", ErrorKind::Config, "AccountKey"),
        (
            good.replace("127.0.0.1", "no-such-host.invalid"),
            "a-container",
            ErrorKind::Unavailable,
            "no-such-host.invalid",
        ),
    ];
    for (connection_string, container, kind, expected) in cases {
        let error = connect(connection_string, container).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error:?} {error}").contains(azurite::ACCOUNT_KEY), "{error:?}");
    }
}
