//! The processor: starts, delivery, checkpoints, stops.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "starts-one-late",
        fault: "reading continues one event after the next one",
        file: "src/processor/start/invalid.rs",
        find: "(Some(sequence_number), _) => StartPosition::AfterSequenceNumber(sequence_number),",
        replace: "(Some(sequence_number), _) => {
            StartPosition::AfterSequenceNumber(if MUTANT { sequence_number + 1 } else { sequence_number })
        }",
    },
    Mutant {
        name: "starts-one-early",
        fault: "reading continues with the last event of the checkpoint",
        file: "src/processor/start/invalid.rs",
        find: "(_, Some(offset)) if offset == BEFORE_EVERYTHING => StartPosition::Earliest,",
        replace: "(_, Some(offset)) if offset == BEFORE_EVERYTHING => StartPosition::Earliest,
        (Some(sequence_number), _) if MUTANT => StartPosition::AfterSequenceNumber(sequence_number - 1),",
    },
    Mutant {
        name: "start-unpinned",
        fault: "a start without a checkpoint is not recorded",
        file: "src/processor/partition/takeover.rs",
        find: "        if !adoption.record().has_position() {
            record_new_starts_before(",
        replace: "        if MUTANT && !adoption.record().has_position() {
            let from = StartPosition::AfterSequenceNumber(position.sequence_number);
            return Ok(start_after_record(adoption, &from));
        }
        if !adoption.record().has_position() {
            record_new_starts_before(",
    },
    Mutant {
        name: "former-hub-unnoticed",
        fault: "positions in a deleted event hub are valid in the recreated one",
        file: "src/processor/partition/takeover.rs",
        find: "        if is_of_former_hub(record, facts.hub_created_at) {
            return Ok(Some(InvalidReason::Recreated));",
        replace: "        if !MUTANT && is_of_former_hub(record, facts.hub_created_at) {
            return Ok(Some(InvalidReason::Recreated));",
    },
    Mutant {
        name: "beyond-end-accepted",
        fault: "a checkpoint after the end of the partition is read from",
        file: "src/processor/start/invalid.rs",
        find: "    let Some(last) = last else { return true };
    match number.cmp(&last.sequence_number) {",
        replace: "    let Some(last) = last else { return !MUTANT };
    match number.cmp(&last.sequence_number) {
        _ if MUTANT => false,",
    },
    Mutant {
        name: "gap-accepted",
        fault: "a link that begins after the next event is read from",
        file: "src/processor/partition/continuity.rs",
        find: "(received > due).then_some(Gap { due, received })",
        replace: "(!MUTANT && received > due).then_some(Gap { due, received })",
    },
    Mutant {
        name: "repeated-link-accepted",
        fault: "the events of a link that restarts are delivered again",
        file: "src/processor/partition/continuity.rs",
        find: "            let is_new = number.is_none() || number > self.last;",
        replace: "            let is_new = MUTANT || number.is_none() || number > self.last;",
    },
    Mutant {
        name: "link-restart-unnoticed",
        fault: "a link whose numbers go back is read on",
        file: "src/processor/partition/continuity.rs",
        find: "Some(after) if number <= after => self.restarted = Some(LinkRestart { received: number, after }),",
        replace: "Some(after) if number <= after && !MUTANT => {
                self.restarted = Some(LinkRestart { received: number, after });
            }",
    },
    Mutant {
        name: "stalled-link-kept",
        fault: "a link that delivers nothing is kept",
        file: "src/processor/partition/deliver.rs",
        find: "            LinkState::Healthy | LinkState::Behind => Ok(false),",
        replace: "            LinkState::Reopen if MUTANT => Ok(false),
            LinkState::Healthy | LinkState::Behind => Ok(false),",
    },
    Mutant {
        name: "progress-forgotten",
        fault: "a handler is slowed down although it finishes events before it fails",
        file: "src/processor/partition/deliver.rs",
        find: "            StepOutcome::HandlerFailed(error) => {
                self.record_batch_failure(Some(session), backoff);",
        replace: "            StepOutcome::HandlerFailed(error) => {
                self.record_batch_failure(Some(&*session).filter(|_| !MUTANT), backoff);",
    },
    Mutant {
        name: "restarts-at-once",
        fault: "a handler that keeps failing is restarted without growing waits",
        file: "src/processor/partition/restart_backoff.rs",
        find: "        self.failures = self.failures.saturating_add(1);
        wait",
        replace: "        if !MUTANT {
            self.failures = self.failures.saturating_add(1);
        }
        wait",
    },
    Mutant {
        name: "always-ready",
        fault: "a source and a handler that are always ready keep all other tasks from running",
        file: "src/processor/partition/deliver.rs",
        find: "                    consume_budget().await;",
        replace: "                    if !MUTANT {
                        consume_budget().await;
                    }",
    },
    Mutant {
        name: "passes-open-event",
        fault: "a checkpoint passes an event whose token is not finished",
        file: "src/processor/checkpoints/tracker.rs",
        find: "self.undecided.front().copied().into_iter().chain(self.oldest_open()).min()",
        replace: "self.undecided.front().copied().into_iter().chain(self.oldest_open().filter(|_| !MUTANT)).min()",
    },
    Mutant {
        name: "passes-undecided-event",
        fault: "a checkpoint passes an event that the handler may still track",
        file: "src/processor/checkpoints/tracker.rs",
        find: "            if Some(number) > self.reached {
                self.undecided.push_back(number);",
        replace: "            if !MUTANT && Some(number) > self.reached {
                self.undecided.push_back(number);",
    },
    Mutant {
        name: "token-off-by-one",
        fault: "an event with two tokens is finished after the first",
        file: "src/processor/checkpoints/tracker.rs",
        find: "        if *tokens > 0 {
            return None;",
        replace: "        if *tokens > u32::from(MUTANT) {
            return None;",
    },
    Mutant {
        name: "requests-go-back",
        fault: "a request for an earlier position moves the checkpoint back",
        file: "src/processor/checkpoints/tracker.rs",
        find: "        if Some(number) <= self.reached {
            return None;
        }
        if self.first_blocker()",
        replace: "        if Some(number) <= self.reached && !MUTANT {
            return None;
        }
        if self.first_blocker()",
    },
    Mutant {
        name: "no-last-checkpoint",
        fault: "the last checkpoint is not written at a stop",
        file: "src/processor/checkpoints/writer.rs",
        find: "        let Some(last_by) = last_by else { return WritingEnd::Closed };",
        replace: "        let Some(last_by) = last_by.filter(|_| !MUTANT) else { return WritingEnd::Closed };",
    },
    Mutant {
        name: "last-checkpoint-once",
        fault: "the last checkpoint is tried only once",
        file: "src/processor/checkpoints/writer.rs",
        find: "                Err(error) if attempts.wait_for_next_attempt(error).await => {}",
        replace: "                Err(error) if !MUTANT && attempts.wait_for_next_attempt(error).await => {}",
    },
    Mutant {
        name: "failed-checkpoint-dropped",
        fault: "a checkpoint that failed is not written until there is another one",
        file: "src/processor/checkpoints/writer.rs",
        find: "            Err(error) => Some(Instant::now() + self.store.wait_after_error(error, &mut self.backoff)),",
        replace: "            Err(_) if MUTANT => None,
            Err(error) => Some(Instant::now() + self.store.wait_after_error(error, &mut self.backoff)),",
    },
    Mutant {
        name: "fence-ignored",
        fault: "a partition continues although its checkpoint is rejected",
        file: "src/processor/checkpoints/writer.rs",
        find: "        Ok(CheckpointOutcome::Fenced { by }) => Some(WritingEnd::Fenced { by: by.clone() }),",
        replace: "        Ok(CheckpointOutcome::Fenced { .. }) if MUTANT => None,
        Ok(CheckpointOutcome::Fenced { by }) => Some(WritingEnd::Fenced { by: by.clone() }),",
    },
    Mutant {
        name: "failure-is-handled",
        fault: "a batch whose handler fails counts as handled",
        file: "src/processor/partition/calls.rs",
        find: "        let Err(failure) = handled.into_result(HANDLER) else {
            self.record_handled(accepted, session);",
        replace: "        let handled = handled.into_result(HANDLER);
        let Err(failure) = (if MUTANT { Ok(()) } else { handled }) else {
            self.record_handled(accepted, session);",
    },
    Mutant {
        name: "dead-letter-before-storing",
        fault: "a checkpoint passes a dead letter before it is stored",
        file: "src/processor/partition/dead_letters.rs",
        find: "        let letter = context.new_letter(",
        replace: "        if MUTANT {
            context.pass_over(&event);
        }
        let letter = context.new_letter(",
    },
    Mutant {
        name: "dead-letter-of-another",
        fault: "a dead letter is stored by an instance that lost the partition",
        file: "src/processor/context.rs",
        find: "            return Err(Error::new(ErrorKind::Closed, \"the partition is stopping\"));
        }
        self.checkpoints.confirm_owner().await",
        replace: "            return Err(Error::new(ErrorKind::Closed, \"the partition is stopping\"));
        }
        if MUTANT { Ok(()) } else { self.checkpoints.confirm_owner().await }",
    },
    Mutant {
        name: "paused-is-delivered",
        fault: "an owner starts a partition although the checkpoint shows a pause",
        file: "src/processor/partition/pauses.rs",
        find: "        if !(pause.parked && self.control.is_resumed()) {",
        replace: "        if MUTANT {
            return Ok(None);
        }
        if !(pause.parked && self.control.is_resumed()) {",
    },
    Mutant {
        name: "tracked-left-behind",
        fault: "a stop does not wait for events that are still tracked",
        file: "src/processor/partition/calls.rs",
        find: "        if !is_lost && !has_failed {
            self.finish_in_flight(",
        replace: "        if !MUTANT && !is_lost && !has_failed {
            self.finish_in_flight(",
    },
    Mutant {
        name: "keys-at-once",
        fault: "events of one key are processed at the same time",
        file: "src/processor/events/queue.rs",
        find: "key.and_then(|key| self.busy.get_mut(&key)) {
            waiting.push_back(item);",
        replace: "key.filter(|_| !MUTANT).and_then(|key| self.busy.get_mut(&key)) {
            waiting.push_back(item);",
    },
    Mutant {
        name: "begins-after-failure",
        fault: "later events begin after one has failed for good",
        file: "src/processor/events/queue.rs",
        find: "        self.places = 0;",
        replace: "        self.places *= usize::from(MUTANT);",
    },
    Mutant {
        name: "drops-at-stop",
        fault: "a stop leaves events for which the checkpoint waits",
        file: "src/processor/events/concurrent.rs",
        find: "            !is_lost && number.is_some()",
        replace: "            !MUTANT && !is_lost && number.is_some()",
    },
    Mutant {
        name: "outage-moves-all",
        fault: "an outage moves all events to the dead letters",
        file: "src/processor/partition/handler_failures.rs",
        find: "        if !left.is_zero() {",
        replace: "        if !MUTANT && !left.is_zero() {",
    },
];
