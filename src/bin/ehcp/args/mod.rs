//! The command line.

mod costing;
mod global;
mod migrating;
mod operating;
mod setting;
mod watching;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::parser::ValueSource;
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

pub use self::costing::CostArgs;
use self::global::CONNECTION;
pub use self::global::{Auth, CaseArg, Color, ConnectionSettings, Format, Global};
pub use self::migrating::{LegacySource, MigrateArgs};
pub use self::operating::{DeleteArgs, PauseArgs, RedriveArgs, ReleaseArgs, ResumeArgs};
pub use self::setting::{
    CopyArgs, ExactCase, ExportArgs, FileFormat, ImportArgs, InitArgs, Permission, ResetArgs, Selection, TargetArgs,
};
pub use self::watching::{KedaArgs, LookIntervals, SecondLook, ServeArgs, WatchArgs};
use crate::text::quote_word;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Inspects and manages Event Hubs consumer groups that checkpoint to Azure Blob Storage, whatever SDK they use.
///
/// No record is written without --execute. Commands that set or delete checkpoints first save them in a file, and
/// afterward show the command that undoes the change; `redrive`, which only advances them, does not.
///
/// Exit status: 0 done; 1 failed; 2 a dry run would change something, or there are findings; 3 refused for safety; 64
/// wrong command line. `check` uses Nagios exit codes instead.
#[derive(Debug, Parser)]
#[command(name = "ehcp", version, styles = STYLES, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,

    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ehcp describe -n my-namespace -e orders -a mystorage -c checkpoints
  ehcp profile add prod -n my-namespace -e orders -a mystorage -c checkpoints
  ehcp --profile prod reset --to-datetime 2026-11-23T10:00:00Z
  EVENTHUBS_CONNECTION_STRING=@hub.txt AZURE_STORAGE_CONNECTION_STRING=@storage.txt ehcp lag -c checkpoints";

impl Args {
    /// Returns whether the command of a line is `check`, even if the line is wrong.
    pub fn is_check(line: impl IntoIterator<Item = OsString>) -> bool {
        let matches = Self::command().ignore_errors(true).try_get_matches_from(line);
        matches.is_ok_and(|matches| matches.subcommand_name() == Some("check"))
    }

