//! Reset: whatever goes wrong, what is reported is true.
//!
//! A reset of a partition that `a` owns makes six requests that matter: it claims, reads the checkpoint, verifies that
//! the ownership is its own, adopts, writes the position, and releases.

use std::time::Duration;

use eventhubs_checkpoint::admin::Operator;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use futures::future::join_all;
use tokio::join;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::reset::{NEW, OLD, impatient, reset, running};
use crate::bench::{Adopted, Bench, EXPIRY, Owner, Said, checkpoint, ownership};

/// A request of a reset: how many such requests come before it is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Claim,
    ReadCheckpoint,
    Verify,
    Adopt,
    Write,
    Release,
}

use Step::{Adopt, Claim, ReadCheckpoint, Release, Verify, Write};

const STEPS: [Step; 6] = [Claim, ReadCheckpoint, Verify, Adopt, Write, Release];

impl Step {
    fn request(self, partition: u32) -> (BlobOperation, String, usize) {
        match self {
            Claim => (BlobOperation::Write, ownership(partition), 1),
            ReadCheckpoint => (BlobOperation::Get, checkpoint(partition), 1),
            Verify => (BlobOperation::Get, ownership(partition), 1),
            Adopt => (BlobOperation::Write, checkpoint(partition), 1),
            Write => (BlobOperation::Write, checkpoint(partition), 2),
            Release => (BlobOperation::Write, ownership(partition), 2),
        }
    }

    /// Lets this request meet a fault.
    fn meets(self, operator: &Owner<Operator>, partition: u32, fault: Fault) {
        let (operation, name, nth) = self.request(partition);
        let target = || Target::from(operation).named(&name);
        for _ in 1..nth {
            operator.faulty.inject_on(target(), Fault::Latency(Duration::ZERO));
        }
        operator.faulty.inject_on(target(), fault);
    }

    /// Does this after the request, before its answer is used.
    fn then(self, operator: &Owner<Operator>, partition: u32, what: impl Future<Output = ()> + Send + 'static) {
        let (operation, name, nth) = self.request(partition);
        operator.wire().after_nth(nth, operation, &name, what);
    }
}

/// Long enough for every late request to have arrived.
const LATE: Duration = Duration::from_millis(100);

/// That what was reported is so, and stays so.
async fn assert_true(bench: &Bench, partition: u32, said: &str, case: &str) {
    sleep(2 * LATE).await;
    let stored = bench.position_of(partition).await;
    let expected: &[i64] = match said {
        "done" | "unsure, written" => &[NEW],
        "unsure" => &[OLD, NEW],
        _ => &[OLD],
    };
    assert!(expected.contains(&stored), "{case}: {said}, but the checkpoint is at {stored}");
}

/// Whether `a` starts there, and cannot undo it.
async fn assert_returned(a: &Owner, partition: u32, case: &str) {
    a.take(partition).await;
    let adoption = a.adopt(partition, Some(-1)).await.adoption();
    assert_eq!(adoption.record().sequence_number, Some(NEW), "{case}");
}

/// One fault at one request costs nothing.
pub async fn reset_outlives_one_fault_at_each_request(bench: Bench) {
    let faults = [
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(LATE / 20),
        Fault::AppliedLate(LATE),
        Fault::Conflict,
        Fault::Unreachable,
        Fault::Throttled { retry_after: Some(Duration::from_millis(20)) },
    ];
    let cases = STEPS.into_iter().flat_map(|step| faults.iter().map(move |fault| (step, fault)));
    join_all((0..).zip(cases).map(|(partition, (step, fault))| outlives(&bench, partition, step, fault))).await;
}

async fn outlives(bench: &Bench, partition: u32, step: Step, fault: &Fault) {
    let operator = bench.operator("o", impatient).await;
    let (a, mut before) = running(bench, partition).await;
    step.meets(&operator, partition, fault.clone());
    let case = format!("{fault:?} at {step:?}");
    let said = reset(&operator, partition, NEW).await.said();
    assert_eq!(said, "done", "{case}");
    assert_true(bench, partition, &said, &case).await;
    assert_eq!(bench.owner_of(partition).await, "", "{case}");
    assert_eq!(bench.read(&ownership(partition)).await["handoffto"], "a", "{case}");
    assert_eq!(a.checkpoint(&mut before, OLD + 1).await.said(), "fenced by nobody", "{case}");
    assert_returned(&a, partition, &case).await;
}

