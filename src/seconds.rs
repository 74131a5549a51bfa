//! Durations in serialized status: a number of seconds.

use std::time::Duration;

use serde::Serializer;

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
