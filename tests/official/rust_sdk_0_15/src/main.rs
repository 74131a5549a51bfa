//! A processor of the official SDK 0.15 with its blob checkpoint store 0.9, which reports by JSON lines.
//!
//! processor <settings as JSON> takes its share of the partitions. It reports its owner ID first, then the events that
//! it processes, before their checkpoint, and its errors. Before the events of a partition, it reports after which
//! checkpoint it starts. It shuts down when its standard input ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration as StdDuration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::http::Url;
use azure_core::time::{Duration, OffsetDateTime};
use azure_messaging_eventhubs::ConsumerClient;
use azure_messaging_eventhubs_checkpointstore_blob::BlobCheckpointStore;
use azure_storage_blob::BlobContainerClient;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

#[path = "../../mixed_fleet/official.rs"]
mod official;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Deserialize)]
struct Settings {
    /// `amqp` instead of `amqps` means that there is no TLS.
    endpoint: String,
    namespace: String,
    event_hub_name: String,
    consumer_group: String,
    /// A shared access signature of the event hub, because this version has no connection strings.
    event_hub_token: String,
    /// Includes a shared access signature, because the client sends tokens over HTTPS only.
    container_url: String,
    owner: String,
    interval_seconds: i64,
    expiry_seconds: i64,
}

/// A shared access signature, which the service accepts in place of a token.
#[derive(Debug)]
struct SharedAccessSignature(String);

#[async_trait::async_trait]
impl TokenCredential for SharedAccessSignature {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        Ok(AccessToken::new(self.0.clone(), OffsetDateTime::now_utc() + Duration::hours(1)))
    }
}

/// Parts of the errors after which this version of the client never reads a partition again, although the processor
/// owns it and opens it in each cycle. They happen now and then if partitions are stolen while events arrive. An
/// application has to start the processor again, with a new client.
///
/// The last one is the refusal of a receiver without an owner level. All receivers of this version are such ones: its
/// fe2o3-amqp 0.14 drops the properties of a link that is named after they are set. After a second refusal, the client
/// may wait for ever for the answer to the third attach.
const UNREADABLE: [&str; 3] = ["Connection dropped", "Link name is not unique", "non-epoch receiver is not allowed"];

/// A client may also read nothing of a partition without any error. The load of the tests never rests for so long.
const SILENCE: StdDuration = StdDuration::from_secs(20);

#[derive(Default)]
struct JsonLines {
    unreadable: Notify,
    /// When a partition was last started or read.
    last_read: RefCell<HashMap<String, Instant>>,
}

impl JsonLines {
    fn note(&self, partition: &str) {
        self.last_read.borrow_mut().insert(partition.to_owned(), Instant::now());
    }

    /// Waits until an error says that a partition cannot be read, or until nothing of a partition has been read for
    /// long enough.
    async fn is_unreadable(&self, store: &official::Store) {
        let mut owned_since: HashMap<String, Instant> = HashMap::new();
        let silent = async {
            loop {
                let claimed = store.claimed();
                owned_since.retain(|partition, _| claimed.contains(partition));
                for partition in claimed {
                    let owned = *owned_since.entry(partition.clone()).or_insert_with(Instant::now);
                    let read = self.last_read.borrow().get(&partition).copied();
                    if owned.max(read.unwrap_or(owned)).elapsed() > SILENCE {
                        println!("{}", json!({ "failed": format!("partition {partition} is silent") }));
                        return;
                    }
                }
                sleep(StdDuration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = silent => {}
            () = self.unreadable.notified() => {}
        }
    }
}

impl official::Report for JsonLines {
    fn started(&self, partition: &str, start: u64, checkpoint: Option<i64>) {
        self.note(partition);
        println!("{}", json!({ "started": partition, "start": start, "checkpoint": checkpoint }));
    }

    fn processed(&self, partition: &str, start: u64, sequence_numbers: &[i64]) {
        self.note(partition);
        println!("{}", json!({ "processed": sequence_numbers, "partition": partition, "start": start }));
    }

    fn failed(&self, partition: &str, error: String) {
        println!("{}", json!({ "failed": format!("partition {partition}: {error}") }));
        if UNREADABLE.iter().any(|part| error.contains(part)) {
            self.unreadable.notify_one();
        }
    }
}

/// Runs a processor with a client of its own, until it fails or cannot read a partition.
async fn run(settings: &Settings) -> Result<()> {
    let container = BlobContainerClient::new(Url::parse(&settings.container_url)?, None, None)?;
    let store = official::Store::new(BlobCheckpointStore::new(container));
    let token = SharedAccessSignature(settings.event_hub_token.clone());
    let consumer = ConsumerClient::builder()
        .with_custom_endpoint(settings.endpoint.clone())
        .with_consumer_group(settings.consumer_group.clone())
        // The name under which it owns partitions.
        .with_application_id(settings.owner.clone())
        .open(&settings.namespace, settings.event_hub_name.clone(), Arc::new(token))
        .await?;
    let durations = [settings.interval_seconds, settings.expiry_seconds].map(Duration::seconds);
    let processor = official::build(consumer, store.clone(), durations).await?;
    println!("{}", json!({ "owner": settings.owner }));
    let report = Rc::new(JsonLines::default());
    let running = official::start(processor, store.clone(), report.clone());
    tokio::select! {
        ended = running => Ok(ended??),
        () = report.is_unreadable(&store) => Ok(()),
    }
}

async fn run_until_shutdown(settings: Settings) -> Result<()> {
    let versions = "Rust azure_messaging_eventhubs 0.15, azure_messaging_eventhubs_checkpointstore_blob 0.9";
    println!("{}", json!({ "versions": versions }));
    let mut shutdown = pin!(async {
        let mut rest = Vec::new();
        // An error means that nothing will come anymore, either.
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    });
    loop {
        // Ends all tasks of the processor.
        let tasks = LocalSet::new();
        tokio::select! {
            ended = tasks.run_until(run(&settings)) => ended?,
            () = &mut shutdown => return Ok(()),
        }
        println!("{}", json!({ "failed": "the processor is started again" }));
    }
}

/// One thread, because the client can hang on several.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let settings = std::env::args().nth(1).unwrap_or_default();
    let ended = match serde_json::from_str(&settings) {
        Ok(settings) => run_until_shutdown(settings).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = &ended {
        eprintln!("{error}");
    }
    // The runtime would wait for the read of the standard input.
    std::process::exit(i32::from(ended.is_err()));
}
