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

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::model::{
    CheckpointRecord, ConsumerGroup, HeartbeatRecord, Incarnation, LeaseScope, Metadata, NameCase, OwnerId,
    OwnershipRecord, PartitionId,
};

// Keys that all SDKs know.
const OWNER_ID: &str = "ownerid";
const SEQUENCE_NUMBER: &str = "sequencenumber";
const OFFSET: &str = "offset";

// Keys of this crate. They begin with `ehc`, so that no key of another program has the same name; without a hyphen or an
// underscore, which some proxies drop.
const INCARNATION: &str = "ehcincarnation";
const CLAIMED_AT: &str = "ehcclaimedat";
const EPOCH: &str = "ehcepoch";
const UPDATED_AT: &str = "ehcupdatedat";
const INITIAL: &str = "ehcinitial";
const HUB_CREATED: &str = "ehchubcreated";
const LOAD: &str = "ehcload";
const COOPERATIVE: &str = "ehccooperative";
const HANDOFF_TO: &str = "ehchandoffto";
const OPERATOR: &str = "ehcoperator";
const DRAINING: &str = "ehcdraining";
const AWAY: &str = "ehcaway";
const LEASE_SCOPE: &str = "ehcleasescope";
const DECLARED_DEAD_BY: &str = "ehcdeclareddeadby";
const LEASE_DURATION: &str = "ehcleaseduration";

/// The value of a flag. Without the flag the key is absent.
const YES: &str = "1";
const SCOPE_INSTANCE: &str = "instance";

/// The kinds of record of a partition. The blobs of each kind have their own segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Ownership of a partition.
    Ownership,
    /// Progress of a partition.
    Checkpoint,
}

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

/// The blob names of one consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobNames {
    group: String,
    ownership: String,
    checkpoint: String,
    heartbeat: String,
    verify: String,
}

impl BlobNames {
    /// Creates the names for this group.
    ///
    /// ```
    /// use eventhubs_checkpoint::internal::codec::{BlobNames, NameCase, RecordKind};
    /// use eventhubs_checkpoint::ConsumerGroup;
    /// let group = ConsumerGroup::new("Example.servicebus.windows.net", "Orders", "$Default")?;
    /// let names = BlobNames::new(&group, NameCase::Lower);
    /// assert_eq!(
    ///     names.of(RecordKind::Checkpoint, &7.into()),
    ///     "example.servicebus.windows.net/orders/$default/checkpoint/7"
    /// );
    /// # Ok::<(), eventhubs_checkpoint::InvalidName>(())
    /// ```
    #[must_use]
    pub fn new(group: &ConsumerGroup, case: NameCase) -> Self {
        let verbatim = group.to_string();
        let base = match case {
            NameCase::Lower => verbatim.to_lowercase(),
            NameCase::Verbatim => verbatim,
        };
        let (namespace, rest) = base.split_once('/').unwrap_or((&base, ""));
        Self {
            group: format!("{base}/"),
            ownership: format!("{base}/ownership/"),
            checkpoint: format!("{base}/checkpoint/"),
            heartbeat: format!("{base}/heartbeat/"),
            verify: format!("{namespace}/verify/{rest}/"),
        }
    }

    /// Returns the prefix of all names of the group.
    #[must_use]
    pub fn group_prefix(&self) -> &str {
        &self.group
    }

    /// Returns the prefix of all names of this kind.
    #[must_use]
    pub fn prefix(&self, kind: RecordKind) -> &str {
        match kind {
            RecordKind::Ownership => &self.ownership,
            RecordKind::Checkpoint => &self.checkpoint,
        }
    }

    /// Returns the name of one partition's blob.
    #[must_use]
    pub fn of(&self, kind: RecordKind, partition: &PartitionId) -> String {
        format!("{}{partition}", self.prefix(kind))
    }

    /// Returns the name of the blob with which this owner verifies the storage. `random` distinguishes instances that
    /// start at the same time with the same owner id. It is outside of the group: if it cannot be deleted, no listing
    /// returns it.
    #[must_use]
    pub fn verify(&self, owner: &OwnerId, random: u64) -> String {
        format!("{}{}-{random:016x}", self.verify, segment(owner))
    }

