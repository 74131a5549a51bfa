//! The arguments of the commands that watch a group, and of those that scale by it.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args as ClapArgs;

use crate::text::parse_interval;

/// How often to look.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct LookIntervals {
    /// How often to read the beacon of the group, at least 100ms. Instances of this crate change the beacon when
    /// partitions or members change; then all records are listed.
    #[arg(long, value_parser = parse_interval, default_value = "3s", value_name = "DURATION")]
    pub interval: Duration,
    /// How often to list the records while the beacon shows no change, at least 100ms. Checkpoints and the lag are
    /// updated only by a listing. A group whose instances all use other SDKs has no beacon: there, a listing is needed
    /// to see any change. If this is not longer than --interval, every interval has a listing, and the beacon is not
    /// read.
    #[arg(long, value_parser = parse_interval, default_value = "60s", value_name = "DURATION")]
    pub refresh: Duration,
    /// How often to read the event hub, at least 100ms. It is read together with a listing.
    #[arg(long, value_parser = parse_interval, default_value = "10s", value_name = "DURATION")]
    pub hub_interval: Duration,
}

/// When to look again at what seems to stand still. The default is longer than the default interval of checkpoints.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct SecondLook {
    /// How long to wait before a second look at partitions that seem stuck. A partition whose events have just arrived
    /// after a quiet time, or that was just resumed, is reported by mistake if its next checkpoint takes longer: use
    /// more than the interval of checkpoints and the time for one batch. With 0s, the first look decides.
    #[arg(
        id = "second_look",
        long = "second-look",
        value_parser = humantime::parse_duration,
        default_value = "7s",
        value_name = "DURATION"
    )]
    pub after: Duration,
}

#[derive(Debug, ClapArgs)]
pub struct WatchArgs {
    #[command(flatten)]
    pub looks: LookIntervals,
    /// Ends after this number of refreshes.
    #[arg(long, value_name = "N")]
    pub count: Option<NonZeroUsize>,
}

#[derive(Debug, ClapArgs)]
pub struct ServeArgs {
    /// The address. Port 0 is any free port.
    #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub looks: LookIntervals,
    /// This consumer group of the event hub; may be repeated [default: the value of --consumer-group].
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub group: Vec<String>,
    /// All groups in the container.
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, ClapArgs)]
pub struct KedaArgs {
    /// How many events one replica may be behind: unprocessedEventThreshold.
    #[arg(long, value_name = "EVENTS", default_value_t = 1000, value_parser = clap::value_parser!(i64).range(1..))]
    pub threshold: i64,
    /// The most replicas: maxReplicaCount [default: the number of partitions].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_replicas: Option<u32>,
}
