//! The store under the official `EventProcessor`: compared with the official blob store, separately, and with a
//! processor.

mod adapter;
mod claims_and_releases;
mod concurrency;
mod crowd;
mod end_to_end;
mod official_rules;
mod other_name_case;
mod outages;
mod records;
mod resets;
mod side_by_side;
