//! The parts of the library that are scored.

/// A part of the library, and its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// For the command line and the table.
    pub name: &'static str,
    /// Globs of its files.
    pub files: &'static [&'static str],
    /// The beginning of the names of its tests.
    pub tests: &'static str,
}

/// The parts that decide: without I/O, or with the little that belongs to a decision.
///
/// `planner/fairness.rs` and `planner/postconditions.rs` are left out: they judge plans in tests, and their mutants
/// judge less.
pub const AREAS: &[Area] = &[
    Area {
        name: "planner",
        files: &[
            "src/planner/candidates.rs",
            "src/planner/idle.rs",
            "src/planner/observation.rs",
            "src/planner/plan.rs",
            "src/planner/planning.rs",
            "src/planner/policy.rs",
            "src/planner/shares.rs",
            "src/planner/view.rs",
            "src/planner/weighted.rs",
        ],
        tests: "planner::",
    },
    Area { name: "rules", files: &["src/store/rules/*.rs"], tests: "store::" },
    Area { name: "settle", files: &["src/store/settle.rs"], tests: "store::" },
    Area { name: "codec", files: &["src/codec/*.rs"], tests: "codec::" },
    Area { name: "model", files: &["src/model/*.rs"], tests: "model::" },
    Area {
        name: "balancer",
        files: &[
            "src/balancer/beacon.rs",
            "src/balancer/case_check.rs",
            "src/balancer/claims.rs",
            "src/balancer/context.rs",
            "src/balancer/cycle.rs",
            "src/balancer/handoffs.rs",
            "src/balancer/heartbeat.rs",
            "src/balancer/listing.rs",
            "src/balancer/liveness.rs",
            "src/balancer/pacing.rs",
            "src/balancer/partitions.rs",
            "src/balancer/release.rs",
            "src/balancer/renewals.rs",
            "src/balancer/state.rs",
        ],
        tests: "balancer::",
    },
    Area { name: "checkpoints", files: &["src/processor/checkpoints/*.rs"], tests: "processor::checkpoints::" },
    Area { name: "start", files: &["src/processor/start/*.rs"], tests: "processor::start::" },
    Area { name: "machine", files: &["src/processor/partition/machine.rs"], tests: "processor::partition::" },
    Area {
        name: "events",
        files: &["src/processor/events/queue.rs", "src/processor/events/retries.rs", "src/processor/events/work.rs"],
        tests: "processor::events::",
    },
    Area { name: "plan", files: &["src/admin/plan.rs"], tests: "admin::" },
];