/// Where nothing is adopted, nothing is fenced: the first checkpoint is created.
pub async fn reset_outlives_one_fault_at_a_first_checkpoint(bench: Bench) {
    for (partition, fault) in (0..).zip([
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(LATE),
        Fault::Conflict,
        Fault::Unreachable,
    ]) {
        let (a, operator) = (bench.owner("a").await, bench.operator("o", impatient).await);
        a.claim(partition).await;
        operator.next_write(&checkpoint(partition), fault.clone());
        let said = reset(&operator, partition, NEW).await.said();
        assert_eq!(said, "done", "{fault:?}");
        assert_true(&bench, partition, &said, &format!("{fault:?}")).await;
        assert_returned(&a, partition, &format!("{fault:?}")).await;
    }
}

/// From one request on, all fail as this one does: with this request applied or not.
pub async fn reset_that_is_cut_off_reports_what_is_so(bench: Bench) {
    use Fault::{RequestLost, ResponseLost, Unreachable};
    let cases = [
        (Claim, Unreachable, "failed: Unavailable"),
        (Claim, RequestLost, "failed: Unavailable"),
        (Claim, ResponseLost, "failed: Unavailable"),
        (ReadCheckpoint, Unreachable, "failed: Unavailable"),
        (Verify, Unreachable, "failed: Unavailable"),
        (Adopt, Unreachable, "failed: Unavailable"),
        (Adopt, RequestLost, "failed: Unavailable"),
        (Adopt, ResponseLost, "failed: Unavailable"),
        (Write, Unreachable, "failed: Unavailable"),
        (Write, RequestLost, "unsure"),
        (Write, ResponseLost, "unsure"),
        (Write, Fault::AppliedLate(LATE), "unsure"),
        (Release, Unreachable, "unsure, written"),
        (Release, RequestLost, "unsure, written"),
        (Release, ResponseLost, "unsure, written"),
    ];
    join_all((0..).zip(cases).map(|(partition, case)| reports(&bench, partition, case))).await;
}

async fn reports(bench: &Bench, partition: u32, (step, fault, expected): (Step, Fault, &str)) {
    let operator = bench.operator("o", impatient).await;
    let (a, _) = running(bench, partition).await;
    step.meets(&operator, partition, fault.clone());
    let cut_off = operator.clone();
    step.then(&operator, partition, async move { cut_off.cut_off(Target::any()) });
    let case = format!("{fault:?} at {step:?}");
    let said = reset(&operator, partition, NEW).await.said();
    assert_eq!(said, expected, "{case}");
    assert_true(bench, partition, &said, &case).await;
    // The next operator finds what this one has left.
    let next = bench.operator("p", impatient).await;
    next.wire().age(&ownership(partition), EXPIRY + 2);
    assert_eq!(reset(&next, partition, NEW).await.said(), "done", "{case}");
    assert_returned(&a, partition, &case).await;
}

/// Another owner of ours takes the partition after a request. It adopts at once, or only when the operator is done.
pub async fn reset_that_is_overtaken_reports_what_is_so(bench: Bench) {
    let mut partition = 0;
    for step in STEPS {
        for at_once in [false, true] {
            let operator = bench.operator("o", impatient).await;
            let (a, _) = running(&bench, partition).await;
            let thief = bench.owner("b").await;
            let b = thief.clone();
            step.then(&operator, partition, async move {
                thief.take(partition).await;
                if at_once {
                    thief.adopt(partition, None).await.adoption();
                }
            });
            let case = format!("after {step:?}, adopted at once: {at_once}");
            let said = reset(&operator, partition, NEW).await.said();
            let is_before_the_write = step < Adopt || (step == Adopt && at_once);
            let is_done = ["done", "unsure, written"].contains(&said.as_str());
            assert_eq!(said == "lost to b" && is_before_the_write, !is_done, "{case}: {said}");
            assert_true(&bench, partition, &said, &case).await;
            assert_eq!(bench.owner_of(partition).await, "b", "{case}");
            let stored = bench.position_of(partition).await;
            let mut of_b = b.adopt(partition, None).await.adoption();
            assert_eq!(of_b.record().sequence_number, Some(stored), "{case}");
            assert_eq!(b.checkpoint(&mut of_b, OLD + 5).await.said(), "written", "{case}");
            assert_eq!(a.adopt(partition, None).await.said(), "lost to b", "{case}");
            partition += 1;
        }
    }
}