    /// Returns the prefix of the blobs with which the owners of the group verify the storage.
    #[must_use]
    pub fn verify_prefix(&self) -> &str {
        &self.verify
    }

    /// Returns the prefix of all heartbeat names.
    #[must_use]
    pub fn heartbeats(&self) -> &str {
        &self.heartbeat
    }

    /// Returns the name of one owner's heartbeat blob.
    #[must_use]
    pub fn heartbeat(&self, owner: &OwnerId) -> String {
        format!("{}{}", self.heartbeat, segment(owner))
    }

    /// Returns the owner that a listed heartbeat blob belongs to.
    ///
    /// # Errors
    ///
    /// If it is not the name of any owner's heartbeat: the blob is foreign.
    pub fn heartbeat_owner(&self, name: &str) -> Result<OwnerId, MalformedRecord> {
        let malformed = |problem: &str| MalformedRecord::new(name, problem);
        let encoded =
            name.strip_prefix(&self.heartbeat).ok_or_else(|| malformed("is not a heartbeat of this group"))?;
        let decoded = percent_decode_str(encoded).decode_utf8().map_err(|error| malformed(&error.to_string()))?;
        let owner = OwnerId::new(decoded).map_err(|error| malformed(&error.to_string()))?;
        // Each owner has exactly one name.
        if segment(&owner) == encoded {
            Ok(owner)
        } else {
            Err(malformed("does not have the canonical name of its owner"))
        }
    }

    /// Returns the partition that a listed blob belongs to.
    ///
    /// # Errors
    ///
    /// If the name has another depth or no partition: the blob is foreign.
    pub fn partition(&self, kind: RecordKind, name: &str) -> Result<PartitionId, MalformedRecord> {
        let Some(partition) = name.strip_prefix(self.prefix(kind)) else {
            return Err(MalformedRecord::new(name, "is outside this consumer group"));
        };
        PartitionId::new(partition).map_err(|error| MalformedRecord::new(name, error.to_string()))
    }
}

/// Returns an owner id as the segment of a blob name. It is percent-encoded, because it may contain anything printable.
/// A final dot is encoded, too, because Azure drops dots at the end of a name
/// (<https://github.com/Azure/azure-sdk-for-java/issues/36674>). If the id consists of dots only, all of them are
/// encoded, because some programs resolve such a segment as a relative path.
fn segment(owner: &OwnerId) -> String {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    let encoded = utf8_percent_encode(owner.as_str(), KEPT).to_string();
    if encoded.bytes().all(|byte| byte == b'.') {
        return encoded.replace('.', "%2E");
    }
    match encoded.strip_suffix('.') {
        Some(rest) => format!("{rest}%2E"),
        None => encoded,
    }
}

/// Returns the metadata of an ownership blob.
#[must_use]
pub fn encode_ownership(record: &OwnershipRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    let owner = record.owner.as_ref().map_or("", OwnerId::as_str);
    metadata.insert(OWNER_ID, owner);
    insert(&mut metadata, INCARNATION, record.incarnation.as_ref().map(Incarnation::as_str));
    insert(&mut metadata, CLAIMED_AT, record.claimed_at.and_then(format_time));
    insert(&mut metadata, EPOCH, record.epoch.map(|epoch| epoch.to_string()));
    insert(&mut metadata, LOAD, record.load.map(|load| load.to_string()));
    insert(&mut metadata, COOPERATIVE, record.cooperative.then_some(YES));
    insert(&mut metadata, HANDOFF_TO, record.handoff_to.as_ref().map(OwnerId::as_str));
    insert(&mut metadata, OPERATOR, record.operator.as_ref().map(OwnerId::as_str));
    insert(&mut metadata, DRAINING, record.draining.then_some(YES));
    insert(&mut metadata, AWAY, record.away.then_some(YES));
    insert(&mut metadata, LEASE_SCOPE, (record.scope == LeaseScope::Instance).then_some(SCOPE_INSTANCE));
    insert(&mut metadata, LEASE_DURATION, record.lease_duration.map(format_seconds));
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
    has_key(metadata, OWNER_ID)
}

fn has_key(metadata: &Metadata, key: &str) -> bool {
    metadata.keys().any(|found| found.eq_ignore_ascii_case(key))
}

