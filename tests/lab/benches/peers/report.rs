//! Runs the measurements and prints the tables.

use std::process::Stdio;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::clients::{ALL, Client, this_program};
use crate::consumer::Consumer;
use crate::hub::Address;
use crate::proxy::{Proxy, Requests};
use crate::settings::{BATCH, CONSUMER_GROUP, PARTITIONS, Settings};
use crate::spread::Spread;
use crate::support::azurite::{self, Azurite};

/// How much is measured.
pub(crate) struct Extent {
    rounds: usize,
    /// The batches in each partition.
    batches: u32,
    /// How long the requests at rest are counted.
    rest: Duration,
    /// How long a consumer may take to read the first event of every partition with its default settings.
    cover_limit: Duration,
}

pub(crate) const FULL: Extent =
    Extent { rounds: 5, batches: 40, rest: Duration::from_secs(180), cover_limit: Duration::from_secs(420) };
pub(crate) const QUICK: Extent =
    Extent { rounds: 1, batches: 2, rest: Duration::from_secs(5), cover_limit: Duration::from_secs(420) };

/// How long one round of the throughput may take.
const ROUND_LIMIT: Duration = Duration::from_secs(180);
/// How long a consumer is left alone before its requests at rest are counted.
const SETTLE: Duration = Duration::from_secs(15);

/// One consumer in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    per_second: f64,
    cpu_us: f64,
    memory_mib: f64,
    cover: Duration,
}

/// Runs all measurements and prints them.
pub(crate) async fn run(extent: &Extent) -> Result<()> {
    let clients: Vec<Client> = ALL.into_iter().filter(|client| is_here(*client)).collect();
    let azurite = azurite::shared().await?;
    throughput(extent, &clients, azurite).await?;
    at_rest(extent, &clients, azurite).await
}

fn is_here(client: Client) -> bool {
    let missing = client.missing();
    if let Some(why) = &missing {
        println!("{} is left out: {why}", client.title());
    }
    missing.is_none()
}

async fn throughput(extent: &Extent, clients: &[Client], azurite: &Azurite) -> Result<()> {
    let each = extent.batches * BATCH;
    let (_hub, address) = start_hub(PARTITIONS, each).await?;
    let mut rounds = vec![Vec::new(); clients.len()];
    for round in 0..extent.rounds {
        for (position, client) in clients.iter().enumerate() {
            let proxy = Proxy::open(azurite.endpoint(), Duration::ZERO).await?;
            let container = format!("throughput-{round}-{position}");
            let settings = settings(*client, &address, &proxy, &container, each * u32::from(PARTITIONS), true).await?;
            let (measured, versions) = one_round(*client, &settings).await?;
            if round == 0 {
                println!("{}: {versions}", client.title());
            }
            rounds[position].push(measured);
        }
    }
    println!(
        "\nthroughput: {PARTITIONS} partitions with {each} events of 1 KiB, greedy, a checkpoint every {BATCH} events \
         of a partition; median of {} rounds (minimum to maximum)\n",
        extent.rounds
    );
    println!("| | events/s | CPU time per event, us | memory, MiB | first event of every partition, s |");
    println!("|---|---|---|---|---|");
    for (client, rounds) in clients.iter().zip(&rounds) {
        let spread = |value: fn(&Round) -> f64| Spread::of(rounds, value).show("");
        let (rate, cpu) = (spread(|round| round.per_second), spread(|round| round.cpu_us));
        let (memory, cover) = (spread(|round| round.memory_mib), spread(|round| round.cover.as_secs_f64()));
        println!("| {} | {rate} | {cpu} | {memory} | {cover} |", client.title());
    }
    Ok(())
}

async fn one_round(client: Client, settings: &Settings) -> Result<(Round, String)> {
    let mut consumer = Consumer::start(client, settings)?;
    consumer.first_events(1, ROUND_LIMIT).await?;
    let (began, before) = (Instant::now(), consumer.used()?);
    consumer.processes_all(ROUND_LIMIT).await?;
    let (elapsed, after) = (began.elapsed(), consumer.used()?);
    let cover = consumer.covers_all(ROUND_LIMIT).await?;
    let versions = consumer.versions.clone();
    consumer.kill().await?;
    let events = f64::from(settings.expected);
    let round = Round {
        per_second: events / elapsed.as_secs_f64(),
        cpu_us: after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6 / events,
        memory_mib: f64::from(after.resident_kib) / 1024.0,
        cover,
    };
    Ok((round, versions))
}

