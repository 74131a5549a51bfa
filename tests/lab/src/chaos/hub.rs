//! The event hub in its own process: `chaos hub`.

use std::io::Write as _;

use clap::Parser;
use eventhubs_emulator::EventHubEmulator;
use serde::{Deserialize, Serialize};

use crate::chaos::Failure;
use crate::chaos::child;

#[derive(Debug, Parser)]
pub struct Args {
    #[arg(long)]
    pub partitions: u16,
    /// How many events every partition keeps.
    #[arg(long)]
    pub retention: usize,
}

/// The first line of the hub's output.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub port: u16,
    pub endpoint: String,
    pub connection_string: String,
    /// For tools that take no separate endpoint.
    pub connection_string_with_port: String,
}

/// Runs until the runner is gone or kills it.
pub async fn run(args: Args) -> Result<(), Failure> {
    child::exit_with_parent();
    let builder =
        EventHubEmulator::builder("hub").with_partitions(args.partitions).with_retention_count(args.retention);
    let hub = builder.start("127.0.0.1:0").await?;
    let hello = Hello {
        port: hub.port(),
        endpoint: hub.endpoint(),
        connection_string: hub.connection_string(),
        connection_string_with_port: hub.connection_string_with_port(),
    };
    println!("{}", serde_json::to_string(&hello)?);
    std::io::stdout().flush()?;
    std::future::pending().await
}
