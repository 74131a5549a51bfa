//! Who owns: an instance by its name, and in which of its lives.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use super::names::InvalidName;

/// One running instance of the application, by the name it gave itself.
///
/// Two instances must never share one. A stable id (a pod's name, say) lets a restarted instance reclaim its records at
/// once instead of waiting for them to expire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// The longest id: long enough for any host name with a prefix, short enough to stand percent-encoded in a blob
    /// name.
    pub const MAX_LENGTH: usize = 128;

    /// Takes a name for this instance.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than [`MAX_LENGTH`](Self::MAX_LENGTH), or not printable ASCII without a space at either
    /// end: it travels as an HTTP header.
    ///
    /// ```
    /// use eventhubs_checkpoint::OwnerId;
    /// assert!(OwnerId::new("orders-7d9f-x2").is_ok());
    /// assert!(OwnerId::new("").is_err());
    /// assert!(OwnerId::new("größe").is_err());
    /// ```
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidName> {
        const WHAT: &str = "owner id";
        let id = id.as_ref();
        if id.is_empty() {
            return Err(InvalidName::new(WHAT, id, "it must not be empty"));
        }
        if id.len() > Self::MAX_LENGTH {
            return Err(InvalidName::new(WHAT, id, "it must not be longer than 128 characters"));
        }
        if id.trim() != id || !id.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(InvalidName::new(WHAT, id, "it must be printable ASCII without a space at either end"));
        }
        Ok(Self(id.into()))
    }

    /// An owner as another SDK recorded it, by whatever rules that one has.
    pub(crate) fn recorded(id: &str) -> Self {
        Self(id.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for OwnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// One life of an owner: the server's time of its first answer, then a random part. Of two, the greater is the newer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(Arc<str>);

impl Incarnation {
    /// The life that began at this server time. `random` tells apart two that began in the same second.
    #[must_use]
    pub fn new(began: OffsetDateTime, random: u32) -> Self {
        let began = began.to_offset(time::UtcOffset::UTC);
        let (date, time) = (began.date(), began.time());
        let text = format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}Z-{random:08x}",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
        );
        Self(text.into())
    }

    pub(crate) fn recorded(text: &str) -> Self {
        Self(text.into())
    }

    /// The value as it is recorded.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who I am: an owner in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub owner: OwnerId,
    /// The life.
    pub incarnation: Incarnation,
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn owner_ids_are_printable_ascii_of_bounded_length() {
        for good in ["a", "pod-7 (blue)", &"x".repeat(128)] {
            assert!(OwnerId::new(good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a ", "a\nb", "é", "\u{7f}", &"x".repeat(129)] {
            assert!(OwnerId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_later_incarnation_is_greater_and_an_equal_second_is_told_apart() {
        let first = Incarnation::new(datetime!(2026-09-30 23:59:59 UTC), u32::MAX);
        let second = Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 0);
        assert_eq!(first.as_str(), "20260930T235959Z-ffffffff");
        assert!(first < second);
        assert_ne!(second, Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 1));
    }
}
