//! The pairs that cannot meet, and why.

use crate::feature::Feature;

/// Why the features of a group exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// They are values of one setting.
    OneSetting,
    /// `build` refuses them together.
    Refused,
    /// The policy is to end the processor when the other one happens: see `tests/processor/pains.rs`.
    Ends,
}

/// Of each group no two can meet.
pub const GROUPS: &[(Reason, &[&str])] = &[
    (Reason::OneSetting, &["invalid fail", "invalid earliest", "invalid latest"]),
    (Reason::OneSetting, &["failure restart", "failure release", "failure stop"]),
    (Reason::OneSetting, &["checkpoint by count", "checkpoint at close"]),
    (Reason::OneSetting, &["handoff", "stealing"]),
    (Reason::OneSetting, &["scope partition", "scope instance"]),
    (Reason::OneSetting, &["balanced", "greedy", "static", "weighted"]),
    (Reason::OneSetting, &["stall keep", "stall release"]),
    (Reason::OneSetting, &["earliest", "latest", "enqueued after", "after sequence number"]),
    (Reason::Refused, &["weighted", "scope instance"]),
    (Reason::Ends, &["invalid fail", "recreated hub"]),
];

/// Why these two cannot meet; nothing, if they can.
pub fn reason(one: &Feature, other: &Feature) -> Option<Reason> {
    let names = [one.name, other.name];
    let group = GROUPS.iter().find(|(_, group)| names.iter().all(|name| group.contains(name)));
    group.map(|(reason, _)| *reason)
}