/// Reads the metadata of an ownership blob. A record without `ownerid` counts as released, as the official Rust store
/// means it, and is reported, because it breaks the listings of other SDKs. A value that this version does not know
/// counts as absent, and is reported, too.
#[must_use]
pub fn decode_ownership(blob: &str, metadata: &Metadata) -> (OwnershipRecord, Option<MalformedRecord>) {
    let mut fields = Fields::of(metadata);
    let owner = fields.take(OWNER_ID);
    if owner.is_none() {
        fields.report("has no ownerid; considered released");
    }
    let record = OwnershipRecord {
        owner: owner.filter(|id| !id.is_empty()).map(OwnerId::recorded),
        incarnation: fields.take_some(INCARNATION).map(Incarnation::recorded),
        claimed_at: fields.take(CLAIMED_AT).and_then(parse_time),
        epoch: fields.take_known(EPOCH, |text| text.parse().ok()),
        load: fields.take(LOAD).and_then(|text| text.parse().ok()),
        cooperative: fields.take_known(COOPERATIVE, yes).is_some(),
        handoff_to: fields.take_some(HANDOFF_TO).map(OwnerId::recorded),
        operator: fields.take_some(OPERATOR).map(OwnerId::recorded),
        draining: fields.take_known(DRAINING, yes).is_some(),
        away: fields.take_known(AWAY, yes).is_some(),
        scope: fields.take_known(LEASE_SCOPE, scope).unwrap_or_default(),
        lease_duration: fields.take_known(LEASE_DURATION, parse_seconds),
        other: fields.rest(),
    };
    (record, reported(blob, &fields.problems))
}

/// Returns the metadata of a heartbeat blob.
#[must_use]
pub fn encode_heartbeat(record: &HeartbeatRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    metadata.insert(OWNER_ID, record.owner.as_str());
    insert(&mut metadata, INCARNATION, record.incarnation.as_ref().map(Incarnation::as_str));
    insert(&mut metadata, DECLARED_DEAD_BY, record.declared_dead_by.as_ref().map(OwnerId::as_str));
    insert(&mut metadata, LEASE_DURATION, record.lease_duration.map(format_seconds));
    metadata
}

/// Reads the metadata of the heartbeat blob of this owner, which is known from the blob name. An owner id that
/// contradicts the name, and a missing incarnation, are reported.
#[must_use]
pub fn decode_heartbeat(blob: &str, owner: OwnerId, metadata: &Metadata) -> (HeartbeatRecord, Option<MalformedRecord>) {
    let mut fields = Fields::of(metadata);
    let named = fields.take(OWNER_ID);
    if named != Some(owner.as_str()) {
        fields.report(&format!("ownerid {} is not the owner in the blob name", display(named)));
    }
    let incarnation = fields.take_some(INCARNATION).map(Incarnation::recorded);
    if incarnation.is_none() {
        fields.report("has no incarnation");
    }
    let record = HeartbeatRecord {
        owner,
        incarnation,
        declared_dead_by: fields.take_some(DECLARED_DEAD_BY).map(OwnerId::recorded),
        lease_duration: fields.take_known(LEASE_DURATION, parse_seconds),
        other: fields.rest(),
    };
    (record, reported(blob, &fields.problems))
}

/// Returns the metadata of a checkpoint blob. Both keys of the position are always present, because other SDKs fail
/// otherwise.
#[must_use]
pub fn encode_checkpoint(record: &CheckpointRecord) -> Metadata {
    let mut metadata: Metadata = record.other.iter().collect();
    let sequence_number = record.sequence_number.map(|number| number.to_string()).unwrap_or_default();
    insert(&mut metadata, INITIAL, record.initial.then_some(&sequence_number));
    metadata.insert(SEQUENCE_NUMBER, sequence_number);
    metadata.insert(OFFSET, record.offset.as_deref().unwrap_or_default());
    insert(&mut metadata, OWNER_ID, record.owner.as_ref().map(OwnerId::as_str));
    insert(&mut metadata, UPDATED_AT, record.updated_at.and_then(format_time));
    insert(&mut metadata, HUB_CREATED, record.hub_created_at.and_then(format_time));
    metadata
}