    /// Reads the command line.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(line)?;
        let mut args = Self::from_arg_matches(&matches)?;
        // Global options belong to the command that is run.
        let mut last = &matches;
        while let Some((_, matches)) = last.subcommand() {
            last = matches;
        }
        for argument in
            Self::command().get_arguments().filter(|argument| argument.get_help_heading() == Some(CONNECTION))
        {
            let id = argument.get_id().as_str();
            let Some(name) = argument.get_long() else { continue };
            if last.value_source(id) == Some(ValueSource::CommandLine) {
                args.global.given.push(format!("--{name}"));
                // A flag has no value to repeat.
                let values = last.get_raw(id).into_iter().flatten().filter(|_| argument.get_action().takes_values());
                args.global.given.extend(values.map(|value| quote_word(&value.to_string_lossy())));
            }
        }
        Ok(args)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the consumer groups in the container.
    #[command(after_help = "Examples:\n  ehcp list -c checkpoints\n  ehcp list --state dead -o json")]
    List(ListArgs),
    /// Shows the owner, the checkpoint and the lag of each partition.
    #[command(after_help = "Examples:\n  ehcp describe\n  ehcp describe --members\n  ehcp describe -o wide --no-hub")]
    Describe(DescribeArgs),
    /// Shows consumer lag.
    #[command(after_help = "Examples:\n  ehcp lag\n  ehcp lag -p 3 --sum\n  ehcp lag --max 1000 || alert")]
    Lag(LagArgs),
    /// Watches a group live: full-screen in a terminal, otherwise one JSON line per refresh.
    ///
    /// Nothing is written to the group. Press ? for the keys of the screen, and for the requests that watching costs.
    #[command(
        after_help = "Examples:\n  ehcp watch\n  ehcp watch --refresh 3s --no-hub\n  ehcp watch --count 3 -o ndjson > looks.ndjson"
    )]
    Watch(WatchArgs),
    /// Resets checkpoints. Processing resumes after the given position.
    ///
    /// Works for groups with and without live owners. Live owners of the crate eventhubs-checkpoint are displaced with
    /// --live; they start again at the new position. Owners of other SDKs may undo the reset: stop them, or accept that
    /// with --force.
    #[command(after_help = "Examples:
  ehcp reset --to-datetime 2026-11-23T10:00:00Z --read-group tools
  ehcp reset --by-duration 2h --read-group tools --live --execute
  ehcp reset -p 3 --shift-by 1 --read-group tools --live --execute     skips one event
  ehcp reset --from-file backup.json --execute")]
    Reset(ResetArgs),
    /// Creates missing checkpoints, so that lag and KEDA have a starting point.
    #[command(after_help = "Examples:\n  ehcp init --to-latest --execute\n  ehcp init --to-earliest -p 0-3 --execute")]
    Init(InitArgs),
    /// Deletes records that no live owner uses.
    #[command(
        after_help = "Examples:\n  ehcp delete --checkpoints --ownerships --heartbeats --execute\n  ehcp delete --checkpoints -p 7"
    )]
    Delete(DeleteArgs),
    /// Releases partitions, so that any member can claim them at once.
    #[command(
        after_help = "Examples:\n  ehcp release -p 3 --live --execute\n  ehcp release --owner orders-7c9-x2 --execute"
    )]
    Release(ReleaseArgs),
    /// Pauses partitions: their owners keep them, and deliver nothing.
    ///
    /// The pause is stored in the checkpoints, so it survives restarts and moves. Processors of the crate
    /// eventhubs-checkpoint honor it, processors of other SDKs do not. With --live, a live owner loses the partition
    /// for a moment.
    #[command(after_help = "Examples:
  ehcp pause -p 3 --reason 'corrupt since 10:40, see OPS-71' --live --execute
  ehcp pause --for 2h --live --execute     pauses the whole group")]
    Pause(PauseArgs),
    /// Resumes partitions that `ehcp pause` has paused, or that were parked after a failure.
    #[command(after_help = "Examples:\n  ehcp resume -p 3 --live --execute\n  ehcp resume --live --execute")]
    Resume(ResumeArgs),
    /// Writes the checkpoints of a group to a file.
    #[command(after_help = "Examples:\n  ehcp export --to backup.json\n  ehcp export --format csv > backup.csv")]
    Export(ExportArgs),
    /// Restores checkpoints from a file.
    #[command(
        after_help = "Examples:\n  ehcp import --from backup.json\n  ehcp import --from backup.json --overwrite --execute"
    )]
    Import(ImportArgs),
    /// Copies checkpoints to another group, container or blob-name casing.
    #[command(after_help = "Examples:\n  ehcp copy --to-group replay --execute\n  ehcp copy --to-case lower --execute")]
    Copy(CopyArgs),
    /// Imports the checkpoints of another program: EventProcessorHost, Azure Functions, Dapr, Filebeat, or Kafka.
    ///
    /// Reads the records of the program, and writes nothing to them. Stop the program first: a record whose blob is
    /// leased is refused without --force. A partition that has a checkpoint stays as it is, unless --overwrite is
    /// given.
    #[command(after_help = "Examples:
  ehcp migrate --from eph --source-container eph-leases
  ehcp migrate --from functions --execute
  ehcp migrate --from go-eph --source-container filebeat-orders --execute
  ehcp migrate --from kafka-csv --file offsets.csv --source-group orders-app")]
    Migrate(MigrateArgs),
    /// Shows events, for example the one that a handler cannot process.
    #[command(
        after_help = "Examples:\n  ehcp peek -p 3\n  ehcp peek -p 3 --at 77211 --count 1 -o json --read-group tools"
    )]
    Peek(PeekArgs),
    /// Sends dead letters back to the event hubs that they came from.
    ///
    /// --event-hub is the event hub of the dead letters. Letters after the checkpoint of --consumer-group are sent, and
    /// the checkpoint follows, so use a group for this command alone. A letter becomes a new event for all consumer
    /// groups of its event hub. Letters that come during the run stay for the next one. After a crash, up to 100 letters
    /// of each partition may be sent again. The dry run shows the origin of the first letter of each partition.
    #[command(after_help = "Examples:
  ehcp redrive -e orders-dead-letters
  ehcp redrive -e orders-dead-letters -p 0 --max 1 --execute     tries it with one letter
  ehcp redrive -e orders-dead-letters --send-connection-string @send.txt --execute")]
    Redrive(RedriveArgs),
    /// Checks a group for a monitoring system, with the exit status of a Nagios plugin.
    #[command(
        after_help = "Examples:\n  ehcp check --lag-warn 1000 --lag-crit 100000 --lag-age-warn 5m\n  ehcp check --updated-within 10m -o json\n\nExit status: 0 ok; 1 warning; 2 critical; 3 unknown"
    )]
    Check(CheckArgs),
    /// Finds what is wrong with a group, and says what to do.
    #[command(after_help = "Examples:
  ehcp doctor
  ehcp doctor --second-look 40s                       for checkpoints every 30s
  ehcp doctor --stuck-after 20m --second-look 10m     for handlers that take minutes
  ehcp doctor --write-probe --only storage --only hub

