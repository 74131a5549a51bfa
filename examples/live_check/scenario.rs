//! What happens to the worker processes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use eventhubs_checkpoint::PartitionId;
use rustix::process::Signal;

use crate::Failure;
use crate::journal::{Entry, Happened, now};
use crate::steps::Steps;
use crate::tally::count_repetitions;
use crate::worker::{LEASE_DURATION, SETTINGS};
use crate::workers::WorkerProcess;

/// The owners of the worker processes, in the order of their starts.
pub const OWNERS: [&str; 3] = ["worker-1", "worker-2", "worker-3"];

/// Takes all steps. Returns the worker that still runs, which owns all partitions.
pub async fn run(steps: &mut Steps) -> Result<WorkerProcess, Failure> {
    let second = hand_over(steps).await?;
    let began = now();
    let third = start_worker(steps, OWNERS[2])?;
    steps.until_shared("worker-3 joins: equal shares", &OWNERS[1..], began).await?;
    let repetitions = count_repetitions(&steps.entries()?);
    let outcome = if repetitions == 0 { Ok("0".to_owned()) } else { Err(repetitions.to_string()) };
    steps.note("events handled twice so far, in handoffs", outcome, now())?;

    freeze(steps, &second).await?;
    let began = now();
    drop(third);
    steps.until_shared("worker-3 is killed (SIGKILL): worker-2 reads all", &OWNERS[1..2], began).await?;
    Ok(second)
}

fn start_worker(steps: &Steps, owner: &str) -> Result<WorkerProcess, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", owner]).env(SETTINGS, serde_json::to_string(&steps.settings)?);
    WorkerProcess::start(&mut command, &steps.settings.log(owner))
}

async fn hand_over(steps: &mut Steps) -> Result<WorkerProcess, Failure> {
    let began = now();
    let first = start_worker(steps, OWNERS[0])?;
    steps.until_shared("worker-1 starts: it reads all partitions", &OWNERS[..1], began).await?;
    let began = now();
    let second = start_worker(steps, OWNERS[1])?;
    steps.until_shared("worker-2 joins: equal shares, by handoff", &OWNERS[..2], began).await?;
    let began = now();
    first.signal(Signal::TERM)?;
    steps.until_shared("worker-1 is ended (SIGTERM): worker-2 reads all", &OWNERS[1..2], began).await?;
    first.end()?;
    Ok(second)
}

/// Freezes a worker until the other one has taken over, and wakes it.
async fn freeze(steps: &mut Steps, worker: &WorkerProcess) -> Result<(), Failure> {
    let began = now();
    worker.signal(Signal::STOP)?;
    steps.until_shared("worker-2 is frozen (SIGSTOP): worker-3 reads all", &OWNERS[2..], began).await?;
    let before = list_checkpoints(steps).await?;
    let open = find_open_wins(&steps.entries()?, OWNERS[1]);
    let woken = now();
    worker.signal(Signal::CONT)?;
    let name = "worker-2 is woken (SIGCONT): it stops what it has lost";
    steps
        .until(name, 2 * LEASE_DURATION, |entries| {
            let of_open = || entries.iter().filter(|entry| open.contains(&key_of(entry)));
            let ended = of_open().filter(|entry| matches!(entry.happened, Happened::Stopped)).count();
            (ended == open.len()).then(|| {
                let late = of_open().filter(|entry| entry.at >= woken).map(|entry| match entry.happened {
                    Happened::Handled(first, last) => last - first + 1,
                    _ => 0,
                });
                format!("it handled {} events of these partitions before it stopped them", late.sum::<i64>())
            })
        })
        .await?;
    let after = list_checkpoints(steps).await?;
    let moved_back: Vec<_> = before.iter().filter(|(partition, number)| after.get(*partition) < Some(number)).collect();
    let outcome = if moved_back.is_empty() { Ok("none".to_owned()) } else { Err(format!("{moved_back:?}")) };
    steps.note("checkpoints that the woken worker moved backward", outcome, now())?;
    steps.until_shared("worker-2 has its share again, by handoff", &OWNERS[1..], woken).await
}

fn key_of(entry: &Entry) -> (String, String, i64) {
    let (owner, partition, epoch) = entry.win();
    (owner.to_owned(), partition.to_owned(), epoch)
}

/// Returns the wins of the owner that it has not stopped.
fn find_open_wins(entries: &[Entry], owner: &str) -> BTreeSet<(String, String, i64)> {
    let mut open = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry.owner == owner) {
        match entry.happened {
            Happened::Started => {
                open.insert(key_of(entry));
            }
            Happened::Stopped => {
                open.remove(&key_of(entry));
            }
            Happened::Handled(..) => {}
        }
    }
    open
}

/// Returns the sequence number in the checkpoint of each partition.
async fn list_checkpoints(steps: &Steps) -> Result<BTreeMap<PartitionId, i64>, Failure> {
    let records = steps.store.list_checkpoints().await?.records;
    Ok(records.into_iter().filter_map(|it| it.record.sequence_number.map(|number| (it.partition, number))).collect())
}
