//! The partitions that have a task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::control::Control;
use crate::lock::lock;
use crate::model::PartitionId;

/// The controls of the partitions that have a task. Only the supervisor and the end of the processor change it. Cheap to clone; all clones share
/// the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry(Arc<Mutex<BTreeMap<PartitionId, Arc<Control>>>>);

impl Registry {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Arc<Control>>> {
        lock(&self.0)
    }

    pub(crate) fn insert(&self, control: Arc<Control>) {
        self.entries().insert(control.partition.clone(), control);
    }

    /// Removes the entry, unless it belongs to another epoch.
    pub(crate) fn remove(&self, control: &Arc<Control>) {
        let mut entries = self.entries();
        if entries.get(&control.partition).is_some_and(|entry| Arc::ptr_eq(entry, control)) {
            entries.remove(&control.partition);
        }
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        self.entries().clear();
    }

    pub(crate) fn get(&self, partition: &PartitionId) -> Option<Arc<Control>> {
        self.entries().get(partition).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Control>> {
        self.entries().values().cloned().collect()
    }
}
