//! The cases of `scenarios/balance.json`, each a test of its own name. Its `_about` tells how to read them.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::internal::planner::{ETag, Observer, Ownership, PlannedClaim, View, observe};
use eventhubs_checkpoint::store::{LeaseDurations, OwnershipRecord};
use eventhubs_checkpoint::{Identity, Incarnation, OwnerId, PartitionId};
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use time::macros::datetime;

pub const TERMS: LeaseDurations = LeaseDurations::new(Duration::from_secs(60), Duration::from_secs(180));
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Makes a test of every named case of one table, and one that says whether the names and the table agree.
macro_rules! cases {
    ($table:literal, $check:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $check(&crate::balance::table::case($table, stringify!($name)));
            }
        )*

        #[test]
        fn every_case_of_the_table_is_a_test_and_every_test_a_case() {
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

pub fn life() -> Incarnation {
    Incarnation::new(datetime!(2026-01-01 00:00:00 UTC), 0)
}

pub fn id(index: usize) -> PartitionId {
    u32::try_from(index).unwrap().into()
}

pub fn index(claim: &PlannedClaim) -> usize {
    claim.partition.as_str().parse().unwrap()
}

/// The record that a character of a layout stands for.
fn record(index: usize, character: char) -> Option<Ownership> {
    let (holder, age) = match character {
        '.' => return None,
        '_' => (None, 0),
        letter if letter.is_ascii_uppercase() => (Some(owner(letter.to_ascii_lowercase())), 100),
        letter => (Some(owner(letter)), 0),
    };
    let owned_by = |owner| OwnershipRecord::owned_by(owner, Some(life()));
    let record = holder.map(owned_by).unwrap_or_default();
    Some(Ownership::new(
        id(index),
        record,
        ETag::new("seen"),
        Duration::from_secs(age),
        (OffsetDateTime::UNIX_EPOCH, Duration::ZERO),
    ))
}

/// What `me` sees; it runs what is recorded as its own and fresh.
pub fn view(layout: &str, me: char) -> View<'static> {
    let partitions: Vec<_> = (0..layout.len()).map(id).collect();
    let records: Vec<_> =
        layout.chars().enumerate().filter_map(|(index, character)| record(index, character)).collect();
    let running = layout.chars().enumerate().filter(|(_, character)| *character == me).map(|(index, _)| id(index));
    let identity = Identity::new(owner(me), life());
    let observer = Observer {
        this: &identity,
        lease_durations: TERMS,
        running: &running.collect(),
        other_name_case: &[],
        heartbeats: &[],
        interval: INTERVAL,
        outage_ended: None,
    };
    observe(&records, &partitions, &observer, Duration::ZERO).without_records()
}
