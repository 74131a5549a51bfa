//! A pause that is stored with the checkpoint.

use serde::Serialize;
use time::OffsetDateTime;

/// The longest reason, in bytes. A record has room for about 8 KiB.
const LONGEST_REASON: usize = 1024;

/// A mark in a checkpoint: the events of the partition are not delivered. The owner keeps the partition and waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pause {
    /// When the pause was recorded, by the server's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// When it ends by itself, by the server's clock. `None` if it lasts until the partition is resumed.
    #[serde(with = "time::serde::rfc3339::option")]
    pub until: Option<OffsetDateTime>,
    /// The reason, as text for people.
    pub reason: Option<String>,
    /// Whether the partition is parked: its handler failed, and
    /// [`OnFailure::Park`](crate::processor::OnFailure::Park) is set. A reset of the checkpoint ends the pause, because
    /// it may skip the cause.
    pub parked: bool,
}

impl Pause {
    /// Creates a pause. A longer reason than 1 KiB is cut off.
    #[must_use]
    pub fn new(since: OffsetDateTime, until: Option<OffsetDateTime>, reason: Option<&str>) -> Self {
        Self {
            since,
            until,
            reason: reason.map(str::trim).filter(|reason| !reason.is_empty()).map(shorten),
            parked: false,
        }
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

/// Cuts off what is too long, between two characters.
fn shorten(reason: &str) -> String {
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = |text: &str| Pause::new(OffsetDateTime::UNIX_EPOCH, None, Some(text)).reason;
        assert_eq!(reason(&"\u{fc}".repeat(600)).unwrap(), "\u{fc}".repeat(512));
        assert_eq!(reason(&format!("x{}", "\u{fc}".repeat(600))).unwrap().len(), 1023);
        assert_eq!(
            reason(&format!("{} {}", "x".repeat(1023), "y")).unwrap().len(),
            1023,
            "a header has no final space"
        );
        assert_eq!((reason("  short "), reason("  ")), (Some("short".to_owned()), None));
    }

    #[test]
    fn a_pause_ends_at_its_time() {
        let (start, end) = (OffsetDateTime::UNIX_EPOCH, OffsetDateTime::UNIX_EPOCH + time::Duration::HOUR);
        let pause = Pause::new(start, Some(end), None);
        assert!(!pause.has_ended(start) && pause.has_ended(end));
    }

    #[test]
    fn a_failure_parks_the_partition_until_it_is_resumed() {
        let parked = Pause::after_failure(OffsetDateTime::UNIX_EPOCH, "no such order");
        assert!(parked.parked && !parked.has_ended(OffsetDateTime::UNIX_EPOCH + time::Duration::WEEK));
        assert_eq!(parked.reason.as_deref(), Some("no such order"));
        assert!(!Pause::new(OffsetDateTime::UNIX_EPOCH, None, None).parked);
    }
}
