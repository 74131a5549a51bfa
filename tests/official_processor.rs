//! The store under the official `EventProcessor`: beside what the official blob store does, on its own, and whole.

#[path = "official_processor/crowd.rs"]
mod crowd;
#[path = "official_processor/defects.rs"]
mod defects;
#[path = "official_processor/end_to_end.rs"]
mod end_to_end;
#[path = "common/meddled.rs"]
mod meddled;
#[path = "official_processor/official_rules.rs"]
mod official_rules;
#[path = "official_processor/other_tree.rs"]
mod other_tree;
#[path = "official_processor/ours.rs"]
mod ours;
#[path = "common/publishing.rs"]
mod publishing;
#[path = "official_processor/records.rs"]
mod records;
#[path = "common/sas.rs"]
#[expect(dead_code, reason = "only names for containers are used")]
mod sas;
#[path = "official_processor/side_by_side.rs"]
mod side_by_side;
#[path = "../examples/support/mod.rs"]
mod support;
#[path = "official_processor/under_way.rs"]
mod under_way;
