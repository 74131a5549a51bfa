//! The life cycle of one partition in one epoch of its ownership, as a state machine without any I/O.
//!
//! | state | done | failed | requested to stop |
//! |---|---|---|---|
//! | Adopting | Starting; if it is paused: Paused | wait, Adopting; handler: as the policy says | ended |
//! | Starting | Opening | as the policy says | Stopping |
//! | Opening | Running | wait, Opening | Stopping |
//! | Running | reopen: Opening | link: wait, Opening; handler: as the policy says | Stopping |
//! | Stopping | ended; to restart: Adopting; after a failure: wait, Adopting or Parked | | |
//! | Parked, Paused | Adopting | | ended |
//!
//! Requested to restart, a partition that has not started is adopted at once.
//!
//! *Adopting* takes over the checkpoint, which fences the previous owner, and determines where to start, for which it
//! calls the handler's `start_position`. *Starting* calls the handler's `started`. *Opening* and *Running* read and
//! deliver batches; a failed link only returns to opening. *Stopping* calls `stopped` and writes the last checkpoint.
//!
//! In every sequence of events, `started` and `stopped` alternate, each `started` is followed by a `stopped`, and
//! nothing is read outside of them.

use std::sync::Arc;
use std::time::Duration;

use super::restart_backoff::{LONGEST_WAIT, RestartBackoff};
use crate::error::{Error, ErrorKind};
use crate::model::Pause;
use crate::processor::policies::OnFailure;
use crate::processor::shutdown::StopReason;

/// The next step of the partition's task. Each step ends with a [`StepOutcome`].
#[derive(Clone, Debug)]
pub(super) enum NextStep {
    /// Take over the checkpoint, and determine where to start.
    Adopt,
    /// Call `started`.
    Start,
    /// Open the link.
    Open,
    /// Deliver batches.
    Run,
    /// Call `stopped`, and write the last checkpoint.
    Stop(StopReason),
    /// Wait for this long.
    Wait(Duration),
    /// Record that the partition is paused because its handler failed so, and wait as for [`Pause`](Self::Pause).
    Park(Arc<Error>),
    /// Wait until the pause that the checkpoint shows has ended, or the application resumes the partition.
    Pause(Pause),
    /// End the task.
    End(TaskEnd),
}

