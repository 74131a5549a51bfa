//! Reset with faults: every report is true.
//!
//! A reset of a partition that `a` owns makes six relevant requests: it claims, reads the checkpoint, verifies that the
//! ownership is its own, adopts, writes the position, and releases.

use std::time::Duration;

use eventhubs_checkpoint::admin::Operator;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, Target};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use tokio::join;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::reset::{NEW, OLD, quick_retries, reset, reset_at_once, running};
use crate::bench::{Adopted, Bench, Describe, EXPIRY, Owner, checkpoint, ownership};

/// A request of a reset: the number is how many similar requests precede it.
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

    /// Injects this fault into the request.
    fn inject(self, operator: &Owner<Operator>, partition: u32, fault: Fault) {
        let (operation, name, nth) = self.request(partition);
        let target = || Target::from(operation).named(&name);
        for _ in 1..nth {
            operator.faulty.inject_on(target(), Fault::Latency(Duration::ZERO));
        }
        operator.faulty.inject_on(target(), fault);
    }

    /// Does this after the request, before its response is used.
    fn then(self, operator: &Owner<Operator>, partition: u32, what: impl Future<Output = ()> + Send + 'static) {
        let (operation, name, nth) = self.request(partition);
        operator.wire().after_nth(nth, operation, &name, what);
    }
}

/// Long enough for every late request to have arrived.
const LATE: Duration = Duration::from_millis(100);
/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Checks that the report is true, and stays true.
async fn assert_true(bench: &Bench, partition: u32, reported: &str, case: &str) {
    sleep(2 * LATE).await;
    let stored = bench.position_of(partition).await;
    let expected: &[i64] = match reported {
        "done" | "indeterminate, written" => &[NEW],
        "indeterminate" => &[OLD, NEW],
        _ => &[OLD],
    };
    assert!(expected.contains(&stored), "{case}: {reported}, but the checkpoint is at {stored}");
}

/// Checks that `a` starts there, and cannot undo it.
async fn assert_returned(a: &Owner, partition: u32, case: &str) {
    a.take(partition).await;
    let adoption = a.adopt(partition, Some(-1)).await.adoption();
    assert_eq!(adoption.record().sequence_number, Some(NEW), "{case}");
}

/// One fault at one request does no harm.
pub async fn one_fault_at_each_request(bench: Bench) {
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
    // Not all at once: a busy emulator exceeds the request timeout, which is a fault of its own.
    let cases = stream::iter((0..).zip(cases));
    cases.for_each_concurrent(8, |(partition, (step, fault))| outlives(&bench, partition, step, fault)).await;
}

async fn outlives(bench: &Bench, partition: u32, step: Step, fault: &Fault) {
    let operator = bench.operator("o", quick_retries).await;
    let (a, mut before) = running(bench, partition).await;
    step.inject(&operator, partition, fault.clone());
    let case = format!("{fault:?} at {step:?}");
    let reported = reset(&operator, partition, NEW).await.describe();
    assert_eq!(reported, "done", "{case}");
    assert_true(bench, partition, &reported, &case).await;
    assert_eq!(bench.owner_of(partition).await, "", "{case}");
    assert_eq!(&bench.read(&ownership(partition)).await["ehchandoffto"], "a", "{case}");
    assert_eq!(a.checkpoint(&mut before, OLD + 1).await.describe(), "fenced by no owner", "{case}");
    assert_returned(&a, partition, &case).await;
}

/// If nothing is adopted, nothing is fenced: the first checkpoint is created.
pub async fn one_fault_at_a_first_checkpoint(bench: Bench) {
    for (partition, fault) in (0..).zip([
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::AppliedLate(LATE),
        Fault::Conflict,
        Fault::Unreachable,
    ]) {
        let (a, operator) = (bench.owner("a").await, bench.operator("o", quick_retries).await);
        let _ = a.claim(partition).await;
        operator.next_write(&checkpoint(partition), fault.clone());
        let reported = reset(&operator, partition, NEW).await.describe();
        assert_eq!(reported, "done", "{fault:?}");
        assert_true(&bench, partition, &reported, &format!("{fault:?}")).await;
        assert_returned(&a, partition, &format!("{fault:?}")).await;
    }
}

/// From one request on, all fail like this one: with this request applied or not.
pub async fn a_disconnected_operator_reports_the_truth(bench: Bench) {
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
        (Write, RequestLost, "indeterminate"),
        (Write, ResponseLost, "indeterminate"),
        (Write, Fault::AppliedLate(LATE), "indeterminate"),
        (Release, Unreachable, "indeterminate, written"),
        (Release, RequestLost, "indeterminate, written"),
        (Release, ResponseLost, "indeterminate, written"),
    ];
    join_all((0..).zip(cases).map(|(partition, case)| reports(&bench, partition, case))).await;
}

