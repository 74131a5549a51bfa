//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::parser::ValueSource;
use clap::{ArgGroup, Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use eventhubs_checkpoint::OwnerId;
use time::OffsetDateTime;

use crate::exit::{Failure, Result};
use crate::text::{Partitions, datetime, has_secret, partitions, quoted};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Shows and steers Event Hubs consumer groups that keep their checkpoints in Azure Blob Storage, whatever SDK their
/// processors use.
///
/// Nothing is written without --execute. Before a command writes, it saves the checkpoints in a file and shows the
/// command that undoes it.
///
/// Exit status: 0 done; 1 failed; 2 a dry run would change something, or there are findings; 3 refused for safety; 64
/// wrong command line. `check` alone uses those of Nagios.
#[derive(Debug, Parser)]
#[command(name = "ehcp", version, styles = STYLES, max_term_width = 100, after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,

    #[command(subcommand)]
    pub command: Command,
}

const CONNECTION: &str = "Connection";

const EXAMPLES: &str = "\
Examples:
  ehcp describe -n my-namespace -e orders -a mystorage -c checkpoints
  ehcp profile add prod -n my-namespace -e orders -a mystorage -c checkpoints
  ehcp --profile prod reset --to-datetime 2026-11-23T10:00:00Z
  EVENTHUBS_CONNECTION_STRING=@hub.txt AZURE_STORAGE_CONNECTION_STRING=@storage.txt ehcp lag -c checkpoints";

/// What to connect to, and how to show it.
#[derive(Debug, Clone, ClapArgs)]
pub struct Global {
    /// The profile that has the settings that are given neither here nor in the environment.
    #[arg(long, global = true, env = "EHCP_PROFILE", value_name = "NAME", help_heading = CONNECTION)]
    pub profile: Option<String>,
    /// The namespace: my-namespace, or my-namespace.servicebus.windows.net.
    #[arg(short, long, global = true, env = "EHCP_NAMESPACE", value_name = "NAME", help_heading = CONNECTION)]
    pub namespace: Option<String>,
    /// The event hub.
    #[arg(short, long, global = true, env = "EHCP_EVENT_HUB", value_name = "NAME", help_heading = CONNECTION)]
    pub event_hub: Option<String>,
    /// The consumer group [default: $Default].
    #[arg(
        short = 'g',
        long,
        global = true,
        env = "EHCP_CONSUMER_GROUP",
        value_name = "NAME",
        help_heading = CONNECTION
    )]
    pub consumer_group: Option<String>,
    /// The storage account: its name, or the URL of its blob service.
    #[arg(short, long, global = true, env = "EHCP_ACCOUNT", value_name = "NAME", help_heading = CONNECTION)]
    pub account: Option<String>,
    /// The blob container.
    #[arg(short, long, global = true, env = "EHCP_CONTAINER", value_name = "NAME", help_heading = CONNECTION)]
    pub container: Option<String>,
    /// A file with the connection string of the event hub, as @FILE [default: EVENTHUBS_CONNECTION_STRING, or Entra ID].
    #[arg(long, global = true, value_name = "@FILE", help_heading = CONNECTION)]
    pub hub_connection_string: Option<String>,
    /// A file with the connection string of the storage account, as @FILE [default: AZURE_STORAGE_CONNECTION_STRING, or
    /// Entra ID].
    #[arg(long, global = true, value_name = "@FILE", help_heading = CONNECTION)]
    pub storage_connection_string: Option<String>,
    /// The credential of Entra ID.
    #[arg(long, global = true, env = "EHCP_AUTH", value_enum, default_value_t, help_heading = CONNECTION)]
    pub auth: Auth,
    /// The letter case of the blob names. `auto` finds the one that is in use.
    #[arg(long, global = true, env = "EHCP_BLOB_NAME_CASE", value_enum, default_value_t, help_heading = CONNECTION)]
    pub blob_name_case: NameCase,
    /// Reads events for this consumer group: needed while processors read for the group itself. Positions are the same
    /// for all groups of an event hub.
    #[arg(long, global = true, env = "EHCP_READ_GROUP", value_name = "NAME", help_heading = CONNECTION)]
    pub read_group: Option<String>,
    /// How long an ownership is valid after its last renewal, as the members of the group configure it.
    #[arg(long, global = true, env = "EHCP_LEASE_DURATION", value_parser = humantime::parse_duration, default_value = "60s", value_name = "DURATION", help_heading = CONNECTION)]
    pub lease_duration: Duration,
    /// The same for owners of other SDKs, at least --lease-duration.
    #[arg(long, global = true, env = "EHCP_FOREIGN_LEASE_DURATION", value_parser = humantime::parse_duration, default_value = "3m", value_name = "DURATION", help_heading = CONNECTION)]
    pub foreign_lease_duration: Duration,
    /// How long a request to the storage may take [default: 5s, or a quarter of --lease-duration].
    #[arg(long, global = true, value_parser = humantime::parse_duration, value_name = "DURATION", help_heading = CONNECTION)]
    pub timeout: Option<Duration>,
    /// Does not connect to the event hub.
    #[arg(long, global = true, help_heading = CONNECTION)]
    pub no_hub: bool,
    /// The format of the output.
    #[arg(short, long, global = true, value_enum, default_value_t, help_heading = "Output")]
    pub output: Format,
    /// When to use colors.
    #[arg(long, global = true, value_enum, default_value_t, help_heading = "Output")]
    pub color: Color,
    /// Shows the log of the requests; repeat for more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// The options of this heading that are on the command line, for commands that are shown to be repeated.
    #[arg(skip)]
    pub given: Vec<String>,
}

