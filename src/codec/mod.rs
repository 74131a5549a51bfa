//! The wire format: blob names and metadata, shared byte for byte with the other SDKs.
//!
//! `{namespace}/{event hub}/{consumer group}/ownership/{partition}` and `.../checkpoint/{partition}` are empty blobs.
//! Their metadata:
//!
//! | record | keys that all SDKs know | keys that only this crate writes |
//! |---|---|---|
//! | ownership | `ownerid` (always present; `""` means released) | `ehcincarnation`, `ehcclaimedat`, `ehcepoch`, `ehcload`, `ehccooperative`, `ehchandoffto`, `ehcoperator`, `ehcdraining`, `ehcaway`, `ehcleasescope`, `ehcleaseduration` |
//! | checkpoint | `sequencenumber` and `offset` (both always present) | `ownerid`, `ehcupdatedat`, `ehcinitial`, `ehchubcreated` |
//!
//! Only this crate reads and writes `.../heartbeat/{percent-encoded owner}`, in which a final dot is encoded, too:
//! `ownerid`, `ehcincarnation`, `ehcdeclareddeadby`, `ehcleaseduration`.
//!
//! The reader is tolerant: other SDKs omit keys or leave them empty. It reports what it cannot use, and continues.

mod checkpoint;
mod fields;
mod heartbeat;
mod names;
mod ownership;

pub use self::checkpoint::{decode_checkpoint, encode_checkpoint, with_adopter};
pub(crate) use self::checkpoint::{is_usable_offset, read_sequence_number};
pub use self::fields::MalformedRecord;
pub use self::heartbeat::{decode_heartbeat, encode_heartbeat};
pub use self::names::{BlobNames, RecordKind};
pub(crate) use self::ownership::names_owner;
pub use self::ownership::{decode_ownership, encode_ownership, with_handoff_request};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::hostile::hostile_text;
    use crate::model::{
        CheckpointRecord, HeartbeatRecord, Incarnation, LeaseScope, Metadata, OwnerId, OwnershipRecord,
    };

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
            let keys = ["sequencenumber", "ehcepoch", "ehcload", "ehcincarnation", "ehcleaseduration", "offset", "ownerid"];
            let wire = |value: &str| -> Metadata { keys.iter().map(|key| ((*key).to_owned(), value.to_owned())).collect() };
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
