//! What an operator does next with one partition, decided without I/O.
//!
//! A reset takes the partition over, adopts its checkpoint, holds the partition until owners of other SDKs have
//! noticed, writes the position, and releases the partition. It is done only if the release was written, too.

use std::ops::ControlFlow;

/// What an operator wants with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To reset its checkpoint. The partition is then reserved for its owner.
    Reset,
    /// To release it, for any member.
    Release,
}

/// The next step of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetStep {
    /// To list the group, and to claim the partition.
    TakeOver,
    /// To adopt the checkpoint, and to check that it is the expected one.
    Adopt,
    /// To hold the partition until owners of other SDKs have detected that they lost it.
    Hold,
    /// To write the position, under the version of the adoption.
    Write,
    /// To release the partition, after the work on it was `completed` or given up.
    Release { completed: bool },
}

impl ResetStep {
    /// Returns whether something else begins with this step than what the step before was for.
    pub(super) fn begins_phase_after(self, before: Self) -> bool {
        !matches!(
            (before, self),
            (Self::TakeOver, Self::TakeOver)
                | (Self::Adopt | Self::Hold | Self::Write, Self::Adopt | Self::Hold | Self::Write)
                | (Self::Release { .. }, Self::Release { .. })
        )
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepEnd {
    Done,
    /// Another owner has the partition.
    Lost,
    /// It failed, and is tried again. If it is `in_doubt`, it may have taken effect nevertheless.
    Failed {
        in_doubt: bool,
    },
    /// It must not be done, or it failed and is not tried again.
    GivenUp {
        in_doubt: bool,
    },
}

/// What the operator reports in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReport {
    Done,
    NotDone,
    /// If it was `written`, only the release is in doubt.
    Indeterminate {
        written: bool,
    },
}

/// How far an operator is with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResetProgress {
    pub purpose: Purpose,
    pub step: ResetStep,
    /// Whether owners of other SDKs may still write the checkpoint for a while.
    pub must_hold: bool,
    /// Whether the outcome of a write of the position is unknown.
    pub in_doubt: bool,
}

impl ResetProgress {
    pub fn new(purpose: Purpose) -> Self {
        Self { purpose, step: ResetStep::TakeOver, must_hold: false, in_doubt: false }
    }

