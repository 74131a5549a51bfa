//! A pause that is stored with the checkpoint.

use serde::Serialize;
use time::OffsetDateTime;

/// The longest reason, in bytes. A record has room for about 8 KiB.
const LONGEST_REASON: usize = 1024;

/// The mark in a checkpoint that nothing of its partition is to be delivered. Whoever owns the partition keeps it, and
/// waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pause {
    /// When the pause was recorded, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// When it ends by itself, by the server's clock. `None` if somebody has to resume the partition.
    #[serde(with = "time::serde::rfc3339::option")]
    pub until: Option<OffsetDateTime>,
    /// Why, as text for people.
    pub reason: Option<String>,
    /// Whether the partition is parked: its handler failed, and
    /// [`OnFailure::Park`](crate::processor::OnFailure::Park) says so. A reset of the checkpoint ends that, because it may
    /// skip the cause.
    pub parked: bool,
}

impl Pause {
    /// Creates a pause. A longer reason than 1 KiB is cut off.
    #[must_use]
    pub fn new(since: OffsetDateTime, until: Option<OffsetDateTime>, reason: Option<&str>) -> Self {
        let reason = reason.map(str::trim).filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| reason[..reason.floor_char_boundary(LONGEST_REASON)].to_owned());
        Self { since, until, reason, parked: false }
    }

    /// Creates the pause of a partition whose handler failed with this error.
    #[must_use]
    pub fn after_failure(since: OffsetDateTime, error: &str) -> Self {
        Self { parked: true, ..Self::new(since, None, Some(error)) }
    }

    /// Returns whether the pause has ended at this time.
    #[must_use]
    pub fn has_ended(&self, now: OffsetDateTime) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}
