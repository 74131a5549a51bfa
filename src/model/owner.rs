//! The owner of a partition: an instance and its incarnation, and how records relate to it.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

use super::names::{InvalidName, text_conversions};

/// The id of one running [instance](crate::guide::glossary#instance) of the application.
///
/// Two instances must never have the same id. An instance with a stable id, such as the name of its pod, reclaims its
/// partitions at once when it restarts, instead of waiting until its leases expire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// The length of the longest id: enough for any host name with a prefix, and short enough for a percent-encoded
    /// segment of a blob name.
    pub const MAX_LENGTH: usize = 128;

    /// Creates an id from text. [`FromStr`](std::str::FromStr), [`TryFrom`] and `Deserialize` do the same.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if the text is empty, is longer than [`MAX_LENGTH`](Self::MAX_LENGTH) characters, contains
    /// anything but printable ASCII, or starts or ends with a space, because it is sent in an HTTP header: choose
    /// another ID.
    ///
    /// ```
    /// use eventhubs_checkpoint::OwnerId;
    /// assert!(OwnerId::new("orders-7d9f-x2").is_ok());
    /// assert!(OwnerId::new("").is_err());
    /// assert!(OwnerId::new("größe").is_err());
    /// ```
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidName> {
        const WHAT: &str = "owner ID";
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

    /// Creates an owner ID that another SDK recorded, which may break the rules of [`new`](Self::new).
    pub(crate) fn from_record(id: &str) -> Self {
        Self(id.into())
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

text_conversions!(OwnerId);

/// One run of an [owner](crate::guide::glossary#owner): the server time of its first response, and a random part. Of
/// two incarnations of an owner, the greater one is newer. A new incarnation is greater than all that were recorded for
/// its owner when it started, even if the server time is not later than theirs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(Arc<str>);

impl Incarnation {
    /// Creates the incarnation that began at this server time. `random` distinguishes two that began in the same
    /// second.
    #[must_use]
    pub fn new(began: OffsetDateTime, random: u32) -> Self {
        let began = began.to_offset(time::UtcOffset::UTC);
        let date = began.date();
        let time = began.time();
        Self::from_record(&format!(
            "{:04}{:02}{:02}T{:02}{:02}{:02}Z-{random:08x}",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
        ))
    }

    /// Creates the incarnation that begins now, by the server time, or a second after an earlier one if that is later.
    ///
    /// The new incarnation follows an earlier one however far in the future that is, for example because of a wrong
    /// clock: it has seen the earlier one, so it is newer. Only the last second of the year 9999 cannot be followed.
    pub(crate) fn new_after(earlier: Option<&Self>, now: OffsetDateTime, random: u32) -> Self {
        let follows = earlier.and_then(Self::start_time).and_then(|began| began.checked_add(Duration::SECOND));
        Self::new(follows.map_or(now, |follows| follows.max(now)), random)
    }

    /// Returns when it began; `None` if it is not written as this crate does.
    pub(crate) fn start_time(&self) -> Option<OffsetDateTime> {
        const WRITTEN: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
        let (began, _) = self.0.split_once('-')?;
        PrimitiveDateTime::parse(began, WRITTEN).ok().map(PrimitiveDateTime::assume_utc)
    }

    /// Creates an incarnation as it is recorded.
    pub(crate) fn from_record(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the value as it is recorded.
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

/// The identity of an instance: an owner in one of its incarnations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The owner ID.
    pub owner: OwnerId,
    /// The incarnation.
    pub incarnation: Incarnation,
}

impl Identity {
    /// Creates the identity of an owner in this incarnation.
    #[must_use]
    pub fn new(owner: OwnerId, incarnation: Incarnation) -> Self {
        Self { owner, incarnation }
    }
}

/// The relation between a record and an [`Identity`]. Exhaustive: no other relation is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// This incarnation of this owner wrote it.
    This,
    /// An earlier incarnation of this owner wrote it, or one without an incarnation.
    EarlierIncarnation,
    /// A later incarnation of this owner wrote it: this one was replaced.
    LaterIncarnation,
    /// Another owner wrote it.
    Other,
    /// It names no owner: the partition was released.
    Unowned,
}

impl Relation {
    /// Compares the owner of a record, in this incarnation, with an instance.
    pub(super) fn of_owner(owner: &OwnerId, incarnation: Option<&Incarnation>, this: &Identity) -> Self {
        if *owner != this.owner {
            return Self::Other;
        }
        match incarnation.map(|recorded| recorded.cmp(&this.incarnation)) {
            Some(Ordering::Equal) => Self::This,
            Some(Ordering::Greater) => Self::LaterIncarnation,
            Some(Ordering::Less) | None => Self::EarlierIncarnation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn an_incarnation_is_shown_as_it_is_recorded() {
        let incarnation = Incarnation::new(datetime!(2026-01-01 00:00 UTC), 7);
        assert!(!incarnation.as_str().is_empty());
        assert_eq!(format!("{incarnation} {incarnation:?}"), [incarnation.as_str(); 2].join(" "));
        assert_eq!(OwnerId::new("a").unwrap().as_str(), "a");
    }

    #[test]
    fn owner_ids_are_printable_ascii_of_bounded_length() {
        for good in ["a", "pod-7 (blue)", &"x".repeat(128)] {
            assert!(OwnerId::new(good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a ", "a\nb", "é", "\u{7f}", &"x".repeat(129)] {
            assert!(OwnerId::new(bad).is_err(), "{bad:?}");
        }
    }

    /// Two that begin in the same second are distinguished.
    #[test]
    fn later_incarnations_are_greater_and_unique() {
        let first = Incarnation::new(datetime!(2026-09-30 23:59:59 UTC), u32::MAX);
        let second = Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 0);
        assert_eq!(first.as_str(), "20260930T235959Z-ffffffff");
        assert!(first < second);
        assert_ne!(second, Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 1));
    }

    mod defects {
        use super::*;

        #[test]
        fn an_incarnation_begins_after_the_recorded_one() {
            let now = datetime!(2026-10-01 00:00:00.7 UTC);
            let earlier = |text: &str| Some(Incarnation::from_record(text));
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
                let begun = Incarnation::new_after(recorded.as_ref(), now, 0);
                assert_eq!(begun.as_str(), format!("{begins}-00000000"), "{recorded:?}");
            }
        }
    }
}
