//! The wire format: blob names and metadata, shared byte for byte with the other SDKs.
//!
//! `{namespace}/{event hub}/{consumer group}/ownership/{partition}` and `.../checkpoint/{partition}` are empty blobs.
//! Their metadata:
//!
//! | record | keys that all SDKs know | keys that only this crate writes |
//! |---|---|---|
//! | ownership | `ownerid` (always present; `""` means released) | `ehcincarnation`, `ehcclaimedat`, `ehcepoch`, `ehcload`, `ehccooperative`, `ehchandoffto`, `ehcoperator`, `ehcdraining`, `ehcaway`, `ehcleasescope`, `ehcleaseduration` |
//! | checkpoint | `sequencenumber` and `offset` (both always present) | `ownerid`, `ehcupdatedat`, `ehcinitial`, `ehchubcreated`, `ehcpaused`, `ehcpauseduntil`, `ehcpausereason`, `ehcparked`, `ehcpositions` |
//!
//! Only this crate reads and writes `.../heartbeat/{percent-encoded owner}`, in which a final dot is encoded, too:
//! `ownerid`, `ehcincarnation`, `ehcdeclareddeadby`, `ehcleaseduration`; and `.../beacon`: `ehcchange`, `ehclitby`.
//!
//! The reader is tolerant: other SDKs omit keys or leave them empty. It reports what it cannot use, and continues.

mod names;
mod records;

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::Metadata;

pub use self::names::{BlobNames, RecordKind};
pub(crate) use self::records::{decode_beacon, encode_beacon, is_usable_offset, names_owner, read_sequence_number};
pub use self::records::{
    decode_checkpoint, decode_heartbeat, decode_ownership, encode_checkpoint, encode_heartbeat, encode_ownership,
    with_adopter, with_handoff_request,
};

// Keys that all SDKs know.
const OWNER_ID: &str = "ownerid";
const SEQUENCE_NUMBER: &str = "sequencenumber";
const OFFSET: &str = "offset";

// Keys of this crate. They begin with `ehc`, so that no key of another program has the same name; without a hyphen or
// an underscore, which some proxies drop.
const INCARNATION: &str = "ehcincarnation";
const CLAIMED_AT: &str = "ehcclaimedat";
const EPOCH: &str = "ehcepoch";
const UPDATED_AT: &str = "ehcupdatedat";
const INITIAL: &str = "ehcinitial";
const HUB_CREATED: &str = "ehchubcreated";
const PAUSED: &str = "ehcpaused";
const PAUSED_UNTIL: &str = "ehcpauseduntil";
const PAUSE_REASON: &str = "ehcpausereason";
const PARKED: &str = "ehcparked";
const POSITIONS: &str = "ehcpositions";
const LOAD: &str = "ehcload";
const COOPERATIVE: &str = "ehccooperative";
const HANDOFF_TO: &str = "ehchandoffto";
const OPERATOR: &str = "ehcoperator";
const DRAINING: &str = "ehcdraining";
const AWAY: &str = "ehcaway";
const LEASE_SCOPE: &str = "ehcleasescope";
const DECLARED_DEAD_BY: &str = "ehcdeclareddeadby";
const LEASE_DURATION: &str = "ehcleaseduration";
const CHANGE: &str = "ehcchange";
const LIT_BY: &str = "ehclitby";

/// The value of a flag. Without the flag the key is absent.
const YES: &str = "1";
const SCOPE_INSTANCE: &str = "instance";
const POSITIONS_OF_APPLICATION: &str = "application";

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
    fn new(blob: &str, problem: impl Into<String>) -> Self {
        Self { blob: blob.to_owned(), problem: problem.into() }
    }
}

/// Reads the pairs of a blob's metadata one by one, and gathers what is wrong with them.
struct MetadataReader<'a> {
    rest: BTreeMap<&'a str, &'a str>,
    problems: Vec<String>,
}

impl<'a> MetadataReader<'a> {
    fn new(metadata: &'a Metadata) -> Self {
        Self { rest: metadata.iter().collect(), problems: Vec::new() }
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        self.rest.remove(key)
    }

    /// Takes the pairs that were not taken.
    fn take_rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.rest).into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Takes a value, where an empty one counts as absent.
    fn take_nonempty(&mut self, key: &str) -> Option<&'a str> {
        self.take(key).filter(|value| !value.is_empty())
    }

    /// Takes a value, where one that cannot be read is reported and counts as absent.
    fn take_known<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.take_nonempty(key)?;
        let value = read(text);
        if value.is_none() {
            self.report_problem(format!("{key} {text:?} is unknown to this version; ignored"));
        }
        value
    }

    fn report_problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }
}

