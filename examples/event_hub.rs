//! Runs the Event Hubs emulator on its own, for tests of programs without a cloud.

use std::time::Duration;

use clap::Parser;
use eventhubs_checkpoint::testing::event_hub::{DEFAULT_RETENTION_COUNT, EventHubEmulator};

use publisher::{Address, Load, publish};
use tokio::sync::watch;

#[allow(dead_code, reason = "shared with tests")]
#[path = "support/publisher.rs"]
mod publisher;
#[path = "support/signals.rs"]
mod signals;

/// An Event Hubs emulator on this machine, which speaks AMQP without TLS.
///
/// Prints one line with the endpoint and the connection string, as environment variables for a command, and runs until
/// Ctrl-C or SIGTERM. With the connection string, programs that use this crate need no other settings. Clients that
/// ignore its port need the endpoint as their custom endpoint. The events are kept in memory and are lost at the end.
#[derive(Debug, Parser)]
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

    /// A consumer group in addition to $Default. May be repeated.
    #[arg(long = "consumer-group", value_name = "GROUP")]
    consumer_groups: Vec<String>,

    /// Publishes this many events of 100 bytes per second, to one partition after the other, without consuming any.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    publish_rate: Option<u32>,
}

/// The interval between batches: about ten batches per second, or fewer events per second than that.
fn pace(rate: u32) -> Duration {
    Duration::from_secs(1) * rate.div_ceil(10) / rate
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let shutdown = signals::asked_to_end();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();

    let mut builder = EventHubEmulator::builder(args.name)
        .with_partitions(args.partitions)
        .with_retention_count(args.retention_count);
    for group in args.consumer_groups {
        builder = builder.with_consumer_group(group);
    }
    let hub = builder.start(&format!("{}:{}", args.host, args.port)).await?;

    println!(
        "EVENTHUBS_ENDPOINT='{}' EVENTHUBS_CONNECTION_STRING='{}'",
        hub.endpoint(),
        hub.connection_string_with_port()
    );
    let Some(rate) = args.publish_rate else {
        shutdown.await;
        return Ok(());
    };
    let address = Address { endpoint: hub.endpoint(), connection_string: hub.connection_string() };
    let load = Load { events_per_batch: rate.div_ceil(10), event_size: 100, pace: pace(rate) };
    let (_endless, batches) = watch::channel(u32::MAX);
    tokio::select! {
        () = shutdown => Ok(()),
        published = publish(address, load, batches) => published.map(drop).map_err(|error| error as _),
    }
}
