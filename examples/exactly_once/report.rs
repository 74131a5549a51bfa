//! Compares the totals with what was published.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use crate::Failure;
use crate::database::{Database, Order, Total};
use crate::workspace::Workspace;

/// One event of a journal.
struct Entry {
    owner: String,
    partition: String,
    number: i64,
}

pub struct Report {
    published: usize,
    delivered: usize,
    delivered_again: usize,
    rejected: usize,
    counted: i64,
    counted_twice: i64,
    lost: i64,
    /// Whether all totals have the right amount: it differs for every event.
    amounts_match: bool,
}

impl Report {
    pub fn new(workspace: &Workspace, database: &Database, last: &BTreeMap<String, i64>) -> Result<Self, Failure> {
        let delivered = read_journal(workspace, "delivered")?;
        let distinct: BTreeSet<_> = delivered.iter().map(|entry| (&entry.partition, entry.number)).collect();
        let expected = expect_totals(last);
        let totals = database.totals()?;
        Ok(Self {
            published: last.values().map(|last| usize::try_from(last + 1).unwrap_or_default()).sum(),
            delivered: delivered.len(),
            delivered_again: delivered.len() - distinct.len(),
            rejected: read_journal(workspace, "rejected")?.len(),
            counted: totals.iter().map(|total| total.orders).sum(),
            counted_twice: count_surplus(&totals, &expected),
            lost: count_surplus(&expected, &totals),
            amounts_match: totals == expected,
        })
    }

    pub fn is_exact(&self) -> bool {
        self.counted_twice == 0 && self.lost == 0 && self.amounts_match
    }
}

/// Returns how many orders the first totals have that the second ones do not.
fn count_surplus(totals: &[Total], others: &[Total]) -> i64 {
    let surplus = totals.iter().map(|total| {
        let other = others.iter().find(|other| other.customer == total.customer).map_or(0, |other| other.orders);
        (total.orders - other).max(0)
    });
    surplus.sum()
}

/// Returns the totals if every event is counted once.
fn expect_totals(last: &BTreeMap<String, i64>) -> Vec<Total> {
    let mut totals = BTreeMap::<String, (i64, i64)>::new();
    for (partition, last) in last {
        for number in 0..=*last {
            let order = Order::of(partition, number);
            let (orders, amount) = totals.entry(order.customer).or_default();
            *orders += 1;
            *amount += order.amount;
        }
    }
    totals.into_iter().map(|(customer, (orders, amount))| Total { customer, orders, amount }).collect()
}

fn read_journal(workspace: &Workspace, journal: &str) -> Result<Vec<Entry>, Failure> {
    let mut events = Vec::new();
    for line in fs::read_to_string(workspace.folder.join(journal))?.lines() {
        let [partition, first, last, owner] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("the journal {journal} has the line {line:?}").into());
        };
        for number in first.parse()?..=last.parse()? {
            events.push(Entry { owner: owner.to_owned(), partition: partition.to_owned(), number });
        }
    }
    Ok(events)
}

/// Returns the last event of each partition that the worker got.
pub fn last_delivered(workspace: &Workspace, owner: &str) -> Result<BTreeMap<String, i64>, Failure> {
    let mut last = BTreeMap::new();
    for entry in read_journal(workspace, "delivered")?.into_iter().filter(|entry| entry.owner == owner) {
        let last = last.entry(entry.partition).or_insert(entry.number);
        *last = entry.number.max(*last);
    }
    Ok(last)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: [(&str, &dyn fmt::Display); 8] = [
            ("published", &self.published),
            ("delivered", &self.delivered),
            ("delivered again", &self.delivered_again),
            ("rejected, because too late", &self.rejected),
            ("counted", &self.counted),
            ("counted twice", &self.counted_twice),
            ("lost", &self.lost),
            ("amounts", if self.amounts_match { &"correct" } else { &"wrong" }),
        ];
        for (index, (name, value)) in rows.iter().enumerate() {
            let end = if index + 1 < rows.len() { "\n" } else { "" };
            write!(f, "{name:<32}{value:>8}{end}")?;
        }
        Ok(())
    }
}
