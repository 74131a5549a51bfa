//! Reads the values of metadata, and writes them.

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::keys::YES;
use super::malformed::MalformedRecord;
use crate::model::Metadata;

/// Metadata whose keys are found in any case, as in Azure.
pub(super) struct Fields<'a> {
    rest: Vec<(&'a str, &'a str)>,
    pub(super) problems: Vec<String>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(metadata: &'a Metadata) -> Self {
        Self { rest: metadata.iter().collect(), problems: Vec::new() }
    }

    /// Takes a value. Of several keys that differ only in case, the last one counts.
    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        let mut taken = None;
        self.rest.retain(|(found, value)| {
            let is_other = !found.eq_ignore_ascii_case(key);
            taken = if is_other { taken } else { Some(*value) };
            is_other
        });
        taken
    }

    /// Takes the pairs that were not taken.
    pub(super) fn rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.rest)
            .into_iter()
            .map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()))
            .collect()
    }

    /// Takes a value, where an empty one counts as absent.
    pub(super) fn take_some(&mut self, key: &str) -> Option<&'a str> {
        self.take(key).filter(|value| !value.is_empty())
    }

    /// Takes a value, where one that cannot be read is reported and counts as absent.
    pub(super) fn take_known<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.take_some(key)?;
        let value = read(text);
        if value.is_none() {
            self.report(&format!("{key} {text:?} is unknown to this version; ignored"));
        }
        value
    }

    pub(super) fn report(&mut self, problem: &str) {
        self.problems.push(problem.to_owned());
    }
}

pub(super) fn has_key(metadata: &Metadata, key: &str) -> bool {
    metadata.keys().any(|found| found.eq_ignore_ascii_case(key))
}

pub(super) fn display(value: Option<&str>) -> String {
    value.map_or_else(|| "(absent)".to_owned(), |value| format!("{value:?}"))
}

pub(super) fn yes(text: &str) -> Option<()> {
    (text == YES).then_some(())
}

pub(super) fn reported(blob: &str, problems: &[String]) -> Option<MalformedRecord> {
    (!problems.is_empty()).then(|| MalformedRecord::new(blob, problems.join("; ")))
}

pub(super) fn insert(metadata: &mut Metadata, key: &str, value: Option<impl Into<String>>) {
    if let Some(value) = value {
        metadata.insert(key, value);
    }
}

/// Whole seconds: a lease duration is recorded without a fraction.
pub(super) fn format_seconds(duration: Duration) -> String {
    duration.as_secs().to_string()
}

pub(super) fn parse_seconds(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs)
}

pub(super) fn format_time(time: OffsetDateTime) -> Option<String> {
    time.format(&Rfc3339).ok()
}

pub(super) fn parse_time(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}
