//! The metadata of ownerships.

use super::{
    AWAY, CLAIMED_AT, COOPERATIVE, DRAINING, EPOCH, HANDOFF_TO, INCARNATION, LEASE_DURATION, LEASE_SCOPE, LOAD,
    MalformedRecord, MetadataReader, OPERATOR, OWNER_ID, SCOPE_INSTANCE, YES, format_seconds, format_time, insert_some,
    malformed_record, parse_flag, parse_seconds, parse_time,
};
use crate::model::{Incarnation, LeaseScope, Metadata, OwnerId, OwnershipRecord};

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

/// Returns whether the metadata of an ownership blob contains an owner id, which is empty after a release.
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
}
