//! An event as its publisher encoded it.
//!
//! The service adds annotations to an event and changes nothing else. The live tests of the JavaScript client get back
//! a footer with strings as keys, and a data section that holds null; lists and maps as application properties arrive
//! at consumers that cannot decode them (Azure/azure-sdk-for-js#31067). So events are not decoded here.

use time::OffsetDateTime;

use super::encoding::{
    BINARY_8, BINARY_32, DATA, DELIVERY_ANNOTATIONS, HEADER, MAP_8, MAP_32, MESSAGE_ANNOTATIONS, MapSection, MapValue,
    STRING_8, STRING_32, SYMBOL_8, SYMBOL_32, Section, content, split_section, value_length,
};
use super::message::milliseconds;

const SEQUENCE_NUMBER: &str = "x-opt-sequence-number";
const OFFSET: &str = "x-opt-offset";
const ENQUEUED_TIME: &str = "x-opt-enqueued-time";
const PARTITION_KEY: &str = "x-opt-partition-key";

/// What the hub adds to an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotations<'a> {
    pub(super) sequence_number: i64,
    pub(super) offset: &'a str,
    pub(super) enqueued_at: OffsetDateTime,
    pub(super) partition_key: Option<&'a str>,
}

/// The parts of an encoded message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    delivery_annotations: &'a [u8],
    /// The keys and values of the message annotations, one after another.
    annotations: &'a [u8],
    /// All sections after the annotations.
    rest: &'a [u8],
}

impl<'a> Event<'a> {
    /// Splits an encoded message, or returns `None` if it does not consist of sections. Its header is not kept.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut event = Self { delivery_annotations: &[], annotations: &[], rest: message };
        while let Some((section, rest)) = split_section(event.rest) {
            match section.code {
                HEADER => {}
                DELIVERY_ANNOTATIONS => event.delivery_annotations = section.encoded,
                MESSAGE_ANNOTATIONS => event.annotations = entries(section.value)?,
                _ => break,
            }
            event.rest = rest;
        }
        event.sections_of_the_rest().all(|section| section.is_some()).then_some(event)
    }

    /// Ends after the first incomplete section, which is `None`.
    fn sections_of_the_rest(&self) -> impl Iterator<Item = Option<Section<'a>>> + use<'a> {
        let mut rest = self.rest;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some((section, after)) = split_section(rest) else {
                rest = &[];
                return Some(None);
            };
            rest = after;
            Some(Some(section))
        })
    }

    /// Returns the contents of the data sections.
    pub(super) fn data(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let data = self.sections_of_the_rest().flatten().filter(|section| section.code == DATA);
        data.filter_map(|section| content(section.value, BINARY_8, BINARY_32))
    }

    /// Returns the key with which the publisher selected the partition.
    pub(super) fn partition_key(&self) -> Option<&'a str> {
        let (_, _, value) = pairs(self.annotations).find(|(_, key, _)| *key == PARTITION_KEY.as_bytes())?;
        std::str::from_utf8(content(value, STRING_8, STRING_32)?).ok()
    }

    /// Returns the message with these annotations, which replace the publisher's with the same names.
    pub(super) fn annotated(&self, added: Annotations<'_>) -> Vec<u8> {
        let mut map = MapSection::default();
        let replaced = [SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME, PARTITION_KEY].map(str::as_bytes);
        for (entry, key, _value) in pairs(self.annotations) {
            if !replaced.contains(&key) {
                map.copy(entry);
            }
        }
        map.add(SEQUENCE_NUMBER, MapValue::Long(added.sequence_number));
        map.add(OFFSET, MapValue::String(added.offset));
        map.add(ENQUEUED_TIME, MapValue::Timestamp(milliseconds(added.enqueued_at)));
        if let Some(key) = added.partition_key {
            map.add(PARTITION_KEY, MapValue::String(key));
        }
        [self.delivery_annotations, &map.head(MESSAGE_ANNOTATIONS), map.entries(), self.rest].concat()
    }
}

/// Returns the keys and values of a map, one after another: nothing if the value is null, `None` if it is no map.
fn entries(map: &[u8]) -> Option<&[u8]> {
    const NULL: &[u8] = &[0x40];
    if map == NULL {
        return Some(&[]);
    }
    match content(map, MAP_8, MAP_32)? {
        [_count, entries @ ..] if map[0] == MAP_8 => Some(entries),
        [_, _, _, _, entries @ ..] => Some(entries),
        _ => None,
    }
}

