//! The state of an event hub, shared by all its connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use time::OffsetDateTime;

use super::clock::EmulatorClock;
use super::links::Links;
use super::message::not_found;
use super::partition::Partition;
use super::settings::HubSettings;
use crate::lock::{read, write};

const DEFAULT_CONSUMER_GROUP: &str = "$Default";

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) name: String,
    pub(super) created_at: OffsetDateTime,
    /// Ordered by id, starting at 0. There is at least one, and none is ever removed.
    partitions: RwLock<Vec<Arc<Partition>>>,
    settings: HubSettings,
    clock: Arc<EmulatorClock>,
    /// Over which events are published.
    senders: Arc<Links>,
    next_partition: AtomicUsize,
}

impl Hub {
    /// Creates a hub with checked settings.
    pub(super) fn new(settings: HubSettings, clock: Arc<EmulatorClock>) -> Self {
        let hub = Self {
            name: settings.name.clone(),
            created_at: clock.now(),
            partitions: RwLock::default(),
            settings,
            clock,
            senders: Arc::default(),
            next_partition: AtomicUsize::new(0),
        };
        hub.grow_to(hub.settings.partitions);
        hub
    }

    pub(super) fn settings(&self) -> &HubSettings {
        &self.settings
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    pub(super) fn senders(&self) -> &Arc<Links> {
        &self.senders
    }

    /// Detaches all links as of an event hub that does not exist anymore.
    pub(super) fn delete(&self) {
        let reason = not_found(&self.name);
        self.senders.detach(&reason);
        for partition in self.partitions().iter() {
            partition.receivers().detach_all(&reason);
        }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    fn partitions(&self) -> RwLockReadGuard<'_, Vec<Arc<Partition>>> {
        read(&self.partitions)
    }

    pub(super) fn partition_ids(&self) -> Vec<String> {
        self.partitions().iter().map(|partition| partition.id().to_owned()).collect()
    }

    pub(super) fn partition(&self, id: &str) -> Option<Arc<Partition>> {
        self.partitions().iter().find(|partition| partition.id() == id).cloned()
    }

    /// Returns the service's own text for a partition that does not exist, as live tests of Azure/azure-sdk-for-js
    /// expect it.
    pub(super) fn unknown_partition(&self) -> String {
        let last = self.partitions().len().saturating_sub(1);
        format!(
            "The specified partition is invalid for an EventHub partition sender or receiver. It should be between 0 \
             and {last}."
        )
    }

    /// Adds partitions until there are this many.
    pub(super) fn grow_to(&self, count: u16) {
        let mut partitions = write(&self.partitions);
        for id in partitions.len()..usize::from(count) {
            partitions.push(Arc::new(Partition::new(id.to_string(), &self.settings)));
        }
    }

    /// Returns the group's name as the builder received it.
    pub(super) fn consumer_group(&self, name: &str) -> Option<&str> {
        let groups = self.settings.consumer_groups.iter().map(String::as_str);
        groups.chain([DEFAULT_CONSUMER_GROUP]).find(|group| group.eq_ignore_ascii_case(name))
    }

    /// Returns the partition for an event that was sent to the hub and not to a partition.
    pub(super) fn partition_for(&self, key: Option<&str>) -> Arc<Partition> {
        let index = match key {
            Some(key) => hash(key),
            None => self.next_partition.fetch_add(1, Ordering::Relaxed),
        };
        let partitions = self.partitions();
        partitions[index % partitions.len()].clone()
    }
}

/// Any stable function is sufficient: the broker does not publish how it assigns keys to partitions.
fn hash(key: &str) -> usize {
    key.bytes().fold(0, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> Hub {
        Hub::new(HubSettings::new("Hub").with_partitions(3).with_consumer_group("other"), Arc::default())
    }

    #[test]
    fn events_without_a_key_are_distributed_in_turn() {
        let hub = hub();
        let next = || hub.partition_for(None).id().to_owned();
        assert_eq!([next(), next(), next(), next()], ["0", "1", "2", "0"]);
        hub.grow_to(5);
        assert_eq!([next(), next(), next()], ["4", "0", "1"]);
    }

    #[test]
    fn equal_keys_share_one_partition() {
        let hub = hub();
        let ids: Vec<_> = (0..4).map(|_| hub.partition_for(Some("a key")).id().to_owned()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[test]
    fn hub_grows_but_never_shrinks() {
        let hub = hub();
        hub.grow_to(4);
        hub.grow_to(2);
        assert_eq!(hub.partition_ids(), ["0", "1", "2", "3"]);
        assert!(hub.partition("3").is_some() && hub.partition("4").is_none());
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
