//! Resets by an operator.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "reset-unlimited",
        fault: "a reset replaces a checkpoint that is not the expected one",
        file: "src/admin/session.rs",
        find: "        if !is_written && !order.expected.may_replace(found, self.displaced.as_ref()) {",
        replace: "        if !MUTANT && !is_written && !order.expected.may_replace(found, self.displaced.as_ref()) {",
    },
    Mutant {
        name: "reset-without-waiting",
        fault: "a reset does not wait for owners of other SDKs",
        file: "src/admin/takeover.rs",
        find: "        settle: foreign.is_some() || displaces_foreign || may_be_foreign,",
        replace: "        settle: !MUTANT && (foreign.is_some() || displaces_foreign || may_be_foreign),",
    },
    Mutant {
        name: "reset-of-live-foreign",
        fault: "a reset forgets that the group has a live owner of another SDK",
        file: "src/admin/takeover.rs",
        find: "    let foreign = foreign_owner(view);",
        replace: "    let foreign = foreign_owner(view).filter(|_| !MUTANT);",
    },
    Mutant {
        name: "reset-certain",
        fault: "a reset whose outcome is unknown counts as not done",
        file: "src/admin/session.rs",
        find: "let in_doubt = step == ResetStep::Write && may_be_applied(error);",
        replace: "let in_doubt = step == ResetStep::Write && may_be_applied(error) && !MUTANT;",
    },
    Mutant {
        name: "reset-before-release",
        fault: "a reset is done although the release failed",
        file: "src/admin/reset_steps.rs",
        find: "            (ResetStep::Release { completed: true }, StepEnd::Lost | StepEnd::GivenUp { .. }) => {",
        replace: "            (ResetStep::Release { completed: true }, StepEnd::Lost) if MUTANT => {
                return ControlFlow::Break(ResetReport::Done);
            }
            (ResetStep::Release { completed: true }, StepEnd::Lost | StepEnd::GivenUp { .. }) => {",
    },
    Mutant {
        name: "reset-keeps-partition",
        fault: "an operator does not return the partition to the owner before the operator before it",
        file: "src/admin/takeover.rs",
        find: "        Some(seen) => seen.record.handoff_to.clone(),",
        replace: "        Some(seen) => seen.record.handoff_to.clone().filter(|_| !MUTANT),",
    },
    Mutant {
        name: "operators-collide",
        fault: "an operator takes a partition from another operator",
        file: "src/admin/takeover.rs",
        find: "        && entry.is_owned_by_operator()
    {",
        replace: "        && entry.is_owned_by_operator()
        && !MUTANT
    {",
    },
    Mutant {
        name: "lease-not-held",
        fault: "an operator does not renew its lease while it waits",
        file: "src/admin/session.rs",
        find: "            match self.store.renew(lease).await {",
        replace: "            if MUTANT {
                continue;
            }
            match self.store.renew(lease).await {",
    },
];
