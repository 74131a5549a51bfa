//! The arguments of the commands that delete records, that release, pause and resume partitions, and that redrive dead
//! letters.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs};
use eventhubs_checkpoint::OwnerId;
use time::OffsetDateTime;

use super::Selection;
use crate::text::{PartitionList, parse_partitions, parse_time};

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("records").required(true).multiple(true)))]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct DeleteArgs {
    /// The checkpoints. Processors that start afterward use their start position, and KEDA counts all available events
    /// of these partitions.
    #[arg(long, group = "records")]
    pub checkpoints: bool,
    /// The ownerships.
    #[arg(long, group = "records")]
    pub ownerships: bool,
    /// The heartbeats.
    #[arg(long, group = "records")]
    pub heartbeats: bool,
    #[command(flatten)]
    pub selection: Selection,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// The folder for the backup.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub backup: PathBuf,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("released").required(true).multiple(true)))]
pub struct ReleaseArgs {
    /// These partitions, for example 0,3-5.
    #[arg(short, long, value_parser = parse_partitions, value_name = "LIST", group = "released")]
    pub partitions: Option<PartitionList>,
    /// The partitions of this owner.
    #[arg(long, value_name = "ID", group = "released")]
    pub owner: Option<OwnerId>,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// Takes partitions from live owners of the crate eventhubs-checkpoint.
    #[arg(long)]
    pub live: bool,
    /// Takes partitions also in a group with live owners of other SDKs, which may continue to process them.
    #[arg(long, requires = "live")]
    pub force: bool,
}

#[derive(Debug, ClapArgs)]
pub struct RedriveArgs {
    #[command(flatten)]
    pub selection: Selection,
    /// Takes at most this many letters, those that it skips included. The others stay for the next run.
    #[arg(long, value_name = "N")]
    pub max: Option<NonZeroU64>,
    /// A file with the connection string of the namespace to send with, as @FILE [default:
    /// EHCP_SEND_CONNECTION_STRING, or how the dead letters are read].
    #[arg(long, value_name = "@FILE")]
    pub send_connection_string: Option<String>,
    /// Sends. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
}

#[derive(Debug, ClapArgs)]
pub struct PauseArgs {
    #[command(flatten)]
    pub selection: Selection,
    /// The reason, which `ehcp describe -o wide` shows.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Ends the pause at this time, as 2026-11-23T10:00:00Z [default: it ends with `ehcp resume`].
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "for_duration")]
    pub until: Option<OffsetDateTime>,
    /// Ends the pause after this long, for example 2h.
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub for_duration: Option<Duration>,
    #[command(flatten)]
    pub takeover: TakeoverArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ResumeArgs {
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub takeover: TakeoverArgs,
}

/// How partitions are taken over for a moment.
#[derive(Clone, Debug, ClapArgs)]
pub struct TakeoverArgs {
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// Takes partitions from live owners of the crate eventhubs-checkpoint, which get them back at once.
    #[arg(long)]
    pub live: bool,
}
