//! The metadata of checkpoints.

use super::{
    HUB_CREATED, INITIAL, MalformedRecord, MetadataReader, OFFSET, OWNER_ID, SEQUENCE_NUMBER, UPDATED_AT, format_time,
    insert_some, parse_time, quote_value,
};
use crate::model::{CheckpointRecord, Metadata, OwnerId};

/// Returns the metadata of a checkpoint blob. Both keys of the position are always present, because other SDKs fail
/// otherwise.
#[must_use]
pub fn encode_checkpoint(record: &CheckpointRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    let sequence_number = record.sequence_number.map(|number| number.to_string()).unwrap_or_default();
    insert_some(&mut metadata, INITIAL, record.initial.then_some(&sequence_number));
    metadata.insert(SEQUENCE_NUMBER, sequence_number);
    metadata.insert(OFFSET, record.offset.as_deref().unwrap_or_default());
    insert_some(&mut metadata, OWNER_ID, record.owner.as_ref().map(OwnerId::as_str));
    insert_some(&mut metadata, UPDATED_AT, record.updated_at.and_then(format_time));
    insert_some(&mut metadata, HUB_CREATED, record.hub_created_at.and_then(format_time));
    metadata
}

/// Adds what an adoption changes to the metadata of a checkpoint blob, which otherwise stays exactly as it was read:
/// the new owner, and the time at which the position was written.
#[must_use]
pub fn with_adopter(mut metadata: Metadata, record: &CheckpointRecord) -> Metadata {
    insert_some(&mut metadata, OWNER_ID, record.owner.as_ref().map(OwnerId::as_str));
    if !metadata.contains_key(UPDATED_AT) {
        insert_some(&mut metadata, UPDATED_AT, record.updated_at.and_then(format_time));
    }
    metadata
}

/// Reads the metadata of a checkpoint blob. Unusable parts of the position count as missing. A missing part is
/// reported, because it breaks other SDKs.
#[must_use]
pub fn decode_checkpoint(blob: &str, metadata: &Metadata) -> (CheckpointRecord, Option<MalformedRecord>) {
    let mut fields = MetadataReader::new(metadata);
    let number = fields.take(SEQUENCE_NUMBER);
    let offset = fields.take(OFFSET);
    // .NET writes `long.MinValue` for "no sequence number".
    let sequence_number = number.and_then(|text| text.parse().ok()).filter(|number| *number != i64::MIN);
    let record = CheckpointRecord {
        sequence_number,
        offset: offset.filter(|offset| is_usable_offset(offset)).map(str::to_owned),
        owner: fields.take_nonempty(OWNER_ID).map(OwnerId::from_record),
        updated_at: fields.take(UPDATED_AT).and_then(parse_time),
        // Another program may have changed the position and kept the keys that it does not know.
        initial: fields.take_nonempty(INITIAL).is_some_and(|recorded| number == Some(recorded)),
        hub_created_at: fields.take(HUB_CREATED).and_then(parse_time),
        other: fields.take_rest(),
    };
    let problem = match (&record.sequence_number, &record.offset) {
        (Some(_), Some(_)) => None,
        // This crate leaves the offset empty if the service would reject it.
        (Some(_), None) if offset == Some("") && record.updated_at.is_some() => None,
        (None, Some(_)) => Some(format!("sequencenumber {} is not a number", quote_value(number))),
        (Some(_), None) => Some(format!("offset {} is not a position", quote_value(offset))),
        (None, None) => Some(format!(
            "has neither a usable sequencenumber nor a usable offset: {} and {}",
            quote_value(number),
            quote_value(offset)
        )),
    };
    (record, problem.map(|problem| MalformedRecord::new(blob, problem)))
}

/// Returns the sequence number of a checkpoint as other readers see it, which includes the smallest one.
pub(crate) fn read_sequence_number(metadata: &Metadata) -> Option<i64> {
    metadata.get(SEQUENCE_NUMBER)?.parse().ok()
}

/// .NET 5.11 wrote the text "no offset", and Python writes "None", for a missing offset.
pub(crate) fn is_usable_offset(offset: &str) -> bool {
    !offset.is_empty() && !offset.eq_ignore_ascii_case("no offset") && offset != "None"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use time::macros::datetime;

    use super::*;

    fn metadata<const N: usize>(pairs: [(&str, &str); N]) -> Metadata {
        Metadata::from(pairs)
    }

    #[test]
    fn golden_checkpoint() {
        let record = CheckpointRecord {
            sequence_number: Some(42),
            offset: Some("4311810305".into()),
            owner: Some(OwnerId::new("pod-1").unwrap()),
            updated_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            initial: true,
            hub_created_at: Some(datetime!(2026-01-31 08:00:00 UTC)),
            other: BTreeMap::from([("foreign".to_owned(), "1".to_owned())]),
        };
        let wire = metadata([
            ("foreign", "1"),
            ("ehchubcreated", "2026-01-31T08:00:00Z"),
            ("offset", "4311810305"),
            ("ownerid", "pod-1"),
            ("ehcinitial", "42"),
            ("sequencenumber", "42"),
            ("ehcupdatedat", "2026-11-20T13:00:07Z"),
        ]);
        assert_eq!(encode_checkpoint(&record), wire);
        assert_eq!(decode_checkpoint("b", &wire), (record, None));
    }

    #[test]
    fn initial_only_at_the_recorded_sequence_number() {
        let is_initial = |number, recorded| {
            let metadata = metadata([("sequencenumber", number), ("offset", "1"), ("ehcinitial", recorded)]);
            decode_checkpoint("b", &metadata).0.initial
        };
        assert!(is_initial("41", "41") && is_initial("-1", "-1"));
        assert!(!is_initial("42", "41") && !is_initial("41", "") && !is_initial("41", "1") && !is_initial("", ""));
    }

    #[test]
    fn an_offset_that_this_crate_left_empty_is_no_defect() {
        let left_empty = CheckpointRecord {
            sequence_number: Some(42),
            updated_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            ..CheckpointRecord::default()
        };
        let wire = metadata([("sequencenumber", "42"), ("offset", ""), ("ehcupdatedat", "2026-11-20T13:00:07Z")]);
        assert_eq!(encode_checkpoint(&left_empty), wire);
        assert_eq!(decode_checkpoint("b", &wire), (left_empty, None));
    }

    #[test]
    fn odd_foreign_checkpoints_are_read_where_usable() {
        let cases = [
            ([("sequencenumber", "7"), ("offset", "")], Some(7), None, true),
            ([("sequencenumber", "7"), ("offset", "no offset")], Some(7), None, true),
            ([("sequencenumber", "7"), ("offset", "None")], Some(7), None, true),
            ([("sequencenumber", ""), ("offset", "100")], None, Some("100"), true),
            ([("sequencenumber", "-9223372036854775808"), ("offset", "100")], None, Some("100"), true),
            ([("sequencenumber", "x"), ("offset", "100")], None, Some("100"), true),
            ([("sequencenumber", "-1"), ("offset", "-1")], Some(-1), Some("-1"), false),
            ([("sequencenumber", ""), ("offset", "")], None, None, true),
        ];
        for (wire, sequence_number, offset, reported) in cases {
            let (record, problem) = decode_checkpoint("b", &metadata(wire));
            assert_eq!(record.sequence_number, sequence_number, "{wire:?}");
            assert_eq!(record.offset.as_deref(), offset, "{wire:?}");
            assert_eq!(problem.is_some(), reported, "{wire:?}");
        }
    }
}
