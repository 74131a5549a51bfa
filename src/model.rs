//! The plain values that everything speaks of: who, which partition, which position. No I/O, no clock.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

/// A name that cannot be used, with the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} cannot be used: {rule}")]
pub struct InvalidName {
    what: &'static str,
    value: String,
    rule: &'static str,
}

impl InvalidName {
    fn new(what: &'static str, value: &str, rule: &'static str) -> Self {
        Self { what, value: value.chars().take(80).collect(), rule }
    }
}

/// One consumer group of one event hub: what the instances of an application share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ConsumerGroup {
    namespace: String,
    event_hub: String,
    name: String,
}

impl ConsumerGroup {
    /// The consumer group every event hub has.
    pub const DEFAULT_NAME: &'static str = "$Default";

    /// Names a consumer group by the fully qualified namespace (`example.servicebus.windows.net`), the event hub and
    /// its own name (mostly [`DEFAULT_NAME`](Self::DEFAULT_NAME)).
    ///
    /// # Errors
    ///
    /// If a part is empty, holds a `/` or a control character, or is longer than 256 characters: the three are
    /// segments of blob names.
    ///
    /// ```
    /// use eventhubs_checkpoint::ConsumerGroup;
    /// let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    /// assert_eq!(group.event_hub(), "orders");
    /// # Ok::<(), eventhubs_checkpoint::InvalidName>(())
    /// ```
    pub fn new(
        namespace: impl Into<String>,
        event_hub: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<Self, InvalidName> {
        let group = Self { namespace: namespace.into(), event_hub: event_hub.into(), name: name.into() };
        check_segment("namespace", &group.namespace)?;
        check_segment("event hub", &group.event_hub)?;
        check_segment("consumer group", &group.name)?;
        Ok(group)
    }

    /// The fully qualified namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of the event hub.
    #[must_use]
    pub fn event_hub(&self) -> &str {
        &self.event_hub
    }

    /// The name of the consumer group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ConsumerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.event_hub, self.name)
    }
}

fn check_segment(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.is_empty() {
        return Err(InvalidName::new(what, value, "it must not be empty"));
    }
    if value.contains('/') || value.chars().any(char::is_control) {
        return Err(InvalidName::new(what, value, "it must hold neither '/' nor control characters"));
    }
    if value.chars().count() > 256 {
        return Err(InvalidName::new(what, value, "it must not be longer than 256 characters"));
    }
    Ok(())
}

/// One partition of the hub. Ordered by number where ids are numbers, as those of Event Hubs are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PartitionId {
    /// What it is ordered by: read once, for ids are compared all the time. Those that are no numbers come last.
    number: u64,
    text: Arc<str>,
}

impl PartitionId {
    /// Takes the id as the hub gives it.
    ///
    /// # Errors
    ///
    /// If it is empty, holds a `/` or a control character, or is longer than 256 characters: it is the last segment of
    /// a blob name.
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidName> {
        let id = id.as_ref();
        check_segment("partition id", id)?;
        Ok(Self { number: id.parse().unwrap_or(u64::MAX), text: id.into() })
    }

    /// The id as the hub gives it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<u32> for PartitionId {
    fn from(number: u32) -> Self {
        Self { number: number.into(), text: number.to_string().into() }
    }
}

impl Ord for PartitionId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for PartitionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PartitionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

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

/// How a recorded ownership relates to an [`Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Recorded by this very life of mine.
    Mine,
    /// My name, an earlier life of mine (or one that left no incarnation).
    EarlierMe,
    /// My name, a later life: I have been replaced.
    LaterMe,
    /// Another owner.
    Other,
    /// Nobody: it was released.
    Nobody,
}

/// What an ownership blob says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnershipRecord {
    /// The owner, or nobody: released.
    pub owner: Option<OwnerId>,
    /// The life of that owner. Absent in records of other SDKs.
    pub incarnation: Option<Incarnation>,
    /// The server's time of the claim. Renewals keep it.
    pub since: Option<OffsetDateTime>,
    /// How much work the partition is, as its owner measures it.
    pub load: Option<u64>,
    /// The checkpoint was rewound: the owner must adopt it anew, unless it knows this rewind already.
    pub rewound: Option<RewindId>,
    /// Keys that this version does not read. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl OwnershipRecord {
    /// The record of a release: nobody's, with what is known of the partition itself, and what others have added.
    #[must_use]
    pub fn released(&self) -> Self {
        Self { load: self.load, other: self.other.clone(), ..Self::default() }
    }

    /// How this record relates to me.
    #[must_use]
    pub fn relation_to(&self, me: &Identity) -> Relation {
        match &self.owner {
            None => Relation::Nobody,
            Some(owner) if *owner != me.owner => Relation::Other,
            Some(_) => match self.incarnation.as_ref().map(|theirs| theirs.cmp(&me.incarnation)) {
                Some(Ordering::Equal) => Relation::Mine,
                Some(Ordering::Greater) => Relation::LaterMe,
                Some(Ordering::Less) | None => Relation::EarlierMe,
            },
        }
    }
}

