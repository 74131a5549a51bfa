//! The selector text with which a receiver says where it starts.
//!
//! `amqp.annotation.x-opt-offset > '@latest'` and the like: an annotation, `>` or `>=`, and a value in quotes, with any
//! spacing. The form is that of the Event Hubs AMQP protocol guide; the clients differ in their spaces.

/// Where a receiver starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    /// At the end; inclusive: with the last event that is there.
    Latest { inclusive: bool },
    /// After the event with this value; inclusive: with it.
    From { by: Annotation, value: i64, inclusive: bool },
}

/// What an event is looked up by. It only grows along a partition.
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
    /// What a receiver without a selector gets: everything.
    pub(super) const EARLIEST: Self = Self::From { by: Annotation::Offset, value: -1, inclusive: false };

    /// Reads the text, `None` if it does not have the one known form.
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
    fn reads_what_the_clients_send() {
        use Annotation::{EnqueuedTime, Offset, SequenceNumber};
        for (text, expected) in [
            ("amqp.annotation.x-opt-offset > '-1'", Some(Selector::EARLIEST)),
            ("amqp.annotation.x-opt-offset > '@latest'", Some(Selector::Latest { inclusive: false })),
            ("amqp.annotation.x-opt-offset >= '@latest'", Some(Selector::Latest { inclusive: true })),
            ("amqp.annotation.x-opt-offset >'4294967296'", Some(from(Offset, 4_294_967_296, false))),
            ("amqp.annotation.x-opt-offset >='12'", Some(from(Offset, 12, true))),
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
    fn refuses_everything_else() {
        for text in [
            "",
            "x-opt-offset > '1'",
            "amqp.annotation.x-opt-offset",
            "amqp.annotation.x-opt-offset < '1'",
            "amqp.annotation.x-opt-offset > ''",
            "amqp.annotation.x-opt-offset > '1",
            "amqp.annotation.x-opt-offset > 'one'",
            "amqp.annotation.x-opt-sequence-number > '@latest'",
            "amqp.annotation.x-opt-publisher > '1'",
            "amqp.annotation.x-opt-offset > '1' AND amqp.annotation.x-opt-offset > '2'",
        ] {
            assert_eq!(Selector::parse(text), None, "{text}");
        }
    }
}