/// One consumer at rest.
struct Rest {
    client: Client,
    cover: Duration,
    requests: Requests,
    cpu: Duration,
    memory_mib: f64,
}

/// With default settings the two ways of this crate to checkpoint do not differ at rest.
async fn at_rest(extent: &Extent, clients: &[Client], azurite: &Azurite) -> Result<()> {
    let clients = clients.iter().filter(|client| **client != Client::OursDurable);
    let resting = clients.map(|client| rest(extent, *client, azurite));
    let all = futures::future::try_join_all(resting).await?;
    println!(
        "\nat rest: {PARTITIONS} partitions, default settings, counted for {:?} by a proxy before the storage\n",
        extent.rest
    );
    println!(
        "| | first event of every partition, s | requests per hour | listings | reads | writes | CPU time, ms/s \
         | memory, MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for Rest { client, cover, requests, cpu, memory_mib } in all {
        let hourly = |count: u32| f64::from(count) * 3600.0 / extent.rest.as_secs_f64();
        println!(
            "| {} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {memory_mib:.0} |",
            client.title(),
            cover.as_secs_f64(),
            hourly(requests.all()),
            hourly(requests.listings),
            hourly(requests.reads),
            hourly(requests.writes),
            cpu.as_secs_f64() * 1e3 / extent.rest.as_secs_f64(),
        );
    }
    Ok(())
}

/// With an event hub of its own, because one event hub admits one of them.
async fn rest(extent: &Extent, client: Client, azurite: &Azurite) -> Result<Rest> {
    let (_hub, address) = start_hub(PARTITIONS, 1).await?;
    let proxy = Proxy::open(azurite.endpoint(), Duration::ZERO).await?;
    let container = format!("rest-{}", client as u8);
    let settings = settings(client, &address, &proxy, &container, u32::from(PARTITIONS), false).await?;
    let mut consumer = Consumer::start(client, &settings)?;
    let cover = consumer.covers_all(extent.cover_limit).await?;
    sleep(SETTLE).await;
    let (requests, before) = (proxy.requests(), consumer.used()?);
    sleep(extent.rest).await;
    let (requests, after) = (proxy.requests().since(requests), consumer.used()?);
    consumer.kill().await?;
    let (cpu, memory_mib) = (after.cpu.saturating_sub(before.cpu), f64::from(after.resident_kib) / 1024.0);
    Ok(Rest { client, cover, requests, cpu, memory_mib })
}

/// Creates the container, and returns the settings.
pub(crate) async fn settings(
    client: Client,
    address: &Address,
    proxy: &Proxy,
    container: &str,
    expected: u32,
    greedy: bool,
) -> Result<Settings> {
    let storage = proxy.connection_string();
    AzureContainer::from_connection_string(&storage, container)?.create_container().await?;
    Ok(Settings {
        storage,
        container: container.to_owned(),
        // States that there is no TLS.
        event_hub: match client {
            Client::OursDurable | Client::Ours | Client::Official => address.connection_string.clone(),
            Client::Go | Client::Java | Client::JavaScript | Client::Python => {
                format!("{};UseDevelopmentEmulator=true", address.connection_string)
            }
        },
        endpoint: address.endpoint.clone(),
        port: address.port,
        consumer_group: CONSUMER_GROUP.to_owned(),
        greedy,
        durable: client == Client::OursDurable,
        expected,
    })
}

/// Starts an event hub with this many events in each partition. It ends when the process is dropped.
pub(crate) async fn start_hub(partitions: u16, each: u32) -> Result<(Child, Address)> {
    let mut command = Command::from(this_program("hub")?);
    let mut hub =
        command.arg(partitions.to_string()).arg(each.to_string()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let output = hub.stdout.take().ok_or("the event hub has no output")?;
    let line = BufReader::new(output).lines().next_line().await?.ok_or("the event hub did not start")?;
    Ok((hub, serde_json::from_str(&line)?))
}