/// Tells one rewind from another.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RewindId(Arc<str>);

impl RewindId {
    /// An id of its own for every rewind, if `random` is.
    #[must_use]
    pub fn new(random: u64) -> Self {
        Self(format!("{random:016x}").into())
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

impl fmt::Debug for RewindId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long an ownership lives without renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// For owners of this crate.
    pub expiry: Duration,
    /// For owners of other SDKs, which know nothing of `expiry`.
    pub peer_expiry: Duration,
}

impl LeaseTerms {
    /// Added to the age at which another's ownership counts as abandoned: `Date` and `Last-Modified` come in whole seconds
    /// and may come from two machines.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// Whether a record of this age still counts. Releases never do.
    #[must_use]
    pub fn counts_as_live(self, record: &OwnershipRecord, age: Duration) -> bool {
        record.owner.is_some() && age < self.lifetime(record)
    }

    /// The age at which an owner with such a record counts as dead, whoever looks.
    #[must_use]
    pub fn lifetime(self, record: &OwnershipRecord) -> Duration {
        let expiry = if record.incarnation.is_some() { self.expiry } else { self.peer_expiry };
        expiry + Self::GRACE
    }
}

/// A place in a partition: an event that was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Position {
    /// Grows with every event of the partition.
    pub sequence_number: i64,
    /// Text whose meaning only the service knows.
    pub offset: String,
}

/// What a checkpoint blob says. Either part of the position may be missing: other SDKs leave them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// The sequence number of the last event processed.
    pub sequence_number: Option<i64>,
    /// The offset of that event.
    pub offset: Option<String>,
    /// Who wrote it. Information only: what fences is the ETag.
    pub owner: Option<OwnerId>,
    /// When it was written, by the server's clock.
    pub updated: Option<OffsetDateTime>,
    /// The ETag of the same partition's checkpoint in the other tree of names, when it was last looked at; `none` if there
    /// was none when the start was [pinned](crate::store::GroupStore::pin).
    pub imported: Option<String>,
    /// The last time that it was put back by name.
    pub rewound: Option<RewindId>,
    /// Keys that this version does not read. They are kept when the record is written again.
    pub other: BTreeMap<String, String>,
}

impl CheckpointRecord {
    /// Whether it names any position at all.
    #[must_use]
    pub fn has_position(&self) -> bool {
        self.sequence_number.is_some() || self.offset.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn partition_ids_are_ordered_by_number() {
        let mut ids: Vec<_> = ["10", "9", "x", "1"].map(|id| PartitionId::new(id).unwrap()).into();
        ids.sort();
        assert_eq!(format!("{ids:?}"), "[1, 9, 10, x]");
    }

    #[test]
    fn names_that_would_break_a_blob_name_are_refused_with_the_value_and_the_rule() {
        let error = ConsumerGroup::new("ns", "a/b", "$Default").unwrap_err().to_string();
        assert_eq!(error, r#"event hub "a/b" cannot be used: it must hold neither '/' nor control characters"#);
        assert!(ConsumerGroup::new("", "hub", "$Default").is_err());
        assert!(ConsumerGroup::new("ns", "hub", "g".repeat(257)).is_err());
        assert!(PartitionId::new("").is_err());
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

    #[test]
    fn a_later_incarnation_is_greater_and_an_equal_second_is_told_apart() {
        let first = Incarnation::new(datetime!(2026-09-30 23:59:59 UTC), u32::MAX);
        let second = Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 0);
        assert_eq!(first.as_str(), "20260930T235959Z-ffffffff");
        assert!(first < second);
        assert_ne!(second, Incarnation::new(datetime!(2026-10-01 00:00:00 UTC), 1));
    }

    #[test]
    fn a_record_is_mine_only_with_owner_and_incarnation() {
        let life = |second| Incarnation::new(datetime!(2026-01-01 00:00:00 UTC) + time::Duration::seconds(second), 0);
        let me = Identity { owner: OwnerId::new("a").unwrap(), incarnation: life(5) };
        let record = |owner: &str, incarnation| OwnershipRecord {
            owner: (!owner.is_empty()).then(|| OwnerId::recorded(owner)),
            incarnation,
            ..Default::default()
        };
        assert_eq!(record("a", Some(life(5))).relation_to(&me), Relation::Mine);
        assert_eq!(record("a", Some(life(4))).relation_to(&me), Relation::EarlierMe);
        assert_eq!(record("a", None).relation_to(&me), Relation::EarlierMe);
        assert_eq!(record("a", Some(life(6))).relation_to(&me), Relation::LaterMe);
        assert_eq!(record("b", Some(life(5))).relation_to(&me), Relation::Other);
        assert_eq!(record("", Some(life(5))).relation_to(&me), Relation::Nobody);
    }
}
