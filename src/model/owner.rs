//! Who owns: an instance by its name, and in which of its lives.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

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
/// It is greater than all that were recorded for this owner when it started, even if the server's time has not passed
/// theirs.
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

    /// Begins now, by the server's time, or a second after an earlier one if that is later.
    ///
    /// The earlier one is followed however far in the future it is, as a wrong clock may have recorded it: the new one
    /// has seen it, so it is the later one. Only the last second of the year 9999 cannot be followed.
    pub(crate) fn after(earlier: Option<&Self>, now: OffsetDateTime, random: u32) -> Self {
        let follows = earlier.and_then(Self::began).and_then(|began| began.checked_add(Duration::SECOND));
        Self::new(follows.map_or(now, |follows| follows.max(now)), random)
    }

    /// When it began; nothing if it is not written as this crate does.
    pub(crate) fn began(&self) -> Option<OffsetDateTime> {
        const WRITTEN: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
        let (began, _) = self.0.split_once('-')?;
        PrimitiveDateTime::parse(began, WRITTEN).ok().map(PrimitiveDateTime::assume_utc)
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
#[non_exhaustive]
pub struct Identity {
    /// The name.
    pub owner: OwnerId,
    /// The life.
    pub incarnation: Incarnation,
}

impl Identity {
    /// An owner in this incarnation.
    #[must_use]
    pub fn new(owner: OwnerId, incarnation: Incarnation) -> Self {
        Self { owner, incarnation }
    }
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

    mod defects {
        use super::*;

        #[test]
        fn a06_an_incarnation_begins_after_the_latest_recorded() {
            let now = datetime!(2026-10-01 00:00:00.7 UTC);
            let earlier = |text: &str| Some(Incarnation::recorded(text));
            for (recorded, begins) in [
                (None, "20261001T000000Z"),
                (earlier("20260930T235958Z-ffffffff"), "20261001T000000Z"),
                (earlier("20261001T000000Z-ffffffff"), "20261001T000001Z"),
                (earlier("20261001T000005Z-00000000"), "20261001T000006Z"),
                (earlier("29990101T000000Z-00000000"), "29990101T000001Z"),
                (earlier("99991231T235959Z-00000000"), "20261001T000000Z"),
                (earlier("zzz"), "20261001T000000Z"),
                (earlier("1-2"), "20261001T000000Z"),
            ] {
                let begun = Incarnation::after(recorded.as_ref(), now, 0);
                assert_eq!(begun.as_str(), format!("{begins}-00000000"), "{recorded:?}");
            }
        }
    }
}