async fn reports(bench: &Bench, partition: u32, (step, fault, expected): (Step, Fault, &str)) {
    let operator = bench.operator("o", quick_retries).await;
    let (a, _) = running(bench, partition).await;
    step.inject(&operator, partition, fault.clone());
    let cut_off = operator.clone();
    step.then(&operator, partition, async move { cut_off.cut_off(Target::any()) });
    let case = format!("{fault:?} at {step:?}");
    let reported = reset(&operator, partition, NEW).await.describe();
    assert_eq!(reported, expected, "{case}");
    assert_true(bench, partition, &reported, &case).await;
    // The next operator finds the records of this one.
    let next = bench.operator("p", quick_retries).await;
    next.wire().age(&ownership(partition), EXPIRY + 2);
    assert_eq!(reset_at_once(&next, partition, NEW).await.describe(), "done", "{case}");
    assert_returned(&a, partition, &case).await;
}

/// Another owner of this crate takes the partition after a request. It adopts at once, or only when the operator is
/// done.
pub async fn an_overtaken_operator_reports_the_truth(bench: Bench) {
    let mut partition = 0;
    for step in STEPS {
        for at_once in [false, true] {
            let operator = bench.operator("o", quick_retries).await;
            let (a, _) = running(&bench, partition).await;
            let claimer = bench.owner("b").await;
            let b = claimer.clone();
            step.then(&operator, partition, async move {
                claimer.take(partition).await;
                if at_once {
                    claimer.adopt(partition, None).await.adoption();
                }
            });
            let case = format!("after {step:?}, adopted at once: {at_once}");
            let reported = reset(&operator, partition, NEW).await.describe();
            let is_before_the_write = step < Adopt || (step == Adopt && at_once);
            let is_done = ["done", "indeterminate, written"].contains(&reported.as_str());
            assert_eq!(reported == "lost to b" && is_before_the_write, !is_done, "{case}: {reported}");
            assert_true(&bench, partition, &reported, &case).await;
            assert_eq!(bench.owner_of(partition).await, "b", "{case}");
            let stored = bench.position_of(partition).await;
            let mut of_b = b.adopt(partition, None).await.adoption();
            assert_eq!(of_b.record().sequence_number, Some(stored), "{case}");
            assert_eq!(b.checkpoint(&mut of_b, OLD + 5).await.describe(), "written", "{case}");
            assert_eq!(a.adopt(partition, None).await.describe(), "lost to b", "{case}");
            partition += 1;
        }
    }
}

/// A write of the position without a response arrives when another owner has the partition, or never.
pub async fn an_ambiguous_write_before_a_loss_is_reported(bench: Bench) {
    let faults = [Fault::RequestLost, Fault::ResponseLost, Fault::AppliedLate(LATE)];
    for (partition, fault) in (0..).zip(faults) {
        let operator = bench.operator("o", quick_retries).await;
        running(&bench, partition).await;
        let b = bench.owner("b").await;
        Write.inject(&operator, partition, fault.clone());
        let claimer = b.clone();
        Write.then(&operator, partition, async move {
            claimer.take(partition).await;
        });
        assert_eq!(reset(&operator, partition, NEW).await.describe(), "indeterminate", "{fault:?}");
        let expected = if fault == Fault::RequestLost { OLD } else { NEW };
        timeout(TIMEOUT, until_at(&bench, partition, expected)).await.unwrap();
        let of_b = b.adopt(partition, None).await.adoption();
        assert_eq!(of_b.record().sequence_number, Some(expected), "{fault:?}");
    }
}

async fn until_at(bench: &Bench, partition: u32, position: i64) {
    while bench.position_of(partition).await != position {
        sleep(LATE / 10).await;
    }
}

/// The next adoption decides: a write that arrives later changes nothing.
pub async fn the_next_adoption_decides_an_ambiguous_write(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    running(&bench, 0).await;
    let b = bench.owner("b").await;
    Write.inject(&operator, 0, Fault::RequestLost);
    let claimer = b.clone();
    Write.then(&operator, 0, async move {
        claimer.take(0).await;
        claimer.adopt(0, None).await.adoption();
    });
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "indeterminate");
    let sent = operator.sent();
    let late = sent.iter().filter(|sent| sent.is_write_of("checkpoint/0")).nth(1).unwrap();
    assert_eq!(&late.metadata["sequencenumber"], &NEW.to_string());
    bench.container.write(&late.name, &late.metadata, late.condition.as_ref().unwrap()).await.unwrap_err();
    assert_eq!(bench.position_of(0).await, OLD);
}

/// It renews before the operator claims: the operator reads again.
pub async fn a_renewed_record_is_read_again(bench: Bench) {
    for (renewals, expected) in [(1, "done"), (2, "done"), (3, "lost to a")] {
        let operator = bench.operator("o", quick_retries).await;
        running(&bench, renewals).await;
        for _ in 0..renewals {
            let owner = bench.read(&ownership(renewals)).await;
            operator.next_write(&ownership(renewals), Fault::ConcurrentWrite(owner));
        }
        let reported = reset(&operator, renewals, NEW).await.describe();
        assert_eq!(reported, expected);
        assert_true(&bench, renewals, &reported, &format!("{renewals} renewals")).await;
    }
}

