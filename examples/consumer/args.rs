//! The command line and the environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use eventhubs_checkpoint::LeaseScope;

use crate::Failure;
use crate::connection::{HubArgs, StorageArgs};

/// A consumer that shares the partitions of an event hub with other instances and checkpoints its progress.
///
/// Without arguments it demonstrates itself: an event hub and blob storage in this process, three instances, a
/// producer, and one instance that crashes half-way. With a real event hub it is an ordinary consumer that runs until
/// Ctrl-C or SIGTERM. A second signal ends it at once, without releasing anything.
///
/// The exit status is 0 if every event was processed, 1 if an event was lost, 2 after an error, 130 or 143 if a second
/// signal ended it.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    pub storage: StorageArgs,

    /// Creates the container if it does not exist. Always done in `memory` and `azurite`.
    #[arg(long)]
    pub create_container: bool,

    #[command(flatten)]
    pub hub: HubArgs,

    /// The number of partitions of the embedded event hub.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub partitions: u16,

    /// The number of instances in this process [default: 3 with the embedded hub, else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub instances: Option<u16>,

    /// The prefix of the owner IDs of the instances [default: worker with the embedded hub, else host and process id].
    #[arg(long, value_name = "PREFIX")]
    pub owner_prefix: Option<String>,

    /// The number of events to publish [default: 8000 with the embedded hub, else none].
    ///
    /// The program ends when all are processed. It does not end if other processes share the consumer group, because
    /// the events that they process cannot be counted here.
    #[arg(long, value_name = "N")]
    pub events: Option<u32>,

    /// The minimum size of a published event; shorter events are padded [default: no padding].
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    pub event_size: usize,

    /// The time at which one instance crashes; 0 for never [default: 8 with the embedded hub, else 0].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub kill_after: Option<Duration>,

    /// The time between two load-balancing cycles [default: 1 with the embedded hub, else 10].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub load_balancing_interval: Option<Duration>,

    /// How long an ownership is valid after its last renewal [default: 4 with the embedded hub, else 60].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub lease_duration: Option<Duration>,

    /// Steals partitions from live instances without a handoff, as the other SDKs do. The events in process are then
    /// processed twice.
    #[arg(long)]
    pub no_handoff: bool,

    /// The scope of the leases: `partition`, or `instance` to keep all ownerships of an instance alive by one
    /// heartbeat. Only instances of this crate honor `instance`.
    #[arg(long, default_value = "partition", value_name = "SCOPE", value_parser = parse_lease_scope)]
    pub lease_scope: LeaseScope,

    /// Appends the processed events to this file, for an analysis of several processes together.
    ///
    /// Each line has a partition, the first and the last of successive sequence numbers, and the owner ID. It is
    /// written before the events are checkpointed, so it survives a crash of the process. Processes may share the file.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,

    /// Prints the result as one JSON object on the last line of standard output. Everything else goes to standard
    /// error.
    #[arg(long)]
    pub json: bool,
}

/// The settings of the run, with all defaults resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    pub embedded: bool,
    pub instances: u16,
    pub owner_prefix: String,
    pub events: Option<u32>,
    pub event_size: usize,
    pub kill_after: Option<Duration>,
    pub load_balancing_interval: Duration,
    pub lease_duration: Duration,
    pub handoff: bool,
    pub lease_scope: LeaseScope,
}

impl Args {
    pub fn plan(&self) -> Result<Plan, Failure> {
        let embedded = self.hub.is_embedded();
        let instances = self.instances.unwrap_or(if embedded { 3 } else { 1 });
        let default_kill_after = Duration::from_secs(if embedded && instances > 1 { 8 } else { 0 });
        let kill_after = Some(self.kill_after.unwrap_or(default_kill_after)).filter(|after| !after.is_zero());
        if kill_after.is_some() && instances < 2 {
            return Err("--kill-after needs at least two --instances: one crashes, and another takes over".into());
        }
        Ok(Plan {
            embedded,
            instances,
            owner_prefix: self.owner_prefix.clone().unwrap_or_else(|| default_owner_prefix(embedded)),
            events: self.events.or(embedded.then_some(8000)),
            event_size: self.event_size,
            kill_after,
            load_balancing_interval: self.load_balancing_interval.unwrap_or(Duration::from_secs(if embedded {
                1
            } else {
                10
            })),
            lease_duration: self.lease_duration.unwrap_or(Duration::from_secs(if embedded { 4 } else { 60 })),
            handoff: !self.no_handoff,
            lease_scope: self.lease_scope,
        })
    }
}

/// Returns the default prefix. Two processes must never share an owner ID.
fn default_owner_prefix(embedded: bool) -> String {
    if embedded {
        return "worker".to_owned();
    }
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "host".to_owned());
    format!("{host}-{}", std::process::id())
}

fn parse_lease_scope(text: &str) -> Result<LeaseScope, String> {
    match text {
        "partition" => Ok(LeaseScope::Partition),
        "instance" => Ok(LeaseScope::Instance),
        _ => Err(format!("{text:?} is neither `partition` nor `instance`")),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(number).map_err(|error| format!("{text:?} is not a number of seconds: {error}"))
}
