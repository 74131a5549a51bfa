//! Verifies that a backend does what ownership needs, before anything depends on it.
//!
//! The check reads, writes, lists and deletes one blob below `{namespace}/verify/{event hub}/{consumer group}/`, which
//! no SDK reads or lists. No other instance uses the same blob name: replicas that start at the same time must not
//! disturb each other's checks.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::blob::{Blob, BlobContainer, Condition, ETag, Metadata, WriteResult, limit_request};
use crate::clock::WallClock;
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::{BillingType, RequestCounters, StorageOperation};

/// Listings slower than this delay renewals if many instances list at the same time.
const SLOW: Duration = Duration::from_millis(500);

/// A difference to the server's clock that is reported. Signatures fail at 15 minutes. Long before that, other SDKs,
/// which trust their own clocks, consider live owners expired.
const SKEW: Duration = Duration::from_secs(2);

const LISTINGS: usize = 3;

/// The age at which a blob is left over: its check has ended long before.
const OLD: Duration = Duration::from_secs(60 * 60);

const NOT_WRITTEN: &str = "a blob cannot be written";

/// A problem found by the storage check that does not prevent operation. An error ends the check instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageWarning {
    /// The container keeps every version of a blob. Each renewal creates one, and listings become slower and more
    /// expensive. Turn off versioning for this account, or delete old versions with a lifecycle rule.
    Versioning,
    /// Listings are slow. Keep the storage account in the region of the consumers.
    SlowListing {
        /// The fastest of three.
        took: Duration,
    },
    /// The local clock is wrong. This does not affect this crate, but other SDKs in the group misjudge ages.
    ClockSkew {
        /// The difference.
        by: Duration,
        /// Whether the local clock is ahead.
        ahead: bool,
    },
    /// The blob of the check could not be deleted because the permission is missing. Each start leaves one, which
    /// nothing lists, and each owner ID that is not used again leaves its heartbeat, which all instances list.
    /// Everything else works without the permission.
    CannotDelete,
}

impl StorageWarning {
    /// Returns what the warning means and what to do, on one line.
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
                    "the local clock is {by:?} {direction} the clock of the server: other SDKs in the group will misjudge \
                     ages"
                )
            }
            Self::CannotDelete => {
                "deleting blobs is not permitted, so each start leaves the blob of its storage check, and each owner \
                 id its heartbeat, which makes listings longer: grant the permission, or delete these blobs"
                    .to_owned()
            }
        }
    }
}

/// One blob for the check of a backend, which nothing else writes.
pub(super) struct StorageCheck<'a> {
    pub(super) container: &'a dyn BlobContainer,
    /// Of the blobs of all checks of the group.
    pub(super) prefix: &'a str,
    /// Of one run: a lost write of an earlier one may still arrive.
    pub(super) name: &'a str,
    pub(super) timeout: Duration,
    pub(super) requests: &'a RequestCounters,
}

