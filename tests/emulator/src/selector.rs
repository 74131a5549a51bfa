//! The selector text with which a receiver chooses its start.
//!
//! A selector such as `amqp.annotation.x-opt-offset > '@latest'` has an annotation, `>` or `>=`, and a value in quotes,
//! with any spacing. The form is that of the Event Hubs AMQP protocol guide; clients differ in their spaces.

use super::geo::ReplicatedOffset;

/// The start of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    /// At the end. If inclusive, at the last existing event.
    Latest { inclusive: bool },
    /// After the event with this value. If inclusive, at that event.
    From { by: Annotation, value: i64, inclusive: bool },
    /// After the event with this offset of a geo-replicated event hub. If inclusive, at that event.
    Replicated { offset: ReplicatedOffset, inclusive: bool },
}

/// The annotation that selects an event. Its value increases along a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    Offset,
    SequenceNumber,
    /// In milliseconds since 1970.
    EnqueuedTime,
}

impl Annotation {
    fn named(name: &str) -> Option<Self> {
        match name {
            "x-opt-offset" => Some(Self::Offset),
            "x-opt-sequence-number" => Some(Self::SequenceNumber),
            "x-opt-enqueued-time" => Some(Self::EnqueuedTime),
            _ => None,
        }
    }
}

impl Selector {
    /// The selector of a receiver that sends none: everything.
    pub(super) const EARLIEST: Self = Self::From { by: Annotation::Offset, value: -1, inclusive: false };

    /// Parses the text. Returns `None` if it does not have the one known form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.trim().strip_prefix("amqp.annotation.")?.split_once('>')?;
        let by = Annotation::named(name.trim_end())?;
        let (inclusive, value) = match rest.strip_prefix('=') {
            Some(value) => (true, value),
            None => (false, rest),
        };
        let value = value.trim();
        let value = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')).unwrap_or(value);
        if by == Annotation::Offset && value == "@latest" {
            return Some(Self::Latest { inclusive });
        }
        if by == Annotation::Offset
            && let Some(offset) = ReplicatedOffset::parse(value)
        {
            return Some(Self::Replicated { offset, inclusive });
        }
        value.parse().ok().map(|value| Self::From { by, value, inclusive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(by: Annotation, value: i64, inclusive: bool) -> Selector {
        Selector::From { by, value, inclusive }
    }

    #[test]
    fn selectors_of_clients_are_parsed() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
        for (text, expected) in [
            ("amqp.annotation.x-opt-offset > '-1'", Some(Selector::EARLIEST)),
            ("amqp.annotation.x-opt-offset > '@latest'", Some(Selector::Latest { inclusive: false })),
            ("amqp.annotation.x-opt-offset >= '@latest'", Some(Selector::Latest { inclusive: true })),
            ("amqp.annotation.x-opt-offset >'4294967296'", Some(from(Offset, 4_294_967_296, false))),
            ("amqp.annotation.x-opt-offset >='12'", Some(from(Offset, 12, true))),
            (
                "amqp.annotation.x-opt-offset >= '2:128:3'",
                Some(Selector::Replicated {
                    offset: ReplicatedOffset { epoch: 2, offset: 128, sequence_number: 3 },
                    inclusive: true,
                }),
            ),
            ("amqp.annotation.x-opt-sequence-number >'500'", Some(from(SequenceNumber, 500, false))),
            ("amqp.annotation.x-opt-sequence-number >= 500", Some(from(SequenceNumber, 500, true))),
            (
                "amqp.annotation.x-opt-enqueued-time >'1700000000000'",
                Some(from(EnqueuedTime, 1_700_000_000_000, false)),
            ),
        ] {
            assert_eq!(Selector::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "x-opt-offset > '1'",
            "amqp.annotation.x-opt-offset",
            "amqp.annotation.x-opt-offset < '1'",
            "amqp.annotation.x-opt-offset > ''",
            "amqp.annotation.x-opt-offset > '1",
            "amqp.annotation.x-opt-offset > 'one'",
            "amqp.annotation.x-opt-sequence-number > '@latest'",
            "amqp.annotation.x-opt-sequence-number > '1:2:3'",
            "amqp.annotation.x-opt-publisher > '1'",
            "amqp.annotation.x-opt-offset > '1' AND amqp.annotation.x-opt-offset > '2'",
        ] {
            assert_eq!(Selector::parse(text), None, "{text}");
        }
    }
}
