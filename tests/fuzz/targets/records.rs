//! Records: the first line is the name of the blob, and each other line is a pair of metadata, `key=value`. The decoder
//! of each kind of record gets the metadata.

#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::{
    BlobNames, NameCase, RecordKind, decode_checkpoint, decode_heartbeat, decode_ownership, encode_checkpoint,
    encode_heartbeat, encode_ownership,
};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use libfuzzer_sys::fuzz_target;

static NAMES: LazyLock<BlobNames> = LazyLock::new(|| {
    let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
    BlobNames::new(&group, NameCase::Lower)
});

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let name = lines.next().unwrap_or_default();
    let metadata: Metadata = lines.filter_map(|line| line.split_once('=')).collect();

    for kind in [RecordKind::Ownership, RecordKind::Checkpoint] {
        if let Ok(partition) = NAMES.parse_partition(kind, name) {
            assert_eq!(NAMES.record_name(kind, &partition), name);
        }
    }
    let owner = NAMES.heartbeat_owner(name);
    if let Ok(owner) = &owner {
        assert_eq!(NAMES.heartbeat_name(owner), name);
    }

    let (record, _) = decode_ownership(name, &metadata);
    let written = encode_ownership(&record);
    check_foreign_keys(&record.other, &written);
    assert_eq!(decode_ownership(name, &written).0, record);

    let (record, _) = decode_checkpoint(name, &metadata);
    let written = encode_checkpoint(&record);
    check_foreign_keys(&record.other, &written);
    assert_eq!(decode_checkpoint(name, &written).0, record);

    let owner = owner.unwrap_or_else(|_| OwnerId::new("a").unwrap());
    let (record, _) = decode_heartbeat(name, owner.clone(), &metadata);
    let written = encode_heartbeat(&record);
    check_foreign_keys(&record.other, &written);
    assert_eq!(decode_heartbeat(name, owner, &written).0, record);
});

fn check_foreign_keys(foreign: &BTreeMap<String, String>, written: &Metadata) {
    for (key, value) in foreign {
        assert_eq!(written.get(key), Some(value.as_str()), "{key}");
    }
}
