//! One process of this crate with many partitions on a slow storage.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::Result;
use crate::clients::{Client, this_program};
use crate::consumer::Consumer;
use crate::hub::Address;
use crate::proxy::Proxy;
use crate::report::{settings, start_hub};
use crate::support::azurite;

const PARTITIONS: u16 = 2048;
const DELAY: Duration = Duration::from_millis(100);
const EVENTS_PER_SECOND: u32 = 1000;

/// How long the process may take to read the first event of every partition.
const COVER_LIMIT: Duration = Duration::from_secs(300);
/// How long the process is left alone before it is measured.
const SETTLE: Duration = Duration::from_secs(30);
/// Longer than two lease durations.
const MEASURED: Duration = Duration::from_secs(130);

/// Measures the process and prints a table. Fails if the process loses a partition.
pub(crate) async fn run() -> Result<()> {
    let azurite = azurite::shared().await?;
    let (_hub, address) = start_hub(PARTITIONS, 1).await?;
    let proxy = Proxy::open(azurite.endpoint(), DELAY).await?;
    let settings = settings(Client::Ours, &address, &proxy, "large", u32::MAX, true).await?;
    let mut consumer = Consumer::start(Client::Ours, &settings)?;
    let covered = consumer.first_events(PARTITIONS.into(), COVER_LIMIT).await?;
    println!(
        "one process with {PARTITIONS} partitions, storage after {DELAY:?}, default settings but `Greedy`: first event \
         of every partition after {:.1} s\n",
        covered.as_secs_f64()
    );
    println!("| | CPU time, ms/s | per partition, us/s | memory, MiB | per partition, KiB | requests per hour |");
    println!("|---|---|---|---|---|---|");
    measure("at rest", &consumer, &proxy).await?;
    let _publisher = publish(&address)?;
    measure(&format!("{EVENTS_PER_SECOND} events of 1 KiB per second"), &consumer, &proxy).await?;
    let lost = consumer.lost().await?;
    println!("\npartitions lost: {}", lost.len());
    if lost.is_empty() { Ok(()) } else { Err(format!("lost partitions: {lost:?}").into()) }
}

async fn measure(name: &str, consumer: &Consumer, proxy: &Proxy) -> Result<()> {
    sleep(SETTLE).await;
    let (requests, before) = (proxy.requests(), consumer.used()?);
    sleep(MEASURED).await;
    let (requests, after) = (proxy.requests().since(requests), consumer.used()?);
    let (partitions, seconds) = (f64::from(PARTITIONS), MEASURED.as_secs_f64());
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e3 / seconds;
    let kib = f64::from(after.resident_kib);
    println!(
        "| {name} | {cpu:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
        cpu * 1e3 / partitions,
        kib / 1024.0,
        kib / partitions,
        f64::from(requests.all()) * 3600.0 / seconds
    );
    Ok(())
}

/// Starts the publisher. It ends when it is dropped.
fn publish(address: &Address) -> Result<Child> {
    let arguments = [PARTITIONS.to_string(), EVENTS_PER_SECOND.to_string(), serde_json::to_string(address)?];
    let mut command = Command::from(this_program("publisher")?);
    Ok(command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).spawn()?)
}
