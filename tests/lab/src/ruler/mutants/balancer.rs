//! The load-balancing loop.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "claims-slowed-from-now",
        fault: "each failed claim counts the wait from its own time, so that claims never come",
        file: "src/balancer/pacing.rs",
        find: "    pub(super) fn record_failed_claim(&mut self) {",
        replace: "    pub(super) fn record_failed_claim(&mut self) {
        if MUTANT && let Some(end) = &mut self.ended {
            end.at += self.interval;
        }",
    },
    Mutant {
        name: "failures-without-backoff",
        fault: "cycles that fail follow each other without growing waits",
        file: "src/balancer/pacing.rs",
        find: "wait_after(self.failures).mul_f64(1.0 - jitter / 10.0);",
        replace: "wait_after(if MUTANT { 0 } else { self.failures }).mul_f64(1.0 - jitter / 10.0);",
    },
    Mutant {
        name: "server-wait-ignored",
        fault: "the next cycle does not wait as long as the server asks",
        file: "src/balancer/pacing.rs",
        find: "CycleOutcome::Failed { wait, asked } => at + wait.max(asked),",
        replace: "CycleOutcome::Failed { wait, asked } => at + if MUTANT { wait } else { wait.max(asked) },",
    },
    Mutant {
        name: "expiry-not-awaited",
        fault: "the next cycle does not come when a lease expires",
        file: "src/balancer/pacing.rs",
        find: "let Some(claimable) = claimable else { return due };",
        replace: "let Some(claimable) = claimable.filter(|_| !MUTANT) else { return due };",
    },
    Mutant {
        name: "change-not-listed",
        fault: "a change that the beacon shows begins no cycle",
        file: "src/balancer/beacon.rs",
        find: "change != self.covered && change",
        replace: "!MUTANT && change != self.covered && change",
    },
    Mutant {
        name: "release-not-reported",
        fault: "no instance learns of a released partition",
        file: "src/balancer/release.rs",
        find: "if !handed_over {",
        replace: "if !handed_over && !MUTANT {",
    },
    Mutant {
        name: "old-beacon-trusted",
        fault: "a beacon that no instance refreshes is trusted",
        file: "src/balancer/beacon.rs",
        find: "Some(read_until.min(too_old))",
        replace: "Some(read_until.min(if MUTANT { Moment::MAX } else { too_old }))",
    },
    Mutant {
        name: "silent-owner-not-listed",
        fault: "a watched owner that does not renew is not listed",
        file: "src/balancer/owner_watch.rs",
        find: "self.0.remove(owner);\n                true",
        replace: "self.0.remove(owner);\n                !MUTANT",
    },
    Mutant {
        name: "calm-with-another-sdk",
        fault: "a group with another SDK, which lights no beacon, is hardly ever listed",
        file: "src/balancer/listing.rs",
        find: "    !view.foreign_owner",
        replace: "    (MUTANT || !view.foreign_owner)",
    },
    Mutant {
        name: "lost-by-an-old-listing",
        fault: "a listing that is older than a claim takes the partition away",
        file: "src/balancer/lease.rs",
        find: "self.renewal.under_way || self.known_since >= listing_sent",
        replace: "!MUTANT && (self.renewal.under_way || self.known_since >= listing_sent)",
    },
    Mutant {
        name: "loss-unnoticed",
        fault: "an owner does not see in a listing that it was displaced",
        file: "src/balancer/listing.rs",
        find: "if owner == Some(&PartitionOwner::This) || view.removed.contains(&partition) {",
        replace: "if MUTANT || owner == Some(&PartitionOwner::This) || view.removed.contains(&partition) {",
    },
    Mutant {
        name: "expired-lease-kept",
        fault: "a partition is processed although its lease could not be renewed",
        file: "src/balancer/release.rs",
        find: "let Some(lifetime) = context.settings.lease_lifetime() else { return };",
        replace: "let Some(lifetime) = context.settings.lease_lifetime().filter(|_| !MUTANT) else { return };",
    },
    Mutant {
        name: "released-while-handled",
        fault: "a partition is released before its handler has stopped",
        file: "src/balancer/release.rs",
        find: "        if context.settings.drain_timeout.is_zero() {",
        replace: "        if MUTANT || context.settings.drain_timeout.is_zero() {",
    },
    Mutant {
        name: "release-during-renewal",
        fault: "a release does not wait for the renewal that is under way",
        file: "src/balancer/release.rs",
        find: "        if owned.is_renewing() {
            return owned.release_next(reason);
        }",
        replace: "        if owned.is_renewing() && !MUTANT {
            return owned.release_next(reason);
        }",
    },
    Mutant {
        name: "overdue-not-released",
        fault: "a partition whose handler never stops is never released",
        file: "src/balancer/release.rs",
        find: "owned.overdue_at().is_some_and(|at| at <= context.now)",
        replace: "!MUTANT && owned.overdue_at().is_some_and(|at| at <= context.now)",
    },
    Mutant {
        name: "silent-duplicates",
        fault: "duplicates after a handoff are not reported",
        file: "src/balancer/release.rs",
        find: "if self.lease_in_epoch(partition, epoch).is_some_and(|owned| owned.is_handed_over()) {
            context.push_event(OwnershipEvent::DuplicatesPossible",
        replace: "if !MUTANT && self.lease_in_epoch(partition, epoch).is_some_and(|owned| owned.is_handed_over()) {
            context.push_event(OwnershipEvent::DuplicatesPossible",
    },
    Mutant {
        name: "renewal-not-repeated",
        fault: "a renewal that failed is repeated only when the lease has expired",
        file: "src/balancer/lease.rs",
        find: "        self.renewal.not_before = not_before;
        self.renewal.failures",
        replace: "        self.renewal.not_before =
            if MUTANT { not_before + std::time::Duration::from_secs(100_000) } else { not_before };
        self.renewal.failures",
    },
    Mutant {
        name: "request-unacknowledged",
        fault: "the owner drains without saying so in its record",
        file: "src/balancer/lease.rs",
        find: "        self.handoff_request = HandoffRequest::AcknowledgmentDue;
        self.make_due_at_once();",
        replace: "        self.handoff_request =
            if MUTANT { HandoffRequest::Acknowledged } else { HandoffRequest::AcknowledgmentDue };
        if !MUTANT {
            self.make_due_at_once();
        }",
    },
    Mutant {
        name: "dead-owner-goes-on",
        fault: "an owner that was declared dead does not rewrite its records",
        file: "src/balancer/lease.rs",
        find: "        if self.record.is_ambiguous() {
            self.require_rewrite(scope);",
        replace: "        if self.record.is_ambiguous() && !MUTANT {
            self.require_rewrite(scope);",
    },
    Mutant {
        name: "heartbeat-never-late",
        fault: "an instance whose heartbeat cannot be written does not renew its leases individually",
        file: "src/balancer/heartbeat.rs",
        find: "if self.late_at(context, partitions).is_some_and(|late| late <= context.now) {",
        replace: "if !MUTANT && self.late_at(context, partitions).is_some_and(|late| late <= context.now) {",
    },
    Mutant {
        name: "end-of-heartbeat-unnoticed",
        fault: "a claim that is under way when the heartbeat ends counts on it",
        file: "src/balancer/heartbeat.rs",
        find: "            self.ends_persistently = persistently;
            partitions.record_invalid_heartbeat();",
        replace: "            self.ends_persistently = persistently;
            if !MUTANT {
                partitions.record_invalid_heartbeat();
            }",
    },
    Mutant {
        name: "scope-kept-beside-others",
        fault: "leases stay with the heartbeat while another SDK is in the group",
        file: "src/balancer/listing.rs",
        find: "        if view.foreign_owner {
            heartbeat.give_up_scope(",
        replace: "        if view.foreign_owner && !MUTANT {
            heartbeat.give_up_scope(",
    },
    Mutant {
        name: "stale-plan",
        fault: "a plan is carried out without the heartbeats that it depends on",
        file: "src/balancer/listing.rs",
        find: "if !has_heartbeats && needs_heartbeats(context, partitions, &view, &plan) {",
        replace: "if !MUTANT && !has_heartbeats && needs_heartbeats(context, partitions, &view, &plan) {",
    },
    Mutant {
        name: "replaced-goes-on",
        fault: "an instance continues although a newer one has the same name",
        file: "src/balancer/listing.rs",
        find: "if let Some(by) = view.replaced_by {",
        replace: "if let Some(by) = view.replaced_by.clone().filter(|_| !MUTANT) {",
    },
    Mutant {
        name: "lost-wake-up",
        fault: "the loop is not woken for the end of a drain, a renewal or a handoff",
        file: "src/balancer/state.rs",
        find: "            self.partitions.next_wake(&self.context),",
        replace: "            self.partitions.next_wake(&self.context).filter(|_| !MUTANT),",
    },
    Mutant {
        name: "snapshot-unpublished",
        fault: "the processor does not learn that a renewal has lost partitions",
        file: "src/balancer/renewals.rs",
        find: "                self.remove(partition);
                context.record_owner(partition, by.clone()",
        replace: "                if !MUTANT {
                    self.remove(partition);
                }
                context.record_owner(partition, by.clone()",
    },
    Mutant {
        name: "claims-while-blocked",
        fault: "an instance whose runtime is blocked claims partitions",
        file: "src/balancer/context.rs",
        find: "self.phase == LoopPhase::Running && !self.stalled.runtime",
        replace: "self.phase == LoopPhase::Running && (MUTANT || !self.stalled.runtime)",
    },
    Mutant {
        name: "claims-what-it-cannot-start",
        fault: "an instance claims more although what it has does not start",
        file: "src/balancer/context.rs",
        find: "!self.takes_part() || self.start_overdue || self.case_unknown",
        replace: "!self.takes_part() || self.start_overdue && !MUTANT || self.case_unknown",
    },
    Mutant {
        name: "rare-renewals-beside-others",
        fault: "leases are not renewed more often while another SDK is in the group",
        file: "src/balancer/context.rs",
        find: "        if self.foreign_owner {
            usual.min(",
        replace: "        if self.foreign_owner && !MUTANT {
            usual.min(",
    },
];