impl Global {
    /// Fails if a name has a secret, without showing it.
    pub fn check_secrets(&self) -> Result<()> {
        for (option, name) in [
            ("--namespace", &self.namespace),
            ("--event-hub", &self.event_hub),
            ("--consumer-group", &self.consumer_group),
            ("--account", &self.account),
            ("--container", &self.container),
            ("--read-group", &self.read_group),
        ] {
            if name.as_deref().is_some_and(has_secret) {
                return Err(Failure::usage(format!(
                    "the value of {option} has a key or a signature: pass a name here, and the connection string in a \
                     file, with --hub-connection-string @FILE or --storage-connection-string @FILE"
                )));
            }
        }
        Ok(())
    }

    /// Returns the same options with others for another destination.
    #[must_use]
    pub fn redirected(mut self, options: &[(&str, &str)]) -> Self {
        for (name, value) in options {
            if let Some(place) = self.given.iter().position(|given| given == name) {
                self.given.drain(place..=place + 1);
            }
            self.given.extend([(*name).to_owned(), quoted(value)]);
        }
        self
    }
}

impl Args {
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
            let (id, Some(name)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
            if last.value_source(id) == Some(ValueSource::CommandLine) {
                args.global.given.push(format!("--{name}"));
                // A flag has no value to repeat.
                let values = last.get_raw(id).into_iter().flatten().filter(|_| argument.get_action().takes_values());
                args.global.given.extend(values.map(|value| quoted(&value.to_string_lossy())));
            }
        }
        Ok(args)
    }
}

/// A credential of Entra ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// Workload identity if the environment has one, otherwise developer tools.
    #[default]
    Auto,
    /// The login of the Azure CLI or the Azure Developer CLI.
    DeveloperTools,
    /// The federated token of a Kubernetes service account.
    WorkloadIdentity,
    /// The managed identity of the machine.
    ManagedIdentity,
}