/// A write of the position without an answer arrives when another owner has the partition, or never.
pub async fn reset_lost_with_a_write_in_doubt_is_unsure(bench: Bench) {
    let faults = [Fault::RequestLost, Fault::ResponseLost, Fault::AppliedLate(LATE)];
    for (partition, fault) in (0..).zip(faults) {
        let operator = bench.operator("o", impatient).await;
        running(&bench, partition).await;
        let b = bench.owner("b").await;
        Write.meets(&operator, partition, fault.clone());
        let thief = b.clone();
        Write.then(&operator, partition, async move {
            thief.take(partition).await;
        });
        assert_eq!(reset(&operator, partition, NEW).await.said(), "unsure", "{fault:?}");
        sleep(2 * LATE).await;
        let of_b = b.adopt(partition, None).await.adoption();
        let expected = if fault == Fault::RequestLost { OLD } else { NEW };
        assert_eq!(of_b.record().sequence_number, Some(expected), "{fault:?}");
    }
}

/// The next adoption decides: what arrives after it changes nothing.
pub async fn reset_in_doubt_is_decided_by_the_next_adoption(bench: Bench) {
    let operator = bench.operator("o", impatient).await;
    running(&bench, 0).await;
    let b = bench.owner("b").await;
    Write.meets(&operator, 0, Fault::AppliedLate(3 * LATE));
    let thief = b.clone();
    Write.then(&operator, 0, async move {
        thief.take(0).await;
        thief.adopt(0, None).await.adoption();
    });
    assert_eq!(reset(&operator, 0, NEW).await.said(), "unsure");
    sleep(4 * LATE).await;
    assert_eq!(bench.position_of(0).await, OLD);
}

/// It renews before the operator claims: the operator looks again.
pub async fn reset_over_a_record_that_was_renewed_looks_again(bench: Bench) {
    for (renewals, expected) in [(1, "done"), (2, "done"), (3, "lost to a")] {
        let operator = bench.operator("o", impatient).await;
        running(&bench, renewals).await;
        for _ in 0..renewals {
            let owner = bench.read(&ownership(renewals)).await;
            operator.next_write(&ownership(renewals), Fault::ConcurrentWrite(owner));
        }
        let said = reset(&operator, renewals, NEW).await.said();
        assert_eq!(said, expected);
        assert_true(&bench, renewals, &said, &format!("{renewals} renewals")).await;
    }
}

/// Between the listing and the claim its owner writes a checkpoint and releases it.
pub async fn reset_over_what_was_released_meanwhile_is_done(bench: Bench) {
    let operator = bench.operator("o", impatient).await;
    let a = bench.owner("a").await;
    let (lease, mut adoption) = a.run(0).await;
    operator.wire().after(BlobOperation::List, "heartbeat/", async move {
        assert_eq!(a.checkpoint(&mut adoption, OLD).await.said(), "written");
        assert_eq!(a.release(&lease).await.said(), "released");
    });
    assert_eq!(reset(&operator, 0, NEW).await.said(), "done");
    assert_eq!(bench.read(&ownership(0)).await.get("handoffto"), None);
    assert_eq!(bench.position_of(0).await, NEW);
}

