//! The group as a whole: its processes and their partitions.

use std::collections::BTreeMap;

use super::Check;
use crate::chaos::event_log::LogEntryKind;
use crate::chaos::fleet::End;
use crate::chaos::incarnation::owner;
use crate::chaos::raw_storage::Observation;
use crate::chaos::run_data::RunData;
use crate::chaos::worker::CLEAN;

pub fn is_balanced(run_data: &RunData) -> Check {
    let wrong = unbalanced(&run_data.settled, run_data.instances, run_data.partitions).into_iter().collect::<Vec<_>>();
    let shares = run_data.settled.shares().into_iter().map(|(owner, count)| format!("{owner} {count}"));
    Check::new("all are owned and balanced at the end", &wrong, shares.collect::<Vec<_>>().join(", "))
}

/// Returns what is wrong with these shares, if anything.
pub fn unbalanced(observation: &Observation, instances: u32, partitions: u16) -> Option<String> {
    let mut shares: BTreeMap<String, usize> = (0..instances).map(|instance| (owner(instance), 0)).collect();
    for (partition, owner) in &observation.owners {
        match shares.get_mut(owner) {
            Some(share) => *share += 1,
            None => return Some(format!("partition {partition} is owned by {owner:?}")),
        }
    }
    let owned: usize = shares.values().sum();
    if owned != usize::from(partitions) {
        return Some(format!("{owned} of {partitions} partitions are owned"));
    }
    let (least, most) = (shares.values().min(), shares.values().max());
    (most > least.map(|least| least + 1).as_ref()).then(|| format!("{shares:?}"))
}

/// Checks the shutdown at the end: all instances shut down gracefully, released their partitions and wrote the last
/// checkpoints.
pub fn ends_cleanly(run_data: &RunData) -> Check {
    let mut wrong = Vec::new();
    for (partition, owner) in run_data.ended.owners.iter().filter(|(_, owner)| !owner.is_empty()) {
        wrong.push(format!("partition {partition} still belongs to {owner}"));
    }
    for (partition, last) in &run_data.published {
        let position = run_data.ended.positions.get(partition).copied().unwrap_or(-1);
        if position != *last {
            wrong.push(format!("the checkpoint of partition {partition} is {position} of {last}"));
        }
    }
    for instance in 0..run_data.instances {
        let last = run_data.incarnations.iter().rfind(|observed| observed.incarnation.instance == instance);
        let event_log = last.and_then(|observed| run_data.event_logs.get(&observed.incarnation));
        let ended = event_log.and_then(|event_log| event_log.iter().rev().find_map(|entry| ended(&entry.kind)));
        if ended != Some(CLEAN) {
            wrong.push(format!("{} ended {}", owner(instance), ended.unwrap_or("without a report")));
        }
    }
    Check::new("all shut down gracefully", &wrong, "released, checkpoints at the last event".to_owned())
}

fn ended(kind: &LogEntryKind) -> Option<&str> {
    if let LogEntryKind::Ended(how) = kind { Some(how) } else { None }
}

pub fn no_unexpected_exit(run_data: &RunData) -> Check {
    let mut wrong = Vec::new();
    for observed in &run_data.incarnations {
        match &observed.end {
            Some((at, End::Unexpected(status))) => {
                wrong.push(format!("{} at {at:.1?}: {status}", observed.incarnation));
            }
            Some((at, End::Unclean(how))) => {
                wrong.push(format!("{} shut down at {at:.1?}: {how}", observed.incarnation));
            }
            None => wrong.push(format!("{} never ended", observed.incarnation)),
            Some((_, End::Killed | End::Clean | End::NotReady)) => {}
        }
    }
    let killed = run_data.incarnations.iter().filter(|b| matches!(b.end, Some((_, End::Killed)))).count();
    Check::new(
        "no process exits unexpectedly",
        &wrong,
        format!("{} incarnations, {killed} killed", run_data.incarnations.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::clock::Moment;
    use crate::chaos::run_data::tests::in_order;

    fn owned(owners: &[&str]) -> Observation {
        let owners = (0..).zip(owners).map(|(partition, owner): (u32, _)| (partition.to_string(), (*owner).to_owned()));
        Observation { owners: owners.collect(), ..Observation::default() }
    }

    #[test]
    fn shares_differ_by_at_most_one() {
        assert_eq!(unbalanced(&owned(&["i1", "i2", "i1"]), 2, 3), None);
        assert!(unbalanced(&owned(&["i1", "i1", "i1"]), 2, 3).is_some());
        assert!(unbalanced(&owned(&["i1", "i2"]), 2, 3).is_some());
        assert!(unbalanced(&owned(&["i1", "i2", ""]), 2, 3).is_some());
        assert!(unbalanced(&owned(&["i1", "i2", "i9"]), 2, 3).is_some());
    }

    #[test]
    fn missing_releases_and_checkpoints_are_found() {
        let mut run_data = in_order();
        assert!(ends_cleanly(&run_data).holds);
        run_data.ended.owners.insert("0".to_owned(), "i1".to_owned());
        run_data.ended.positions.insert("0".to_owned(), 8);
        let check = ends_cleanly(&run_data);
        assert_eq!(check.detail, "partition 0 still belongs to i1; the checkpoint of partition 0 is 8 of 9");
    }

    #[test]
    fn an_unclean_shutdown_is_found() {
        let mut run_data = in_order();
        run_data.event_logs.values_mut().for_each(|event_log| drop(event_log.pop()));
        assert_eq!(ends_cleanly(&run_data).detail, "i1 ended without a report; i2 ended without a report");
    }

    #[test]
    fn an_unexpected_exit_is_found() {
        let mut run_data = in_order();
        for end in [End::Killed, End::Clean, End::NotReady] {
            run_data.incarnations[0].end = Some((Moment::ZERO, end));
            assert!(no_unexpected_exit(&run_data).holds);
        }
        run_data.incarnations[1].end = Some((Moment::from_secs(1), End::Unexpected("exit status: 101".to_owned())));
        let check = no_unexpected_exit(&run_data);
        assert_eq!((check.holds, check.detail.as_str()), (false, "i2.1 at 1.0s: exit status: 101"));
    }
}