/// The letter case of blob names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NameCase {
    /// The one that has records; lower case if both have.
    #[default]
    Auto,
    /// Lower case, as most SDKs write.
    Lower,
    /// As given, as the Go and Rust SDKs write.
    Verbatim,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The most important columns.
    #[default]
    Table,
    /// All columns.
    Wide,
    /// One JSON document.
    Json,
    /// One JSON document per line.
    Ndjson,
    /// All columns, separated by commas.
    Csv,
}

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the consumer groups in the container.
    #[command(after_help = "Examples:\n  ehcp list -c checkpoints\n  ehcp list --state dead -o json")]
    List(List),
    /// Shows the owner, the checkpoint and the lag of each partition.
    #[command(after_help = "Examples:\n  ehcp describe\n  ehcp describe --members\n  ehcp describe -o wide --no-hub")]
    Describe(Describe),
    /// Shows how many events wait.
    #[command(after_help = "Examples:\n  ehcp lag\n  ehcp lag --sum\n  ehcp lag --max 1000 || alert")]
    Lag(Lag),
    /// Sets checkpoints: processing continues with the event after it.
    ///
    /// Works for groups with and without live owners. Live owners of the crate eventhubs-checkpoint are displaced with
    /// --live; they start again at the new position. Owners of other SDKs may undo the reset: stop them, or accept that
    /// with --force.
    #[command(after_help = "Examples:
  ehcp reset --to-datetime 2026-11-23T10:00:00Z --read-group tools
  ehcp reset --by-duration 2h --live --execute
  ehcp reset -p 3 --shift-by 1 --live --execute     skips one event
  ehcp reset --from-file backup.json --execute")]
    Reset(Reset),
    /// Writes initial checkpoints where there are none, so that KEDA and the lag count from there.
    #[command(after_help = "Examples:\n  ehcp init --to-latest --execute\n  ehcp init --to-earliest -p 0-3 --execute")]
    Init(Init),
    /// Deletes records of a group without live owners.
    #[command(
        after_help = "Examples:\n  ehcp delete --checkpoints --ownerships --heartbeats --execute\n  ehcp delete --checkpoints -p 7"
    )]
    Delete(Delete),
    /// Releases partitions, so that any member can claim them at once.
    #[command(
        after_help = "Examples:\n  ehcp release -p 3 --live --execute\n  ehcp release --owner orders-7c9-x2 --execute"
    )]
    Release(Release),
    /// Writes the checkpoints of a group to a file.
    #[command(after_help = "Examples:\n  ehcp export --to backup.json\n  ehcp export --format csv > backup.csv")]
    Export(Export),
    /// Sets checkpoints to those of a file.
    #[command(
        after_help = "Examples:\n  ehcp import --from backup.json\n  ehcp import --from backup.json --overwrite --execute"
    )]
    Import(Import),
    /// Copies checkpoints to another group, container or letter case.
    #[command(after_help = "Examples:\n  ehcp copy --to-group replay --execute\n  ehcp copy --to-case lower --execute")]
    Copy(Copy),
    /// Shows events, for example the one that a handler cannot process.
    #[command(
        after_help = "Examples:\n  ehcp peek -p 3\n  ehcp peek -p 3 --at 77211 --count 1 -o json --read-group tools"
    )]
    Peek(Peek),
    /// Checks a group for a monitoring system, with the exit status of a Nagios plugin.
    #[command(
        after_help = "Examples:\n  ehcp check --lag-warn 1000 --lag-crit 100000\n  ehcp check --updated-within 10m -o json\n\nExit status: 0 ok; 1 warning; 2 critical; 3 unknown"
    )]
    Check(Check),
    /// Finds what is wrong with a group, and says what to do.
    #[command(after_help = "Examples:
  ehcp doctor
  ehcp doctor --write-probe --only storage --only hub

Roles: Storage Blob Data Reader and Azure Event Hubs Data Receiver to look; Storage Blob Data Contributor to write.")]
    Doctor(Doctor),
    /// Keeps settings under a name. A profile has no secrets.
    #[command(
        subcommand,
        after_help = "Examples:\n  ehcp profile add prod -n my-namespace -e orders -a mystorage -c checkpoints\n  ehcp profile use prod"
    )]
    Profile(Profile),
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
pub struct List {
    /// Only groups in this state: empty, dead, stable, moving or mixed.
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only groups whose name begins with this text: `namespace/event hub/group`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    pub prefix: String,
}

#[derive(Debug, ClapArgs)]
pub struct Describe {
    /// Shows the members instead of the partitions.
    #[arg(long, conflicts_with = "state")]
    pub members: bool,
    /// Shows the group as a whole instead of the partitions.
    #[arg(long)]
    pub state: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Lag {
    /// Shows one number, the sum.
    #[arg(long)]
    pub sum: bool,
    /// Exits with 2 if the sum is greater.
    #[arg(long, value_name = "EVENTS")]
    pub max: Option<u64>,
}

/// Where to set the checkpoints.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// Before the first available event.
    #[arg(long)]
    pub to_earliest: bool,
    /// To the last event.
    #[arg(long)]
    pub to_latest: bool,
    /// Before the first event that was enqueued after this time, as 2026-11-23T10:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = datetime)]
    pub to_datetime: Option<OffsetDateTime>,
    /// The same for a time that is this long ago.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub by_duration: Option<Duration>,
    /// By this number of events, forward or (negative) backward.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub shift_by: Option<i64>,
    /// To the event with this sequence number. Processing continues with the next one.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub to_sequence: Option<i64>,
    /// To the event with this offset. Processing continues with the next one.
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    pub to_offset: Option<String>,
    /// To where they are: adds the number that some SDKs omit.
    #[arg(long)]
    pub to_current: bool,
    /// To those of a file that `export` wrote, or of a CSV file.
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
}

