//! The arguments of the commands that set, export and import checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args as ClapArgs, ValueEnum};
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::describe::GroupDescription;
use time::OffsetDateTime;

use crate::exit::{Failure, Result};
use crate::text::{PartitionList, parse_partitions, parse_time};

/// Where to set the checkpoints.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// Before the first available event.
    #[arg(long)]
    pub to_earliest: bool,
    /// To the last event.
    #[arg(long)]
    pub to_latest: bool,
    /// Before the first event that was enqueued after this time, for example 2026-11-23T10:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub to_datetime: Option<OffsetDateTime>,
    /// Like --to-datetime, but relative: 2h means two hours ago.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub by_duration: Option<Duration>,
    /// By this number of events, forward or (negative) backward. Not for `ehcp init`.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub shift_by: Option<i64>,
    /// To the event with this sequence number. Processing continues with the next one.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub to_sequence: Option<i64>,
    /// To the event with this offset. Processing continues with the next one.
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    pub to_offset: Option<String>,
    /// Keeps positions; fills in a sequence number or offset that another SDK left out. Not for `ehcp init`.
    #[arg(long)]
    pub to_current: bool,
    /// To the positions in a file: one that `export` wrote, or a CSV file.
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
}

/// Which partitions.
#[derive(Clone, Debug, ClapArgs)]
pub struct Selection {
    /// Only these partitions, for example 0,3-5.
    #[arg(short, long, value_parser = parse_partitions, value_name = "LIST")]
    pub partitions: Option<PartitionList>,
}

impl Selection {
    /// Returns whether a partition is selected: all of them, if none is named.
    pub fn includes(&self, partition: &PartitionId) -> bool {
        self.partitions.as_ref().is_none_or(|PartitionList(listed)| listed.contains(partition))
    }

    /// Fails if a named partition is none of the group.
    pub fn check_partitions(&self, group: &GroupDescription) -> Result<()> {
        let mut named = self.partitions.iter().flat_map(|PartitionList(listed)| listed);
        match named.find(|id| group.partition(id).is_none()) {
            Some(unknown) if group.partitions.iter().any(|partition| partition.hub.is_some()) => {
                Err(Failure::usage(format!("the event hub has no partition {unknown}")))
            }
            Some(unknown) => Err(Failure::usage(format!(
                "partition {unknown} has no record: `ehcp describe` shows the partitions of the event hub, and `ehcp init` \
                 creates a checkpoint"
            ))),
            None => Ok(()),
        }
    }
}

/// What is permitted.
#[derive(Clone, Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct Permission {
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// Takes partitions from live owners of the crate eventhubs-checkpoint.
    #[arg(long)]
    pub live: bool,
    /// Takes partitions also in a group with live owners of other SDKs, which may undo it.
    #[arg(long, requires = "live")]
    pub force: bool,
    /// Sets checkpoints also where the application keeps its own positions, which take precedence.
    #[arg(long)]
    pub own_positions: bool,
    /// How long to hold each partition with --force, so that owners of other SDKs detect that they lost it.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s", value_name = "DURATION")]
    pub settle: Duration,
    /// The folder for the backup.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub backup: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub struct ResetArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub selection: Selection,
    /// Writes positions of --from-file also if the partition has no such events.
    #[arg(long, requires = "from_file")]
    pub unclamped: bool,
    #[command(flatten)]
    pub permission: Permission,
}

#[derive(Debug, ClapArgs)]
pub struct InitArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub selection: Selection,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
}

#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The file [default: the standard output].
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// The format of the file [default: json, or csv with -o csv].
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileFormat {
    /// JSON.
    Json,
    /// Lines of `partition,sequence_number,offset`.
    Csv,
}

#[derive(Debug, ClapArgs)]
pub struct ImportArgs {
    /// A file that `export` wrote, or a CSV file.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Replaces checkpoints that exist.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub selection: Selection,
    /// Writes positions also if the partition has no such events.
    #[arg(long)]
    pub unclamped: bool,
    #[command(flatten)]
    pub permission: Permission,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("destination").required(true).multiple(true)))]
pub struct CopyArgs {
    /// Another consumer group of the event hub.
    #[arg(long, value_name = "NAME", group = "destination")]
    pub to_group: Option<String>,
    /// Another container of the account.
    #[arg(long, value_name = "NAME", group = "destination")]
    pub to_container: Option<String>,
    /// The other casing of the blob names.
    #[arg(long, value_enum, value_name = "CASE", group = "destination")]
    pub to_case: Option<ExactCase>,
    /// Replaces checkpoints that exist.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub permission: Permission,
}

/// The casing of blob names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExactCase {
    /// Lower case.
    Lower,
    /// As given.
    Verbatim,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watching::tests::look;

    #[tokio::test(start_paused = true)]
    async fn only_the_event_hub_knows_its_partitions() {
        let selection = Selection { partitions: Some(PartitionList([5.into()].into())) };
        let mut group = look().await;
        let refusal = |group: &GroupDescription| selection.check_partitions(group).unwrap_err().to_string();
        assert_eq!(refusal(&group), "the event hub has no partition 5");
        group.partitions[0].hub = None;
        assert!(refusal(&group).starts_with("partition 5 has no record: "));
    }
}
