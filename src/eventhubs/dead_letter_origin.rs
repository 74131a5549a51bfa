//! Where a dead letter in an event hub came from: the properties of its message.

use std::collections::HashMap;

use azure_core_amqp::AmqpSimpleValue;
use azure_core_amqp::message::AmqpApplicationProperties;
use azure_messaging_eventhubs::models::ReceivedEventData;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::Error;
use crate::model::PartitionId;
use crate::processor::dead_letters::{DeadLetter, UndecodableEvent};
use crate::source::Positioned;
use crate::telemetry::Causes;

const EVENT_HUB: &str = "x-original-event-hub";
const CONSUMER_GROUP: &str = "x-original-consumer-group";
const PARTITION: &str = "x-original-partition";
const OFFSET: &str = "x-original-offset";
const SEQUENCE_NUMBER: &str = "x-original-sequence-number";
const ENQUEUED_TIME: &str = "x-original-enqueued-time";
const ATTEMPTS: &str = "x-original-attempts";
const ERROR: &str = "x-original-error";

/// The longest text of an error, in bytes. The event and its properties together must not exceed the size limit of the
/// event hub.
const LONGEST_ERROR: usize = 1024;

/// Where a dead letter came from, by the properties that
/// [`EventHubDeadLetterSink`](crate::EventHubDeadLetterSink) adds to an event.
///
/// A handler of dead letters sees by it what failed, and where. A handler of the original event hub sees by it that an
/// event was [sent back](super::EventHubRedriver), and for which consumer group.
///
/// ```
/// use eventhubs_checkpoint::azure_messaging_eventhubs::models::ReceivedEventData;
/// use eventhubs_checkpoint::eventhubs::DeadLetterOrigin;
///
/// /// Only another consumer group could not process the event. This one has processed it when it first came.
/// fn is_for_another_group(event: &ReceivedEventData, consumer_group: &str) -> bool {
///     DeadLetterOrigin::of(event).is_some_and(|origin| origin.consumer_group != consumer_group)
/// }
/// # let event: ReceivedEventData = azure_core_amqp::AmqpMessage::default().into();
/// # assert!(!is_for_another_group(&event, "billing"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterOrigin {
    /// The event hub of the event.
    pub event_hub: String,
    /// The consumer group that could not process it.
    pub consumer_group: String,
    /// The partition of the event.
    pub partition_id: PartitionId,
    /// The sequence number of the event. With the partition, it identifies the event.
    pub sequence_number: Option<i64>,
    /// The offset of the event.
    pub offset: Option<String>,
    /// When the event hub enqueued the event.
    pub enqueued_at: Option<OffsetDateTime>,
    /// How many times in a row the event failed. `None` if the client could not decode the event.
    pub attempts: Option<u32>,
    /// The last failure with its causes, at most 1024 bytes.
    pub error: String,
    /// Whether the dead letter has the content of the event: not if the client could not decode it.
    pub has_content: bool,
}

impl DeadLetterOrigin {
    /// Returns where a dead letter came from. `None` unless the event has all of the properties `x-original-event-hub`,
    /// `x-original-consumer-group` and `x-original-partition`.
    #[must_use]
    pub fn of(letter: &ReceivedEventData) -> Option<Self> {
        let properties = letter.event_data().properties()?;
        Some(Self {
            event_hub: find_text(properties, EVENT_HUB)?,
            consumer_group: find_text(properties, CONSUMER_GROUP)?,
            partition_id: PartitionId::new(find_text(properties, PARTITION)?).ok()?,
            sequence_number: properties.get(SEQUENCE_NUMBER).and_then(to_integer),
            offset: find_text(properties, OFFSET),
            enqueued_at: find_text(properties, ENQUEUED_TIME)
                .and_then(|time| OffsetDateTime::parse(&time, &Rfc3339).ok()),
            attempts: properties.get(ATTEMPTS).and_then(to_integer).and_then(|attempts| attempts.try_into().ok()),
            error: find_text(properties, ERROR).unwrap_or_default(),
            has_content: properties.contains_key(ATTEMPTS)
                || letter.event_data().body().is_some_and(|body| !body.is_empty()),
        })
    }

    pub(super) fn of_event(letter: &DeadLetter<ReceivedEventData>) -> Self {
        let event = &letter.event;
        Self {
            event_hub: letter.group.event_hub().to_owned(),
            consumer_group: letter.group.name().to_owned(),
            partition_id: letter.partition_id.clone(),
            sequence_number: Positioned::sequence_number(&**event),
            offset: Positioned::offset(&**event).map(str::to_owned),
            enqueued_at: Positioned::enqueued_at(&**event),
            attempts: Some(letter.attempts),
            error: shorten_error(&letter.error),
            has_content: true,
        }
    }

    /// The client could not decode the event, so its origin is known in part.
    pub(super) fn of_undecodable(event: &UndecodableEvent) -> Self {
        Self {
            event_hub: event.group.event_hub().to_owned(),
            consumer_group: event.group.name().to_owned(),
            partition_id: event.partition_id.clone(),
            sequence_number: Some(event.sequence_number),
            offset: None,
            enqueued_at: None,
            attempts: None,
            error: shorten_error(&event.error),
            has_content: false,
        }
    }

