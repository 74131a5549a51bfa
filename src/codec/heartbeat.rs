//! The metadata of heartbeats.

use super::{
    DECLARED_DEAD_BY, INCARNATION, LEASE_DURATION, MalformedRecord, MetadataReader, OWNER_ID, format_seconds,
    insert_some, malformed_record, parse_seconds, quote_value,
};
use crate::model::{HeartbeatRecord, Incarnation, Metadata, OwnerId};

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

/// Reads the metadata of the heartbeat blob of this owner, which is known from the blob name. An owner id that
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

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
}
