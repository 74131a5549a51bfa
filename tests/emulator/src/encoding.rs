//! Lengths and sections of AMQP's encoding, without decoding values: AMQP 1.0, part 1, and part 3.2.

/// The descriptors of the sections of a message.
pub(super) const HEADER: u8 = 0x70;
pub(super) const DELIVERY_ANNOTATIONS: u8 = 0x71;
pub(super) const MESSAGE_ANNOTATIONS: u8 = 0x72;
pub(super) const DATA: u8 = 0x75;
pub(super) const FOOTER: u8 = 0x78;

/// The constructors of a described value, of a small number as its descriptor, and of values of variable length.
const DESCRIBED: u8 = 0x00;
const SMALL_ULONG: u8 = 0x53;
const ULONG: u8 = 0x80;
const LONG: u8 = 0x81;
const TIMESTAMP: u8 = 0x83;
pub(super) const BINARY_8: u8 = 0xa0;
pub(super) const BINARY_32: u8 = 0xb0;
pub(super) const STRING_8: u8 = 0xa1;
pub(super) const STRING_32: u8 = 0xb1;
pub(super) const SYMBOL_8: u8 = 0xa3;
pub(super) const SYMBOL_32: u8 = 0xb3;
pub(super) const MAP_8: u8 = 0xc1;
pub(super) const MAP_32: u8 = 0xd1;

/// The maximum depth of descriptors within descriptors.
const MAX_DEPTH: u8 = 8;

/// Returns the length of the encoded value at the start of these bytes, or `None` if it is not complete or not AMQP.
pub(super) fn value_length(bytes: &[u8]) -> Option<usize> {
    value_length_at_depth(bytes, 0)
}

/// The upper half of a constructor determines the width of its value (part 1.2).
fn value_length_at_depth(bytes: &[u8], depth: u8) -> Option<usize> {
    let (&constructor, rest) = bytes.split_first()?;
    let width = match constructor >> 4 {
        0x0 if constructor == DESCRIBED && depth < MAX_DEPTH => {
            let descriptor = value_length_at_depth(rest, depth + 1)?;
            descriptor + value_length_at_depth(&rest[descriptor..], depth + 1)?
        }
        0x4 => 0,
        0x5 => 1,
        0x6 => 2,
        0x7 => 4,
        0x8 => 8,
        0x9 => 16,
        0xa | 0xc | 0xe => 1 + usize::from(*rest.first()?),
        0xb | 0xd | 0xf => 4 + usize::try_from(u32::from_be_bytes(*rest.first_chunk()?)).ok()?,
        _ => return None,
    };
    (width <= rest.len()).then_some(1 + width)
}

/// A section of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    /// The last byte of its descriptor, such as [`DATA`].
    pub(super) code: u8,
    /// With the descriptor.
    pub(super) encoded: &'a [u8],
    /// Without the descriptor.
    pub(super) value: &'a [u8],
}

/// Splits off the first section of these bytes, or returns `None` if there is no complete one.
pub(super) fn split_section(bytes: &[u8]) -> Option<(Section<'_>, &[u8])> {
    let (code, descriptor) = match *bytes {
        [DESCRIBED, SMALL_ULONG, code, ..] => (code, 3),
        [DESCRIBED, ULONG, 0, 0, 0, 0, 0, 0, 0, code, ..] => (code, 10),
        _ => return None,
    };
    let length = descriptor + value_length(&bytes[descriptor..])?;
    let (encoded, rest) = bytes.split_at(length);
    let is_known = (HEADER..=FOOTER).contains(&code);
    is_known.then_some((Section { code, encoded, value: &encoded[descriptor..] }, rest))
}

/// Returns the content of a value with these constructors: for a length of one byte, and of four bytes.
pub(super) fn content(value: &[u8], short: u8, long: u8) -> Option<&[u8]> {
    match *value {
        [constructor, _, ref content @ ..] if constructor == short => Some(content),
        [constructor, _, _, _, _, ref content @ ..] if constructor == long => Some(content),
        _ => None,
    }
}

/// Returns the head of a data section with this much content. It is followed by the content.
pub(super) fn data_head(length: usize) -> [u8; 8] {
    let [a, b, c, d] = size(length);
    [DESCRIBED, SMALL_ULONG, DATA, BINARY_32, a, b, c, d]
}

/// A section whose value is a map with symbols as keys.
#[derive(Debug, Default)]
pub(super) struct MapSection {
    entries: Vec<u8>,
    /// The number of keys and values.
    count: u32,
}

