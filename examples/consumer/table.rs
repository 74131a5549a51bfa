//! Who owns what, on one line.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use eventhubs_checkpoint::balancer::PartitionOwner;
use eventhubs_checkpoint::{OwnerId, PartitionId};

use crate::instance::Instance;

/// The partitions of every owner, those of nobody, and those on their way from one to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    owners: BTreeMap<String, Vec<PartitionId>>,
    unowned: Vec<PartitionId>,
    moving: BTreeMap<PartitionId, Move>,
    dead: Vec<String>,
}

type Living<'a> = Box<dyn Iterator<Item = &'a Instance> + 'a>;

/// A handoff under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Move {
    /// Its owner, until that has released it.
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
    /// What the instances of this process know, each of its own partitions; the freshest listing tells the rest.
    pub fn of(instances: &[Instance]) -> Self {
        let mut holders = BTreeMap::new();
        let living = || -> Living<'_> { Box::new(instances.iter().filter(|instance| !instance.is_dead())) };
        let freshest = living().max_by_key(|instance| instance.snapshots.borrow().cycles);
        if let Some(instance) = freshest {
            for view in &instance.snapshots.borrow().partitions {
                let owner = match &view.owner {
                    PartitionOwner::Other(owner) | PartitionOwner::OtherNameCase(owner)
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
            for partition in instance.snapshots.borrow().owned.keys() {
                holders.insert(partition.clone(), Some(instance.owner.clone()));
            }
        }
        let mut table = Self { moving: moving(living, freshest), ..Self::default() };
        for instance in instances {
            table.owners.insert(instance.owner.clone(), Vec::new());
            table.dead.extend(instance.is_dead().then(|| instance.owner.clone()));
        }
        for (partition, owner) in holders {
            match owner {
                Some(owner) => table.owners.entry(owner).or_default().push(partition),
                None if table.moving.contains_key(&partition) => {}
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
            let _ = write!(line, "nobody: {} ", listed(&self.unowned));
        }
        if !self.moving.is_empty() {
            let moving = self.moving.iter().map(|(partition, its)| format!("{partition} {its}"));
            let _ = write!(line, "moving: {}", moving.collect::<Vec<_>>().join(", "));
        }
        line.trim_end().to_owned()
    }
}

/// What was asked for and has not come yet: by and of instances of this process; of the rest, the freshest of them
/// knows.
fn moving<'a>(living: impl Fn() -> Living<'a>, freshest: Option<&Instance>) -> BTreeMap<PartitionId, Move> {
    let mut moving = BTreeMap::new();
    for snapshot in living().map(|instance| instance.snapshots.borrow()) {
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
        let asked = snapshot.requested_handoffs.iter();
        moving.extend(asked.map(|(partition, from)| (partition.clone(), Move::of(Some(from), &snapshot.owner))));
    }
    // Not every instance knows yet what has come.
    for instance in living() {
        moving.retain(|partition, Move { to, .. }| {
            *to != instance.owner || !instance.snapshots.borrow().owned.contains_key(partition)
        });
    }
    moving
}

fn listed(partitions: &[PartitionId]) -> String {
    if partitions.is_empty() {
        return "-".to_owned();
    }
    partitions.iter().map(PartitionId::as_str).collect::<Vec<_>>().join(" ")
}