/// Adds what an adoption changes to the metadata of a checkpoint blob, which otherwise stays exactly as it was read: the
/// new owner, and the time at which the position was written.
#[must_use]
pub fn with_adopter(mut metadata: Metadata, record: &CheckpointRecord) -> Metadata {
    insert(&mut metadata, OWNER_ID, record.owner.as_ref().map(OwnerId::as_str));
    if !has_key(&metadata, UPDATED_AT) {
        insert(&mut metadata, UPDATED_AT, record.updated_at.and_then(format_time));
    }
    metadata
}

/// Reads the metadata of a checkpoint blob. Unusable parts of the position count as missing. A missing part is
/// reported, because it breaks other SDKs.
#[must_use]
pub fn decode_checkpoint(blob: &str, metadata: &Metadata) -> (CheckpointRecord, Option<MalformedRecord>) {
    let mut fields = Fields::of(metadata);
    let (number, offset) = (fields.take(SEQUENCE_NUMBER), fields.take(OFFSET));
    let record = CheckpointRecord {
        sequence_number: number.and_then(parse_sequence_number),
        offset: offset.filter(|offset| is_usable_offset(offset)).map(str::to_owned),
        owner: fields.take_some(OWNER_ID).map(OwnerId::recorded),
        updated_at: fields.take(UPDATED_AT).and_then(parse_time),
        // Another program may have changed the position and kept the keys that it does not know.
        initial: fields.take_some(INITIAL).is_some_and(|recorded| number == Some(recorded)),
        hub_created_at: fields.take(HUB_CREATED).and_then(parse_time),
        other: fields.rest(),
    };
    let problem = match (&record.sequence_number, &record.offset) {
        (Some(_), Some(_)) => None,
        // This crate leaves the offset empty if the service would reject it.
        (Some(_), None) if offset == Some("") && record.updated_at.is_some() => None,
        (None, Some(_)) => Some(format!("sequencenumber {} is not a number", display(number))),
        (Some(_), None) => Some(format!("offset {} is not a position", display(offset))),
        (None, None) => Some(format!(
            "has neither a usable sequencenumber nor a usable offset: {} and {}",
            display(number),
            display(offset)
        )),
    };
    (record, problem.map(|problem| MalformedRecord::new(blob, problem)))
}

fn display(value: Option<&str>) -> String {
    value.map_or_else(|| "(absent)".to_owned(), |value| format!("{value:?}"))
}

/// Returns the sequence number of a checkpoint as other readers see it, which includes the smallest one.
pub(crate) fn written_number(metadata: &Metadata) -> Option<i64> {
    metadata.iter().find(|(key, _)| key.eq_ignore_ascii_case(SEQUENCE_NUMBER))?.1.parse().ok()
}

/// .NET writes `long.MinValue` for "no sequence number".
fn parse_sequence_number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number| *number != i64::MIN)
}

/// .NET 5.11 wrote the text "no offset", and Python writes "None", for a missing offset.
pub(crate) fn is_usable_offset(offset: &str) -> bool {
    !offset.is_empty() && !offset.eq_ignore_ascii_case("no offset") && offset != "None"
}

fn yes(text: &str) -> Option<()> {
    (text == YES).then_some(())
}

fn scope(text: &str) -> Option<LeaseScope> {
    (text == SCOPE_INSTANCE).then_some(LeaseScope::Instance)
}

fn reported(blob: &str, problems: &[String]) -> Option<MalformedRecord> {
    (!problems.is_empty()).then(|| MalformedRecord::new(blob, problems.join("; ")))
}

fn insert(metadata: &mut Metadata, key: &str, value: Option<impl Into<String>>) {
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

/// Metadata whose keys are found in any case, as in Azure.
struct Fields<'a> {
    rest: Vec<(&'a str, &'a str)>,
    problems: Vec<String>,
}

impl<'a> Fields<'a> {
    fn of(metadata: &'a Metadata) -> Self {
        Self { rest: metadata.iter().collect(), problems: Vec::new() }
    }

