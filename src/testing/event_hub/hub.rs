//! The state of an event hub, shared by all its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use time::OffsetDateTime;

use super::partition::Partition;
use super::sas::SasKey;
use crate::clock::{SystemWallClock, WallClock};

const DEFAULT_CONSUMER_GROUP: &str = "$Default";

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) name: String,
    pub(super) key: SasKey,
    pub(super) created_at: OffsetDateTime,
    pub(super) partitions: Vec<Arc<Partition>>,
    consumer_groups: Vec<String>,
    next_partition: AtomicUsize,
}

impl Hub {
    pub(super) fn new(name: String, partitions: u16, mut consumer_groups: Vec<String>, key: SasKey) -> Self {
        consumer_groups.push(DEFAULT_CONSUMER_GROUP.to_owned());
        Self {
            name,
            key,
            created_at: SystemWallClock.now(),
            partitions: (0..partitions).map(|id| Arc::new(Partition::new(id.to_string()))).collect(),
            consumer_groups,
            next_partition: AtomicUsize::new(0),
        }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub(super) fn partition(&self, id: &str) -> Option<&Arc<Partition>> {
        self.partitions.iter().find(|partition| partition.id() == id)
    }

    /// The group's name as it was given to the builder.
    pub(super) fn consumer_group(&self, name: &str) -> Option<&str> {
        self.consumer_groups.iter().map(String::as_str).find(|group| group.eq_ignore_ascii_case(name))
    }

    /// The partition for an event that was sent to the hub and not to a partition of it.
    pub(super) fn partition_for(&self, key: Option<&str>) -> &Arc<Partition> {
        let index = match key {
            Some(key) => hash(key),
            None => self.next_partition.fetch_add(1, Ordering::Relaxed),
        };
        &self.partitions[index % self.partitions.len()]
    }
}

/// Any stable function does: which partition a key goes to is the broker's secret.
fn hash(key: &str) -> usize {
    key.bytes().fold(0, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> Hub {
        let key = SasKey { name: "name".into(), secret: "key".into() };
        Hub::new("Hub".into(), 3, vec!["other".into()], key)
    }

    #[test]
    fn events_without_a_key_go_to_the_partitions_in_turn() {
        let hub = hub();
        let ids: Vec<_> = (0..4).map(|_| hub.partition_for(None).id().to_owned()).collect();
        assert_eq!(ids, ["0", "1", "2", "0"]);
    }

    #[test]
    fn equal_keys_meet_in_one_partition() {
        let hub = hub();
        let ids: Vec<_> = (0..4).map(|_| hub.partition_for(Some("a key")).id().to_owned()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn names_of_hubs_and_groups_ignore_case() {
        let hub = hub();
        assert!(hub.is_named("hub") && !hub.is_named("hub2"));
        assert_eq!(hub.consumer_group("$default"), Some("$Default"));
        assert_eq!(hub.consumer_group("OTHER"), Some("other"));
        assert_eq!(hub.consumer_group("third"), None);
    }
}
