//! The metadata of ownerships, checkpoints, heartbeats and the beacon.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::{
    AWAY, CHANGE, CLAIMED_AT, COOPERATIVE, DECLARED_DEAD_BY, DRAINING, EPOCH, HANDOFF_TO, HUB_CREATED, INCARNATION,
    INITIAL, LEASE_DURATION, LEASE_SCOPE, LIT_BY, LOAD, MalformedRecord, MetadataReader, OFFSET, OPERATOR, OWNER_ID,
    PARKED, PAUSE_REASON, PAUSED, PAUSED_UNTIL, POSITIONS, POSITIONS_OF_APPLICATION, SCOPE_INSTANCE, SEQUENCE_NUMBER,
    UPDATED_AT, YES, format_seconds, format_time, insert_some, malformed_record, parse_flag, parse_seconds, parse_time,
    quote_value,
};
use crate::model::{
    CheckpointRecord, HeartbeatRecord, Incarnation, LeaseScope, Metadata, OwnerId, OwnershipRecord, Pause,
};

/// Metadata values are HTTP headers, so control characters are percent-encoded, as is the percent sign.
const ENCODED_IN_TEXT: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the metadata of an ownership blob.
#[must_use]
pub fn encode_ownership(record: &OwnershipRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    metadata.insert(OWNER_ID, record.owner.as_ref().map_or("", OwnerId::as_str));
    insert_some(&mut metadata, INCARNATION, record.incarnation.as_ref().map(Incarnation::as_str));
    insert_some(&mut metadata, CLAIMED_AT, record.claimed_at.and_then(format_time));
    insert_some(&mut metadata, EPOCH, record.epoch.map(|epoch| epoch.to_string()));
    insert_some(&mut metadata, LOAD, record.load.map(|load| load.to_string()));
    insert_some(&mut metadata, COOPERATIVE, record.cooperative.then_some(YES));
    insert_some(&mut metadata, HANDOFF_TO, record.handoff_to.as_ref().map(OwnerId::as_str));
    insert_some(&mut metadata, OPERATOR, record.operator.as_ref().map(OwnerId::as_str));
    insert_some(&mut metadata, DRAINING, record.draining.then_some(YES));
    insert_some(&mut metadata, AWAY, record.away.then_some(YES));
    insert_some(&mut metadata, LEASE_SCOPE, (record.scope == LeaseScope::Instance).then_some(SCOPE_INSTANCE));
    insert_some(&mut metadata, LEASE_DURATION, record.lease_duration.map(format_seconds));
    metadata
}

/// Adds a handoff request to the metadata of an ownership blob, which otherwise stays exactly as it was read.
#[must_use]
pub fn with_handoff_request(mut metadata: Metadata, by: &OwnerId) -> Metadata {
    metadata.insert(HANDOFF_TO, by.as_str());
    metadata
}

/// Returns whether the metadata of an ownership blob contains an owner ID, which is empty after a release.
pub(crate) fn names_owner(metadata: &Metadata) -> bool {
    metadata.contains_key(OWNER_ID)
}