    /// Takes a value. Of several keys that differ only in case, the last one counts.
    fn take(&mut self, key: &str) -> Option<&'a str> {
        let mut taken = None;
        self.rest.retain(|(found, value)| {
            let is_other = !found.eq_ignore_ascii_case(key);
            taken = if is_other { taken } else { Some(*value) };
            is_other
        });
        taken
    }

    /// Takes the pairs that were not taken.
    fn rest(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.rest)
            .into_iter()
            .map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()))
            .collect()
    }

    /// Takes a value, where an empty one counts as absent.
    fn take_some(&mut self, key: &str) -> Option<&'a str> {
        self.take(key).filter(|value| !value.is_empty())
    }

    /// Takes a value, where one that cannot be read is reported and counts as absent.
    fn take_known<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.take_some(key)?;
        let value = read(text);
        if value.is_none() {
            self.report(&format!("{key} {text:?} is unknown to this version; ignored"));
        }
        value
    }

    fn report(&mut self, problem: &str) {
        self.problems.push(problem.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::hostile_text;
    use proptest::prelude::*;
    use time::macros::datetime;

    fn metadata<const N: usize>(pairs: [(&str, &str); N]) -> Metadata {
        Metadata::from(pairs)
    }

    fn foreign() -> BTreeMap<String, String> {
        BTreeMap::from([("foreign".to_owned(), "1".to_owned())])
    }

    fn names() -> BlobNames {
        let group = ConsumerGroup::new("NS.servicebus.windows.net", "Hub", "$Default").unwrap();
        BlobNames::new(&group, NameCase::Lower)
    }

    #[test]
    fn golden_names() {
        let group = ConsumerGroup::new("NS.servicebus.windows.net", "Hub", "$Default").unwrap();
        let partition = PartitionId::from(12);
        let lower = BlobNames::new(&group, NameCase::Lower);
        assert_eq!(lower.of(RecordKind::Ownership, &partition), "ns.servicebus.windows.net/hub/$default/ownership/12");
        let verbatim = BlobNames::new(&group, NameCase::Verbatim);
        assert_eq!(
            verbatim.of(RecordKind::Checkpoint, &partition),
            "NS.servicebus.windows.net/Hub/$Default/checkpoint/12"
        );
        let owner = OwnerId::new("pod 1/a").unwrap();
        let verify = "ns.servicebus.windows.net/verify/hub/$default/pod%201%2Fa-0000000000000abc";
        assert_eq!(lower.verify(&owner, 0xabc), verify);
        assert!(!verify.starts_with(lower.group_prefix()), "no instance lists it");
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
    fn golden_heartbeat() {
        let owner = OwnerId::new("pod-1").unwrap();
        let heartbeat = HeartbeatRecord {
            owner: owner.clone(),
            incarnation: Some(Incarnation::new(datetime!(2026-11-20 13:00:00 UTC), 0xabc)),
            declared_dead_by: Some(OwnerId::new("pod-2").unwrap()),
            lease_duration: Some(Duration::from_secs(14)),
            other: foreign(),
        };
        let wire = metadata([
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
            let absent = OwnershipRecord { owner: Some(OwnerId::recorded("a")), ..OwnershipRecord::default() };
            assert_eq!(record, absent, "{key}");
            let problem = problem.unwrap_or_else(|| panic!("{key} is not reported"));
            assert!(problem.problem.contains(key) && problem.problem.contains(value), "{problem}");
            assert_eq!(decode_ownership("b", &metadata([("ownerid", "a"), (key, "")])), (absent, None), "{key}");
        }
    }

    #[test]
    fn a_heartbeat_belongs_to_the_owner_in_its_name() {
        let owner = OwnerId::new("pod 1/a").unwrap();
        let name = names().heartbeat(&owner);
        assert_eq!(name, "ns.servicebus.windows.net/hub/$default/heartbeat/pod%201%2Fa");
        assert_eq!(names().heartbeat_owner(&name), Ok(owner.clone()));
        let dots = OwnerId::new("..").unwrap();
        let climbing = names().heartbeat(&dots);
        assert!(climbing.ends_with("/heartbeat/%2E%2E"), "{climbing}");
        assert_eq!(names().heartbeat_owner(&climbing), Ok(dots));
        for (id, segment) in [("a.", "a%2E"), ("a..", "a.%2E"), ("a.b", "a.b")] {
            let owner = OwnerId::new(id).unwrap();
            let name = names().heartbeat(&owner);
            assert!(name.ends_with(&format!("/heartbeat/{segment}")), "{name}");
            assert_eq!(names().heartbeat_owner(&name), Ok(owner));
        }
        let prefix = names().heartbeats().to_owned();
        for foreign in [
            prefix.clone(),
            format!("{prefix}a/b"),
            format!("{prefix}pod%201%2fa"),
            format!("{prefix}%FF"),
            format!("{prefix}a."),
            "elsewhere/heartbeat/a".to_owned(),
        ] {
            assert_eq!(names().heartbeat_owner(&foreign).unwrap_err().blob, foreign);
        }
        let (record, problem) = decode_heartbeat(&name, owner.clone(), &metadata([("ownerid", "b")]));
        assert_eq!((record.owner, record.incarnation), (owner, None));
        let problem = problem.unwrap().problem;
        assert!(["ownerid", "incarnation"].iter().all(|key| problem.contains(key)), "{problem}");
    }

    mod defects {
        use super::*;

        #[test]
        fn a07_a_final_dot_has_exactly_one_encoding() {
            for (id, encoded) in [("a.", "a%2E"), ("a..", "a.%2E"), ("a.b", "a.b"), (".a", ".a"), ("..", "%2E%2E")] {
                let owner = OwnerId::new(id).unwrap();
                let name = names().heartbeat(&owner);
                assert_eq!(name, format!("{}{encoded}", names().heartbeats()));
                assert_eq!(names().heartbeat_owner(&name), Ok(owner));
            }
            for other in ["a.", "a%2e", "a%2E%2E", "a%2Eb"] {
                let name = format!("{}{other}", names().heartbeats());
                assert!(names().heartbeat_owner(&name).unwrap_err().problem.contains("canonical"), "{other}");
            }
        }
    }

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

    #[test]
    fn golden_checkpoint() {
        let record = CheckpointRecord {
            sequence_number: Some(42),
            offset: Some("4311810305".into()),
            owner: Some(OwnerId::new("pod-1").unwrap()),
            updated_at: Some(datetime!(2026-11-20 13:00:07 UTC)),
            initial: true,
            hub_created_at: Some(datetime!(2026-01-31 08:00:00 UTC)),
            other: foreign(),
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
    fn a_missing_ownerid_means_released_and_is_reported() {
        let (record, problem) = decode_ownership("ns/hub/g/ownership/3", &Metadata::new());
        assert_eq!(record.owner, None);
        assert!(problem.unwrap().to_string().contains("ns/hub/g/ownership/3"));
    }

    #[test]
    fn keys_match_in_any_case_and_unknown_ones_are_kept() {
        let (record, problem) = decode_ownership("b", &metadata([("OwnerId", "x"), ("Foreign", "1")]));
        assert_eq!(record.owner.unwrap().as_str(), "x");
        assert_eq!(record.other, foreign());
        assert_eq!(problem, None);
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
    fn names_of_another_depth_are_foreign() {
        let prefix = "ns.servicebus.windows.net/hub/$default/ownership/";
        assert_eq!(names().partition(RecordKind::Ownership, &format!("{prefix}3")), Ok(PartitionId::from(3)));
        for foreign in [prefix.to_owned(), format!("{prefix}3/x"), "elsewhere/3".to_owned()] {
            let problem = names().partition(RecordKind::Ownership, &foreign).unwrap_err();
            assert_eq!(problem.blob, foreign);
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
    }

    proptest! {
        #[test]
        fn any_listed_name_has_an_owner_or_is_foreign(
            name in hostile_text(&[
                "ns.servicebus.windows.net/hub/$default/heartbeat/pod%201%2Fa",
                "ns.servicebus.windows.net/hub/$default/ownership/12",
            ])
        ) {
            if let Ok(owner) = names().heartbeat_owner(&name) {
                prop_assert_eq!(names().heartbeat(&owner), name.clone());
            }
            if let Ok(partition) = names().partition(RecordKind::Ownership, &name) {
                prop_assert_eq!(names().of(RecordKind::Ownership, &partition), name);
            }
        }

        #[test]
        fn any_values_of_known_keys_are_readable(
            number in hostile_text(&["41", "-1", "9223372036854775807", "4,1"]),
            text in hostile_text(&["2026-01-01T00:00:00Z", "true", "60", "4100", "worker-1"]),
        ) {
            let keys = ["sequencenumber", "ehcepoch", "ehcload", "ehcincarnation", "leaseduration", "offset", "ownerid"];
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
