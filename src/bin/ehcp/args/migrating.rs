//! The options of `ehcp migrate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{Permission, Selection};

#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct MigrateArgs {
    /// What wrote the checkpoints.
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub from: LegacySource,
    /// The container of its records, in the same account [default: --container, or azure-webjobs-eventhub for
    /// functions].
    #[arg(long, value_name = "NAME")]
    pub source_container: Option<String>,
    /// Its consumer group [default: --consumer-group, or the only one in the file].
    #[arg(long, value_name = "NAME")]
    pub source_group: Option<String>,
    /// What the names of its blobs begin with, if it was configured with a prefix.
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// The file of kafka-csv.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Replaces checkpoints that exist.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub selection: Selection,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// Takes partitions from live owners of the crate eventhubs-checkpoint.
    #[arg(long)]
    pub live: bool,
    /// Reads records that are in use. With --live, also takes partitions in a group with live owners of other SDKs,
    /// which may undo it.
    #[arg(long)]
    pub force: bool,
    /// How long to hold each partition with --live --force, so that owners of other SDKs detect that they lost it.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s", value_name = "DURATION")]
    pub settle: Duration,
    /// The folder for the backup.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub backup: PathBuf,
}

impl MigrateArgs {
    /// Returns what is permitted in the group that is written.
    pub fn permission(&self) -> Permission {
        let Self { execute, live, force, settle, .. } = *self;
        Permission { execute, live, force: live && force, own_positions: false, settle, backup: self.backup.clone() }
    }
}

/// A program that keeps checkpoints in a format of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LegacySource {
    /// EventProcessorHost of .NET, Java, Node.js or Python.
    Eph,
    /// Azure Functions with the Event Hubs extension 4 or older.
    Functions,
    /// EventProcessorHost of Go, also in Filebeat with `processor_version: v1`.
    GoEph,
    /// Dapr 1.9 or older.
    Dapr,
    /// A CSV file that `kafka-consumer-groups --export` wrote, for consumers at the Kafka endpoint.
    KafkaCsv,
}
