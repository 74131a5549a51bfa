//! Finds out, before anything depends on it, whether a storage does what ownership needs.
//!
//! It writes, lists and deletes one blob below `{namespace}/{event hub}/{consumer group}/verify/`, where no SDK looks.
//! No other instance has a blob of that name: replicas that start at once must not refute each other.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::within;
use crate::blob::{Blob, BlobContainer, Condition, ETag, Metadata, WriteResult};
use crate::clock::WallClock;
use crate::error::{Error, ErrorKind, Result};

/// Listings slower than this make renewals late when many come together.
const SLOW: Duration = Duration::from_millis(500);

/// The difference to the server's clock that is worth a word. Signatures fail at 15 minutes; other SDKs, which trust
/// their own clocks, take live owners for dead long before.
const SKEW: Duration = Duration::from_secs(2);

const LISTINGS: usize = 3;

/// What works, but not well. Errors are not findings: they end the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageWarning {
    /// The container keeps every version of a blob. Each renewal leaves one behind, and listings grow slower and dearer
    /// with them: switch versioning off for this account, or let a lifecycle rule delete old versions.
    Versioning,
    /// Listings take long. Keep the storage account in the region of the consumers.
    SlowListing {
        /// The fastest of three.
        took: Duration,
    },
    /// The local clock is wrong. This crate does not mind; other SDKs in the group do.
    ClockSkew {
        /// How far.
        by: Duration,
        /// Whether the local clock is ahead.
        ahead: bool,
    },
    /// The probe's own blob could not be deleted for want of permission, so that each start leaves one. Nothing else
    /// needs the permission.
    CannotDelete,
}

impl StorageWarning {
    /// What it means and what to do, on one line.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Versioning => "the container keeps every version of a blob, so listings become slower and more \
                 expensive with each renewal: turn off versioning, or delete old versions with a lifecycle rule"
                .to_owned(),
            Self::SlowListing { took } => {
                format!("a listing takes {took:?}: keep the storage account in the region of the consumers")
            }
            Self::ClockSkew { by, ahead } => {
                let direction = if *ahead { "ahead of" } else { "behind" };
                format!(
                    "the local clock is {by:?} {direction} that of the server: other SDKs in the group will misjudge ages"
                )
            }
            Self::CannotDelete => {
                "deleting blobs is not permitted, so each start leaves the blob of its storage check: \
                 grant the permission, or delete these blobs"
                    .to_owned()
            }
        }
    }
}

/// One blob of a storage to be tried out, which nothing else writes.
pub(super) struct StorageCheck<'a> {
    pub(super) container: &'a dyn BlobContainer,
    pub(super) name: &'a str,
    pub(super) timeout: Duration,
}

impl StorageCheck<'_> {
    /// Tries what ownership needs. The blob is deleted also after a failure, if that is possible.
    pub(super) async fn run(&self, wall_clock: Option<&dyn WallClock>) -> Result<Vec<StorageWarning>> {
        let tried = self.try_out(wall_clock).await;
        let deleted = self.delete().await;
        let mut findings = tried?;
        findings.extend(deleted?);
        Ok(findings)
    }

    /// Conditional writes that are refused when they must be, and metadata that comes back.
    async fn try_out(&self, wall_clock: Option<&dyn WallClock>) -> Result<Vec<StorageWarning>> {
        let mut findings = Vec::new();
        let first = self.write("1", &Condition::Unconditional).await?;
        let second = self.write("2", &Condition::IfMatch(first.etag.clone())).await?;
        let changed = Condition::IfMatch(first.etag);
        self.must_be_refused(&changed, "a write under an ETag that has changed").await?;
        self.must_be_refused(&Condition::Create, "the creation of a blob that exists").await?;
        self.must_be_read(&second.etag).await?;
        let took = self.must_be_listed(&second.etag).await?;
        findings.extend(second.versioned.then_some(StorageWarning::Versioning));
        findings.extend((took > SLOW).then_some(StorageWarning::SlowListing { took }));
        findings.extend(wall_clock.and_then(|clock| skew(clock.now(), second.response.server_time_now())));
        Ok(findings)
    }

    async fn in_time<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        within(self.timeout, "probe", request).await
    }

    async fn write(&self, value: &str, condition: &Condition) -> Result<WriteResult> {
        let written = self.in_time(self.container.write(self.name, &content(value), condition)).await;
        written.map_err(|error| failed("a blob cannot be written", error))
    }

    async fn must_be_refused(&self, condition: &Condition, what: &str) -> Result<()> {
        match self.in_time(self.container.write(self.name, &content("3"), condition)).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            Err(error) => Err(failed("a conditional write fails for a reason other than its condition", error)),
            Ok(_) => Err(Error::new(
                ErrorKind::Rejected,
                format!(
                    "the storage accepts {what}: two instances could own the same partition, so this storage cannot be used"
                ),
            )),
        }
    }

    async fn must_be_read(&self, etag: &ETag) -> Result<()> {
        let read = self.in_time(self.container.get(self.name)).await;
        let blob = read.map_err(|error| failed("a blob cannot be read", error))?;
        if shows(&blob, etag) { Ok(()) } else { Err(not_shown("a read")) }
    }

    /// Answers how long the fastest listing took.
    async fn must_be_listed(&self, etag: &ETag) -> Result<Duration> {
        let mut fastest = Duration::MAX;
        for _ in 0..LISTINGS {
            let asked = Instant::now();
            let listed = self.in_time(self.container.list(self.name)).await;
            let listing = listed.map_err(|error| failed("blobs cannot be listed", error))?;
            fastest = fastest.min(asked.elapsed());
            if !listing.blobs.iter().any(|blob| blob.name == self.name && shows(blob, etag)) {
                return Err(not_shown("a listing"));
            }
        }
        Ok(fastest)
    }

    async fn delete(&self) -> Result<Option<StorageWarning>> {
        match self.in_time(self.container.delete(self.name, &Condition::Unconditional)).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unauthorized => Ok(Some(StorageWarning::CannotDelete)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("a blob cannot be deleted", error)),
        }
    }
}

fn content(value: &str) -> Metadata {
    Metadata::from([("probe".to_owned(), value.to_owned())])
}

fn shows(blob: &Blob, etag: &ETag) -> bool {
    blob.metadata == content("2") && blob.etag == *etag
}

fn not_shown(answer: &str) -> Error {
    let message = format!(
        "{answer} does not return the blob that was just written with its metadata, so this storage cannot be used"
    );
    Error::new(ErrorKind::Rejected, message)
}

fn skew(local: OffsetDateTime, server: OffsetDateTime) -> Option<StorageWarning> {
    let difference = local - server;
    let by = difference.unsigned_abs();
    (by > SKEW)
        .then(|| StorageWarning::ClockSkew { by: Duration::from_secs(by.as_secs()), ahead: difference.is_positive() })
}

fn failed(what: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("the storage cannot be used: {what}: {error}"))
        .with_server_time(error.server_time())
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration as Span;
    use time::macros::datetime;

    #[test]
    fn a_clock_is_wrong_from_two_seconds_on_in_either_direction() {
        let server = datetime!(2026-01-01 00:00:00 UTC);
        assert_eq!(skew(server + Span::seconds(2), server), None);
        let ahead = StorageWarning::ClockSkew { by: Duration::from_secs(120), ahead: true };
        assert_eq!(skew(server + Span::minutes(2), server), Some(ahead));
        let behind = StorageWarning::ClockSkew { by: Duration::from_secs(3), ahead: false };
        assert_eq!(skew(server - Span::milliseconds(3500), server), Some(behind));
    }
}
