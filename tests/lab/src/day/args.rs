//! The command line.

use std::time::Duration;

use clap::Parser;

/// Runs a group with a credential of Microsoft Entra ID against the Event Hubs emulator, for hours of emulated time.
///
/// The emulator rejects expired tokens, as the service does. The credential caches tokens as those of `azure_identity`
/// do. Exit code 0: every event was delivered, and no partition was unread for longer than the limit. 1: not so.
/// 2: the run failed.
#[derive(Clone, Debug, Parser)]
pub(super) struct Args {
    /// Emulated hours.
    #[arg(long, default_value_t = 24.0)]
    pub(super) hours: f64,
    #[arg(long, default_value_t = 16)]
    pub(super) partitions: u16,
    #[arg(long, default_value_t = 3)]
    pub(super) instances: usize,
    /// The life of a token, in minutes.
    #[arg(long, default_value_t = 65)]
    pub(super) token_minutes: u64,
    /// How many times per hour another instance joins for some time. It gets a share by handoffs, and leaves it to the
    /// others when it shuts down.
    #[arg(long, default_value_t = 1.0)]
    pub(super) visits_per_hour: f64,
    /// How many links to detach per hour, as the service does when it moves a partition.
    #[arg(long, default_value_t = 1.0)]
    pub(super) detaches_per_hour: f64,
    /// How many times to cut all connections per hour.
    #[arg(long, default_value_t = 0.0)]
    pub(super) cuts_per_hour: f64,
    /// The longest time in seconds for which a partition may be unread.
    #[arg(long, default_value_t = 5.0)]
    pub(super) limit: f64,
    /// Runs the official `EventProcessor` on `BlobCheckpointStore`.
    #[arg(long)]
    pub(super) official: bool,
    /// Passes the credential to the official client as it is.
    #[arg(long, requires = "official")]
    pub(super) unwrapped: bool,
    /// Determines the incidents.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

impl Args {
    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.hours * 3600.0)
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.limit)
    }
}
