//! The store under the official `EventProcessor`: beside what the official blob store does, on its own, and whole.

mod crowd;
mod defects;
mod end_to_end;
mod official_rules;
mod other_tree;
mod ours;
mod records;
mod resets;
mod side_by_side;
mod under_way;
