//! The capability and the offsets of a geo-replicated event hub.
//!
//! There the offset of an event is text, such as `1:4294967296:500`. It names the epoch, which a promotion of another
//! region increases, the offset and the sequence number. The form is the one that the SDKs' tests quote; the meaning of
//! its parts is not documented.

use std::fmt;

/// The capability of a geo-replicated namespace, as clients name it on their links.
pub(super) const CAPABILITY: &str = "com.microsoft:georeplication";

/// The offset of an event of a geo-replicated event hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicatedOffset {
    pub(super) epoch: i32,
    pub(super) offset: i64,
    pub(super) sequence_number: i64,
}

impl ReplicatedOffset {
    /// Parses the text, or returns `None` if it does not have the form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.split_once(':')?;
        let (offset, sequence_number) = rest.split_once(':')?;
        let (Ok(epoch), Ok(offset), Ok(sequence_number)) = (epoch.parse(), offset.parse(), sequence_number.parse())
        else {
            return None;
        };
        Some(Self { epoch, offset, sequence_number })
    }
}

impl fmt::Display for ReplicatedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.epoch, self.offset, self.sequence_number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_they_are_written() {
        let offset = ReplicatedOffset { epoch: 1, offset: 4_294_967_296, sequence_number: 500 };
        assert_eq!(offset.to_string(), "1:4294967296:500");
        assert_eq!(ReplicatedOffset::parse("1:4294967296:500"), Some(offset));
        for other in ["4294967296", "", "1:2", "1:2:3:4", "a:2:3", "-1"] {
            assert_eq!(ReplicatedOffset::parse(other), None, "{other}");
        }
    }
}
