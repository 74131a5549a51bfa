//! The life cycle of one partition in one epoch of its ownership, as a state machine without any I/O.
//!
//! | state | done | failed | requested to stop |
//! |---|---|---|---|
//! | Adopting | Starting | wait, Adopting; handler: as the policy says | ended |
//! | Starting | Opening | as the policy says | Stopping |
//! | Opening | Running | wait, Opening | Stopping |
//! | Running | reopen: Opening | link: wait, Opening; handler: as the policy says | Stopping |
//! | Stopping | ended; after a failure: wait, Adopting or Parked | | |
//! | Parked | Adopting | | ended |
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
use crate::processor::config::OnFailure;
use crate::processor::shutdown::stop::StopReason;

/// The next step of the partition's task. Each step ends with a [`Happened`].
#[derive(Clone, Debug)]
pub(super) enum Next {
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
    /// Wait until the application resumes the partition.
    Park,
    /// End the task.
    End(Ended),
}

impl Next {
    /// Returns the wait, if the next step is one.
    pub(super) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Wait(wait) => Some(*wait),
            _ => None,
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub(super) enum Happened {
    /// The step succeeded.
    Done,
    /// The partition must stop: it was requested, or another instance owns the partition.
    Stop(StopReason),
    /// Reading ended without a failure: the link must be opened again at once.
    Reopen,
    /// Adopting, opening or reading failed.
    Failed(Arc<Error>),
    /// The handler failed: it returned an error, panicked or timed out.
    HandlerFailed(Arc<Error>),
}

impl From<Error> for Happened {
    fn from(error: Error) -> Self {
        Self::Failed(Arc::new(error))
    }
}

/// How the task ended.
#[derive(Clone, Debug)]
pub(in crate::processor) enum Ended {
    /// It was requested to stop, or the partition was lost.
    Stopped(StopReason),
    /// The partition is to be released, and not to be claimed again for this long.
    Release { cooldown: Duration },
    /// A restart cannot help.
    Failed(Arc<Error>),
}

/// The current state.
#[derive(Clone, Debug)]
enum State {
    Adopting,
    Starting,
    Opening,
    Running,
    Stopping { then: Then },
    Waiting { before: Before },
    Parked,
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
    End(Ended),
    Restart,
    Park,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Machine {
    state: State,
    on_failure: OnFailure,
    /// The load-balancing interval. A wait for an unavailable storage is at most this long.
    interval: Duration,
    pub(super) backoff: RestartBackoff,
}

impl Machine {
    pub(super) fn new(on_failure: OnFailure, interval: Duration) -> (Self, Next) {
        let backoff = RestartBackoff::default();
        (Self { state: State::Adopting, on_failure, interval, backoff }, Next::Adopt)
    }

    pub(super) fn step(&mut self, happened: Happened) -> Next {
        let (state, next) = match (std::mem::replace(&mut self.state, State::Ended), happened) {
            (State::Stopping { then }, _) => self.after_stopped(then),
            (state, Happened::Stop(reason)) if state.has_started() => {
                stopping(reason.clone(), Then::End(Ended::Stopped(reason)))
            }
            (_, Happened::Stop(reason)) => ended(Ended::Stopped(reason)),
            (State::Adopting, Happened::Done) => (State::Starting, Next::Start),
            (State::Starting | State::Waiting { before: Before::Opening }, Happened::Done) => {
                (State::Opening, Next::Open)
            }
            (State::Opening | State::Running, Happened::Done) => (State::Running, Next::Run),
            (State::Waiting { before: Before::Adopting } | State::Parked, Happened::Done) => {
                (State::Adopting, Next::Adopt)
            }
            (state, Happened::Failed(error)) if state.has_started() => self.link_failed(error),
            (state, Happened::HandlerFailed(error)) if state.has_started() => self.handler_failed(error),
            (State::Ended, _) => return Next::End(Ended::Stopped(StopReason::Shutdown)),
            (_, Happened::Reopen) => (State::Opening, Next::Open),
            (_, Happened::Failed(error)) => self.not_adopted(error),
            // The handler could not choose the start, so there is nothing to stop.
            (_, Happened::HandlerFailed(_)) => self.after_stopped(self.after_failure()),
        };
        self.state = state;
        next
    }

