//! The blob names of a consumer group.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::MalformedRecord;
use crate::model::{ConsumerGroup, NameCase, OwnerId, PartitionId};

/// The kinds of record of a partition. The blobs of each kind have their own segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Ownership of a partition.
    Ownership,
    /// Progress of a partition.
    Checkpoint,
}

/// The blob names of one consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobNames {
    group: String,
    ownership: String,
    checkpoint: String,
    heartbeat: String,
    beacon: String,
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
    ///     names.record_name(RecordKind::Checkpoint, &7.into()),
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
            beacon: format!("{base}/beacon"),
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
    pub fn record_prefix(&self, kind: RecordKind) -> &str {
        match kind {
            RecordKind::Ownership => &self.ownership,
            RecordKind::Checkpoint => &self.checkpoint,
        }
    }

    /// Returns the name of one partition's blob.
    #[must_use]
    pub fn record_name(&self, kind: RecordKind, partition: &PartitionId) -> String {
        format!("{}{partition}", self.record_prefix(kind))
    }

    /// Returns the name of the blob with which this owner verifies the storage. `random` distinguishes instances that
    /// start at the same time with the same owner ID. It is outside of the group: if it cannot be deleted, no listing
    /// returns it.
    #[must_use]
    pub fn verification_name(&self, owner: &OwnerId, random: u64) -> String {
        format!("{}{}-{random:016x}", self.verify, encode_owner(owner))
    }

    /// Returns the prefix of the blobs with which the owners of the group verify the storage.
    #[must_use]
    pub fn verification_prefix(&self) -> &str {
        &self.verify
    }

    /// Returns the prefix of all heartbeat names.
    #[must_use]
    pub fn heartbeat_prefix(&self) -> &str {
        &self.heartbeat
    }

    /// Returns the name of one owner's heartbeat blob.
    #[must_use]
    pub fn heartbeat_name(&self, owner: &OwnerId) -> String {
        format!("{}{}", self.heartbeat, encode_owner(owner))
    }

    /// Returns the name of the beacon. It is not below the prefix of any record, because other SDKs read all blobs
    /// there.
    #[must_use]
    pub fn beacon_name(&self) -> &str {
        &self.beacon
    }

    /// Returns the owner that a listed heartbeat blob belongs to.
    ///
    /// # Errors
    ///
    /// If it is not the name of any owner's heartbeat: the blob is foreign.
    pub fn heartbeat_owner(&self, name: &str) -> Result<OwnerId, MalformedRecord> {
        let Some(encoded) = name.strip_prefix(&self.heartbeat) else {
            return Err(MalformedRecord::new(name, "is not a heartbeat of this group"));
        };
        let id =
            percent_decode_str(encoded).decode_utf8().map_err(|error| MalformedRecord::new(name, error.to_string()))?;
        let owner = OwnerId::new(id).map_err(|error| MalformedRecord::new(name, error.to_string()))?;
        // Each owner has exactly one name.
        if encode_owner(&owner) != encoded {
            return Err(MalformedRecord::new(name, "does not have the canonical name of its owner"));
        }
        Ok(owner)
    }

    /// Returns the partition that a listed blob belongs to.
    ///
    /// # Errors
    ///
    /// If the name has another depth or no partition: the blob is foreign.
    pub fn parse_partition(&self, kind: RecordKind, name: &str) -> Result<PartitionId, MalformedRecord> {
        let Some(partition) = name.strip_prefix(self.record_prefix(kind)) else {
            return Err(MalformedRecord::new(name, "is outside this consumer group"));
        };
        PartitionId::new(partition).map_err(|error| MalformedRecord::new(name, error.to_string()))
    }
}

