//! Who should own what: the cases of `scenarios/balance.json`, whole groups of planners, and what holds of every plan.

/// So named that `cargo test balance` runs everything in it.
mod balance {
    mod cycles;
    mod group;
    mod handoff;
    mod properties;
    mod runs;
    mod statics;
    mod systems;
    mod table;
}
