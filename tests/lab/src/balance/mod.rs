//! Which owner should own which partition: the cases of `scenarios/balance.json`, whole groups of planners, and
//! properties of every plan.

mod cycles;
mod group;
mod handoff;
mod layouts;
mod operators;
mod properties;
mod runs;
mod statics;
mod systems;
mod table;
