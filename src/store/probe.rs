//! Finds out, before anything depends on it, whether a storage does what ownership needs.
//!
//! It writes, lists and deletes one blob below `{namespace}/{event hub}/{consumer group}/probe/`, where no SDK looks.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::blob::{BlobContainer, Condition, ETag, Metadata, Written};
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
pub enum Finding {
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
    /// The probe's own blob could not be deleted for want of permission. Nothing else needs it.
    CannotDelete,
}

impl Finding {
    /// What it means and what to do, on one line.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Versioning => "the container keeps every version of a blob, so listings grow slower and dearer with \
                 each renewal: switch versioning off, or delete old versions by a lifecycle rule"
                .to_owned(),
            Self::SlowListing { took } => {
                format!("a listing takes {took:?}: keep the storage account in the region of the consumers")
            }
            Self::ClockSkew { by, ahead } => {
                let direction = if *ahead { "ahead of" } else { "behind" };
                format!(
                    "the local clock is {by:?} {direction} the server's: other SDKs in the group will misjudge ages"
                )
            }
            Self::CannotDelete => "deleting blobs is not permitted, so the probe leaves one behind".to_owned(),
        }
    }
}

/// Tries what ownership needs: conditional writes that are refused when they must be, and metadata that comes back.
pub(super) async fn probe(
    container: &dyn BlobContainer,
    name: &str,
    wall_clock: &dyn WallClock,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let first = write(container, name, "1", &Condition::Any).await?;
    let second = write(container, name, "2", &Condition::Match(first.etag.clone())).await?;
    must_be_refused(container, name, &Condition::Match(first.etag), "a write under an ETag that has changed").await?;
    must_be_refused(container, name, &Condition::Create, "the creation of a blob that exists").await?;
    let took = metadata_must_be_listed(container, name, &second.etag).await?;
    findings.extend(second.versioned.then_some(Finding::Versioning));
    findings.extend((took > SLOW).then_some(Finding::SlowListing { took }));
    findings.extend(skew(wall_clock.now(), second.answer.server_time + second.answer.received.elapsed()));
    findings.extend(delete(container, name, second.etag).await?);
    Ok(findings)
}

async fn write(container: &dyn BlobContainer, name: &str, value: &str, condition: &Condition) -> Result<Written> {
    container.write(name, &content(value), condition).await.map_err(|error| failed("a blob cannot be written", error))
}

fn content(value: &str) -> Metadata {
    Metadata::from([("probe".to_owned(), value.to_owned())])
}

async fn must_be_refused(container: &dyn BlobContainer, name: &str, condition: &Condition, what: &str) -> Result<()> {
    match container.write(name, &content("3"), condition).await {
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
        Err(error) => Err(failed("a conditional write fails for another reason than its condition", error)),
        Ok(_) => Err(Error::new(
            ErrorKind::Rejected,
            format!("the storage accepts {what}: two instances could own the same partition, so it cannot be used"),
        )),
    }
}

/// Answers how long the fastest listing took.
async fn metadata_must_be_listed(container: &dyn BlobContainer, name: &str, etag: &ETag) -> Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..LISTINGS {
        let asked = Instant::now();
        let listing = container.list(name).await.map_err(|error| failed("blobs cannot be listed", error))?;
        fastest = fastest.min(asked.elapsed());
        let listed = listing.blobs.iter().find(|blob| blob.name == name);
        if listed.is_none_or(|blob| blob.metadata != content("2") || blob.etag != *etag) {
            return Err(Error::new(
                ErrorKind::Rejected,
                "a listing does not show what was just written, with its metadata, so the storage cannot be used",
            ));
        }
    }
    Ok(fastest)
}

fn skew(local: OffsetDateTime, server: OffsetDateTime) -> Option<Finding> {
    let difference = local - server;
    let by = difference.unsigned_abs();
    (by > SKEW).then(|| Finding::ClockSkew { by: Duration::from_secs(by.as_secs()), ahead: difference.is_positive() })
}

async fn delete(container: &dyn BlobContainer, name: &str, etag: ETag) -> Result<Option<Finding>> {
    match container.delete(name, &Condition::Match(etag)).await {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Unauthorized => Ok(Some(Finding::CannotDelete)),
        // An instance with the same owner id probes at the same time: it will delete it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => Ok(None),
        Err(error) => Err(failed("a blob cannot be deleted", error)),
    }
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
        let ahead = Finding::ClockSkew { by: Duration::from_secs(120), ahead: true };
        assert_eq!(skew(server + Span::minutes(2), server), Some(ahead));
        let behind = Finding::ClockSkew { by: Duration::from_secs(3), ahead: false };
        assert_eq!(skew(server - Span::milliseconds(3500), server), Some(behind));
    }
}
