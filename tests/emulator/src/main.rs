//! Runs the Event Hubs emulator on its own, for tests of programs without a cloud.

use std::time::Duration;

use clap::Parser;
use eventhubs_emulator::{DEFAULT_RETENTION_COUNT, EventHubEmulator, HubSettings};
use tokio::time::{MissedTickBehavior, interval};

/// An Azure Event Hubs emulator on this machine, which speaks AMQP without TLS.
///
/// Prints one line with the endpoint and the connection string, as environment variables for a command, and runs until
/// Ctrl-C or SIGTERM. With the connection string, programs that use the crate eventhubs-checkpoint need no other
/// settings. Clients that ignore its port need the endpoint as their custom endpoint. The events are kept in memory and
/// are lost at the end.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The port to listen on. 0 selects any free port.
    #[arg(long, default_value_t = 5672)]
    port: u16,

    /// The address to listen on. With 0.0.0.0 other machines can connect as well.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// The number of partitions.
    #[arg(long, default_value_t = 4)]
    partitions: u16,

    /// The number of events that each partition keeps. Older events expire.
    #[arg(long, default_value_t = DEFAULT_RETENTION_COUNT)]
    retention_count: usize,

    /// The name of the event hub.
    #[arg(long, default_value = "hub")]
    name: String,

    /// Another event hub with the same partitions, consumer groups and retention, for example for dead letters. May be
    /// repeated. The connection string is then for the whole namespace, so programs must name the event hub.
    #[arg(long = "other-event-hub", value_name = "NAME")]
    other_event_hubs: Vec<String>,

    /// A consumer group in addition to $Default. May be repeated.
    #[arg(long = "consumer-group", value_name = "GROUP")]
    consumer_groups: Vec<String>,

    /// Adds this many events of 100 bytes per second, to one partition after the other.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    publish_rate: Option<u32>,
}

impl Args {
    /// Applies the settings that all event hubs share.
    fn apply_to(&self, hub: HubSettings) -> HubSettings {
        let hub = hub.with_partitions(self.partitions).with_retention_count(self.retention_count);
        self.consumer_groups.iter().fold(hub, HubSettings::with_consumer_group)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut shutdown = std::pin::pin!(shutdown_signal()?);
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();

    let mut builder = EventHubEmulator::builder(&args.name)
        .with_partitions(args.partitions)
        .with_retention_count(args.retention_count);
    for group in &args.consumer_groups {
        builder = builder.with_consumer_group(group);
    }
    for name in &args.other_event_hubs {
        builder = builder.with_event_hub(name, |hub| args.apply_to(hub));
    }
    let hub = builder.start(&format!("{}:{}", args.host, args.port)).await?;
    let connection_string = if args.other_event_hubs.is_empty() {
        hub.connection_string_with_port()
    } else {
        hub.namespace_connection_string_with_port()
    };
    println!("EVENTHUBS_ENDPOINT='{}' EVENTHUBS_CONNECTION_STRING='{connection_string}'", hub.endpoint());
    if let Some(rate) = args.publish_rate {
        tokio::select! {
            () = publish(&hub, rate) => {}
            () = &mut shutdown => {}
        }
    } else {
        shutdown.await;
    }
    Ok(())
}

/// Adds this many events per second, at even intervals. Never ends.
async fn publish(hub: &EventHubEmulator, rate: u32) {
    const BODY: [u8; 100] = [b'x'; 100];
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for partition in hub.partition_ids().iter().cycle() {
        ticks.tick().await;
        // The partition exists.
        let _ = hub.append(partition, &BODY);
    }
}

/// Returns a future that is ready when the process receives Ctrl-C or SIGTERM.
#[cfg(unix)]
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Returns a future that is ready when the process receives Ctrl-C.
#[cfg(not(unix))]
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a handler, Ctrl-C ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
