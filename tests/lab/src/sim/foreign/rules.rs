//! In what the other SDKs differ.

use std::time::Duration;

/// One of the official SDKs, and which partitions it goes for in one cycle. P partitions and N owners make a share of
/// P/N, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Sdk {
    /// One, if it has less than the share, or just the share and nobody less: free, or else of an owner of more than
    /// one above the share, or else, below the share, of an owner of one above.
    DotNet,
    /// One, if the group is not balanced and it has less than the share or the least of all: free, or of the fullest
    /// owner.
    Java,
    /// One, if it has less than what it is due: free, or what the fullest owners have beyond their due.
    JavaScript,
    /// All that are free up to the share rounded up; or if none is, and it has less than the share, one of the fullest
    /// owner.
    Python,
    /// One, up to the share, then up to one more if shares are uneven: free, or of any owner that has more than that.
    Go,
    /// The same, but all that are lacking at once.
    Rust,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::DotNet, Self::Java, Self::JavaScript, Self::Python, Self::Go, Self::Rust];
}

/// What becomes of a cycle when a claim fails for another reason than that somebody else was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnError {
    /// The rest is not tried.
    EndsCycle,
    /// The others are tried nevertheless.
    GoesOn,
    /// The same, and the claim counts as won.
    Keeps,
}

/// In what an SDK differs from the others, with its defaults.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
pub(super) struct Rules {
    pub(super) interval: Duration,
    /// By how much of itself the interval is lengthened at the most.
    pub(super) jitter: f64,
    pub(super) expiry: Duration,
    pub(super) sdk: Sdk,
    /// The pause after a cycle that went for something, if it is not the interval.
    pub(super) again_after: Option<Duration>,
    /// Whether it renews only what is older than the interval.
    pub(super) renews_only_old: bool,
    /// Whether it claims and renews several partitions at a time.
    pub(super) concurrent: bool,
    /// Where there is no blob, it writes under no condition at all.
    pub(super) creates_unconditionally: bool,
    pub(super) on_error: OnError,
    /// Whether it lists the checkpoints in every cycle.
    pub(super) lists_checkpoints: bool,
    /// Whether it gives back what it holds when it ends.
    pub(super) releases: bool,
    /// Whether a released record is an owner without a name to it.
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
            creates_unconditionally: false,
            on_error: OnError::EndsCycle,
            lists_checkpoints: false,
            releases: true,
            counts_released: false,
        };
        let quick = Self { interval: seconds(10), expiry: seconds(60), ..usual };
        match sdk {
            Sdk::DotNet => Self { again_after: Some(Duration::from_millis(15)), renews_only_old: true, ..usual },
            Sdk::Java => {
                Self { again_after: Some(Duration::ZERO), concurrent: true, on_error: OnError::GoesOn, ..usual }
            }
            Sdk::JavaScript => Self { creates_unconditionally: true, on_error: OnError::GoesOn, ..quick },
            Sdk::Python => {
                Self { jitter: 0.2, expiry: seconds(180), concurrent: true, on_error: OnError::Keeps, ..usual }
            }
            // From 0.8 to 1.3 times 10 s.
            Sdk::Go => Self { interval: seconds(8), jitter: 0.625, ..quick },
            Sdk::Rust => {
                Self { expiry: seconds(60), lists_checkpoints: true, releases: false, counts_released: true, ..usual }
            }
        }
    }
}