/// Reads the metadata of an ownership blob. A record without `ownerid` counts as released, as the official Rust store
/// means it, and is reported, because it breaks the listings of other SDKs. A value that this version does not know
/// counts as absent, and is reported, too.
#[must_use]
pub fn decode_ownership(blob: &str, metadata: &Metadata) -> (OwnershipRecord, Option<MalformedRecord>) {
    let mut fields = MetadataReader::new(metadata);
    let owner = fields.take(OWNER_ID);
    if owner.is_none() {
        fields.report_problem("has no ownerid; considered released");
    }
    let record = OwnershipRecord {
        owner: owner.filter(|id| !id.is_empty()).map(OwnerId::from_record),
        incarnation: fields.take_nonempty(INCARNATION).map(Incarnation::from_record),
        claimed_at: fields.take(CLAIMED_AT).and_then(parse_time),
        epoch: fields.take_known(EPOCH, |text| text.parse().ok()),
        load: fields.take(LOAD).and_then(|text| text.parse().ok()),
        cooperative: fields.take_known(COOPERATIVE, parse_flag).is_some(),
        handoff_to: fields.take_nonempty(HANDOFF_TO).map(OwnerId::from_record),
        operator: fields.take_nonempty(OPERATOR).map(OwnerId::from_record),
        draining: fields.take_known(DRAINING, parse_flag).is_some(),
        away: fields.take_known(AWAY, parse_flag).is_some(),
        scope: fields
            .take_known(LEASE_SCOPE, |text| (text == SCOPE_INSTANCE).then_some(LeaseScope::Instance))
            .unwrap_or_default(),
        lease_duration: fields.take_known(LEASE_DURATION, parse_seconds),
        other: fields.take_rest(),
    };
    (record, malformed_record(blob, &fields.problems))
}

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
    if let Some(Pause { since, until, reason, parked }) = &record.paused {
        insert_some(&mut metadata, PAUSED, format_time(*since));
        insert_some(&mut metadata, PAUSED_UNTIL, until.and_then(format_time));
        insert_some(&mut metadata, PAUSE_REASON, reason.as_deref().map(encode_text));
        insert_some(&mut metadata, PARKED, parked.then_some(YES));
    }
    insert_some(&mut metadata, POSITIONS, record.own_position.then_some(POSITIONS_OF_APPLICATION));
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
        paused: take_pause(&mut fields),
        own_position: fields.take_known(POSITIONS, |text| (text == POSITIONS_OF_APPLICATION).then_some(())).is_some(),
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
    fields.problems.extend(problem);
    (record, malformed_record(blob, &fields.problems))
}

fn encode_text(text: &str) -> String {
    utf8_percent_encode(text.trim(), ENCODED_IN_TEXT).to_string()
}

/// Takes the pause. If its end is not readable, it lasts until the partition is resumed.
fn take_pause(fields: &mut MetadataReader<'_>) -> Option<Pause> {
    let since = fields.take_known(PAUSED, parse_time);
    let until = fields.take_known(PAUSED_UNTIL, parse_time);
    let reason = fields.take_nonempty(PAUSE_REASON).map(|reason| percent_decode_str(reason).decode_utf8_lossy());
    let parked = fields.take_known(PARKED, parse_flag).is_some();
    Some(Pause { parked, ..Pause::new(since?, until, reason.as_deref()) })
}

/// Returns the sequence number of a checkpoint as other readers see it, which includes the smallest one.
pub(crate) fn read_sequence_number(metadata: &Metadata) -> Option<i64> {
    metadata.get(SEQUENCE_NUMBER)?.parse().ok()
}

/// .NET 5.11 wrote the text "no offset", and Python writes "None", for a missing offset.
pub(crate) fn is_usable_offset(offset: &str) -> bool {
    !offset.is_empty() && !offset.eq_ignore_ascii_case("no offset") && offset != "None"
}

/// Returns the metadata of a heartbeat blob.
#[must_use]
pub fn encode_heartbeat(record: &HeartbeatRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    metadata.insert(OWNER_ID, record.owner.as_str());
    insert_some(&mut metadata, INCARNATION, record.incarnation.as_ref().map(Incarnation::as_str));
    insert_some(&mut metadata, DECLARED_DEAD_BY, record.declared_dead_by.as_ref().map(OwnerId::as_str));
    insert_some(&mut metadata, LEASE_DURATION, record.lease_duration.map(format_seconds));
    metadata
}

/// Reads the metadata of the heartbeat blob of this owner, which is known from the blob name. An owner ID that
/// contradicts the name, and a missing incarnation, are reported.
#[must_use]
pub fn decode_heartbeat(blob: &str, owner: OwnerId, metadata: &Metadata) -> (HeartbeatRecord, Option<MalformedRecord>) {
    let mut fields = MetadataReader::new(metadata);
    let named = fields.take(OWNER_ID);
    if named != Some(owner.as_str()) {
        fields.report_problem(format!("ownerid {} is not the owner in the blob name", quote_value(named)));
    }
    let incarnation = fields.take_nonempty(INCARNATION).map(Incarnation::from_record);
    if incarnation.is_none() {
        fields.report_problem("has no incarnation");
    }
    let record = HeartbeatRecord {
        owner,
        incarnation,
        declared_dead_by: fields.take_nonempty(DECLARED_DEAD_BY).map(OwnerId::from_record),
        lease_duration: fields.take_known(LEASE_DURATION, parse_seconds),
        other: fields.take_rest(),
    };
    (record, malformed_record(blob, &fields.problems))
}

