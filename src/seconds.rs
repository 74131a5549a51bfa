//! Durations in serialized status, as a number of seconds, and in configuration files, as text.

use std::time::Duration;

use humantime_serde::re::humantime::parse_duration;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn serialize_optional<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

/// Reads a duration as in `90s`, or `never`: not every format of configuration files has a null.
pub(crate) fn deserialize_or_never<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_deref() {
        None | Some("never") => Ok(None),
        Some(text) => parse_duration(text).map(Some).map_err(D::Error::custom),
    }
}
