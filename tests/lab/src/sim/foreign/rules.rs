//! The differences between the other SDKs.

use std::time::Duration;

/// One of the official SDKs, and which partitions it claims in one cycle. With P partitions and N owners, the share is
/// P/N, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Sdk {
    /// One, if it has less than the share, or exactly the share while no owner has less. The partition is an unowned
    /// one, or else one of an owner of more than one above the share, or else, if it has less than the share, one of an
    /// owner of one above the share.
    DotNet,
    /// One, if the group is not balanced and it has less than the share or the least of all owners. The partition is an
    /// unowned one, or one of the owner that has the most.
    Java,
    /// One, if it has less than it is due. The partition is an unowned one, or one of those that the owners with the
    /// most have beyond their due.
    JavaScript,
    /// All unowned partitions up to the share rounded up. If there is none and it has less than the share, one of the
    /// owner that has the most.
    Python,
    /// One, up to the share, and then up to one more if shares are uneven. The partition is an unowned one, or one of
    /// any owner that has more than that.
    Go,
    /// The same, but all missing partitions at once.
    Rust,
}

impl Sdk {
    /// All SDKs.
    pub const ALL: [Self; 6] = [Self::DotNet, Self::Java, Self::JavaScript, Self::Python, Self::Go, Self::Rust];
}

/// What a cycle does after a claim fails for another reason than a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnError {
    /// It claims no further partitions.
    EndsCycle,
    /// It claims the other partitions nevertheless.
    GoesOn,
    /// The same, and the claim counts as won.
    Keeps,
}

/// How an SDK differs from the others, with its defaults.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
pub(super) struct Rules {
    pub(super) interval: Duration,
    /// The maximum by which the interval is lengthened, as a fraction of itself.
    pub(super) jitter: f64,
    pub(super) expiry: Duration,
    pub(super) sdk: Sdk,
    /// The pause after a cycle that claimed, if it differs from the interval.
    pub(super) again_after: Option<Duration>,
    /// Whether it renews only leases that are older than the interval.
    pub(super) renews_only_old: bool,
    /// Whether it claims and renews several partitions concurrently.
    pub(super) concurrent: bool,
    pub(super) on_error: OnError,
    /// Whether it lists the checkpoints in every cycle.
    pub(super) lists_checkpoints: bool,
    /// Whether it stops reading a partition when the records show another owner. If not, it continues until that owner
    /// displaces it at the event hub.
    pub(super) stops_when_taken: bool,
    /// Whether it releases its partitions when it ends.
    pub(super) releases: bool,
    /// Whether it counts a released record as an owner without a name.
    pub(super) counts_released: bool,
}

impl Rules {
    pub(super) fn of(sdk: Sdk) -> Self {
        let seconds = Duration::from_secs;
        let usual = Self {
            interval: seconds(30),
            jitter: 0.01,
            expiry: seconds(120),
            sdk,
            again_after: None,
            renews_only_old: false,
            concurrent: false,
            on_error: OnError::EndsCycle,
            lists_checkpoints: false,
            stops_when_taken: false,
            releases: true,
            counts_released: false,
        };
        let quick = Self { interval: seconds(10), expiry: seconds(60), ..usual };
        match sdk {
            Sdk::DotNet => Self {
                again_after: Some(Duration::from_millis(15)),
                renews_only_old: true,
                stops_when_taken: true,
                ..usual
            },
            Sdk::Java => {
                Self { again_after: Some(Duration::ZERO), concurrent: true, on_error: OnError::GoesOn, ..usual }
            }
            Sdk::JavaScript => Self { on_error: OnError::GoesOn, ..quick },
            Sdk::Python => Self {
                jitter: 0.2,
                expiry: seconds(180),
                concurrent: true,
                on_error: OnError::Keeps,
                stops_when_taken: true,
                ..usual
            },
            // From 0.8 to 1.3 times 10 s.
            Sdk::Go => Self { interval: seconds(8), jitter: 0.625, ..quick },
            Sdk::Rust => {
                Self { expiry: seconds(60), lists_checkpoints: true, releases: false, counts_released: true, ..usual }
            }
        }
    }
}
