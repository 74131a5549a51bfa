//! The partitions of all owners, on one line.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::{OwnerId, PartitionId};

use crate::instance::Instance;
use crate::ranges::summarize;

/// With more partitions than this, each owner has their number and some ranges.
const MOST_LISTED: usize = 32;
/// The greatest width of a column.
const WIDEST: usize = 36;

/// The partitions of each owner, the unowned ones, and those in a handoff.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    owners: BTreeMap<String, Vec<PartitionId>>,
    unowned: Vec<PartitionId>,
    moving: BTreeMap<PartitionId, Move>,
    crashed: Vec<String>,
}

type Running<'a> = Box<dyn Iterator<Item = &'a Instance> + 'a>;

/// A handoff in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    /// The owner, until it has released the partition.
    from: Option<String>,
    to: String,
}

impl Move {
    fn of(from: Option<&OwnerId>, to: &OwnerId) -> Self {
        Self { from: from.map(ToString::to_string), to: to.to_string() }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            Some(from) => write!(f, "{from} -> {}", self.to),
            None => write!(f, "-> {}", self.to),
        }
    }
}

impl Table {
    /// Creates a table. Each instance of this process knows its own partitions. The rest comes from the most recent
    /// listing.
    pub fn of(instances: &[Instance]) -> Self {
        let mut owners = BTreeMap::new();
        let running = || -> Running<'_> { Box::new(instances.iter().filter(|instance| !instance.has_crashed())) };
        let freshest = running().max_by_key(|instance| instance.snapshots.borrow().cycles);
        if let Some(instance) = freshest {
            for view in &instance.snapshots.borrow().partitions {
                let owner = match &view.owner {
                    PartitionOwner::Other(owner) if instances.iter().all(|local| local.owner != owner.as_str()) => {
                        Some(owner.to_string())
                    }
                    _ => None,
                };
                owners.insert(view.partition.clone(), owner);
            }
        }
        for instance in running() {
            for partition in instance.snapshots.borrow().owned.keys() {
                owners.insert(partition.clone(), Some(instance.owner.clone()));
            }
        }
        let mut table = Self { moving: list_handoffs(running, freshest), ..Self::default() };
        for instance in instances {
            table.owners.insert(instance.owner.clone(), Vec::new());
            table.crashed.extend(instance.has_crashed().then(|| instance.owner.clone()));
        }
        for (partition, owner) in owners {
            match owner {
                Some(owner) => table.owners.entry(owner).or_default().push(partition),
                None if table.moving.contains_key(&partition) => {}
                None => table.unowned.push(partition),
            }
        }
        table
    }

    /// Returns whether other processes share the group.
    pub fn has_foreign_owners(&self, instances: &[Instance]) -> bool {
        self.owners.len() > instances.len()
    }

    /// Returns one column per owner, wide enough to align successive lines. Many partitions are summarized.
    pub fn line(&self) -> String {
        let total: usize = self.owners.values().map(Vec::len).sum::<usize>() + self.unowned.len();
        let list: fn(&[PartitionId]) -> String = if total > MOST_LISTED { list_ranges } else { list_ids };
        let width = (3 * total / self.owners.len().max(1) + 4).clamp(12, WIDEST);
        let mut line = String::new();
        for (owner, partitions) in &self.owners {
            let cell = if self.crashed.contains(owner) { "crashed".to_owned() } else { list(partitions) };
            // Writing to a String cannot fail.
            let _ = write!(line, "{owner}: {cell:<width$} ");
        }
        if !self.unowned.is_empty() {
            let _ = write!(line, "unowned: {} ", list(&self.unowned));
        }
        if !self.moving.is_empty() {
            let moving = if total > MOST_LISTED {
                list(&self.moving.keys().cloned().collect::<Vec<_>>())
            } else {
                let handoffs = self.moving.iter().map(|(partition, handoff)| format!("{partition} {handoff}"));
                handoffs.collect::<Vec<_>>().join(", ")
            };
            let _ = write!(line, "moving: {moving}");
        }
        line.trim_end().to_owned()
    }
}

/// Returns the handoffs in progress. Those from and to instances of this process are known by these instances, the
/// others by the one with the most recent listing.
fn list_handoffs<'a>(running: impl Fn() -> Running<'a>, freshest: Option<&Instance>) -> BTreeMap<PartitionId, Move> {
    let mut moving = BTreeMap::new();
    for snapshot in running().map(|instance| instance.snapshots.borrow()) {
        let is_freshest = freshest.is_some_and(|freshest| freshest.owner == snapshot.owner.as_str());
        for view in &snapshot.partitions {
            let from = match &view.owner {
                PartitionOwner::This => Some(&snapshot.owner),
                PartitionOwner::Other(owner) if is_freshest => Some(owner),
                PartitionOwner::Released if is_freshest => None,
                _ => continue,
            };
            if let Some(to) = &view.handoff_to {
                moving.insert(view.partition.clone(), Move::of(from, to));
            }
        }
        for (partition, from) in &snapshot.requested_handoffs {
            moving.insert(partition.clone(), Move::of(Some(from), &snapshot.owner));
        }
    }
    // Some instances do not know yet that a handoff is complete.
    for instance in running() {
        moving.retain(|partition, Move { to, .. }| {
            *to != instance.owner || !instance.snapshots.borrow().owned.contains_key(partition)
        });
    }
    moving
}

fn list_ranges(partitions: &[PartitionId]) -> String {
    if partitions.is_empty() { "-".to_owned() } else { summarize(partitions) }
}

fn list_ids(partitions: &[PartitionId]) -> String {
    if partitions.is_empty() {
        return "-".to_owned();
    }
    partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>().join(" ")
}