    /// Sets the properties. Replaces properties of the same name.
    pub(super) fn add_to(&self, properties: &mut AmqpApplicationProperties) {
        set_property(properties, EVENT_HUB, self.event_hub.as_str());
        set_property(properties, CONSUMER_GROUP, self.consumer_group.as_str());
        set_property(properties, PARTITION, self.partition_id.as_str());
        set_property(properties, ERROR, self.error.as_str());
        if let Some(number) = self.sequence_number {
            set_property(properties, SEQUENCE_NUMBER, number);
        }
        if let Some(offset) = &self.offset {
            set_property(properties, OFFSET, offset.as_str());
        }
        if let Some(Ok(time)) = self.enqueued_at.map(|time| time.format(&Rfc3339)) {
            set_property(properties, ENQUEUED_TIME, time);
        }
        if let Some(attempts) = self.attempts {
            set_property(properties, ATTEMPTS, i32::try_from(attempts).unwrap_or(i32::MAX));
        }
    }
}

fn find_text(properties: &HashMap<String, AmqpSimpleValue>, name: &str) -> Option<String> {
    match properties.get(name) {
        Some(AmqpSimpleValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the error with its causes, shortened between two characters.
fn shorten_error(error: &Error) -> String {
    let mut text = Causes(error).to_string();
    let ends = text.char_indices().map(|(start, char)| start + char.len_utf8());
    text.truncate(ends.take_while(|end| *end <= LONGEST_ERROR).last().unwrap_or_default());
    text
}

fn set_property(properties: &mut AmqpApplicationProperties, name: &str, value: impl Into<AmqpSimpleValue>) {
    // `insert` keeps a former value, too.
    while properties.0.remove(name).is_some() {}
    properties.insert(name.to_owned(), value.into());
}

/// Other programs may have copied the letter, with another type of number.
fn to_integer(value: &AmqpSimpleValue) -> Option<i64> {
    match *value {
        AmqpSimpleValue::UByte(value) => Some(value.into()),
        AmqpSimpleValue::Byte(value) => Some(value.into()),
        AmqpSimpleValue::UShort(value) => Some(value.into()),
        AmqpSimpleValue::Short(value) => Some(value.into()),
        AmqpSimpleValue::UInt(value) => Some(value.into()),
        AmqpSimpleValue::Int(value) => Some(value.into()),
        AmqpSimpleValue::ULong(value) => value.try_into().ok(),
        AmqpSimpleValue::Long(value) => Some(value),
        AmqpSimpleValue::String(ref text) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use azure_core_amqp::AmqpMessage;

    use super::*;
    use crate::error::ErrorKind;

    fn origin() -> DeadLetterOrigin {
        DeadLetterOrigin {
            event_hub: "orders".into(),
            consumer_group: "billing".into(),
            partition_id: 3.into(),
            sequence_number: Some(42),
            offset: Some("420".into()),
            enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
            attempts: Some(7),
            error: "no such customer".into(),
            has_content: true,
        }
    }

    fn letter(body: &[u8], properties: AmqpApplicationProperties) -> ReceivedEventData {
        AmqpMessage::builder().with_body(body.to_vec()).with_application_properties(properties).build().into()
    }

    #[test]
    fn properties_are_read_back() {
        let undecodable =
            DeadLetterOrigin { offset: None, enqueued_at: None, attempts: None, has_content: false, ..origin() };
        for origin in [origin(), undecodable] {
            let mut properties = AmqpApplicationProperties::new();
            origin.add_to(&mut properties);
            assert_eq!(DeadLetterOrigin::of(&letter(b"", properties)), Some(origin));
        }
    }

    #[test]
    fn a_letter_with_a_body_has_content() {
        let mut properties = AmqpApplicationProperties::new();
        let origin = DeadLetterOrigin { attempts: None, ..origin() };
        origin.add_to(&mut properties);
        assert_eq!(DeadLetterOrigin::of(&letter(b"body", properties)), Some(origin));
    }

    #[test]
    fn any_type_of_number_is_read() {
        let mut properties = AmqpApplicationProperties::new();
        origin().add_to(&mut properties);
        set_property(&mut properties, SEQUENCE_NUMBER, 42_u64);
        set_property(&mut properties, ATTEMPTS, "7");
        assert_eq!(DeadLetterOrigin::of(&letter(b"", properties)), Some(origin()));
    }

    #[test]
    fn an_event_without_the_origin_is_no_letter() {
        for missing in [EVENT_HUB, CONSUMER_GROUP, PARTITION] {
            let mut properties = AmqpApplicationProperties::new();
            origin().add_to(&mut properties);
            properties.0.remove(missing);
            assert_eq!(DeadLetterOrigin::of(&letter(b"body", properties)), None, "without {missing}");
        }
    }

    #[test]
    fn a_long_error_is_shortened_between_characters() {
        let failed = Error::new(ErrorKind::Handler, format!("x{}", "ü".repeat(LONGEST_ERROR)));
        assert_eq!(shorten_error(&failed), format!("x{}", "ü".repeat(LONGEST_ERROR / 2 - 1)));
    }
}
