//! Who owns what, on one line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::balance::Holder;

use crate::instance::Instance;

/// The partitions of every owner, and those of nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    owners: BTreeMap<String, Vec<PartitionId>>,
    unowned: Vec<PartitionId>,
    dead: Vec<String>,
}

impl Table {
    /// What the instances of this process know, each of its own partitions; the freshest listing tells the rest.
    pub fn of(instances: &[Instance]) -> Self {
        let mut holders = BTreeMap::new();
        let living = || instances.iter().filter(|instance| !instance.is_dead());
        let freshest = living().max_by_key(|instance| instance.snapshots.borrow().cycles);
        if let Some(instance) = freshest {
            for view in &instance.snapshots.borrow().partitions {
                let owner = match &view.holder {
                    Holder::Live(owner) | Holder::Elsewhere(owner)
                        if instances.iter().all(|local| local.owner != owner.as_str()) =>
                    {
                        Some(owner.to_string())
                    }
                    _ => None,
                };
                holders.insert(view.partition.clone(), owner);
            }
        }
        for instance in living() {
            for partition in instance.snapshots.borrow().held.keys() {
                holders.insert(partition.clone(), Some(instance.owner.clone()));
            }
        }
        let mut table = Self::default();
        for instance in instances {
            table.owners.insert(instance.owner.clone(), Vec::new());
            table.dead.extend(instance.is_dead().then(|| instance.owner.clone()));
        }
        for (partition, owner) in holders {
            match owner {
                Some(owner) => table.owners.entry(owner).or_default().push(partition),
                None => table.unowned.push(partition),
            }
        }
        table
    }

    /// Whether other processes share the group.
    pub fn has_owners_elsewhere(&self, instances: &[Instance]) -> bool {
        self.owners.len() > instances.len()
    }

    /// One column per owner, wide enough to stand below each other.
    pub fn line(&self) -> String {
        let total: usize = self.owners.values().map(Vec::len).sum::<usize>() + self.unowned.len();
        let width = (3 * total / self.owners.len().max(1) + 4).max(12);
        let mut line = String::new();
        for (owner, partitions) in &self.owners {
            let cell = if self.dead.contains(owner) { "dead".to_owned() } else { listed(partitions) };
            // Writing to a String cannot fail.
            let _ = write!(line, "{owner}: {cell:<width$} ");
        }
        if !self.unowned.is_empty() {
            let _ = write!(line, "nobody: {}", listed(&self.unowned));
        }
        line.trim_end().to_owned()
    }
}

fn listed(partitions: &[PartitionId]) -> String {
    if partitions.is_empty() {
        return "-".to_owned();
    }
    partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>().join(" ")
}