/// Between the listing and the claim its owner writes a checkpoint and releases it.
pub async fn a_partition_released_meanwhile_is_reset(bench: Bench) {
    let operator = bench.operator("o", quick_retries).await;
    let a = bench.owner("a").await;
    let (lease, mut adoption) = a.run(0).await;
    operator.wire().after(BlobOperation::List, "heartbeat/", async move {
        assert_eq!(a.checkpoint(&mut adoption, OLD).await.describe(), "written");
        assert_eq!(a.release(&lease).await.describe(), "released");
    });
    assert_eq!(reset(&operator, 0, NEW).await.describe(), "done");
    assert_eq!(bench.read(&ownership(0)).await.get("ehchandoffto"), None);
    assert_eq!(bench.position_of(0).await, NEW);
}

/// Two operators at once, to two positions.
pub async fn two_operators_at_once_report_the_truth(bench: Bench) {
    for partition in 0..bench.rounds {
        let (o, p) = (bench.operator("o", quick_retries).await, bench.operator("p", quick_retries).await);
        let (a, mut before) = running(&bench, partition).await;
        o.add_jitter();
        p.add_jitter();
        let (of_o, of_p) = join!(reset_at_once(&o, partition, 1), reset_at_once(&p, partition, 2));
        let reported = [of_o.describe(), of_p.describe()];
        let is_done: Vec<_> = reported.iter().map(|reported| reported == "done").collect();
        let stored = bench.position_of(partition).await;
        match is_done[..] {
            [true, false] => assert_eq!(stored, 1, "{reported:?}"),
            [false, true] => assert_eq!(stored, 2, "{reported:?}"),
            // One after the other.
            [true, true] => assert!([1, 2].contains(&stored), "{reported:?}"),
            _ => panic!("{reported:?}"),
        }
        let refused = |reported: &str| reported.starts_with("lost to ") || reported.starts_with("busy: ");
        assert!(reported.iter().all(|reported| reported == "done" || refused(reported)), "{reported:?}");
        assert_eq!(&bench.read(&ownership(partition)).await["ehchandoffto"], "a", "{reported:?}");
        assert_eq!(a.checkpoint(&mut before, OLD + 1).await.describe(), "fenced by no owner");
    }
}

/// The later one steals from the first, whose record it considers expired, after each of its requests.
pub async fn two_overlapping_operators_report_the_truth(bench: Bench) {
    for (partition, step) in (0..).zip(STEPS) {
        let (o, p) = (bench.operator("o", quick_retries).await, bench.operator("p", quick_retries).await);
        running(&bench, partition).await;
        p.wire().age(&ownership(partition), EXPIRY + 2);
        let (sender, receiver) = oneshot::channel();
        step.then(&o, partition, async move {
            sender.send(reset_at_once(&p, partition, NEW - 1).await.describe()).unwrap();
        });
        let first = reset_at_once(&o, partition, NEW).await.describe();
        assert_eq!(receiver.await.unwrap(), "done", "after {step:?}");
        let is_refused = first == "lost to no owner";
        let is_done = ["done", "indeterminate, written"].contains(&first.as_str());
        assert!(if step < Write { is_refused } else { is_done }, "after {step:?}: {first}");
        assert_eq!(bench.position_of(partition).await, NEW - 1, "after {step:?}: it was the last one");
        let inherited = bench.read(&ownership(partition)).await.get("ehchandoffto").map(str::to_owned);
        // By its clock the reservation had lapsed when it came after the release.
        let expected = if step == Release { None } else { Some("a".to_owned()) };
        assert_eq!(inherited, expected, "after {step:?}");
    }
}

/// The operator crashes after each of its requests, with any response.
pub async fn a_crashed_operator_leaves_a_partition_to_claim(bench: Bench) {
    for (partition, step) in (0..).zip(STEPS) {
        let operator = bench.operator("o", quick_retries).await;
        let (a, mut before) = running(&bench, partition).await;
        let (sender, receiver) = oneshot::channel();
        step.then(&operator, partition, async move {
            sender.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let dying = operator.clone();
        let task = tokio::spawn(async move { reset(&dying, partition, NEW).await.describe() });
        receiver.await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "after {step:?}");
        let stored = bench.position_of(partition).await;
        assert_eq!(stored, if step < Write { OLD } else { NEW }, "after {step:?}");
        // It expires like any owner.
        let listed = a.store.list_ownerships().await.unwrap().records;
        let left = listed.into_iter().find(|seen| seen.partition == partition.into()).unwrap();
        assert_eq!(left.record.owner.is_none(), step == Release, "after {step:?}");
        let is_live = |age| a.store.lease_durations().counts_as_live(&left.record, Duration::from_secs(age));
        assert_eq!((is_live(61), is_live(62)), (step != Release, false), "after {step:?}");
        // An adoption fences the displaced owner, whether it was the operator's or its successor's.
        let late = a.checkpoint(&mut before, OLD + 1).await.describe();
        assert_eq!(late == "written", step < Adopt, "after {step:?}: {late}");
        let stored = if late == "written" { OLD + 1 } else { stored };
        a.take(partition).await;
        let adoption = a.adopt(partition, None).await.adoption();
        assert_eq!(adoption.record().sequence_number, Some(stored), "after {step:?}");
        assert!(a.checkpoint(&mut before, OLD + 2).await.describe().starts_with("fenced by "), "after {step:?}");
    }
}