fn quote_value(value: Option<&str>) -> String {
    value.map_or_else(|| "(absent)".to_owned(), |value| format!("{value:?}"))
}

fn parse_flag(text: &str) -> Option<()> {
    (text == YES).then_some(())
}

fn malformed_record(blob: &str, problems: &[String]) -> Option<MalformedRecord> {
    (!problems.is_empty()).then(|| MalformedRecord::new(blob, problems.join("; ")))
}

fn insert_some(metadata: &mut Metadata, key: &str, value: Option<impl Into<String>>) {
    if let Some(value) = value {
        metadata.insert(key, value);
    }
}

/// Whole seconds: a lease duration is recorded without a fraction.
fn format_seconds(duration: Duration) -> String {
    duration.as_secs().to_string()
}

fn parse_seconds(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs)
}

fn format_time(time: OffsetDateTime) -> Option<String> {
    time.format(&Rfc3339).ok()
}

fn parse_time(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::model::{CheckpointRecord, HeartbeatRecord, Incarnation, LeaseScope, OwnerId, OwnershipRecord, Pause};
    use crate::tests::hostile::hostile_text;

    #[test]
    fn keys_that_no_other_sdk_knows_have_a_prefix() {
        let owner = OwnerId::new("pod-1").unwrap();
        let incarnation = Incarnation::new(datetime!(2026-11-20 13:00:00 UTC), 1);
        let ownership = OwnershipRecord {
            owner: Some(owner.clone()),
            incarnation: Some(incarnation.clone()),
            claimed_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            epoch: Some(1),
            load: Some(1),
            cooperative: true,
            handoff_to: Some(owner.clone()),
            operator: Some(owner.clone()),
            draining: true,
            away: true,
            scope: LeaseScope::Instance,
            lease_duration: Some(Duration::from_secs(60)),
            other: BTreeMap::new(),
        };
        let checkpoint = CheckpointRecord {
            sequence_number: Some(1),
            offset: Some("1".to_owned()),
            owner: Some(owner.clone()),
            updated_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            hub_created_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            initial: true,
            paused: Some(Pause::new(
                datetime!(2026-11-20 13:00:07 UTC),
                Some(datetime!(2026-11-21 13:00:07 UTC)),
                Some("a migration"),
            )),
            own_position: true,
            other: BTreeMap::new(),
        };
        let mut heartbeat = HeartbeatRecord::new(owner.clone(), incarnation, Duration::from_secs(60));
        heartbeat.declared_dead_by = Some(owner);
        for metadata in [encode_ownership(&ownership), encode_checkpoint(&checkpoint), encode_heartbeat(&heartbeat)] {
            for (key, _) in &metadata {
                let is_known = ["ownerid", "sequencenumber", "offset"].contains(&key);
                assert!(is_known || key.starts_with("ehc"), "{key}");
                assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{key}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_metadata_is_readable_and_keeps_foreign_keys(
            wire in proptest::collection::btree_map("[a-z]{1,14}", "[ -~]{0,20}", 0..6)
        ) {
            let wire = wire.into_iter().collect();
            let (record, _) = decode_ownership("b", &wire);
            let again = encode_ownership(&record);
            for (key, value) in &record.other {
                prop_assert_eq!(again.get(key), Some(value.as_str()));
            }
            let (record, _) = decode_checkpoint("b", &wire);
            let encoded = encode_checkpoint(&record);
            let (again, _) = decode_checkpoint("b", &encoded);
            prop_assert_eq!(again, record);
        }

        #[test]
        fn any_values_of_known_keys_are_readable(
            number in hostile_text(&["41", "-1", "9223372036854775807", "4,1"]),
            text in hostile_text(&["2026-01-01T00:00:00Z", "true", "60", "4100", "worker-1"]),
        ) {
            let keys = [SEQUENCE_NUMBER, EPOCH, LOAD, INCARNATION, LEASE_DURATION, OFFSET, OWNER_ID];
            let wire = |value: &str| -> Metadata { keys.iter().map(|key| (*key, value)).collect() };
            for wire in [wire(&number), wire(&text)] {
                let written = encode_ownership(&decode_ownership("b", &wire).0);
                prop_assert_eq!(encode_ownership(&decode_ownership("b", &written).0), written);
                let written = encode_checkpoint(&decode_checkpoint("b", &wire).0);
                prop_assert_eq!(encode_checkpoint(&decode_checkpoint("b", &written).0), written);
                let heartbeat = |wire| encode_heartbeat(&decode_heartbeat("b", OwnerId::new("a").unwrap(), wire).0);
                let written = heartbeat(&wire);
                prop_assert_eq!(heartbeat(&written), written);
            }
        }
    }
}
