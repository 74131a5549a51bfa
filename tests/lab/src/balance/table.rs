//! The cases of `scenarios/balance.json`, each a test with the same name. Its `_about` explains the format.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::internal::planner::{ETag, Observer, Ownership, PlannedClaim, View, observe};
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::LeaseDurations;
use eventhubs_checkpoint::{Identity, Incarnation, OwnerId, PartitionId};
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use time::macros::datetime;

pub const TERMS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Makes a test of every named case of one table, and one that checks that the names and the table agree.
macro_rules! cases {
    ($table:literal, $check:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $check(&crate::balance::table::case($table, stringify!($name)));
            }
        )*

        #[test]
        fn the_tests_are_the_cases_of_the_table() {
            let tests = std::collections::BTreeSet::from([$(stringify!($name).to_owned()),*]);
            assert_eq!(tests, crate::balance::table::names($table));
        }
    };
}
pub(super) use cases;

fn table(name: &str) -> Vec<serde_json::Value> {
    let mut scenarios: serde_json::Value = serde_json::from_str(include_str!("../../scenarios/balance.json")).unwrap();
    serde_json::from_value(scenarios[name].take()).unwrap()
}

pub fn names(of_table: &str) -> BTreeSet<String> {
    table(of_table).iter().map(|case| case["name"].as_str().unwrap().to_owned()).collect()
}

pub fn case<T: DeserializeOwned>(of_table: &str, name: &str) -> T {
    let found = table(of_table).into_iter().find(|case| case["name"] == name);
    serde_json::from_value(found.unwrap_or_else(|| panic!("{of_table} has no {name}"))).unwrap()
}

pub fn owner(letter: char) -> OwnerId {
    OwnerId::new(letter.to_string()).unwrap()
}

pub fn incarnation() -> Incarnation {
    Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 0)
}

pub fn id(index: usize) -> PartitionId {
    u32::try_from(index).unwrap().into()
}

pub fn index(claim: &PlannedClaim) -> usize {
    claim.partition.as_str().parse().unwrap()
}

/// Returns the record that a character of a layout stands for.
fn record(index: usize, character: char) -> Option<Ownership> {
    let (holder, age) = match character {
        '.' => return None,
        '_' => (None, 0),
        letter if letter.is_ascii_uppercase() => (Some(owner(letter.to_ascii_lowercase())), 100),
        letter => (Some(owner(letter)), 0),
    };
    let owned_by = |owner| {
        let mut record = OwnershipRecord::owned_by(owner, Some(incarnation()));
        record.lease_duration = Some(TERMS.own);
        record
    };
    let record = holder.map(owned_by).unwrap_or_default();
    Some(Ownership::new(
        id(index),
        record,
        ETag::new("seen"),
        Duration::from_secs(age),
        (OffsetDateTime::UNIX_EPOCH, Duration::ZERO),
    ))
}

/// Returns what the owner `this` observes; it runs the partitions of its own fresh records.
pub fn view(layout: &str, this: char) -> View<'static> {
    let partitions: Vec<_> = (0..layout.len()).map(id).collect();
    let records: Vec<_> =
        layout.chars().enumerate().filter_map(|(index, character)| record(index, character)).collect();
    let running = layout.chars().enumerate().filter(|(_, character)| *character == this).map(|(index, _)| id(index));
    let identity = Identity::new(owner(this), incarnation());
    let observer = Observer {
        this: &identity,
        lease_durations: TERMS,
        running: &running.collect(),
        heartbeats: &[],
        outage_ended: None,
    };
    observe(&records, &partitions, &observer, Duration::ZERO).without_records()
}