/// Returns the pairs of a map: the whole entry, the content of its key if that is a symbol, and its encoded value.
fn pairs(mut entries: &[u8]) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let key = value_length(entries)?;
        let length = key + value_length(&entries[key..])?;
        let (entry, rest) = entries.split_at(length);
        entries = rest;
        Some((entry, content(&entry[..key], SYMBOL_8, SYMBOL_32).unwrap_or_default(), &entry[key..]))
    })
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::messaging::annotations::OwnedKey;
    use fe2o3_amqp_types::messaging::message::DecodeIntoMessage;
    use fe2o3_amqp_types::messaging::{Body, Message, MessageAnnotations};
    use fe2o3_amqp_types::primitives::{Symbol, Value};
    use serde_amqp::read::SliceReader;
    use time::macros::datetime;

    use super::*;

    const ADDED: Annotations<'_> = Annotations {
        sequence_number: 7,
        offset: "4096",
        enqueued_at: datetime!(2026-01-02 03:04:05 UTC),
        partition_key: Some("key"),
    };

    /// `two`, and a footer with a string as key.
    const REST: &[u8] = b"\x00\x53\x75\xa0\x03two\x00\x53\x78\xc1\x0a\x02\xa1\x01k\xa1\x04four";

    fn decoded(message: &[u8]) -> Message<Body<Value>> {
        Body::decode_message_from_reader(SliceReader::new(message)).expect("decoded")
    }

    fn annotation(message: &Message<Body<Value>>, name: &str) -> Option<Value> {
        let annotations = message.message_annotations.as_ref().expect("annotations");
        annotations.get(&OwnedKey::from(Symbol::from(name))).cloned()
    }

    #[test]
    fn annotations_are_added_and_the_rest_is_kept() {
        let annotated = Event::parse(REST).expect("sections").annotated(ADDED);
        assert!(annotated.ends_with(REST));
        let with_another_footer = annotated.strip_suffix(REST).expect("the rest");
        let message = decoded(&[with_another_footer, &REST[..8]].concat());
        assert_eq!(annotation(&message, SEQUENCE_NUMBER), Some(Value::Long(7)));
        assert_eq!(annotation(&message, OFFSET), Some(Value::String("4096".into())));
        assert_eq!(annotation(&message, ENQUEUED_TIME), Some(super::super::message::timestamp(ADDED.enqueued_at)));
        assert_eq!(annotation(&message, PARTITION_KEY), Some(Value::String("key".into())));
    }

    #[test]
    fn annotations_of_the_publisher_are_kept() {
        let mut annotations = MessageAnnotations::default();
        annotations.insert(Symbol::from("mine").into(), Value::List(vec![Value::Int(1)]));
        annotations.insert(Symbol::from(OFFSET).into(), Value::Int(1));
        annotations.insert(Symbol::from(PARTITION_KEY).into(), Value::String("other".into()));
        let section = serde_amqp::to_vec(&annotations).expect("encoded");
        let bytes = [&section, REST].concat();

        let event = Event::parse(&bytes).expect("sections");

        assert_eq!(event.partition_key(), Some("other"));
        let annotated = event.annotated(Annotations { partition_key: None, ..ADDED });
        let message = decoded(&annotated[..annotated.len() - (REST.len() - 8)]);
        assert_eq!(annotation(&message, "mine"), Some(Value::List(vec![Value::Int(1)])));
        assert_eq!(annotation(&message, OFFSET), Some(Value::String("4096".into())));
        assert_eq!(annotation(&message, PARTITION_KEY), None);
        assert_eq!(message.message_annotations.expect("annotations").0.len(), 4);
    }

    #[test]
    fn only_data_has_a_size() {
        let sum = |bytes: &[u8]| Event::parse(bytes).expect("sections").data().map(<[u8]>::len).sum::<usize>();
        assert_eq!(sum(&[REST, REST].concat()), 6);
        assert_eq!(sum(b"\x00\x53\x75\x40"), 0, "a data section that holds null");
        assert_eq!(sum(b"\x00\x53\x77\xa1\x03two"), 0, "a value");
    }

    #[test]
    fn what_does_not_consist_of_sections_is_no_event() {
        for bytes in [&b"\xff\xff"[..], b"\x00\x53\x75\xa0\x09two", b"\x00\x53\x72\xa0\x01k"] {
            assert!(Event::parse(bytes).is_none(), "{bytes:?}");
        }
    }
}