    fn wait(&mut self, before: Before, error: &Error) -> (State, Next) {
        use ErrorKind as K;
        let wait = match error.kind() {
            // The storage returns these kinds. An event hub that fails or does not respond is another kind.
            K::Indeterminate | K::Unavailable => {
                self.backoff.next_between(Duration::ZERO, self.interval.min(LONGEST_WAIT))
            }
            // An adoption takes three requests, so it is attempted a third as often.
            K::Throttled { retry_after } => {
                let longest = (3 * self.interval).min(2 * LONGEST_WAIT);
                self.backoff.next_between(retry_after.unwrap_or_default(), longest)
            }
            _ => self.backoff.next(),
        };
        (State::Waiting { before }, Next::Wait(wait))
    }

    fn not_adopted(&mut self, error: Arc<Error>) -> (State, Next) {
        if matches!(error.kind(), ErrorKind::Config | ErrorKind::Contended) {
            return ended(Ended::Failed(error));
        }
        self.wait(Before::Adopting, &error)
    }

    fn link_failed(&mut self, error: Arc<Error>) -> (State, Next) {
        let failed = StopReason::Failed { error: Arc::clone(&error) };
        match error.kind() {
            ErrorKind::Config => stopping(failed, Then::End(Ended::Failed(error))),
            // The start must be determined again, or the checkpoint was written in the meantime.
            ErrorKind::InvalidPosition | ErrorKind::Conflict => stopping(failed, Then::Restart),
            _ => self.wait(Before::Opening, &error),
        }
    }

    fn handler_failed(&mut self, error: Arc<Error>) -> (State, Next) {
        stopping(StopReason::Failed { error }, self.after_failure())
    }

    fn after_failure(&self) -> Then {
        match self.on_failure {
            OnFailure::Restart => Then::Restart,
            OnFailure::Release { cooldown } => Then::End(Ended::Release { cooldown }),
            OnFailure::Park => Then::Park,
        }
    }

