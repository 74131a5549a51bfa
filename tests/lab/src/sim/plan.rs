//! All members and all faults of a run, decided before it starts.

mod account;
mod bad_events;
mod beacon_fault;
mod draw;
mod failure_rule;
mod incident;
mod one_by_one;
mod storage_fault;
mod terms;
mod tuning;
mod wild;

use std::time::Duration;

pub use self::account::Account;
pub use self::bad_events::BadEvents;
pub use self::beacon_fault::BeaconFault;
pub(super) use self::draw::MOST_PER_MILLE;
#[cfg(test)]
pub(super) use self::draw::reset;
pub use self::failure_rule::{Blobs, Failure, FailureRule};
pub use self::incident::{Incident, IncidentKind, Reset};
pub use self::one_by_one::{DrawnOrder, OneByOne};
pub use self::storage_fault::StorageFault;
pub use self::terms::Terms;
pub use self::tuning::{StartAt, Tuning};
use super::foreign::Sdk;
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::processor::OnFailure;

/// By how much a handler under heavy load takes longer for a batch.
pub(super) const HEAVY: Duration = Duration::from_secs(60);

/// The longest time that an application takes to commit its own position with batches of a hundred events.
pub(super) const LONGEST_COMMIT: Duration = Duration::from_secs(2);

/// The size of the plans that are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Scale {
    /// Number of instances, including foreign ones. Default 6.
    pub instances: u32,
    /// Number of partitions of the hub at the beginning. Default 24.
    pub partitions: u32,
    /// Duration of the faults, in virtual time; the time without faults is added to it. Default 1 h.
    pub storm: Duration,
    /// Average time between two incidents. Default 3 min.
    pub incident_every: Duration,
    /// Whether owners of other SDKs may take part. Default yes.
    pub foreign: bool,
    /// Whether the storage is an `Account`, and owner IDs may end with dots. The plan of a seed is otherwise the same.
    /// Default no.
    pub platform: bool,
    /// Whether all settings are drawn from the whole range that `build` accepts, and not only some of them near their
    /// defaults. The plan of a seed is otherwise the same. Default no.
    pub wild: bool,
    /// Whether the hub is recreated several times. The plan of a seed is otherwise the same. Default no.
    pub recreations: bool,
    /// Whether some percent of the requests fail for a long time, by [`FailureRule`]s. The plan of a seed is otherwise
    /// the same. Default no.
    pub failures: bool,
    /// Whether instances have different [`Terms`], some of which are rolled out while the group runs. The plan of a
    /// seed is otherwise the same. Default no.
    pub mixed_settings: bool,
    /// Whether the runtimes of some applications are blocked, for a while or as long as the faults last. The plan of a
    /// seed is otherwise the same. Default no.
    pub blocked: bool,
    /// How many of a thousand writes are throttled as long as the faults last. Default none.
    pub failed_writes_per_mille: u32,
    /// Whether the ownership record of partition 0 cannot be written as long as the faults last. Default no.
    pub bad_blob: bool,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            instances: 6,
            partitions: 24,
            storm: Duration::from_secs(60 * 60),
            incident_every: Duration::from_secs(180),
            foreign: true,
            platform: false,
            wild: false,
            recreations: false,
            failures: false,
            mixed_settings: false,
            blocked: false,
            failed_writes_per_mille: 0,
            bad_blob: false,
        }
    }
}

/// Everything that happens in a run. Two runs of the same plan are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed that the plan was drawn from. All randomness of the run depends only on it.
    pub seed: u64,
    /// The storage account; `None`: a container in memory.
    pub account: Option<Account>,
    /// What is wrong with the beacon of the group.
    pub beacon: Option<BeaconFault>,
    /// Number of partitions of the hub at the beginning.
    pub partitions: u32,
    /// The settings of all instances of this crate that have no [`Terms`] of their own.
    pub settings: Settings,
    /// The instances. An instance that is down restarts by itself.
    pub members: Vec<Member>,
    /// How many requests about the event hub and its partitions the namespace accepts in a second; `None`: all.
    pub management_quota: Option<u32>,
    /// How much is published to each partition; partitions that are added later use the list from its beginning.
    pub loads: Vec<Load>,
    /// Duration of the faults.
    pub storm: Duration,
    /// The incidents, in the order of their times.
    pub incidents: Vec<Incident>,
}