/// What is permitted.
#[derive(Clone, Debug, ClapArgs)]
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
    /// How long to hold each partition with --force, so that owners of other SDKs detect that they lost it.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s", value_name = "DURATION")]
    pub settle: Duration,
    /// The folder for the backup.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub backup: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub struct Reset {
    #[command(flatten)]
    pub target: Target,
    /// Only these partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST")]
    pub partitions: Option<Partitions>,
    /// Writes positions of --from-file also if the partition has no such events.
    #[arg(long, requires = "from_file")]
    pub unclamped: bool,
    #[command(flatten)]
    pub permission: Permission,
}

#[derive(Debug, ClapArgs)]
pub struct Init {
    #[command(flatten)]
    pub target: Target,
    /// Only these partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST")]
    pub partitions: Option<Partitions>,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("records").required(true).multiple(true)))]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct Delete {
    /// The checkpoints. Processors that start afterwards use their start position, and KEDA counts the whole event hub.
    #[arg(long, group = "records")]
    pub checkpoints: bool,
    /// The ownerships.
    #[arg(long, group = "records")]
    pub ownerships: bool,
    /// The heartbeats.
    #[arg(long, group = "records")]
    pub heartbeats: bool,
    /// Only these partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST")]
    pub partitions: Option<Partitions>,
    /// Writes. Without it, the command shows what it would do.
    #[arg(long)]
    pub execute: bool,
    /// The folder for the backup.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub backup: PathBuf,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("released").required(true).multiple(true)))]
pub struct Release {
    /// These partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST", group = "released")]
    pub partitions: Option<Partitions>,
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
pub struct Export {
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
pub struct Import {
    /// A file that `export` wrote, or a CSV file.
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Replaces checkpoints that exist.
    #[arg(long)]
    pub overwrite: bool,
    /// Only these partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST")]
    pub partitions: Option<Partitions>,
    /// Writes positions also if the partition has no such events.
    #[arg(long)]
    pub unclamped: bool,
    #[command(flatten)]
    pub permission: Permission,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("destination").required(true).multiple(true)))]
pub struct Copy {
    /// Another consumer group of the event hub.
    #[arg(long, value_name = "NAME", group = "destination")]
    pub to_group: Option<String>,
    /// Another container of the account.
    #[arg(long, value_name = "NAME", group = "destination")]
    pub to_container: Option<String>,
    /// The other letter case of the blob names.
    #[arg(long, value_enum, value_name = "CASE", group = "destination")]
    pub to_case: Option<ExactCase>,
    /// Replaces checkpoints that exist.
    #[arg(long)]
    pub overwrite: bool,
    /// Only these partitions, as 0,3-5.
    #[arg(short, long, value_parser = partitions, value_name = "LIST")]
    pub partitions: Option<Partitions>,
    #[command(flatten)]
    pub permission: Permission,
}

/// The letter case of blob names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExactCase {
    /// Lower case.
    Lower,
    /// As given.
    Verbatim,
}

#[derive(Debug, ClapArgs)]
pub struct Peek {
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
pub struct Check {
    /// Warns if the sum of the lag is greater.
    #[arg(long, value_name = "EVENTS")]
    pub lag_warn: Option<u64>,
    /// Critical if the sum of the lag is greater.
    #[arg(long, value_name = "EVENTS")]
    pub lag_crit: Option<u64>,
    /// Critical if a partition has had no live owner for longer. At once without this option.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub unowned_for: Option<Duration>,
    /// Critical if events wait and a checkpoint is older.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub updated_within: Option<Duration>,
}

#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// Also writes and deletes a blob, to check the permission to write and what the account does with writes.
    #[arg(long)]
    pub write_probe: bool,
    /// Only this check; may be repeated.
    #[arg(long, value_name = "CHECK")]
    pub only: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Profile {
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
