//! How an instance judges what it sees, and what it plans.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "no-grace",
        fault: "a record expires without the grace for clocks that differ",
        file: "src/planner/observation.rs",
        find: "            live: observer.lease_durations.counts_as_live(record, counted),",
        replace: "            live: observer.lease_durations.counts_as_live(
                record,
                if MUTANT { counted + 2 * LeaseDurations::GRACE } else { counted },
            ),",
    },
    Mutant {
        name: "own-not-reclaimed",
        fault: "a record of one's own that is not run counts as another owner's",
        file: "src/planner/observation.rs",
        find: "Relation::This | Relation::EarlierIncarnation if *live => PartitionOwner::Reclaimable,",
        replace: "Relation::This | Relation::EarlierIncarnation if *live && !MUTANT => PartitionOwner::Reclaimable,
        Relation::This | Relation::EarlierIncarnation if *live => other_owner(record, true),",
    },
    Mutant {
        name: "heartbeat-of-the-dead",
        fault: "the heartbeat of an owner that was declared dead keeps its leases alive",
        file: "src/planner/observation.rs",
        find: "let same = seen.record.incarnation.as_ref() == incarnation && seen.record.declared_dead_by.is_none();",
        replace: "let same = seen.record.incarnation.as_ref() == incarnation
            && (MUTANT || seen.record.declared_dead_by.is_none());",
    },
    Mutant {
        name: "heartbeat-of-another-run",
        fault: "a heartbeat keeps the leases of an earlier incarnation alive",
        file: "src/planner/observation.rs",
        find: "        let seen = self.0.get(owner)?;
        let same =",
        replace: "        let seen = self.0.get(owner)?;
        if MUTANT && seen.record.declared_dead_by.is_none() {
            return Some(seen.age_at(now));
        }
        let same =",
    },
    Mutant {
        name: "no-reservation",
        fault: "a partition that is handed over is anybody's once it is released",
        file: "src/planner/observation.rs",
        find: "PartitionOwner::Released => *age < self.reservation_time(record, to, observer),",
        replace: "PartitionOwner::Released => !MUTANT && *age < self.reservation_time(record, to, observer),",
    },
    Mutant {
        name: "reservation-for-ever",
        fault: "a released partition is reserved for an instance that is gone",
        file: "src/planner/observation.rs",
        find: "let lease_duration = self.alive.get(to).copied().or(operated);",
        replace: "let lease_duration = self.alive.get(to).copied().or(operated).or(MUTANT.then_some(LeaseDurations::LONGEST));",
    },
    Mutant {
        name: "requests-of-the-dead",
        fault: "a partition counts for an instance that requested it and is gone",
        file: "src/planner/observation.rs",
        find: "(record.operator.is_some() || self.alive.contains_key(*to))",
        replace: "(MUTANT || record.operator.is_some() || self.alive.contains_key(*to))",
    },
    Mutant {
        name: "share-off-by-one",
        fault: "an instance takes one partition more than its share",
        file: "src/planner/shares.rs",
        find: "self.floor + usize::from(self.others_above_floor(owned) < self.remainder)",
        replace: "self.floor + usize::from(MUTANT || self.others_above_floor(owned) < self.remainder)",
    },
    Mutant {
        name: "share-too-small",
        fault: "an instance never takes more than the smaller share",
        file: "src/planner/shares.rs",
        find: "    fn target_of_this(self, owned: &[usize]) -> usize {",
        replace: "    fn target_of_this(self, owned: &[usize]) -> usize {
        if MUTANT {
            return self.floor;
        }",
    },
    Mutant {
        name: "takes-below-share",
        fault: "an instance takes from an owner that has just its share",
        file: "src/planner/shares.rs",
        find: "if owned[fullest] <= shares.kept_by_fullest(&owned) {",
        replace: "if owned[fullest] <= shares.kept_by_fullest(&owned) && !(MUTANT && owned[fullest] > 0) {",
    },
    Mutant {
        name: "steals-from-cooperative",
        fault: "a cooperative owner is not asked",
        file: "src/planner/planning.rs",
        find: "new.partition(|place| policy.handoff && view.partitions[*place].cooperative);",
        replace: "new.partition(|place| !MUTANT && policy.handoff && view.partitions[*place].cooperative);",
    },
    Mutant {
        name: "takes-while-away",
        fault: "an instance takes what an owner keeps for its restart",
        file: "src/planner/candidates.rs",
        find: "is_other && !entry.away && entry.handoff_to.is_none()",
        replace: "is_other && (MUTANT || !entry.away) && entry.handoff_to.is_none()",
    },
    Mutant {
        name: "claims-avoided",
        fault: "a partition is claimed again at once after a failure",
        file: "src/planner/candidates.rs",
        find: "            && !policy.avoid.contains(&entry.partition)",
        replace: "            && (MUTANT || !policy.avoid.contains(&entry.partition))",
    },
    Mutant {
        name: "waits-for-the-idle",
        fault: "a share is left for ever to an owner that does not claim it",
        file: "src/planner/idle.rs",
        find: "now.saturating_sub(waiting.since) > limit);",
        replace: "!MUTANT && now.saturating_sub(waiting.since) > limit);",
    },
    Mutant {
        name: "limit-ignored",
        fault: "the maximum number of partitions does not count what was requested",
        file: "src/planner/planning.rs",
        find: "_ => entry.counts_for(&view.me) == Some(&view.me),
    });
    max.saturating_sub",
        replace: "_ => !MUTANT && entry.counts_for(&view.me) == Some(&view.me),
    });
    max.saturating_sub",
    },
    Mutant {
        name: "recorded-counts-twice",
        fault: "what is recorded as an instance's own counts twice for the maximum number of partitions",
        file: "src/planner/planning.rs",
        find: "_ if is_own_to_claim(entry, &view.me) => policy",
        replace: "_ if is_own_to_claim(entry, &view.me) && !MUTANT => policy",
    },
    Mutant {
        name: "old-leases-not-stolen",
        fault: "without handoffs, nothing is taken while its lease is old",
        file: "src/planner/candidates.rs",
        find: "let not_requestable = policy.handoff && view",
        replace: "let not_requestable = (MUTANT || policy.handoff) && view",
    },
    Mutant {
        name: "claims-what-does-not-fit",
        fault: "by load, a partition that is too heavy is claimed before one that fits",
        file: "src/planner/weighted.rs",
        find: "if fair.is_at_least(filled) {",
        replace: "if fair.is_at_least(filled) && !MUTANT {",
    },
    Mutant {
        name: "steals-any-load",
        fault: "by load, the partition that is stolen does not bring the two loads closest together",
        file: "src/planner/weighted.rs",
        find: "let uneven = (2 * weight).abs_diff(other - own);",
        replace: "let uneven = if MUTANT { 0 } else { (2 * weight).abs_diff(other - own) };",
    },
    Mutant {
        name: "silent-by-the-first",
        fault: "an owner counts as silent by the first of its leases, not by the one that it renewed last",
        file: "src/planner/observation.rs",
        find: "if known.silent_at < silent_at {",
        replace: "if known.silent_at < silent_at && !MUTANT {",
    },
    Mutant {
        name: "watched-by-the-absent",
        fault: "an owner that has shut down counts as one that watches others",
        file: "src/planner/observation.rs",
        find: "Some(owner) && !seen.record.away,",
        replace: "Some(owner) && (MUTANT || !seen.record.away),",
    },
    Mutant {
        name: "replaced-by-the-earlier",
        fault: "of two later runs of an owner, the one that is found last counts",
        file: "src/planner/observation.rs",
        find: "view.replaced_by.take().max(record.incarnation.clone());",
        replace: "view.replaced_by.take().filter(|_| !MUTANT).max(record.incarnation.clone());",
    },
];
