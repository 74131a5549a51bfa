//! An event of the hub, before and after it is published.

use std::collections::BTreeMap;
use std::str::Utf8Error;
use std::sync::Arc;

use time::OffsetDateTime;
use time::macros::datetime;

use crate::source::Positioned;

/// The time at which a hub is created under paused time, so that tests are repeatable. A container in memory begins at
/// the same time: the processor compares the times of events with the clock of the storage.
pub(super) const BEGINNING: OffsetDateTime = datetime!(2026-01-01 00:00:00 UTC);

/// An event to publish: a body, and what a producer sends with it. A body alone converts into it, so text needs no more
/// than `hub.publish(0, "text")`.
///
/// ```
/// use eventhubs_checkpoint::testing::memory_hub::{MemoryHub, NewEvent, PropertyValue};
/// use time::macros::datetime;
///
/// let hub = MemoryHub::new("orders", 1);
/// hub.publish(0, "text");
/// hub.publish(0, [0xff, 0x00]);
/// hub.publish(
///     0,
///     NewEvent::new(r#"{ "total": 12 }"#)
///         .with_partition_key("customer-7")
///         .with_property("type", "order")
///         .with_property("version", 2)
///         .with_enqueued_at(datetime!(2026-01-01 12:00 UTC)),
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    pub(super) body: Arc<[u8]>,
    pub(super) partition_key: Option<Arc<str>>,
    pub(super) properties: Arc<BTreeMap<String, PropertyValue>>,
    pub(super) enqueued_at: Option<OffsetDateTime>,
}

impl NewEvent {
    /// Creates an event with this body: text, or bytes.
    #[must_use]
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into().into(), partition_key: None, properties: Arc::default(), enqueued_at: None }
    }

    /// Sets the partition key. The event is published to the partition that the caller names, whatever the key is.
    #[must_use]
    pub fn with_partition_key(mut self, partition_key: impl Into<Arc<str>>) -> Self {
        self.partition_key = Some(partition_key.into());
        self
    }

    /// Adds an application property, or replaces the one with this name.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<PropertyValue>) -> Self {
        Arc::make_mut(&mut self.properties).insert(name.into(), value.into());
        self
    }

    /// Sets when the hub enqueues the event. Default: [`MemoryHub::now`](super::MemoryHub::now) when it is published.
    /// The times of the events of a partition should not decrease: at an event hub they do not.
    #[must_use]
    pub fn with_enqueued_at(mut self, enqueued_at: OffsetDateTime) -> Self {
        self.enqueued_at = Some(enqueued_at);
        self
    }
}

impl<B: Into<Vec<u8>>> From<B> for NewEvent {
    fn from(body: B) -> Self {
        Self::new(body)
    }
}

/// The value of an application property.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertyValue {
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// True or false.
    Boolean(bool),
}

impl From<&str> for PropertyValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for PropertyValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i32> for PropertyValue {
    fn from(number: i32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<i64> for PropertyValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for PropertyValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

/// An event of a [`MemoryHub`](super::MemoryHub). What it contains is shared, so a read does not copy it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvent {
    /// The sequence number, starting at 0.
    pub sequence_number: i64,
    /// The sequence number times 10, as text.
    pub offset: Arc<str>,
    /// When the hub enqueued it.
    pub enqueued_at: OffsetDateTime,
    /// The published body.
    pub body: Arc<[u8]>,
    /// The published partition key.
    pub partition_key: Option<Arc<str>>,
    /// The published application properties.
    pub properties: Arc<BTreeMap<String, PropertyValue>>,
}

impl MemoryEvent {
    /// Creates an event with this sequence number, and with the offset that the hub assigns to it, for a test without a
    /// hub. Unless the event says when it is enqueued, that is the beginning of 2026.
    #[must_use]
    pub fn new(sequence_number: i64, event: impl Into<NewEvent>) -> Self {
        Self::from_published(sequence_number, &event.into(), BEGINNING)
    }

    pub(super) fn from_published(sequence_number: i64, event: &NewEvent, now: OffsetDateTime) -> Self {
        Self {
            sequence_number,
            offset: offset(sequence_number).into(),
            enqueued_at: event.enqueued_at.unwrap_or(now),
            body: Arc::clone(&event.body),
            partition_key: event.partition_key.clone(),
            properties: Arc::clone(&event.properties),
        }
    }

    /// Returns the body as text.
    ///
    /// # Errors
    ///
    /// If the body is not UTF-8.
    pub fn text(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.body)
    }
}

impl Positioned for MemoryEvent {
    fn sequence_number(&self) -> Option<i64> {
        Some(self.sequence_number)
    }

    fn offset(&self) -> Option<&str> {
        Some(&self.offset)
    }

    fn enqueued_at(&self) -> Option<OffsetDateTime> {
        Some(self.enqueued_at)
    }

    fn byte_size(&self) -> usize {
        self.body.len()
    }
}

/// The difference between the offsets of two events.
pub(super) const STRIDE: i64 = 10;

pub(super) fn offset(sequence_number: i64) -> String {
    (sequence_number * STRIDE).to_string()
}
