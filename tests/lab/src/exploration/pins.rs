//! Scenarios in which a start is pinned while earlier owners are active, and every invariant holds.
//!
//! The group starts after event 2, the last one when its first instance starts. An owner on the official processor or
//! of another SDK began with event 1, and has no record of that before its first checkpoint.

use super::clean::is_clean;
use super::notes::Event;
use super::scenario::{AB, ADAPTER_AND_B, ADAPTERS, ALWAYS, BASE, LIVE, NOTHING, SAFE, Scenario, Timing};
use super::search::Aim;
use super::state::Left;

/// Without a known start and without a checkpoint, a displaced owner's first checkpoint may land after the adoption.
const UNFENCED: Aim = Aim { invariants: ALWAYS.split_at(1).1, live: true };

pub(super) const PINNED: Scenario =
    Scenario { name: "pinned", checkpoint: None, starts_at: 2, pins_ahead: true, last_event: 3, aim: LIVE, ..BASE };
/// An owner on the official processor, and one on this crate's that takes over.
const PIN_ADAPTER: Scenario = Scenario {
    name: "r-pin-adapter",
    members: ADAPTER_AND_B,
    left: Left { steals: 1, faults: 1, crashes: 1, ..NOTHING },
    aim: UNFENCED,
    reaches: &[Event::StartPinnedAhead, Event::PinAdopted, Event::PinReplaced, Event::PinAmbiguous],
    ..PINNED
};
const PIN_ADAPTER_SYNC: Scenario = Scenario {
    name: "r-pin-adapter-sync",
    timing: Timing::Synchronous,
    left: Left { faults: 2, releases: 1, crashes: 1, ..NOTHING },
    aim: LIVE,
    reaches: &[Event::StartPinnedAhead, Event::PinReplaced, Event::PinAmbiguous],
    ..PIN_ADAPTER
};
const PIN_ADAPTERS: Scenario = Scenario {
    name: "r-pin-adapters",
    members: ADAPTERS,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    ..PIN_ADAPTER
};
const PIN_FOREIGN: Scenario = Scenario {
    name: "r-pin-foreign",
    members: AB.split_at(1).0,
    foreign: true,
    left: Left { steals: 2, faults: 1, ..NOTHING },
    aim: SAFE,
    reaches: &[Event::StartPinnedAhead, Event::PinAdopted],
    ..PINNED
};
const PIN_DELETES: Scenario = Scenario {
    name: "r-pin-deletes",
    members: ADAPTER_AND_B,
    left: Left { deletes: 1, steals: 1, ..NOTHING },
    aim: Aim { live: false, ..UNFENCED },
    reaches: &[Event::StartPinnedAhead, Event::PinReplaced, Event::CheckpointCreated],
    ..PINNED
};

pub(super) const ALL: &[Scenario] = &[PIN_ADAPTER, PIN_ADAPTER_SYNC, PIN_ADAPTERS, PIN_FOREIGN, PIN_DELETES];

#[test]
fn an_owner_on_the_adapter_r_pin_adapter() {
    is_clean(PIN_ADAPTER);
}

#[test]
fn an_adapter_in_time_r_pin_adapter_sync() {
    is_clean(PIN_ADAPTER_SYNC);
}

#[test]
fn two_owners_on_the_adapter_r_pin_adapters() {
    is_clean(PIN_ADAPTERS);
}

#[test]
fn an_owner_of_another_sdk_r_pin_foreign() {
    is_clean(PIN_FOREIGN);
}

#[test]
fn a_pinned_start_is_deleted_r_pin_deletes() {
    is_clean(PIN_DELETES);
}
