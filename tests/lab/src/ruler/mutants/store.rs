//! The rules of the store, and the order of its requests.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "adopt-unowned",
        fault: "an adoption does not look whether the partition is still owned",
        file: "src/store/rules/checkpoint.rs",
        find: "_ if !owned => ControlFlow::Break(Unwritten::Lost),",
        replace: "_ if !owned && !MUTANT => ControlFlow::Break(Unwritten::Lost),",
    },
    Mutant {
        name: "checkpoint-unowned",
        fault: "a checkpoint with an unknown outcome is repeated without the ownership",
        file: "src/store/rules/checkpoint.rs",
        find: "_ if !owned => ControlFlow::Break(Checkpointed::Fenced),",
        replace: "_ if !owned && !MUTANT => ControlFlow::Break(Checkpointed::Fenced),",
    },
    Mutant {
        name: "pin-compares",
        fault: "an initial checkpoint counts as progress",
        file: "src/store/rules/checkpoint.rs",
        find: "_ if record.initial && record.has_position() => Self::Pinned,",
        replace: "_ if record.initial && record.has_position() && !MUTANT => Self::Pinned,",
    },
    Mutant {
        name: "checkpoint-backward",
        fault: "a checkpoint replaces a later one that is found",
        file: "src/store/rules/checkpoint.rs",
        find: "Some(Ordering::Greater) => ControlFlow::Break(Checkpointed::Superseded),",
        replace: "Some(Ordering::Greater) if !MUTANT => ControlFlow::Break(Checkpointed::Superseded),
                Some(Ordering::Greater) => {
                    ControlFlow::Continue(Self::Write { under: WriteCondition::IfMatch(version) })
                }",
    },
    Mutant {
        name: "start-over-checkpoint",
        fault: "a known start replaces the checkpoint that is found",
        file: "src/store/rules/checkpoint.rs",
        find: "None | Some(CheckpointPlace::Nowhere) if start_is_known",
        replace: "_ if MUTANT && start_is_known => Some(PositionFrom::Start),
        None | Some(CheckpointPlace::Nowhere) if start_is_known",
    },
    Mutant {
        name: "owner-first",
        fault: "an adoption reads the ownership before the checkpoint",
        file: "src/store/adopt.rs",
        find: "                    self.found = self.store.read_checkpoint(self.partition).await?;",
        replace: "                    if MUTANT {
                        let (owned, by) = self.store.check_owner(self.partition, self.epoch).await?;
                        self.found = self.store.read_checkpoint(self.partition).await?;
                        let place = self.found.as_ref().map(|found| CheckpointPlace::from_record(&found.record));
                        let found = self.found.as_ref().map(|found| found.blob.etag.clone());
                        if let AdoptionStep::<ETag>::ReadOwnership { from } =
                            AdoptionStep::after_checkpoint(place, self.start.is_some())
                        {
                            match AdoptionStep::after_ownership(found, from, owned) {
                                ControlFlow::Continue(step) => self.step = step,
                                ControlFlow::Break(_) => return Ok(ControlFlow::Break(AdoptOutcome::Lost { by })),
                            }
                        }
                        continue;
                    }
                    self.found = self.store.read_checkpoint(self.partition).await?;",
    },
    Mutant {
        name: "release-unverified",
        fault: "a release with an unknown outcome counts as written",
        file: "src/store/rules/ownership.rs",
        find: "        let goal = goal_after(goal, lease_epoch, found.as_ref());",
        replace: "        if MUTANT && goal == Goal::Release {
            return ControlFlow::Break(Settled::Applied);
        }
        let goal = goal_after(goal, lease_epoch, found.as_ref());",
    },
    Mutant {
        name: "earlier-replaces",
        fault: "an earlier incarnation stops a later one",
        file: "src/store/rules/ownership.rs",
        find: "(_, Relation::LaterIncarnation) if found.age < found.lifetime => ControlFlow::Break(Settled::Replaced),",
        replace:
            "(_, Relation::LaterIncarnation) if found.age < found.lifetime => ControlFlow::Break(Settled::Replaced),
        (_, Relation::EarlierIncarnation) if MUTANT => ControlFlow::Break(Settled::Replaced),",
    },
    Mutant {
        name: "win-by-reading",
        fault: "a claim that a read finds written counts, however old it is",
        file: "src/store/rules/ownership.rs",
        find: "(Goal::Renew, Relation::This) if is_young => ControlFlow::Break(Settled::Applied),",
        replace: "(Goal::Renew, Relation::This) if is_young => ControlFlow::Break(Settled::Applied),
        (Goal::Claim, Relation::This) if MUTANT => ControlFlow::Break(Settled::Applied),",
    },
    Mutant {
        name: "old-renewal-counts",
        fault: "a renewal that a read finds written counts, however old it is",
        file: "src/store/rules/ownership.rs",
        find: "let is_young = found.age <= lease_duration / 2;",
        replace: "let is_young = MUTANT || found.age <= lease_duration / 2;",
    },
    Mutant {
        name: "acknowledged-unread",
        fault: "an acknowledgment counts although the record does not say that the owner drains",
        file: "src/store/rules/ownership.rs",
        find: "if is_young && found.draining =>",
        replace: "if is_young && (MUTANT || found.draining) =>",
    },
    Mutant {
        name: "rewrite-by-reading",
        fault: "an owner that was declared dead reads its records instead of rewriting them",
        file: "src/store/rules/ownership.rs",
        find: "(_, Relation::This) => ControlFlow::Continue(Self::to_write(goal, over_found)),",
        replace: "(Goal::Rewrite, Relation::This) if MUTANT => ControlFlow::Break(Settled::Applied),
            (_, Relation::This) => ControlFlow::Continue(Self::to_write(goal, over_found)),",
    },
    Mutant {
        name: "steal-after-conflict",
        fault: "a claim that lost is written over the winner",
        file: "src/store/rules/ownership.rs",
        find: "_ if *attempted == over_found =>",
        replace: "_ if MUTANT || *attempted == over_found =>",
    },
    Mutant {
        name: "renewal-recreates",
        fault: "a renewal that finds no record keeps its epoch",
        file: "src/store/rules/ownership.rs",
        find: "Goal::Renew | Goal::Acknowledge | Goal::Rewrite if is_reclaimable => Goal::Claim,",
        replace: "Goal::Renew | Goal::Acknowledge | Goal::Rewrite if is_reclaimable && !MUTANT => Goal::Claim,",
    },
    Mutant {
        name: "epoch-without-chain",
        fault: "an epoch is the time of the server, whatever the record says",
        file: "src/store/rules/ownership.rs",
        find: "before.map_or(server_time, |before| before.max(server_time)).saturating_add(1)",
        replace: "before.filter(|_| !MUTANT).map_or(server_time, |before| before.max(server_time)).saturating_add(1)",
    },
    Mutant {
        name: "epoch-without-time",
        fault: "an epoch is one more than the one before it, whatever the time is",
        file: "src/store/rules/ownership.rs",
        find: "pub fn next_epoch(before: Option<i64>, server_time: i64) -> i64 {",
        replace: "pub fn next_epoch(before: Option<i64>, server_time: i64) -> i64 {
    if MUTANT {
        return before.unwrap_or_default() + 1;
    }",
    },
    Mutant {
        name: "epoch-at-once",
        fault: "a fresh record without an epoch is claimed over at once",
        file: "src/store/rules/ownership.rs",
        find: "(epoch.is_none() && !missing.is_zero()).then_some(missing)",
        replace: "(!MUTANT && epoch.is_none() && !missing.is_zero()).then_some(missing)",
    },
    Mutant {
        name: "own-by-owner",
        fault: "a record is one's own whatever its epoch is",
        file: "src/model/records.rs",
        find: "self.relation_to(this) == Relation::This && self.epoch == Some(epoch)",
        replace: "self.relation_to(this) == Relation::This && (MUTANT || self.epoch == Some(epoch))",
    },
    Mutant {
        name: "late-lease-releases",
        fault: "a lease of an earlier epoch releases what was won again",
        file: "src/store/exclusion.rs",
        find: "epoch < self.won.load(Ordering::Relaxed)",
        replace: "!MUTANT && epoch < self.won.load(Ordering::Relaxed)",
    },
    Mutant {
        name: "late-checkpoint",
        fault: "a checkpoint of an earlier epoch is written after a later one of this owner began",
        file: "src/store/exclusion.rs",
        find: "epoch < self.begun.load(Ordering::Relaxed)",
        replace: "!MUTANT && epoch < self.begun.load(Ordering::Relaxed)",
    },
    Mutant {
        name: "renewal-erases-request",
        fault: "a renewal erases the request of another instance",
        file: "src/store/ownership.rs",
        find: "            self.record.handoff_to.clone_from(&seen.record.handoff_to);",
        replace: "            if !MUTANT {
                self.record.handoff_to.clone_from(&seen.record.handoff_to);
            }",
    },
    Mutant {
        name: "conflict-is-lost",
        fault: "a conflict ends an operation without a read",
        file: "src/store/settle.rs",
        find: "matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Indeterminate | ErrorKind::NotFound)",
        replace: "matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::NotFound)
        || !MUTANT && error.kind() == ErrorKind::Conflict",
    },
    Mutant {
        name: "success-without-version",
        fault: "the next checkpoint is written under the version before",
        file: "src/store/checkpoint.rs",
        find: "        self.adoption.etag = Some(written.etag);
        self.adoption.record = record;",
        replace: "        if !MUTANT {
            self.adoption.etag = Some(written.etag);
        }
        self.adoption.record = record;",
    },
    Mutant {
        name: "unfenced-first-checkpoint",
        fault: "the first checkpoint of an owner without a version creates the blob unread",
        file: "src/store/checkpoint.rs",
        find: "        let step = CheckpointStep::first_step(adoption.etag.clone());",
        replace: "        let mut step = CheckpointStep::first_step(adoption.etag.clone());
        if MUTANT && adoption.etag.is_none() {
            step = CheckpointStep::Write { under: WriteCondition::Create };
        }",
    },
    Mutant {
        name: "handoff-of-another",
        fault: "a handoff continues although the owner is another one or has won the partition again",
        file: "src/store/rules/handoff.rs",
        find: "let is_same_owner = record.owner.as_ref() == Some(&handoff.owner)",
        replace: "let is_same_owner = MUTANT
            || record.owner.as_ref() == Some(&handoff.owner)",
    },
    Mutant {
        name: "impatient-handoff",
        fault: "an owner that drains for longer than it takes to acknowledge loses the partition",
        file: "src/store/rules/handoff.rs",
        find: "HandoffView::Requested { draining: true } => {",
        replace: "HandoffView::Requested { draining: true } if !MUTANT => {",
    },
    Mutant {
        name: "request-extends-lease",
        fault: "a request keeps the lease of a dead owner alive",
        file: "src/store/rules/handoff.rs",
        find: "HandoffView::NotRequested { age, .. } if age >= lease_duration / 2 =>",
        replace: "HandoffView::NotRequested { age, .. } if !MUTANT && age >= lease_duration / 2 =>",
    },
    Mutant {
        name: "heartbeat-after-death",
        fault: "an owner that was declared dead continues its heartbeat",
        file: "src/store/rules/heartbeat.rs",
        find: "Relation::This if found.declared_dead =>",
        replace: "Relation::This if found.declared_dead && !MUTANT =>",
    },
    Mutant {
        name: "missing-heartbeat-renewed",
        fault: "an owner whose heartbeat was deleted creates it again",
        file: "src/store/rules/heartbeat.rs",
        find: "        return if was_written {",
        replace: "        return if was_written && !MUTANT {",
    },
    Mutant {
        name: "live-declared-dead",
        fault: "an owner is declared dead although its heartbeat has changed",
        file: "src/store/rules/heartbeat.rs",
        find: "let unchanged = stale == Some(&found.version)",
        replace: "let unchanged = MUTANT || stale == Some(&found.version)",
    },
    Mutant {
        name: "undeclared-takeover",
        fault: "a takeover does not declare the owner dead first",
        file: "src/model/leases.rs",
        find: "        self.record.owner.is_some()
            && self.record.scope == LeaseScope::Instance",
        replace: "        !MUTANT
            && self.record.owner.is_some()
            && self.record.scope == LeaseScope::Instance",
    },
    Mutant {
        name: "foreign-duration",
        fault: "records are judged by the lease duration of the observer",
        file: "src/model/leases.rs",
        find: "recorded.map_or(self.foreign, |duration| duration.clamp(Self::SHORTEST, Self::LONGEST))",
        replace: "recorded.map_or(self.foreign, |duration| {
            if MUTANT { self.own } else { duration.clamp(Self::SHORTEST, Self::LONGEST) }
        })",
    },
    Mutant {
        name: "age-from-listing",
        fault: "the time since a listing is not added to the ages in it",
        file: "src/model/leases.rs",
        find: "    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        self.age + now.saturating_sub(self.received)
    }

    /// Returns the time since the owner last renewed the lease, at `now`",
        replace: "    #[must_use]
    pub fn age_at(&self, now: Moment) -> Duration {
        if MUTANT { self.age } else { self.age + now.saturating_sub(self.received) }
    }

    /// Returns the time since the owner last renewed the lease, at `now`",
    },
];