impl StorageCheck<'_> {
    /// Checks what ownership needs. The blob is also deleted after a failure, if possible. Afterwards deletes the blobs
    /// that earlier checks have left, because they crashed or because the storage failed.
    pub(super) async fn run(&self, wall_clock: Option<&dyn WallClock>) -> Result<Vec<StorageWarning>> {
        let tried = self.try_out(wall_clock).await;
        let deleted = self.delete_probe().await;
        let mut warnings = tried?;
        match deleted? {
            Some(warning) => warnings.push(warning),
            // A later start continues with it.
            None => drop(limit_request(self.timeout, "verification", self.tidy_up()).await),
        }
        Ok(warnings)
    }

    /// Deletes old blobs of checks. Another instance may do the same.
    async fn tidy_up(&self) -> Result<()> {
        let listed = self.count(BillingType::List, self.container.list(self.prefix)).await?.blobs;
        for old in listed.iter().filter(|blob| blob.age() > OLD) {
            match self.count(BillingType::Free, self.container.delete(&old.name, &old.etag)).await {
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that conditional writes are rejected when they must be, and that metadata is returned.
    async fn try_out(&self, wall_clock: Option<&dyn WallClock>) -> Result<Vec<StorageWarning>> {
        let mut warnings = Vec::new();
        self.must_be_missing().await?;
        let first = self.write_probe("1", &Condition::Create).await?;
        let second = self.write_probe("2", &Condition::IfMatch(first.etag.clone())).await?;
        let changed = Condition::IfMatch(first.etag);
        self.must_be_refused(&changed, "a write under an ETag that has changed").await?;
        self.must_be_refused(&Condition::Create, "the creation of a blob that exists").await?;
        let read = self
            .in_time(BillingType::Other, self.container.get(self.name))
            .await
            .map_err(|error| check_failed_error("a blob cannot be read", error))?;
        if !shows_last_write(&read, &second.etag) {
            return Err(missing_blob_error("a read"));
        }
        let took = self.must_be_listed(&second.etag).await?;
        warnings.extend(second.versioned.then_some(StorageWarning::Versioning));
        warnings.extend((took > SLOW).then_some(StorageWarning::SlowListing { took }));
        warnings.extend(wall_clock.and_then(|clock| clock_skew(clock.now(), second.response.server_time_now())));
        Ok(warnings)
    }

    async fn count<T>(&self, billing: BillingType, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.requests.count(StorageOperation::Connect, billing, request).await
    }

    async fn in_time<T>(&self, billing: BillingType, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.count(billing, limit_request(self.timeout, "verification", request)).await
    }

    async fn write(&self, value: &str, condition: &Condition) -> Result<WriteResult> {
        self.in_time(condition.into(), self.container.write(self.name, &probe_metadata(value), condition)).await
    }

    async fn write_probe(&self, value: &str, condition: &Condition) -> Result<WriteResult> {
        self.write(value, condition).await.map_err(|error| check_failed_error(NOT_WRITTEN, error))
    }

    /// Checks the blob before its first write. A new group depends on both answers.
    async fn must_be_missing(&self) -> Result<()> {
        match self.in_time(BillingType::Other, self.container.get(self.name)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(check_failed_error("a read of a missing blob fails for another reason", error)),
            Ok(_) => {
                return Err(Error::new(ErrorKind::Rejected, "the storage cannot be used: it shows a missing blob"));
            }
        }
        let anything = Condition::IfMatch(ETag::new("0x8DD000000000000"));
        match self.write("0", &anything).await {
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(()),
            Err(error) => Err(check_failed_error(NOT_WRITTEN, error)),
            Ok(_) => Err(condition_ignored_error("a write under an ETag to a missing blob")),
        }
    }

    async fn must_be_refused(&self, condition: &Condition, what: &str) -> Result<()> {
        match self.write("3", condition).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            Err(error) => {
                Err(check_failed_error("a conditional write fails for a reason other than its condition", error))
            }
            Ok(_) => Err(condition_ignored_error(what)),
        }
    }

    /// Returns how long the fastest listing took.
    async fn must_be_listed(&self, etag: &ETag) -> Result<Duration> {
        let mut fastest = Duration::MAX;
        for _ in 0..LISTINGS {
            let sent = Instant::now();
            let listed = self
                .in_time(BillingType::List, self.container.list(self.name))
                .await
                .map_err(|error| check_failed_error("blobs cannot be listed", error))?;
            fastest = fastest.min(sent.elapsed());
            if !listed.blobs.iter().any(|blob| blob.name == self.name && shows_last_write(blob, etag)) {
                return Err(missing_blob_error("a listing"));
            }
        }
        Ok(fastest)
    }

    async fn delete_probe(&self) -> Result<Option<StorageWarning>> {
        let deleted = async {
            let current = self.in_time(BillingType::Other, self.container.get(self.name)).await?.etag;
            self.in_time(BillingType::Free, self.container.delete(self.name, &current)).await
        };
        match deleted.await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unauthorized => Ok(Some(StorageWarning::CannotDelete)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // No other operation deletes this blob, and nothing reads it.
            Err(error) if error.is_retryable() || error.is_indeterminate() => Ok(None),
            Err(error) => Err(check_failed_error("a blob cannot be deleted", error)),
        }
    }
}

fn probe_metadata(value: &str) -> Metadata {
    Metadata::from([("probe".to_owned(), value.to_owned())])
}

fn shows_last_write(blob: &Blob, etag: &ETag) -> bool {
    blob.metadata == probe_metadata("2") && blob.etag == *etag
}

fn condition_ignored_error(what: &str) -> Error {
    let message = format!(
        "the storage accepts {what}: two instances could own the same partition, so this storage cannot be used"
    );
    Error::new(ErrorKind::Rejected, message)
}

fn missing_blob_error(operation: &str) -> Error {
    let message = format!(
        "{operation} does not return the blob that was just written with its metadata, so this storage cannot be used"
    );
    Error::new(ErrorKind::Rejected, message)
}

fn clock_skew(local: OffsetDateTime, server: OffsetDateTime) -> Option<StorageWarning> {
    let difference = local - server;
    let by = difference.unsigned_abs();
    (by > SKEW)
        .then(|| StorageWarning::ClockSkew { by: Duration::from_secs(by.as_secs()), ahead: difference.is_positive() })
}

fn check_failed_error(what: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("the storage cannot be used: {what}: {error}"))
        .with_server_time(error.server_time())
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration as Span;
    use time::macros::datetime;

    /// In either direction.
    #[test]
    fn clock_skew_above_two_seconds_is_reported() {
        let server = datetime!(2026-01-01 00:00:00 UTC);
        assert_eq!(clock_skew(server + Span::seconds(2), server), None);
        let ahead = StorageWarning::ClockSkew { by: Duration::from_secs(120), ahead: true };
        assert_eq!(clock_skew(server + Span::minutes(2), server), Some(ahead));
        let behind = StorageWarning::ClockSkew { by: Duration::from_secs(3), ahead: false };
        assert_eq!(clock_skew(server - Span::milliseconds(3500), server), Some(behind));
    }
}