/// Returns an owner ID as the segment of a blob name. It is percent-encoded, because it may contain anything printable.
/// A final dot is encoded, too, because Azure drops dots at the end of a name
/// (<https://github.com/Azure/azure-sdk-for-java/issues/36674>). If the id consists of dots only, all of them are
/// encoded, because some programs resolve such a segment as a relative path.
fn encode_owner(owner: &OwnerId) -> String {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::hostile::hostile_text;

    fn names() -> BlobNames {
        let group = ConsumerGroup::new("NS.servicebus.windows.net", "Hub", "$Default").unwrap();
        BlobNames::new(&group, NameCase::Lower)
    }

    #[test]
    fn golden_names() {
        let group = ConsumerGroup::new("NS.servicebus.windows.net", "Hub", "$Default").unwrap();
        let partition = PartitionId::from(12);
        let lower = BlobNames::new(&group, NameCase::Lower);
        assert_eq!(
            lower.record_name(RecordKind::Ownership, &partition),
            "ns.servicebus.windows.net/hub/$default/ownership/12"
        );
        let verbatim = BlobNames::new(&group, NameCase::Verbatim);
        assert_eq!(
            verbatim.record_name(RecordKind::Checkpoint, &partition),
            "NS.servicebus.windows.net/Hub/$Default/checkpoint/12"
        );
        let owner = OwnerId::new("pod 1/a").unwrap();
        let verify = "ns.servicebus.windows.net/verify/hub/$default/pod%201%2Fa-0000000000000abc";
        assert_eq!(lower.verification_name(&owner, 0xabc), verify);
        assert!(!verify.starts_with(lower.group_prefix()), "no instance lists it");
        assert_eq!(lower.verification_prefix(), "ns.servicebus.windows.net/verify/hub/$default/");
        assert_eq!(lower.group_prefix(), "ns.servicebus.windows.net/hub/$default/");
        assert_eq!(lower.beacon_name(), "ns.servicebus.windows.net/hub/$default/beacon");
    }

    #[test]
    fn a_heartbeat_belongs_to_the_owner_in_its_name() {
        let owner = OwnerId::new("pod 1/a").unwrap();
        let name = names().heartbeat_name(&owner);
        assert_eq!(name, "ns.servicebus.windows.net/hub/$default/heartbeat/pod%201%2Fa");
        assert_eq!(names().heartbeat_owner(&name), Ok(owner.clone()));
        let prefix = names().heartbeat_prefix().to_owned();
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
    }

    #[test]
    fn a_final_dot_has_exactly_one_encoding() {
        for (id, encoded) in [("a.", "a%2E"), ("a..", "a.%2E"), ("a.b", "a.b"), (".a", ".a"), ("..", "%2E%2E")] {
            let owner = OwnerId::new(id).unwrap();
            let name = names().heartbeat_name(&owner);
            assert_eq!(name, format!("{}{encoded}", names().heartbeat_prefix()));
            assert_eq!(names().heartbeat_owner(&name), Ok(owner));
        }
        for other in ["a.", "a%2e", "a%2E%2E", "a%2Eb"] {
            let name = format!("{}{other}", names().heartbeat_prefix());
            assert!(names().heartbeat_owner(&name).unwrap_err().problem.contains("canonical"), "{other}");
        }
    }

    #[test]
    fn names_of_another_depth_are_foreign() {
        let prefix = "ns.servicebus.windows.net/hub/$default/ownership/";
        assert_eq!(names().parse_partition(RecordKind::Ownership, &format!("{prefix}3")), Ok(PartitionId::from(3)));
        for foreign in [prefix.to_owned(), format!("{prefix}3/x"), "elsewhere/3".to_owned()] {
            let problem = names().parse_partition(RecordKind::Ownership, &foreign).unwrap_err();
            assert_eq!(problem.blob, foreign);
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
                prop_assert_eq!(names().heartbeat_name(&owner), name.clone());
            }
            if let Ok(partition) = names().parse_partition(RecordKind::Ownership, &name) {
                prop_assert_eq!(names().record_name(RecordKind::Ownership, &partition), name);
            }
        }
    }
}