/// Two operators at once, to two positions.
pub async fn reset_of_two_at_once_reports_what_is_so(bench: Bench) {
    for partition in 0..bench.rounds {
        let (o, p) = (bench.operator("o", impatient).await, bench.operator("p", impatient).await);
        let (a, mut before) = running(&bench, partition).await;
        o.dawdle();
        p.dawdle();
        let (of_o, of_p) = join!(reset(&o, partition, 1), reset(&p, partition, 2));
        let said = [of_o.said(), of_p.said()];
        let is_done: Vec<_> = said.iter().map(|said| said == "done").collect();
        let stored = bench.position_of(partition).await;
        match is_done[..] {
            [true, false] => assert_eq!(stored, 1, "{said:?}"),
            [false, true] => assert_eq!(stored, 2, "{said:?}"),
            // One after the other.
            [true, true] => assert!([1, 2].contains(&stored), "{said:?}"),
            _ => panic!("{said:?}"),
        }
        let refused = |said: &str| said.starts_with("lost to ") || said.starts_with("busy: ");
        assert!(said.iter().all(|said| said == "done" || refused(said)), "{said:?}");
        assert_eq!(bench.read(&ownership(partition)).await["handoffto"], "a", "{said:?}");
        assert_eq!(a.checkpoint(&mut before, OLD + 1).await.said(), "fenced by nobody");
    }
}

/// The later one steals from the first, whose record it takes for an expired one, after each of its requests.
pub async fn reset_by_two_that_overlap_reports_what_is_so(bench: Bench) {
    for (partition, step) in (0..).zip(STEPS) {
        let (o, p) = (bench.operator("o", impatient).await, bench.operator("p", impatient).await);
        running(&bench, partition).await;
        p.wire().age(&ownership(partition), EXPIRY + 2);
        let (sender, receiver) = oneshot::channel();
        step.then(&o, partition, async move {
            sender.send(reset(&p, partition, NEW - 1).await.said()).unwrap();
        });
        let first = reset(&o, partition, NEW).await.said();
        assert_eq!(receiver.await.unwrap(), "done", "after {step:?}");
        let is_refused = first == "lost to nobody";
        let is_done = ["done", "unsure, written"].contains(&first.as_str());
        assert!(if step < Write { is_refused } else { is_done }, "after {step:?}: {first}");
        assert_eq!(bench.position_of(partition).await, NEW - 1, "after {step:?}: it was the last one");
        let inherited = bench.read(&ownership(partition)).await.get("handoffto").cloned();
        // By its clock the reservation was over when it came after the release.
        let expected = if step == Release { None } else { Some("a".to_owned()) };
        assert_eq!(inherited, expected, "after {step:?}");
    }
}

/// The operator dies after each of its requests, whatever became of the answer.
pub async fn reset_that_dies_leaves_a_partition_to_claim(bench: Bench) {
    for (partition, step) in (0..).zip(STEPS) {
        let operator = bench.operator("o", impatient).await;
        let (a, mut before) = running(&bench, partition).await;
        let (sender, receiver) = oneshot::channel();
        step.then(&operator, partition, async move {
            sender.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let dying = operator.clone();
        let task = tokio::spawn(async move { reset(&dying, partition, NEW).await.said() });
        receiver.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "after {step:?}");
        let stored = bench.position_of(partition).await;
        assert_eq!(stored, if step < Write { OLD } else { NEW }, "after {step:?}");
        // It counts as abandoned like any owner.
        let listed = a.store.list_ownerships().await.unwrap().records;
        let left = listed.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
        assert_eq!(left.record.owner.is_none(), step == Release, "after {step:?}");
        let lives = |age| a.store.lease_durations().counts_as_live(&left.record, Duration::from_secs(age));
        assert_eq!((lives(61), lives(62)), (step != Release, false), "after {step:?}");
        // The displaced owner is fenced by an adoption, whether that was the operator's or its successor's.
        let late = a.checkpoint(&mut before, OLD + 1).await.said();
        assert_eq!(late == "written", step < Adopt, "after {step:?}: {late}");
        let stored = if late == "written" { OLD + 1 } else { stored };
        a.take(partition).await;
        let adoption = a.adopt(partition, None).await.adoption();
        assert_eq!(adoption.record().sequence_number, Some(stored), "after {step:?}");
        assert!(a.checkpoint(&mut before, OLD + 2).await.said().starts_with("fenced by "), "after {step:?}");
    }
}
