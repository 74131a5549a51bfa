//! Which owner should own which partition: the cases of `scenarios/balance.json`, and whole groups of planners.

mod cycles;
mod group;
mod handoff;
mod layouts;
mod operators;
mod runs;
mod statics;
mod systems;
mod table;
