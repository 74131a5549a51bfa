//! The pairs that cannot be combined, with reasons.

use crate::feature::Feature;

/// Why the features of a group exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// They are values of one setting.
    OneSetting,
    /// They are different forms of the application: single events are tracked by the processor, and are no stream.
    OtherForm,
    /// `build` refuses the combination.
    Refused,
    /// The policy ends the processor when the other feature acts: see `tests/processor/invalid_checkpoints.rs`.
    EndsProcessor,
}

/// No two features of a group can be combined.
pub const GROUPS: &[(Reason, &[&str])] = &[
    (Reason::OneSetting, &["concurrency", "order by key"]),
    (Reason::OneSetting, &["invalid fail", "invalid earliest", "invalid latest"]),
    (Reason::OneSetting, &["failure restart", "failure release", "failure park"]),
    (Reason::OneSetting, &["checkpoint by count", "checkpoint at close"]),
    (Reason::OneSetting, &["handoff", "stealing"]),
    (Reason::OneSetting, &["scope partition", "scope instance"]),
    (Reason::OneSetting, &["balanced", "greedy", "static", "weighted"]),
    (Reason::OneSetting, &["earliest", "latest", "enqueued after", "after sequence number"]),
    (Reason::Refused, &["weighted", "scope instance"]),
    (Reason::EndsProcessor, &["invalid fail", "recreated hub"]),
];

/// No feature of the first group can be combined with one of the second.
pub const OPPOSITES: &[(Reason, &[&str], &[&str])] =
    &[(Reason::OtherForm, &["tracking", "pull"], &["concurrency", "order by key", "retries", "dead letters"])];

/// Returns why the two features cannot be combined, or `None` if they can.
pub fn reason(one: &Feature, other: &Feature) -> Option<Reason> {
    let names = [one.name, other.name];
    let within = GROUPS.iter().find(|(_, group)| names.iter().all(|name| group.contains(name)));
    let between = OPPOSITES.iter().find(|(_, first, second)| {
        [(0, 1), (1, 0)].iter().any(|(one, other)| first.contains(&names[*one]) && second.contains(&names[*other]))
    });
    within.map(|(reason, _)| *reason).or(between.map(|(reason, ..)| *reason))
}