    fn after_stopped(&mut self, then: Then) -> (State, Next) {
        match then {
            Then::End(how) => ended(how),
            Then::Restart => (State::Waiting { before: Before::Adopting }, Next::Wait(self.backoff.next())),
            Then::Park => (State::Parked, Next::Park),
        }
    }
}

impl State {
    /// Returns whether `started` was called and `stopped` was not.
    fn has_started(&self) -> bool {
        matches!(self, Self::Starting | Self::Opening | Self::Running | Self::Waiting { before: Before::Opening })
    }
}

fn stopping(reason: StopReason, then: Then) -> (State, Next) {
    (State::Stopping { then }, Next::Stop(reason))
}

fn ended(how: Ended) -> (State, Next) {
    (State::Ended, Next::End(how))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOLDOWN: Duration = Duration::from_secs(7);
    const INTERVAL: Duration = Duration::from_secs(10);

    fn error(kind: ErrorKind) -> Arc<Error> {
        Arc::new(Error::new(kind, "broken"))
    }

    fn lost() -> StopReason {
        StopReason::OwnershipLost { by: None }
    }

    /// Returns the possible outcomes of a step.
    fn outcomes(of: &Next) -> Vec<Happened> {
        let failures = [ErrorKind::EventSource, ErrorKind::Config, ErrorKind::Contended, ErrorKind::InvalidPosition];
        let failed = failures.map(|kind| Happened::Failed(error(kind)));
        let handler_failed = Happened::HandlerFailed(error(ErrorKind::Handler));
        let stop = [Happened::Stop(StopReason::Shutdown), Happened::Stop(lost())];
        let mut outcomes = match of {
            Next::End(_) => return Vec::new(),
            Next::Stop(_) => return vec![Happened::Done],
            Next::Adopt | Next::Open => [Happened::Done].into_iter().chain(failed).collect(),
            Next::Start => vec![Happened::Done, handler_failed],
            Next::Run => failed.into_iter().chain([handler_failed, Happened::Reopen]).collect(),
            Next::Wait(_) | Next::Park => vec![Happened::Done],
        };
        outcomes.extend(stop);
        outcomes
    }

    /// Explores all sequences of outcomes up to this depth. Returns their number.
    fn explore(policy: OnFailure, past: &mut Vec<Happened>, depth: usize) -> usize {
        let (mut machine, mut next) = Machine::new(policy, INTERVAL);
        let (mut started, mut opened) = (false, false);
        for happened in past.iter() {
            next = machine.step(happened.clone());
            match &next {
                Next::Start => assert!(!std::mem::replace(&mut started, true), "started twice: {past:?}"),
                Next::Stop(_) => assert!(std::mem::replace(&mut started, false), "stopped, not started: {past:?}"),
                Next::Open | Next::Run => assert!(started, "reads outside of started and stopped: {past:?}"),
                Next::Adopt | Next::Park | Next::End(_) => assert!(!started, "never stopped: {past:?}"),
                Next::Wait(_) => {}
            }
            match &next {
                Next::Run => assert!(opened, "reads without a link: {past:?}"),
                Next::Open => opened = true,
                _ => opened = false,
            }
        }
        if depth == 0 || matches!(next, Next::End(_)) {
            return 1;
        }
        let mut ways = 0;
        for happened in outcomes(&next) {
            past.push(happened);
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
    fn after(policy: OnFailure, past: impl IntoIterator<Item = Happened>) -> Vec<Next> {
        let (mut machine, first) = Machine::new(policy, INTERVAL);
        [first].into_iter().chain(past.into_iter().map(|happened| machine.step(happened))).collect()
    }

    fn running() -> Vec<Happened> {
        vec![Happened::Done; 3]
    }

    #[test]
    fn a_failed_link_is_reopened_within_the_same_start() {
        let past = running().into_iter().chain([Happened::Failed(error(ErrorKind::EventSource)), Happened::Done]);
        let steps = after(OnFailure::Park, past);
        assert!(
            matches!(steps[..], [Next::Adopt, Next::Start, Next::Open, Next::Run, Next::Wait(_), Next::Open]),
            "{steps:?}"
        );
    }

    #[test]
    fn the_policy_decides_after_a_handler_failure() {
        let failure =
            || running().into_iter().chain([Happened::HandlerFailed(error(ErrorKind::Handler)), Happened::Done]);
        let restarted = after(OnFailure::Restart, failure().chain([Happened::Done]));
        assert!(matches!(restarted[4..], [Next::Stop(_), Next::Wait(_), Next::Adopt]), "{restarted:?}");
        let released = after(OnFailure::Release { cooldown: COOLDOWN }, failure());
        assert!(matches!(released[5], Next::End(Ended::Release { cooldown: COOLDOWN })), "{released:?}");
        let parked = after(OnFailure::Park, failure().chain([Happened::Done]));
        assert!(matches!(parked[5..], [Next::Park, Next::Adopt]), "{parked:?}");
    }

    mod waits {
        use super::*;

        #[test]
        fn waits_for_an_unavailable_storage_are_shorter() {
            for (kind, longest) in [(ErrorKind::Unavailable, 10), (ErrorKind::EventSource, 30)] {
                for prefix in [Vec::new(), running()] {
                    let failures = (0..12).flat_map(|_| [Happened::Failed(error(kind)), Happened::Done]);
                    let steps = after(OnFailure::Restart, prefix.into_iter().chain(failures));
                    let waits: Vec<_> = steps.iter().filter_map(Next::wait).collect();
                    assert_eq!(waits.len(), 12, "{steps:?}");
                    assert!(waits.is_sorted() && waits[0] < Duration::from_secs(1), "{waits:?}");
                    assert_eq!(waits[11], Duration::from_secs(longest), "{kind:?}");
                }
            }
        }

        #[test]
        fn waits_for_a_throttling_storage_are_longer() {
            let throttled = ErrorKind::Throttled { retry_after: Some(Duration::from_secs(3)) };
            let failures = (0..6).flat_map(|_| [Happened::Failed(error(throttled)), Happened::Done]);
            let waits: Vec<_> = after(OnFailure::Restart, failures).iter().filter_map(Next::wait).collect();
            assert_eq!(waits, [4, 8, 16, 30, 30, 30].map(Duration::from_secs), "at least 3 s, also with jitter");
        }
    }

    #[test]
    fn an_error_that_no_restart_can_fix_ends_the_task() {
        for kind in [ErrorKind::Config, ErrorKind::Contended] {
            let steps = after(OnFailure::Restart, [Happened::Failed(error(kind))]);
            assert!(matches!(steps[1], Next::End(Ended::Failed(_))), "{kind:?}: {steps:?}");
        }
        let past = running().into_iter().chain([Happened::Failed(error(ErrorKind::Config)), Happened::Done]);
        let steps = after(OnFailure::Restart, past);
        assert!(matches!(steps[4..], [Next::Stop(_), Next::End(Ended::Failed(_))]), "{steps:?}");
    }

    #[test]
    fn a_rejected_position_determines_the_start_again() {
        let past = running().into_iter().chain([Happened::Failed(error(ErrorKind::InvalidPosition)), Happened::Done]);
        let steps = after(OnFailure::Park, past.chain([Happened::Done]));
        assert!(matches!(steps[4..], [Next::Stop(_), Next::Wait(_), Next::Adopt]), "{steps:?}");
    }
}