impl Plan {
    /// Returns by how much the slowest wall clock of the owners of other SDKs is behind.
    #[must_use]
    pub fn foreign_clock_lag(&self) -> Duration {
        let foreign = self.members.iter().filter(|member| matches!(member.role, Role::Foreign(_)));
        let behind = foreign.map(|member| member.skew_seconds.min(0).unsigned_abs()).max();
        Duration::from_secs(behind.unwrap_or(0))
    }

    /// Returns whether partitions may move without faults: loads change, or a handler that fails releases its
    /// partition.
    pub(super) fn moves_in_calm(&self) -> bool {
        let tuning = &self.settings.tuning;
        let fails = |member: &Member| member.failures_per_mille > 0 || member.bad_events.is_some();
        let fails = self.members.iter().any(fails) || tuning.handler_timeout.is_some();
        tuning.weighted || (fails && matches!(tuning.on_failure, OnFailure::Release { .. }))
    }
}

/// The settings of all instances of this crate.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// The lease duration.
    pub expiry: Duration,
    /// The lease duration of other SDKs.
    pub foreign_lease_duration: Duration,
    /// The time between two cycles.
    pub interval: Duration,
    /// Whether an instance claims all missing partitions at once, or one per interval.
    pub greedy: bool,
    /// Whether handlers stop before another owner can consider their lease expired.
    pub strict: bool,
    /// Whether the group starts at the latest event, not at the earliest.
    pub latest: bool,
    /// The longest time until a checkpoint is written.
    pub checkpoint_every: Duration,
    /// Whether an instance requests a handoff before it steals.
    pub handoff: bool,
    /// Whether an instance that shuts down keeps its partitions for its own restart.
    pub keep: bool,
    /// Whether the application keeps its own positions.
    pub own_positions: OwnPositions,
    /// What keeps leases alive.
    pub lease_scope: LeaseScope,
    /// Whether an instance has the same owner ID after a restart.
    pub stable_names: bool,
    /// The longest time that a request takes without faults.
    pub latency: Duration,
    /// How much longer a listing may take, without faults, because of the `Account`.
    pub slowness: Duration,
    /// How much later changes may be noticed because of a `BeaconFault`.
    pub notice_delay: Duration,
    /// Settings that have their defaults unless [`Scale::wild`] is set.
    pub tuning: Tuning,
}

/// The defaults of this crate, and requests that take up to 50 ms.
impl Default for Settings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            expiry: seconds(60),
            foreign_lease_duration: seconds(180),
            interval: seconds(10),
            greedy: false,
            strict: false,
            latest: false,
            checkpoint_every: seconds(5),
            handoff: true,
            keep: false,
            own_positions: OwnPositions::None,
            lease_scope: LeaseScope::default(),
            stable_names: true,
            latency: Duration::from_millis(50),
            slowness: Duration::ZERO,
            notice_delay: Duration::ZERO,
            tuning: Tuning::default(),
        }
    }
}

/// Whether an application stores its position together with its results, as
/// [`Handler::start_position`](eventhubs_checkpoint::processor::Handler::start_position) allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPositions {
    /// It uses the checkpoints.
    None,
    /// It commits results only in the epoch that began last, and after its position.
    Fenced,
    /// It compares neither, so that events are counted twice.
    Unfenced,
}

/// A member of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The implementation that it runs.
    pub role: Role,
    /// The number in its owner ID.
    pub number: u32,
    /// How many dots its owner ID ends with. Two members with one number differ in this.
    pub dots: usize,
    /// When it first starts.
    pub starts_at: Duration,
    /// How many seconds its wall clock is ahead of the server's.
    pub skew_seconds: i64,
    /// The settings of this member, if it does not have the settings of the group.
    pub terms: Option<Terms>,
    /// The longest time that its handler takes for a batch.
    pub work: Duration,
    /// Whether it tracks events and finishes them out of order.
    pub tracks: bool,
    /// How many of a thousand batches its handler fails at.
    pub failures_per_mille: u32,
    /// The events at which its handler fails, if any. It then takes its time per event, and not per batch.
    pub bad_events: Option<BadEvents>,
    /// How it processes single events, if it does.
    pub one_by_one: Option<OneByOne>,
}

/// The implementation that a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// This crate's processor.
    CrateProcessor,
    /// An owner that behaves like that of another SDK. It leaves before the time without faults.
    Foreign(Sdk),
    /// The [`InstanceFactory`](super::InstanceFactory) decides, by this number.
    Guest(u32),
}

/// How much is published to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Average time between two bursts.
    pub every: Duration,
    /// Maximum number of events of a burst.
    pub burst: u32,
}
