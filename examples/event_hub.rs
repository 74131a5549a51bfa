//! Runs the Event Hubs emulator on its own, for tests of programs without a cloud.

use clap::Parser;
use eventhubs_checkpoint::testing::event_hub::{DEFAULT_RETENTION_COUNT, EventHubEmulator};

#[path = "support/signals.rs"]
mod signals;

/// An Event Hubs emulator on this machine, which speaks AMQP without TLS.
///
/// Prints one line with the endpoint and the connection string, as environment variables for a command, and runs until
/// Ctrl-C or SIGTERM. Set the endpoint as the custom endpoint of a client. The events are kept in memory and are lost
/// at the end.
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

    println!("EVENTHUBS_ENDPOINT='{}' EVENTHUBS_CONNECTION_STRING='{}'", hub.endpoint(), hub.connection_string());
    shutdown.await;
    Ok(())
}