impl NextStep {
    /// Returns the wait, if the next step is one.
    pub(super) fn wait_time(&self) -> Option<Duration> {
        match self {
            Self::Wait(wait) => Some(*wait),
            _ => None,
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub(super) enum StepOutcome {
    /// The step succeeded.
    Done,
    /// The partition must stop: it was requested, or another instance owns the partition.
    Stop(StopReason),
    /// Reading ended without a failure: the link must be opened again at once.
    Reopen,
    /// Adopting, opening or reading failed.
    Failed(Arc<Error>),
    /// The checkpoint shows that the partition is paused.
    Paused(Pause),
    /// The handler failed: it returned an error, panicked or timed out.
    HandlerFailed(Arc<Error>),
}

impl From<Error> for StepOutcome {
    fn from(error: Error) -> Self {
        Self::Failed(Arc::new(error))
    }
}

/// How the task ended.
#[derive(Clone, Debug)]
pub(in crate::processor) enum TaskEnd {
    /// It was requested to stop, or the partition was lost.
    Stopped(StopReason),
    /// The partition is to be released, and not to be claimed again for this long.
    Release { cooldown: Duration },
    /// A restart cannot help.
    Failed(Arc<Error>),
}

/// The current state.
#[derive(Clone, Debug)]
enum MachineState {
    Adopting,
    Starting,
    Opening,
    Running,
    Stopping { then: Then },
    Waiting { before: Before },
    Parked,
    Paused,
    Ended,
}

/// The state after a wait.
#[derive(Clone, Copy, Debug)]
enum Before {
    Adopting,
    Opening,
}

/// What follows `stopped`.
#[derive(Clone, Debug)]
enum Then {
    End(TaskEnd),
    /// Adopt at once.
    Adopt,
    /// Adopt after a wait.
    Restart,
    Park(Arc<Error>),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Machine {
    state: MachineState,
    on_failure: OnFailure,
    /// The load-balancing interval. A wait for an unavailable storage is at most this long.
    interval: Duration,
    pub(super) backoff: RestartBackoff,
}

impl Machine {
    pub(super) fn new(on_failure: OnFailure, interval: Duration) -> (Self, NextStep) {
        let backoff = RestartBackoff::default();
        (Self { state: MachineState::Adopting, on_failure, interval, backoff }, NextStep::Adopt)
    }

    pub(super) fn step(&mut self, outcome: StepOutcome) -> NextStep {
        let (state, next) = match (std::mem::replace(&mut self.state, MachineState::Ended), outcome) {
            (MachineState::Stopping { then }, _) => self.after_stopped(then),
            (state, StepOutcome::Stop(StopReason::Restarting)) if state.has_started() => {
                stop_and_then(StopReason::Restarting, Then::Adopt)
            }
            (
                MachineState::Waiting { before: Before::Adopting } | MachineState::Parked | MachineState::Paused,
                StepOutcome::Done,
            )
            | (_, StepOutcome::Stop(StopReason::Restarting)) => (MachineState::Adopting, NextStep::Adopt),
            (state, StepOutcome::Stop(reason)) if state.has_started() => {
                stop_and_then(reason.clone(), Then::End(TaskEnd::Stopped(reason)))
            }
            (_, StepOutcome::Stop(reason)) => end_task(TaskEnd::Stopped(reason)),
            (MachineState::Adopting, StepOutcome::Done) => (MachineState::Starting, NextStep::Start),
            (MachineState::Starting | MachineState::Waiting { before: Before::Opening }, StepOutcome::Done) => {
                (MachineState::Opening, NextStep::Open)
            }
            (MachineState::Opening | MachineState::Running, StepOutcome::Done) => {
                (MachineState::Running, NextStep::Run)
            }
            (MachineState::Adopting, StepOutcome::Paused(pause)) => (MachineState::Paused, NextStep::Pause(pause)),
            (state, StepOutcome::Failed(error)) if state.has_started() => self.link_failed(error),
            (state, StepOutcome::HandlerFailed(error)) if state.has_started() => self.handler_failed(error),
            (MachineState::Ended, _) | (_, StepOutcome::Paused(_)) => {
                return NextStep::End(TaskEnd::Stopped(StopReason::Shutdown));
            }
            (_, StepOutcome::Reopen) => (MachineState::Opening, NextStep::Open),
            (_, StepOutcome::Failed(error)) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Contended) => {
                end_task(TaskEnd::Failed(error))
            }
            (_, StepOutcome::Failed(error)) => self.wait_before(Before::Adopting, &error),
            // The handler could not choose the start, so there is nothing to stop.
            (_, StepOutcome::HandlerFailed(error)) => self.after_stopped(self.after_failure(error)),
        };
        self.state = state;
        next
    }

    fn wait_before(&mut self, before: Before, error: &Error) -> (MachineState, NextStep) {
        let wait = match error.kind() {
            // The storage returns these kinds. An event hub that fails or does not respond is another kind.
            ErrorKind::Indeterminate | ErrorKind::Unavailable => {
                self.backoff.next_wait_between(Duration::ZERO, self.interval.min(LONGEST_WAIT))
            }
            // An adoption takes three requests, so it is attempted a third as often.
            ErrorKind::Throttled { retry_after } => {
                let longest = (3 * self.interval).min(2 * LONGEST_WAIT);
                self.backoff.next_wait_between(retry_after.unwrap_or_default(), longest)
            }
            _ => self.backoff.next_wait(),
        };
        (MachineState::Waiting { before }, NextStep::Wait(wait))
    }

    fn link_failed(&mut self, error: Arc<Error>) -> (MachineState, NextStep) {
        let failed = StopReason::Failed { error: Arc::clone(&error) };
        match error.kind() {
            ErrorKind::Config => stop_and_then(failed, Then::End(TaskEnd::Failed(error))),
            // The start must be determined again, or the checkpoint was written in the meantime.
            ErrorKind::InvalidPosition | ErrorKind::Conflict => stop_and_then(failed, Then::Restart),
            _ => self.wait_before(Before::Opening, &error),
        }
    }

    fn handler_failed(&mut self, error: Arc<Error>) -> (MachineState, NextStep) {
        stop_and_then(StopReason::Failed { error: Arc::clone(&error) }, self.after_failure(error))
    }

    fn after_failure(&self, error: Arc<Error>) -> Then {
        match self.on_failure {
            // The next start moves the failing event to the dead letters.
            _ if self.backoff.restarts_at_once() => Then::Restart,
            OnFailure::Restart => Then::Restart,
            OnFailure::Release { cooldown } => Then::End(TaskEnd::Release { cooldown }),
            OnFailure::Park => Then::Park(error),
        }
    }

    fn after_stopped(&mut self, then: Then) -> (MachineState, NextStep) {
        match then {
            Then::End(how) => end_task(how),
            Then::Adopt => (MachineState::Adopting, NextStep::Adopt),
            Then::Restart => {
                (MachineState::Waiting { before: Before::Adopting }, NextStep::Wait(self.backoff.next_restart_wait()))
            }
            Then::Park(error) => (MachineState::Parked, NextStep::Park(error)),
        }
    }
}

impl MachineState {
    /// Returns whether `started` was called and `stopped` was not.
    fn has_started(&self) -> bool {
        matches!(self, Self::Starting | Self::Opening | Self::Running | Self::Waiting { before: Before::Opening })
    }
}

fn stop_and_then(reason: StopReason, then: Then) -> (MachineState, NextStep) {
    (MachineState::Stopping { then }, NextStep::Stop(reason))
}

fn end_task(how: TaskEnd) -> (MachineState, NextStep) {
    (MachineState::Ended, NextStep::End(how))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOLDOWN: Duration = Duration::from_secs(7);
    const INTERVAL: Duration = Duration::from_secs(10);

    fn error(kind: ErrorKind) -> Arc<Error> {
        Arc::new(Error::new(kind, "broken"))
    }

    fn pause() -> Pause {
        Pause::new(time::OffsetDateTime::UNIX_EPOCH, None, None)
    }

    fn lost() -> StopReason {
        StopReason::OwnershipLost { by: None }
    }

    /// Returns the possible outcomes of a step.
    fn outcomes(of: &NextStep) -> Vec<StepOutcome> {
        let failures = [ErrorKind::EventSource, ErrorKind::Config, ErrorKind::Contended, ErrorKind::InvalidPosition];
        let failed = failures.map(|kind| StepOutcome::Failed(error(kind)));
        let handler_failed = StepOutcome::HandlerFailed(error(ErrorKind::Handler));
        let stop = [StopReason::Shutdown, lost(), StopReason::Restarting].map(StepOutcome::Stop);
        let mut outcomes = match of {
            NextStep::End(_) => return Vec::new(),
            NextStep::Stop(_) => return vec![StepOutcome::Done],
            NextStep::Adopt => {
                let others = [StepOutcome::Done, StepOutcome::Paused(pause()), handler_failed];
                others.into_iter().chain(failed).collect()
            }
            NextStep::Open => [StepOutcome::Done].into_iter().chain(failed).collect(),
            NextStep::Start => vec![StepOutcome::Done, handler_failed],
            NextStep::Run => failed.into_iter().chain([handler_failed, StepOutcome::Reopen]).collect(),
            NextStep::Wait(_) | NextStep::Park(_) | NextStep::Pause(_) => vec![StepOutcome::Done],
        };
        outcomes.extend(stop);
        outcomes
    }

    /// Explores all sequences of outcomes up to this depth. Returns their number.
    fn explore(policy: OnFailure, past: &mut Vec<StepOutcome>, depth: usize) -> usize {
        let (mut machine, mut next) = Machine::new(policy, INTERVAL);
        let (mut started, mut opened) = (false, false);
        for outcome in past.iter() {
            next = machine.step(outcome.clone());
            match &next {
                NextStep::Start => assert!(!std::mem::replace(&mut started, true), "started twice: {past:?}"),
                NextStep::Stop(_) => assert!(std::mem::replace(&mut started, false), "stopped, not started: {past:?}"),
                NextStep::Open | NextStep::Run => assert!(started, "reads outside of started and stopped: {past:?}"),
                NextStep::Adopt | NextStep::Park(_) | NextStep::Pause(_) | NextStep::End(_) => {
                    assert!(!started, "never stopped: {past:?}");
                }
                NextStep::Wait(_) => {}
            }
            match &next {
                NextStep::Run => assert!(opened, "reads without a link: {past:?}"),
                NextStep::Open => opened = true,
                _ => opened = false,
            }
        }
        if depth == 0 || matches!(next, NextStep::End(_)) {
            return 1;
        }
        let mut ways = 0;
        for outcome in outcomes(&next) {
            past.push(outcome);
            ways += explore(policy, past, depth - 1);
            past.pop();
        }
        ways
    }

    /// Each `started` has its `stopped`, and nothing is read outside of them.
    #[test]
    fn started_and_stopped_are_always_paired() {
        for policy in [OnFailure::Restart, OnFailure::Release { cooldown: COOLDOWN }, OnFailure::Park] {
            let ways = explore(policy, &mut Vec::new(), 9);
            assert!(ways > 1000, "{ways}");
        }
    }

    /// Returns the steps after these outcomes.
    fn after(policy: OnFailure, past: impl IntoIterator<Item = StepOutcome>) -> Vec<NextStep> {
        let (mut machine, first) = Machine::new(policy, INTERVAL);
        [first].into_iter().chain(past.into_iter().map(|outcome| machine.step(outcome))).collect()
    }

    fn running() -> Vec<StepOutcome> {
        vec![StepOutcome::Done; 3]
    }

    #[test]
    fn a_restart_keeps_the_partition() {
        let restart = StepOutcome::Stop(StopReason::Restarting);
        let steps = after(OnFailure::Park, running().into_iter().chain([restart.clone(), StepOutcome::Done]));
        assert!(matches!(steps[4..], [NextStep::Stop(StopReason::Restarting), NextStep::Adopt]), "{steps:?}");
        let failed = [StepOutcome::HandlerFailed(error(ErrorKind::Handler)), StepOutcome::Done, restart];
        let steps = after(OnFailure::Park, running().into_iter().chain(failed));
        assert!(matches!(steps[5..], [NextStep::Park(_), NextStep::Adopt]), "{steps:?}");
    }

    #[test]
    fn a_failed_link_is_reopened_within_the_same_start() {
        let past = running().into_iter().chain([StepOutcome::Failed(error(ErrorKind::EventSource)), StepOutcome::Done]);
        let steps = after(OnFailure::Park, past);
        assert!(
            matches!(
                steps[..],
                [NextStep::Adopt, NextStep::Start, NextStep::Open, NextStep::Run, NextStep::Wait(_), NextStep::Open]
            ),
            "{steps:?}"
        );
    }

    #[test]
    fn the_policy_decides_after_a_handler_failure() {
        let failure =
            || running().into_iter().chain([StepOutcome::HandlerFailed(error(ErrorKind::Handler)), StepOutcome::Done]);
        let restarted = after(OnFailure::Restart, failure().chain([StepOutcome::Done]));
        assert!(matches!(restarted[4..], [NextStep::Stop(_), NextStep::Wait(_), NextStep::Adopt]), "{restarted:?}");
        let released = after(OnFailure::Release { cooldown: COOLDOWN }, failure());
        assert!(matches!(released[5], NextStep::End(TaskEnd::Release { cooldown: COOLDOWN })), "{released:?}");
        let parked = after(OnFailure::Park, failure().chain([StepOutcome::Done]));
        assert!(matches!(parked[5..], [NextStep::Park(_), NextStep::Adopt]), "{parked:?}");
    }

    /// Whatever the policy is: the next start moves the event to the dead letters.
    #[test]
    fn an_event_for_the_dead_letters_restarts_at_once() {
        for policy in [OnFailure::Restart, OnFailure::Release { cooldown: COOLDOWN }, OnFailure::Park] {
            let (mut machine, _) = Machine::new(policy, INTERVAL);
            for outcome in running() {
                machine.step(outcome);
            }
            machine.backoff.limit_restart(Some(Duration::ZERO));
            machine.step(StepOutcome::HandlerFailed(error(ErrorKind::Handler)));
            let next = machine.step(StepOutcome::Done);
            assert!(matches!(next, NextStep::Wait(Duration::ZERO)), "{next:?}");
        }
    }

    mod waits {
        use super::*;

        #[test]
        fn waits_for_an_unavailable_storage_are_shorter() {
            for (kind, longest) in [(ErrorKind::Unavailable, 10), (ErrorKind::EventSource, 30)] {
                for prefix in [Vec::new(), running()] {
                    let failures = (0..12).flat_map(|_| [StepOutcome::Failed(error(kind)), StepOutcome::Done]);
                    let steps = after(OnFailure::Restart, prefix.into_iter().chain(failures));
                    let waits: Vec<_> = steps.iter().filter_map(NextStep::wait_time).collect();
                    assert_eq!(waits.len(), 12, "{steps:?}");
                    assert!(waits.is_sorted() && waits[0] < Duration::from_secs(1), "{waits:?}");
                    assert_eq!(waits[11], Duration::from_secs(longest), "{kind:?}");
                }
            }
        }

        #[test]
        fn waits_for_a_throttling_storage_are_longer() {
            let throttled = ErrorKind::Throttled { retry_after: Some(Duration::from_secs(3)) };
            let failures = (0..6).flat_map(|_| [StepOutcome::Failed(error(throttled)), StepOutcome::Done]);
            let waits: Vec<_> = after(OnFailure::Restart, failures).iter().filter_map(NextStep::wait_time).collect();
            assert_eq!(waits, [4, 8, 16, 30, 30, 30].map(Duration::from_secs), "at least 3 s, also with jitter");
        }
    }

    #[test]
    fn a_resumed_partition_is_adopted_again() {
        let past = [StepOutcome::Paused(pause()), StepOutcome::Done, StepOutcome::Done];
        let steps = after(OnFailure::Restart, past);
        assert!(matches!(steps[1..], [NextStep::Pause(_), NextStep::Adopt, NextStep::Start]), "{steps:?}");
    }

    #[test]
    fn an_error_that_no_restart_can_fix_ends_the_task() {
        for kind in [ErrorKind::Config, ErrorKind::Contended] {
            let steps = after(OnFailure::Restart, [StepOutcome::Failed(error(kind))]);
            assert!(matches!(steps[1], NextStep::End(TaskEnd::Failed(_))), "{kind:?}: {steps:?}");
        }
        let past = running().into_iter().chain([StepOutcome::Failed(error(ErrorKind::Config)), StepOutcome::Done]);
        let steps = after(OnFailure::Restart, past);
        assert!(matches!(steps[4..], [NextStep::Stop(_), NextStep::End(TaskEnd::Failed(_))]), "{steps:?}");
    }

    #[test]
    fn a_rejected_position_determines_the_start_again() {
        let past =
            running().into_iter().chain([StepOutcome::Failed(error(ErrorKind::InvalidPosition)), StepOutcome::Done]);
        let steps = after(OnFailure::Park, past.chain([StepOutcome::Done]));
        assert!(matches!(steps[4..], [NextStep::Stop(_), NextStep::Wait(_), NextStep::Adopt]), "{steps:?}");
    }
}