/// Returns the metadata of the beacon: the number of the last change, and the owner that reported it.
pub(crate) fn encode_beacon(change: i64, lit_by: &OwnerId) -> Metadata {
    Metadata::from([(CHANGE, change.to_string()), (LIT_BY, lit_by.to_string())])
}

/// Reads the number of the last change. Another program may have written anything: that counts as number 0, as does a
/// number after which no other one may come.
pub(crate) fn decode_beacon(metadata: &Metadata) -> i64 {
    let number = metadata.get(CHANGE).and_then(|number| number.parse().ok());
    number.filter(|number| *number < i64::MAX / 2).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

    fn metadata<const N: usize>(pairs: [(&str, &str); N]) -> Metadata {
        Metadata::from(pairs)
    }

    #[test]
    fn golden_ownership() {
        let claimed = OwnershipRecord {
            owner: Some(OwnerId::new("pod-1").unwrap()),
            incarnation: Some(Incarnation::new(datetime!(2026-11-20 13:00:00 UTC), 0xabc)),
            claimed_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            epoch: Some(1_795_179_607_001),
            load: Some(1200),
            lease_duration: Some(Duration::from_secs(60)),
            ..OwnershipRecord::default()
        };
        let wire = metadata([
            ("ehcleaseduration", "60"),
            ("ehcepoch", "1795179607001"),
            ("ehcincarnation", "20261120T130000Z-00000abc"),
            ("ehcload", "1200"),
            ("ownerid", "pod-1"),
            ("ehcclaimedat", "2026-11-20T13:00:07Z"),
        ]);
        assert_eq!(encode_ownership(&claimed), wire);
        assert_eq!(decode_ownership("b", &wire), (claimed, None));
    }

    #[test]
    fn golden_release_has_an_empty_owner_key() {
        let wire = metadata([("ownerid", "")]);
        assert_eq!(encode_ownership(&OwnershipRecord::default()), wire);
        assert_eq!(decode_ownership("b", &wire), (OwnershipRecord::default(), None));
    }

    #[test]
    fn golden_handoff() {
        let requested = OwnershipRecord {
            owner: Some(OwnerId::new("pod-1").unwrap()),
            cooperative: true,
            handoff_to: Some(OwnerId::new("pod-2").unwrap()),
            draining: true,
            scope: LeaseScope::Instance,
            ..OwnershipRecord::default()
        };
        let wire = metadata([
            ("ehccooperative", "1"),
            ("ehcdraining", "1"),
            ("ehchandoffto", "pod-2"),
            ("ownerid", "pod-1"),
            ("ehcleasescope", "instance"),
        ]);
        assert_eq!(encode_ownership(&requested), wire);
        assert_eq!(decode_ownership("b", &wire), (requested, None));
    }

    #[test]
    fn golden_operator() {
        let returned = OwnershipRecord {
            epoch: Some(-1),
            handoff_to: Some(OwnerId::new("pod-2").unwrap()),
            operator: Some(OwnerId::new("operator-0abc").unwrap()),
            ..OwnershipRecord::default()
        };
        let wire = metadata([
            ("ehcepoch", "-1"),
            ("ehchandoffto", "pod-2"),
            ("ehcoperator", "operator-0abc"),
            ("ownerid", ""),
        ]);
        assert_eq!(encode_ownership(&returned), wire);
        assert_eq!(decode_ownership("b", &wire), (returned, None));
    }

    #[test]
    fn unknown_values_are_reported_and_count_as_absent() {
        for (key, value) in [
            ("ehccooperative", "2"),
            ("ehcdraining", "yes"),
            ("ehcaway", "2"),
            ("ehcleasescope", "universe"),
            ("ehcepoch", "7.0"),
            ("ehcleaseduration", "60s"),
            ("ehcleaseduration", "-1"),
        ] {
            let (record, problem) = decode_ownership("b", &metadata([("ownerid", "a"), (key, value)]));
            let absent = OwnershipRecord { owner: Some(OwnerId::from_record("a")), ..OwnershipRecord::default() };
            assert_eq!(record, absent, "{key}");
            let problem = problem.unwrap_or_else(|| panic!("{key} is not reported"));
            assert!(problem.problem.contains(key) && problem.problem.contains(value), "{problem}");
            assert_eq!(decode_ownership("b", &metadata([("ownerid", "a"), (key, "")])), (absent, None), "{key}");
        }
    }

    #[test]
    fn golden_kept_for_a_restart() {
        let kept =
            OwnershipRecord { owner: Some(OwnerId::new("pod-1").unwrap()), away: true, ..OwnershipRecord::default() };
        let wire = metadata([("ehcaway", "1"), ("ownerid", "pod-1")]);
        assert_eq!(encode_ownership(&kept), wire);
        assert_eq!(decode_ownership("b", &wire), (kept, None));
    }

    #[test]
    fn a_request_changes_nothing_else_of_the_record() {
        let seen = metadata([("ownerid", "pod-1"), ("foreign", "1"), ("ehchandoffto", "pod-3")]);
        let requested = metadata([("ownerid", "pod-1"), ("foreign", "1"), ("ehchandoffto", "pod-2")]);
        assert_eq!(with_handoff_request(seen, &OwnerId::new("pod-2").unwrap()), requested);
    }

    #[test]
    fn a_released_blob_still_names_an_owner() {
        assert!(names_owner(&metadata([("ownerid", "pod-1")])) && names_owner(&metadata([("ownerid", "")])));
        assert!(!names_owner(&metadata([("ehcepoch", "1")])));
    }

    #[test]
    fn a_missing_ownerid_means_released_and_is_reported() {
        let (record, problem) = decode_ownership("ns/hub/g/ownership/3", &Metadata::new());
        assert_eq!(record.owner, None);
        assert!(problem.unwrap().to_string().contains("ns/hub/g/ownership/3"));
    }

    #[test]
    fn keys_match_in_any_case_and_unknown_ones_are_kept() {
        let (record, problem) = decode_ownership("b", &metadata([("OwnerId", "x"), ("Foreign", "1")]));
        assert_eq!(record.owner.unwrap().as_str(), "x");
        assert_eq!(record.other, BTreeMap::from([("foreign".to_owned(), "1".to_owned())]));
        assert_eq!(problem, None);
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
            paused: Some(Pause::new(
                datetime!(2026-11-20 12:00:00 UTC),
                Some(datetime!(2026-11-20 14:00:00 UTC)),
                Some("the database is 100 % full, f\u{fc}r heute"),
            )),
            own_position: true,
            other: BTreeMap::from([("foreign".to_owned(), "1".to_owned())]),
        };
        let wire = metadata([
            ("foreign", "1"),
            ("ehchubcreated", "2026-01-31T08:00:00Z"),
            ("offset", "4311810305"),
            ("ownerid", "pod-1"),
            ("ehcinitial", "42"),
            ("ehcpaused", "2026-11-20T12:00:00Z"),
            ("ehcpauseduntil", "2026-11-20T14:00:00Z"),
            ("ehcpausereason", "the database is 100 %25 full, f%C3%BCr heute"),
            ("ehcpositions", "application"),
            ("sequencenumber", "42"),
            ("ehcupdatedat", "2026-11-20T13:00:07Z"),
        ]);
        assert_eq!(encode_checkpoint(&record), wire);
        assert_eq!(decode_checkpoint("b", &wire), (record, None));
    }

    #[test]
    fn golden_parked_partition() {
        let since = datetime!(2026-11-20 12:00:00 UTC);
        let parked = CheckpointRecord {
            sequence_number: Some(42),
            offset: Some("4311810305".into()),
            paused: Some(Pause::after_failure(since, "no such order")),
            ..CheckpointRecord::default()
        };
        let wire = metadata([
            ("offset", "4311810305"),
            ("ehcpaused", "2026-11-20T12:00:00Z"),
            ("ehcpausereason", "no such order"),
            ("ehcparked", "1"),
            ("sequencenumber", "42"),
        ]);
        assert_eq!(encode_checkpoint(&parked), wire);
        assert_eq!(decode_checkpoint("b", &wire), (parked, None));
    }

    /// The time at which the position was written stays.
    #[test]
    fn an_adoption_changes_owner_and_adds_a_missing_time() {
        let adopted = CheckpointRecord {
            owner: Some(OwnerId::new("pod-2").unwrap()),
            updated_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            ..CheckpointRecord::default()
        };
        let time = "2026-11-20T13:00:07Z";
        let earlier = "2026-11-20T12:00:00Z";
        for (seen, written) in [
            (metadata([("offset", "1")]), metadata([("offset", "1"), ("ownerid", "pod-2"), ("ehcupdatedat", time)])),
            (
                metadata([("offset", "1"), ("ownerid", "pod-1"), ("ehcupdatedat", earlier)]),
                metadata([("offset", "1"), ("ownerid", "pod-2"), ("ehcupdatedat", earlier)]),
            ),
        ] {
            assert_eq!(with_adopter(seen, &adopted), written);
        }
    }

    /// The smallest one means "none" to .NET, and is a number to all others.
    #[test]
    fn other_readers_see_the_smallest_sequence_number() {
        let number = |text| read_sequence_number(&metadata([("sequencenumber", text)]));
        assert_eq!(["7", "-9223372036854775808", "x", ""].map(number), [Some(7), Some(i64::MIN), None, None]);
        assert_eq!(read_sequence_number(&Metadata::new()), None);
    }

    #[test]
    fn a_report_quotes_what_is_not_usable() {
        for (wire, quoted) in [
            (metadata([("sequencenumber", "x"), ("offset", "100")]), &["\"x\""][..]),
            (metadata([("sequencenumber", "7"), ("offset", "None")]), &["\"None\""]),
            (metadata([("sequencenumber", "y")]), &["\"y\"", "(absent)"]),
        ] {
            let problem = decode_checkpoint("b", &wire).1.unwrap().problem;
            assert!(quoted.iter().all(|value| problem.contains(value)), "{problem}");
        }
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

    #[test]
    fn golden_heartbeat() {
        let owner = OwnerId::new("pod-1").unwrap();
        let heartbeat = HeartbeatRecord {
            owner: owner.clone(),
            incarnation: Some(Incarnation::new(datetime!(2026-11-20 13:00:00 UTC), 0xabc)),
            declared_dead_by: Some(OwnerId::new("pod-2").unwrap()),
            lease_duration: Some(Duration::from_secs(14)),
            other: BTreeMap::from([("foreign".to_owned(), "1".to_owned())]),
        };
        let wire = Metadata::from([
            ("ehcdeclareddeadby", "pod-2"),
            ("ehcleaseduration", "14"),
            ("foreign", "1"),
            ("ehcincarnation", "20261120T130000Z-00000abc"),
            ("ownerid", "pod-1"),
        ]);
        assert_eq!(encode_heartbeat(&heartbeat), wire);
        assert_eq!(decode_heartbeat("b", owner, &wire), (heartbeat, None));
    }

    #[test]
    fn a_heartbeat_of_another_owner_is_reported() {
        let owner = OwnerId::new("pod 1/a").unwrap();
        let (record, problem) = decode_heartbeat("b", owner.clone(), &Metadata::from([("ownerid", "b")]));
        assert_eq!((record.owner, record.incarnation), (owner, None));
        let problem = problem.unwrap().problem;
        assert!(["ownerid", "incarnation"].iter().all(|key| problem.contains(key)), "{problem}");
    }

    #[test]
    fn golden_beacon() {
        let wire = metadata([("ehcchange", "41"), ("ehclitby", "pod-1")]);
        assert_eq!(encode_beacon(41, &OwnerId::new("pod-1").unwrap()), wire);
        assert_eq!(decode_beacon(&wire), 41);
    }

    /// So that the next number is greater, whatever is written there.
    #[test]
    fn a_beacon_without_a_usable_number_counts_as_zero() {
        let largest = i64::MAX / 2;
        for (text, number) in [
            (String::new(), 0),
            ("x".to_owned(), 0),
            (largest.to_string(), 0),
            (i64::MAX.to_string(), 0),
            ((largest - 1).to_string(), largest - 1),
        ] {
            assert_eq!(decode_beacon(&metadata([("ehcchange", &text)])), number, "{text}");
        }
        assert_eq!(decode_beacon(&Metadata::new()), 0);
    }
}
