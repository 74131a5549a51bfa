//! What all commands have in common: what to connect to, and how to show it.

use std::time::Duration;

use clap::{Arg, Args as ClapArgs, ValueEnum};
use eventhubs_checkpoint::store::BlobNameCase;
use serde::{Deserialize, Serialize};

use crate::exit::{Failure, Result};
use crate::text::{has_secret, quote_word};

/// The heading of the options that are repeated in commands to be run again.
pub(super) const CONNECTION: &str = "Connection";

/// What a profile keeps, and the command line and the environment override. It has no secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, ClapArgs, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSettings {
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
    /// The blob container [default: checkpoints].
    #[arg(short, long, global = true, env = "EHCP_CONTAINER", value_name = "NAME", help_heading = CONNECTION)]
    pub container: Option<String>,
    /// The credential of Entra ID [default: auto].
    #[arg(long, global = true, env = "EHCP_AUTH", value_enum, help_heading = CONNECTION)]
    pub auth: Option<Auth>,
    /// The casing of the blob names. `auto` finds the one that is in use [default: auto].
    #[arg(long, global = true, env = "EHCP_BLOB_NAME_CASE", value_enum, help_heading = CONNECTION)]
    pub blob_name_case: Option<CaseArg>,
    /// Reads events through this consumer group: needed while processors read through the group itself. Positions are
    /// the same for all groups of an event hub.
    #[arg(long, global = true, env = "EHCP_READ_GROUP", value_name = "NAME", help_heading = CONNECTION)]
    pub read_group: Option<String>,
    /// How long the ownership of another SDK is valid after its last renewal. Members of this crate record it
    /// themselves [default: 3m].
    #[arg(long, global = true, env = "EHCP_FOREIGN_LEASE_DURATION", value_parser = humantime::parse_duration, value_name = "DURATION", help_heading = CONNECTION)]
    #[serde(default, with = "humantime_serde")]
    pub foreign_lease_duration: Option<Duration>,
}

impl ConnectionSettings {
    /// Completes these settings by others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            namespace: self.namespace.or(other.namespace),
            event_hub: self.event_hub.or(other.event_hub),
            consumer_group: self.consumer_group.or(other.consumer_group),
            account: self.account.or(other.account),
            container: self.container.or(other.container),
            auth: self.auth.or(other.auth),
            blob_name_case: self.blob_name_case.or(other.blob_name_case),
            read_group: self.read_group.or(other.read_group),
            foreign_lease_duration: self.foreign_lease_duration.or(other.foreign_lease_duration),
        }
    }

    /// Returns whether an option is one of these.
    pub fn has_option(option: &str) -> bool {
        Self::augment_args(clap::Command::new("settings"))
            .get_arguments()
            .filter_map(Arg::get_long)
            .any(|name| option.strip_prefix("--") == Some(name))
    }
}

/// What to connect to, and how to show it.
#[derive(Debug, Clone, ClapArgs)]
pub struct Global {
    /// The profile that supplies settings given neither as an option nor in the environment.
    #[arg(long, global = true, env = "EHCP_PROFILE", value_name = "NAME", help_heading = CONNECTION)]
    pub profile: Option<String>,
    #[command(flatten)]
    pub settings: ConnectionSettings,
    /// A file with the connection string of the event hub, as @FILE [default: EVENTHUBS_CONNECTION_STRING, or Entra
    /// ID].
    #[arg(long, global = true, value_name = "@FILE", help_heading = CONNECTION)]
    pub hub_connection_string: Option<String>,
    /// A file with the connection string of the storage account, as @FILE [default: AZURE_STORAGE_CONNECTION_STRING, or
    /// Entra ID].
    #[arg(long, global = true, value_name = "@FILE", help_heading = CONNECTION)]
    pub storage_connection_string: Option<String>,
    /// How long a request to the storage may take [default: 5s; 30s to list the container], and to the event hub
    /// [default: 20s].
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
    /// Returns how long a listing may take that no store limits.
    pub fn listing_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(30))
    }

    /// Fails if a name has a secret, without showing it.
    pub fn check_secrets(&self) -> Result<()> {
        let settings = &self.settings;
        for (option, name) in [
            ("--namespace", &settings.namespace),
            ("--event-hub", &settings.event_hub),
            ("--consumer-group", &settings.consumer_group),
            ("--account", &settings.account),
            ("--container", &settings.container),
            ("--read-group", &settings.read_group),
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
    pub fn with_options(mut self, options: &[(&str, &str)]) -> Self {
        for (name, value) in options {
            if let Some(place) = self.given.iter().position(|given| given == name) {
                self.given.drain(place..=place + 1);
            }
            self.given.extend([(*name).to_owned(), quote_word(value)]);
        }
        self
    }
}

/// A credential of Entra ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// The casing of blob names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaseArg {
    /// The one that has records; if both have, the one with live owners or the newest checkpoint.
    #[default]
    Auto,
    /// Lower case, as most SDKs write.
    Lower,
    /// As given, as the Go and Rust SDKs write.
    Verbatim,
}

impl From<CaseArg> for BlobNameCase {
    fn from(case: CaseArg) -> Self {
        match case {
            CaseArg::Auto => Self::Auto,
            CaseArg::Lower => Self::Lower,
            CaseArg::Verbatim => Self::Verbatim,
        }
    }
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