    /// Returns how it continues after a step, or the report. Until the position was written, every step after the
    /// takeover begins again with an adoption, because only that finds out what is recorded.
    pub fn after_step(self, end: StepEnd) -> ControlFlow<ResetReport, Self> {
        let next = match (self.step, end) {
            (ResetStep::Release { completed: true }, StepEnd::Done) => return ControlFlow::Break(ResetReport::Done),
            (ResetStep::Release { completed: true }, StepEnd::Lost | StepEnd::GivenUp { .. }) => {
                return ControlFlow::Break(ResetReport::Indeterminate { written: true });
            }
            (ResetStep::TakeOver | ResetStep::Release { .. }, StepEnd::Failed { .. })
            | (ResetStep::TakeOver, StepEnd::Lost) => self.step,
            // The release of what was given up changes nothing about the position.
            (ResetStep::Release { completed: false }, _)
            | (ResetStep::TakeOver, StepEnd::GivenUp { .. })
            | (ResetStep::Adopt | ResetStep::Hold | ResetStep::Write, StepEnd::Lost) => {
                return ControlFlow::Break(if self.in_doubt {
                    ResetReport::Indeterminate { written: false }
                } else {
                    ResetReport::NotDone
                });
            }
            (ResetStep::TakeOver, StepEnd::Done) if self.purpose == Purpose::Release => {
                ResetStep::Release { completed: true }
            }
            (ResetStep::TakeOver, StepEnd::Done)
            | (ResetStep::Adopt | ResetStep::Hold | ResetStep::Write, StepEnd::Failed { .. }) => ResetStep::Adopt,
            (ResetStep::Adopt, StepEnd::Done) if self.must_hold => ResetStep::Hold,
            (ResetStep::Adopt | ResetStep::Hold, StepEnd::Done) => ResetStep::Write,
            (ResetStep::Write, StepEnd::Done) => ResetStep::Release { completed: true },
            (ResetStep::Adopt | ResetStep::Hold | ResetStep::Write, StepEnd::GivenUp { .. }) => {
                ResetStep::Release { completed: false }
            }
        };
        let in_doubt = matches!(end, StepEnd::Failed { in_doubt: true } | StepEnd::GivenUp { in_doubt: true });
        ControlFlow::Continue(Self { step: next, in_doubt: self.in_doubt || in_doubt, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: StepEnd = StepEnd::Failed { in_doubt: false };
    const IN_DOUBT: StepEnd = StepEnd::Failed { in_doubt: true };
    const GIVEN_UP: StepEnd = StepEnd::GivenUp { in_doubt: false };

    fn at(step: ResetStep) -> ResetProgress {
        ResetProgress { step, ..ResetProgress::new(Purpose::Reset) }
    }

    /// Returns the step after these ends, or the report.
    fn run(progress: ResetProgress, ends: &[StepEnd]) -> ControlFlow<ResetReport, ResetStep> {
        ends.iter().try_fold(progress, |progress, end| progress.after_step(*end)).map_continue(|progress| progress.step)
    }

    #[test]
    fn a_reset_is_done_when_the_release_is_written() {
        let start = ResetProgress::new(Purpose::Reset);
        assert_eq!(run(start, &[StepEnd::Done; 3]), ControlFlow::Continue(ResetStep::Release { completed: true }));
        assert_eq!(run(start, &[StepEnd::Done; 4]), ControlFlow::Break(ResetReport::Done));
        let holds = ResetProgress { must_hold: true, ..start };
        assert_eq!(run(holds, &[StepEnd::Done; 2]), ControlFlow::Continue(ResetStep::Hold));
        assert_eq!(run(holds, &[StepEnd::Done; 5]), ControlFlow::Break(ResetReport::Done));
    }

    #[test]
    fn a_release_writes_no_position() {
        let start = ResetProgress::new(Purpose::Release);
        assert_eq!(run(start, &[StepEnd::Done]), ControlFlow::Continue(ResetStep::Release { completed: true }));
        assert_eq!(run(start, &[StepEnd::Done; 2]), ControlFlow::Break(ResetReport::Done));
    }

    #[test]
    fn a_failure_before_the_write_adopts_again() {
        for step in [ResetStep::Adopt, ResetStep::Hold, ResetStep::Write] {
            assert_eq!(run(at(step), &[FAILED]), ControlFlow::Continue(ResetStep::Adopt), "{step:?}");
            assert_eq!(run(at(step), &[FAILED, StepEnd::Done]), ControlFlow::Continue(ResetStep::Write), "{step:?}");
        }
        for step in [ResetStep::TakeOver, ResetStep::Release { completed: true }] {
            assert_eq!(run(at(step), &[FAILED]), ControlFlow::Continue(step));
        }
    }

    #[test]
    fn a_lost_partition_ends_a_reset_that_had_it() {
        for step in [ResetStep::Adopt, ResetStep::Hold, ResetStep::Write] {
            assert_eq!(run(at(step), &[StepEnd::Lost]), ControlFlow::Break(ResetReport::NotDone), "{step:?}");
        }
        assert_eq!(run(at(ResetStep::TakeOver), &[StepEnd::Lost]), ControlFlow::Continue(ResetStep::TakeOver));
    }

    #[test]
    fn a_partition_that_was_taken_over_is_released() {
        for step in [ResetStep::Adopt, ResetStep::Hold, ResetStep::Write] {
            let released = run(at(step), &[GIVEN_UP]);
            assert_eq!(released, ControlFlow::Continue(ResetStep::Release { completed: false }), "{step:?}");
        }
        assert_eq!(run(at(ResetStep::TakeOver), &[GIVEN_UP]), ControlFlow::Break(ResetReport::NotDone));
    }

    #[test]
    fn a_write_without_a_response_stays_in_doubt() {
        let unknown = ControlFlow::Break(ResetReport::Indeterminate { written: false });
        assert_eq!(run(at(ResetStep::Write), &[IN_DOUBT, StepEnd::Lost]), unknown);
        for end in [StepEnd::Done, StepEnd::Lost, GIVEN_UP] {
            assert_eq!(run(at(ResetStep::Write), &[IN_DOUBT, GIVEN_UP, end]), unknown, "{end:?}");
            let last = run(at(ResetStep::Write), &[StepEnd::GivenUp { in_doubt: true }, end]);
            assert_eq!(last, unknown, "{end:?}");
            let refused = run(at(ResetStep::Write), &[FAILED, GIVEN_UP, end]);
            assert_eq!(refused, ControlFlow::Break(ResetReport::NotDone), "{end:?}");
        }
        let written = run(at(ResetStep::Write), &[IN_DOUBT, StepEnd::Done, StepEnd::Done, StepEnd::Done]);
        assert_eq!(written, ControlFlow::Break(ResetReport::Done), "the next write shows it");
    }

    #[test]
    fn a_release_that_fails_leaves_the_reset_in_doubt() {
        let release = at(ResetStep::Release { completed: true });
        for end in [StepEnd::Lost, GIVEN_UP] {
            assert_eq!(run(release, &[end]), ControlFlow::Break(ResetReport::Indeterminate { written: true }));
        }
    }
}
