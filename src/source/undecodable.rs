//! How a source reports an event that it cannot decode.

use std::error::Error as StdError;
use std::fmt;

use crate::error::{Error, ErrorKind, cause_of};

/// What a source reports; see [`undecodable`](crate::source::undecodable).
#[derive(Debug)]
struct Reported {
    sequence_number: Option<i64>,
    cause: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sequence_number {
            Some(number) => write!(f, "event {number}"),
            None => f.write_str("the next event"),
        }
    }
}

impl StdError for Reported {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.cause)
    }
}

/// Returns the error with which a receiver reports, in place of an event, that it cannot decode the event. Like every
/// error it ends the receiver.
///
/// Pass the sequence number if it is known. Otherwise the processor takes the event for the first one that exists after
/// the last event that the receiver has returned, or after its start.
///
/// ```
/// use eventhubs_checkpoint::ErrorKind;
/// use eventhubs_checkpoint::source::undecodable;
///
/// let error = undecodable(Some(42), "a list in the application properties");
/// assert_eq!(error.kind(), ErrorKind::Undecodable);
/// ```
pub fn undecodable(sequence_number: Option<i64>, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    let reported = Reported { sequence_number, cause: cause.into() };
    Error::new(ErrorKind::Undecodable, "the event source cannot decode an event").with_source(reported)
}

/// Returns the sequence number that the source has reported.
pub(crate) fn reported_number(error: &Error) -> Option<i64> {
    cause_of::<Reported>(error)?.sequence_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_number_is_found_below_other_errors() {
        let error = undecodable(Some(42), "a list");
        assert_eq!(reported_number(&error), Some(42));
        let named = Error::new(ErrorKind::Undecodable, "event 42 of partition 3").with_source(error);
        assert_eq!(reported_number(&named), Some(42));
        assert_eq!(reported_number(&undecodable(None, "a list")), None);
        assert_eq!(reported_number(&Error::new(ErrorKind::EventSource, "broken")), None);
    }
}
