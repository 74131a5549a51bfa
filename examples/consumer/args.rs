//! What the command line and the environment say.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use eventhubs_checkpoint::LeaseScope;

use crate::Failure;

/// A consumer that shares an event hub's partitions with others and remembers how far it got.
///
/// Without arguments it shows itself: an event hub and a storage in this process, three instances, a producer, and one
/// instance that dies half-way. With a real hub it is an ordinary consumer that runs until Ctrl-C or SIGTERM; a second
/// one ends it at once, with nothing released.
///
/// The exit status is 0 if every event was processed, 1 if one was lost, 2 if it could not run, 130 or 143 if it was
/// ended at once.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct Args {
    /// Where the records are kept: `memory`, `azurite` (started here), a connection string, or a SAS URL.
    #[arg(long, env = "STORAGE_CONNECTION_STRING", hide_env_values = true, value_name = "STORAGE")]
    pub storage: Option<String>,

    /// The URL of the storage account, to reach it with Entra ID: `https://ACCOUNT.blob.core.windows.net`.
    #[arg(long, value_name = "URL")]
    pub storage_url: Option<String>,

    /// The container for the records.
    #[arg(long, default_value = "checkpoints", value_name = "NAME")]
    pub container: String,

    /// Makes the container if it does not exist, as is always done in `memory` and `azurite`.
    #[arg(long)]
    pub create_container: bool,

    /// The event hub: `embedded` (a stand-in in this process) or a connection string.
    #[arg(long, env = "EVENTHUBS_CONNECTION_STRING", hide_env_values = true, value_name = "HUB")]
    pub hub: Option<String>,

    /// Connects to this address instead of the namespace's own: `amqp://127.0.0.1:PORT` for a stand-in.
    #[arg(long, env = "EVENTHUBS_ENDPOINT", value_name = "ADDRESS")]
    pub hub_endpoint: Option<String>,

    /// The namespace, to reach it with Entra ID: `NAME.servicebus.windows.net`.
    #[arg(long, value_name = "HOST")]
    pub namespace: Option<String>,

    /// The name of the event hub, if the connection string does not hold it.
    #[arg(long, value_name = "NAME")]
    pub event_hub: Option<String>,

    /// The consumer group.
    #[arg(long, default_value = "$Default", value_name = "NAME")]
    pub consumer_group: String,

    /// How many partitions the embedded event hub has.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub partitions: u16,

    /// How many instances run in this process [default: 3 with the embedded hub, else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub instances: Option<u16>,

    /// What the owner ids of the instances start with [default: worker with the embedded hub, else host and process].
    #[arg(long, value_name = "PREFIX")]
    pub owner: Option<String>,

    /// How many events to publish [default: 8000 with the embedded hub, else none].
    ///
    /// Ends when all are processed; not if other processes share the consumer group, for what they process cannot be
    /// counted here.
    #[arg(long, value_name = "N")]
    pub events: Option<u32>,

    /// The least size of a published event: what is shorter is padded [default: as small as they are].
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    pub event_size: usize,

    /// When one instance dies without any clean-up; 0 for never [default: 8 with the embedded hub, else 0].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub kill_after: Option<Duration>,

    /// Time between two balancing cycles [default: 1 with the embedded hub, else 10].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,

    /// Age at which an ownership counts as abandoned [default: 4 with the embedded hub, else 60].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub expiry: Option<Duration>,

    /// Takes partitions from live instances without asking for them first, as the other SDKs do. What these are at then
    /// is processed twice.
    #[arg(long)]
    pub no_handoff: bool,

    /// Keeps all ownerships of an instance alive by one record. Only instances of this crate honour that.
    #[arg(long)]
    pub presence_leases: bool,

    /// Appends what was processed to this file: for judging several processes together.
    ///
    /// A line is a partition, the first and the last of successive sequence numbers, and the owner id. It is there
    /// before the events are checkpointed, even if the process is killed then. Processes may share the file.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,

    /// Prints the result as one JSON object on the last line of standard output; all else goes to standard error.
    #[arg(long)]
    pub json: bool,
}

/// What is left open on the command line, decided.
#[derive(Clone, Debug)]
pub struct Plan {
    pub embedded: bool,
    pub instances: u16,
    pub owner: String,
    pub events: Option<u32>,
    pub event_size: usize,
    pub kill_after: Option<Duration>,
    pub interval: Duration,
    pub expiry: Duration,
    pub handoff: bool,
    pub lease_scope: LeaseScope,
}

impl Args {
    pub fn is_embedded(&self) -> bool {
        self.namespace.is_none() && self.hub.as_deref().is_none_or(|hub| hub == "embedded")
    }

    pub fn plan(&self) -> Result<Plan, Failure> {
        let embedded = self.is_embedded();
        if embedded && let Some(endpoint) = &self.hub_endpoint {
            return Err(format!(
                "the hub endpoint {endpoint:?} needs a hub: give --hub, or EVENTHUBS_CONNECTION_STRING, or --namespace"
            )
            .into());
        }
        let instances = self.instances.unwrap_or(if embedded { 3 } else { 1 });
        let seconds = Duration::from_secs;
        let usual_death = if embedded && instances > 1 { seconds(8) } else { Duration::ZERO };
        let kill_after = Some(self.kill_after.unwrap_or(usual_death)).filter(|after| !after.is_zero());
        if kill_after.is_some() && instances < 2 {
            return Err("--kill-after needs at least two --instances: one dies, and another takes over".into());
        }
        Ok(Plan {
            embedded,
            instances,
            owner: self.owner.clone().unwrap_or_else(|| usual_owner(embedded)),
            events: self.events.or(embedded.then_some(8000)),
            event_size: self.event_size,
            kill_after,
            interval: self.interval.unwrap_or(if embedded { seconds(1) } else { seconds(10) }),
            expiry: self.expiry.unwrap_or(if embedded { seconds(4) } else { seconds(60) }),
            handoff: !self.no_handoff,
            lease_scope: if self.presence_leases { LeaseScope::Instance } else { LeaseScope::Partition },
        })
    }
}

/// Two processes must never have an owner id in common.
fn usual_owner(embedded: bool) -> String {
    if embedded {
        return "worker".to_owned();
    }
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "host".to_owned());
    format!("{host}-{}", std::process::id())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(number).map_err(|error| format!("{text:?} is not a number of seconds: {error}"))
}
