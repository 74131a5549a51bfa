//! The measured requests, and the clients that send them.

use std::fmt;
use std::str::FromStr;

/// The partitions of the event hub, and therefore the blobs in a listing.
pub(crate) const PARTITIONS: u32 = 256;
/// The number of concurrent requests, if there are many.
pub(crate) const CONCURRENCY: usize = 32;

/// The account of both clients at the stub.
pub(crate) const ACCOUNT: &str = "devstoreaccount1";
pub(crate) const CONTAINER: &str = "checkpoints";
pub(crate) const API_VERSION: &str = "2023-11-03";

pub(crate) const NAMESPACE: &str = "example.servicebus.windows.net";
pub(crate) const EVENT_HUB: &str = "orders";
pub(crate) const CONSUMER_GROUP: &str = "$Default";

pub(crate) const OWNER: &str = "worker-7d9c5b6f4-x2x8v";
/// The metadata of an ownership record.
pub(crate) const METADATA: [(&str, &str); 3] =
    [("ownerid", OWNER), ("ehcincarnation", "20261120T115500Z-5f3a9c01"), ("ehcclaimedat", "2026-11-20T11:55:02Z")];
/// The version of a blob before it is written again.
pub(crate) const ETAG: &str = "0x8DE282A1B3C4D5E";

/// Returns the prefix of all ownership records.
pub(crate) fn prefix() -> String {
    format!("{NAMESPACE}/{EVENT_HUB}/{}/ownership/", CONSUMER_GROUP.to_lowercase())
}

/// Work that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// List Blobs with metadata: all ownership records.
    List,
    /// Put Blob if it does not exist: the first claim of a partition.
    Claim,
    /// Set Blob Metadata if the blob is unchanged: a renewal.
    Renew,
    /// First claims of all partitions, several concurrently.
    ClaimAll,
}

/// The client that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// This crate, with an account key.
    Ours,
    /// hyper: the same requests unsigned; the responses are read but not parsed.
    Bare,
}

impl Work {
    /// Returns the number of repetitions in one measurement: about half a second of work.
    pub(crate) fn repetitions(self) -> u32 {
        match self {
            Self::List => 1_000,
            Self::Claim | Self::Renew => 8_000,
            Self::ClaimAll => 10,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::ClaimAll => "claim-all",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::List, Self::Claim, Self::Renew, Self::ClaimAll];
        all.into_iter().find(|work| work.to_string() == text).ok_or_else(|| format!("no such work: {text:?}"))
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Bare => "bare",
        })
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Ours, Self::Bare];
        all.into_iter().find(|client| client.to_string() == text).ok_or_else(|| format!("no such client: {text:?}"))
    }
}
