//! The fields of the metadata: their keys, and how their values are read and written.

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::Metadata;

// Keys that all SDKs know.
pub(super) const OWNER_ID: &str = "ownerid";
pub(super) const SEQUENCE_NUMBER: &str = "sequencenumber";
pub(super) const OFFSET: &str = "offset";

// Keys of this crate. They begin with `ehc`, so that no key of another program has the same name; without a hyphen or an
// underscore, which some proxies drop.
pub(super) const INCARNATION: &str = "ehcincarnation";
pub(super) const CLAIMED_AT: &str = "ehcclaimedat";
pub(super) const EPOCH: &str = "ehcepoch";
pub(super) const UPDATED_AT: &str = "ehcupdatedat";
pub(super) const INITIAL: &str = "ehcinitial";
pub(super) const HUB_CREATED: &str = "ehchubcreated";
pub(super) const LOAD: &str = "ehcload";
pub(super) const COOPERATIVE: &str = "ehccooperative";
pub(super) const HANDOFF_TO: &str = "ehchandoffto";
pub(super) const OPERATOR: &str = "ehcoperator";
pub(super) const DRAINING: &str = "ehcdraining";
pub(super) const AWAY: &str = "ehcaway";
pub(super) const LEASE_SCOPE: &str = "ehcleasescope";
pub(super) const DECLARED_DEAD_BY: &str = "ehcdeclareddeadby";
pub(super) const LEASE_DURATION: &str = "ehcleaseduration";

/// The value of a flag. Without the flag the key is absent.
pub(super) const YES: &str = "1";
pub(super) const SCOPE_INSTANCE: &str = "instance";

/// A blob whose content does not match its name. It is reported, and otherwise ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blob {blob:?}: {problem}")]
#[non_exhaustive]
pub struct MalformedRecord {
    /// The name of the blob.
    pub blob: String,
    /// What is wrong with it.
    pub problem: String,
}

impl MalformedRecord {
    pub(super) fn new(blob: &str, problem: impl Into<String>) -> Self {
        Self { blob: blob.to_owned(), problem: problem.into() }
    }
}

/// Metadata whose keys are found in any case, as in Azure.
pub(super) struct MetadataReader<'a> {
    rest: Vec<(&'a str, &'a str)>,
    pub(super) problems: Vec<String>,
}

impl<'a> MetadataReader<'a> {
    pub(super) fn new(metadata: &'a Metadata) -> Self {
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
    pub(super) fn take_rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.rest)
            .into_iter()
            .map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()))
            .collect()
    }

    /// Takes a value, where an empty one counts as absent.
    pub(super) fn take_nonempty(&mut self, key: &str) -> Option<&'a str> {
        self.take(key).filter(|value| !value.is_empty())
    }

    /// Takes a value, where one that cannot be read is reported and counts as absent.
    pub(super) fn take_known<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.take_nonempty(key)?;
        let value = read(text);
        if value.is_none() {
            self.report_problem(&format!("{key} {text:?} is unknown to this version; ignored"));
        }
        value
    }

    pub(super) fn report_problem(&mut self, problem: &str) {
        self.problems.push(problem.to_owned());
    }
}

pub(super) fn has_key(metadata: &Metadata, key: &str) -> bool {
    metadata.keys().any(|found| found.eq_ignore_ascii_case(key))
}

pub(super) fn quote_value(value: Option<&str>) -> String {
    value.map_or_else(|| "(absent)".to_owned(), |value| format!("{value:?}"))
}

pub(super) fn parse_flag(text: &str) -> Option<()> {
    (text == YES).then_some(())
}

pub(super) fn malformed_record(blob: &str, problems: &[String]) -> Option<MalformedRecord> {
    (!problems.is_empty()).then(|| MalformedRecord::new(blob, problems.join("; ")))
}

pub(super) fn insert_some(metadata: &mut Metadata, key: &str, value: Option<impl Into<String>>) {
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
