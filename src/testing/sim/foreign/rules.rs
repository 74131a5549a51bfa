//! In what the other SDKs differ.

use std::time::Duration;

/// One of the official SDKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "named after their languages")]
pub enum Sdk {
    DotNet,
    Java,
    JavaScript,
    Python,
    Go,
    Rust,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::DotNet, Self::Java, Self::JavaScript, Self::Python, Self::Go, Self::Rust];
}

/// How a claim is written, and what an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claiming {
    /// Under a condition; an error ends the cycle.
    Conditional,
    /// Under a condition; after an unexpected error it counts as won.
    KeepsOnErrors,
    /// Where there is no blob, under no condition at all.
    AtWill,
}

/// From whom it steals, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stealing {
    /// One, from an owner of the most, if that leaves it no less than the share.
    OneFromTheFullest,
    /// As many as are lacking, from all that have more than the share, down to any number.
    FromAllAbove,
}

/// In what an SDK differs from the others, with its defaults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) interval: Duration,
    /// By how much of itself the interval is lengthened at the most.
    pub(super) jitter: f64,
    pub(super) expiry: Duration,
    pub(super) greedy: bool,
    pub(super) claiming: Claiming,
    pub(super) stealing: Stealing,
    /// Whether it gives back what it holds when it ends.
    pub(super) releases: bool,
    /// Whether a released record is an owner without a name to it.
    pub(super) counts_released: bool,
}

impl Rules {
    pub(super) fn of(sdk: Sdk) -> Self {
        let usual = Self {
            interval: Duration::from_secs(30),
            jitter: 0.01,
            expiry: Duration::from_secs(120),
            greedy: true,
            claiming: Claiming::Conditional,
            stealing: Stealing::OneFromTheFullest,
            releases: true,
            counts_released: false,
        };
        let quick = Self { interval: Duration::from_secs(10), expiry: Duration::from_secs(60), greedy: false, ..usual };
        match sdk {
            Sdk::DotNet | Sdk::Java => usual,
            Sdk::JavaScript => Self { claiming: Claiming::AtWill, ..quick },
            Sdk::Python => {
                Self { jitter: 0.2, expiry: Duration::from_secs(180), claiming: Claiming::KeepsOnErrors, ..usual }
            }
            Sdk::Go => Self { jitter: 0.3, stealing: Stealing::FromAllAbove, ..quick },
            Sdk::Rust => Self {
                expiry: Duration::from_secs(60),
                stealing: Stealing::FromAllAbove,
                releases: false,
                counts_released: true,
                ..usual
            },
        }
    }
}