/// A value in a [`MapSection`].
#[derive(Clone, Copy, Debug)]
pub(super) enum MapValue<'a> {
    Long(i64),
    /// In milliseconds since 1970.
    Timestamp(i64),
    String(&'a str),
}

impl MapSection {
    /// Adds an encoded key and its value.
    pub(super) fn copy(&mut self, entry: &[u8]) {
        self.entries.extend_from_slice(entry);
        self.count += 2;
    }

    pub(super) fn add(&mut self, key: &str, value: MapValue<'_>) {
        push(&mut self.entries, SYMBOL_8, SYMBOL_32, key.as_bytes());
        match value {
            MapValue::Long(number) => push_fixed(&mut self.entries, LONG, number),
            MapValue::Timestamp(time) => push_fixed(&mut self.entries, TIMESTAMP, time),
            MapValue::String(text) => push(&mut self.entries, STRING_8, STRING_32, text.as_bytes()),
        }
        self.count += 2;
    }

    /// Returns what precedes the [entries](Self::entries) in a section with this descriptor.
    pub(super) fn head(&self, code: u8) -> Vec<u8> {
        let count = self.count.to_be_bytes();
        let size = size(count.len() + self.entries.len());
        [&[DESCRIBED, SMALL_ULONG, code, MAP_32], &size[..], &count].concat()
    }

    pub(super) fn entries(&self) -> &[u8] {
        &self.entries
    }
}

fn push_fixed(to: &mut Vec<u8>, constructor: u8, value: i64) {
    to.push(constructor);
    to.extend(value.to_be_bytes());
}

/// Appends a value of variable length.
fn push(to: &mut Vec<u8>, short: u8, long: u8, content: &[u8]) {
    if let Ok(length) = u8::try_from(content.len()) {
        to.extend([short, length]);
    } else {
        to.push(long);
        to.extend(size(content.len()));
    }
    to.extend_from_slice(content);
}

/// No message is as long as a length of four bytes allows.
fn size(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::primitives::{Array, Symbol, Value};
    use serde_amqp::described::Described;
    use serde_amqp::descriptor::Descriptor;

    use super::*;

    #[test]
    fn the_length_of_every_kind_of_value_is_found() {
        let long = "x".repeat(300);
        let described = Described { descriptor: Descriptor::Name("a:name".into()), value: Value::Long(1 << 40) };
        for value in [
            Value::Null,
            Value::Bool(true),
            Value::Ubyte(1),
            Value::Ushort(1),
            Value::Uint(0),
            Value::Uint(70_000),
            Value::Ulong(u64::MAX),
            Value::Uuid([7; 16].into()),
            Value::String("short".into()),
            Value::String(long.clone()),
            Value::Symbol(Symbol::from(long)),
            Value::List(vec![]),
            Value::List(vec![Value::Int(1000); 100]),
            Value::Array(Array(vec![Value::Int(1000); 3])),
            Value::Described(Box::new(described)),
        ] {
            let mut bytes = serde_amqp::to_vec(&value).expect("encoded");
            let length = bytes.len();
            assert_eq!(value_length(&bytes[..length - 1]), None, "{value:?}");
            bytes.extend([0xff; 3]);
            assert_eq!(value_length(&bytes), Some(length), "{value:?}");
        }
    }

    #[test]
    fn what_is_not_amqp_has_no_length() {
        for bytes in [&b""[..], b"\xff\xff", b"\x10", &[0; 40], b"\xd1\xff\xff\xff\xff"] {
            assert_eq!(value_length(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn sections_are_split_by_their_descriptors() {
        let bytes = b"\x00\x53\x75\xa0\x03two\x00\x80\0\0\0\0\0\0\0\x78\xc1\x01\x00";
        let (data, rest) = split_section(bytes).expect("a data section");
        assert_eq!((data.code, content(data.value, BINARY_8, BINARY_32)), (DATA, Some(&b"two"[..])));
        let (footer, rest) = split_section(rest).expect("a footer");
        assert_eq!((footer.code, footer.value, rest), (FOOTER, &b"\xc1\x01\x00"[..], &b""[..]));
        for not_a_section in [&b"\x00\x53\x79\x40"[..], b"\x00\x53\x75\xa0\x04two", b"\x40"] {
            assert_eq!(split_section(not_a_section), None, "{not_a_section:?}");
        }
    }
}