Roles: Storage Blob Data Reader and Azure Event Hubs Data Receiver to look; Storage Blob Data Contributor to write.")]
    Doctor(DoctorArgs),
    /// Estimates what a group costs: requests to the storage per hour, and USD per month.
    ///
    /// The estimate is for a balanced group of the crate eventhubs-checkpoint, by its settings and its size. With
    /// --partitions and --instances, the command needs no group and no connection. The default prices are samples: pass
    /// the prices of your account.
    #[command(after_help = "Examples:
  ehcp cost --partitions 32 --instances 4
  ehcp cost --partitions 32 --instances 4 --fast-failover --busy 8 --checkpoint-interval 30s
  ehcp cost -g orders --price-list 0.05 --price-other 0.004")]
    Cost(CostArgs),
    /// Shows what KEDA's scaler for Event Hubs counts in each partition, and why.
    ///
    /// KEDA reads the checkpoints itself (checkpointStrategy: blobMetadata). Its count follows other
    /// rules than the lag, and one checkpoint without a number makes its poll fail. Exits with 2 if KEDA fails, or
    /// counts something other than the lag.
    #[command(after_help = "Examples:
  ehcp keda
  ehcp keda --threshold 500 --max-replicas 16")]
    Keda(KedaArgs),
    /// Watches groups: a page for the browser, metrics for Prometheus, and JSON.
    ///
    /// Serves `/` (the page), `/metrics`, `/api/groups`, `/api/group?name=`, `/api/events` (server-sent events) and
    /// `/healthz`. It reads, and writes nothing. The last hour is kept in memory.
    ///
    /// There is no authentication and no TLS: listen on the loopback interface, or put a proxy in front of it.
    #[command(after_help = "Examples:
  ehcp serve
  ehcp serve --group billing --group shipping --listen 127.0.0.1:9000
  ehcp serve --all --listen 0.0.0.0:8090     for Prometheus, in a cluster")]
    Serve(ServeArgs),
    /// Manages named connection profiles, which never contain secrets.
    #[command(
        subcommand,
        after_help = "Examples:\n  ehcp profile add prod -n my-namespace -e orders -a mystorage -c checkpoints\n  ehcp profile use prod"
    )]
    Profile(ProfileCommand),
    /// Writes a completion script for a shell.
    #[command(after_help = "Examples:\n  ehcp completions bash > ~/.local/share/bash-completion/completions/ehcp")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Writes the manual pages to a folder.
    #[command(after_help = "Examples:\n  ehcp man --to ~/.local/share/man/man1")]
    Man {
        /// The folder.
        #[arg(long, value_name = "FOLDER", default_value = ".")]
        to: PathBuf,
    },
}

#[derive(Debug, ClapArgs)]
pub struct ListArgs {
    /// Only groups in this state: empty, dead, stable, moving or mixed.
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only groups whose name begins with this text: `namespace/event hub/group`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    pub prefix: String,
}

#[derive(Debug, ClapArgs)]
pub struct DescribeArgs {
    /// Shows the members instead of the partitions.
    #[arg(long, conflicts_with_all = ["state", "partitions"])]
    pub members: bool,
    /// Shows the group as a whole instead of the partitions.
    #[arg(long, conflicts_with = "partitions")]
    pub state: bool,
    #[command(flatten)]
    pub selection: Selection,
}

#[derive(Debug, ClapArgs)]
pub struct LagArgs {
    #[command(flatten)]
    pub selection: Selection,
    /// Shows one number, the sum.
    #[arg(long)]
    pub sum: bool,
    /// Exits with 2 if the sum is greater.
    #[arg(long, value_name = "EVENTS")]
    pub max: Option<u64>,
}

#[derive(Debug, ClapArgs)]
pub struct PeekArgs {
    /// The partition.
    #[arg(short, long, value_name = "ID")]
    pub partition: String,
    /// The sequence number of the first event [default: the one after the checkpoint].
    #[arg(long, value_name = "N")]
    pub at: Option<i64>,
    /// The number of events.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub count: usize,
    /// How long to wait for the next event.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s", value_name = "DURATION")]
    pub wait: Duration,
}

#[derive(Debug, ClapArgs)]
pub struct CheckArgs {
    /// Warns if the sum of the lag is greater.
    #[arg(long, value_name = "EVENTS")]
    pub lag_warn: Option<u64>,
    /// Critical if the sum of the lag is greater.
    #[arg(long, value_name = "EVENTS")]
    pub lag_crit: Option<u64>,
    /// Warns if an event has waited for longer, or if events wait and the owner made no progress for longer, also at
    /// the second look. Partitions that an operator paused do not count, parked ones do.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub lag_age_warn: Option<Duration>,
    /// Critical in the same case.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub lag_age_crit: Option<Duration>,
    /// Critical if a partition has had no live owner for longer. At once without this option.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub unowned_for: Option<Duration>,
    /// Critical if events wait and a checkpoint is older, also at the second look. Partitions that an operator paused
    /// do not count, parked ones do.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub updated_within: Option<Duration>,
    #[command(flatten)]
    pub second_look: SecondLook,
}

#[derive(Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Also writes and deletes a blob, to check the permission to write and what the account does with writes.
    #[arg(long)]
    pub write_probe: bool,
    /// How long a checkpoint may stand still while events wait, also at the second look. Handlers that take longer for
    /// one batch need more.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "3m", value_name = "DURATION")]
    pub stuck_after: Duration,
    #[command(flatten)]
    pub second_look: SecondLook,
    /// Only this check; may be repeated.
    #[arg(long, value_name = "CHECK")]
    pub only: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Keeps the settings of this command line under a name.
    Add {
        /// The name.
        name: String,
    },
    /// Shows all profiles.
    List,
    /// Makes a profile the default.
    Use {
        /// The name.
        name: String,
    },
    /// Removes a profile.
    Remove {
        /// The name.
        name: String,
    },
}
