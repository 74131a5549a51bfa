//! The resource usage of a process must not grow with time.

use std::time::Duration;

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::event_log::{Entry, LogEntryKind};
use crate::chaos::fleet::ObservedIncarnation;
use crate::chaos::run_data::RunData;

/// A process first fills its buffers and its caches.
const WARM_UP: Duration = Duration::from_secs(20);

/// Incarnations that ran for less are skipped.
const LEAST: Duration = Duration::from_secs(60);

/// A resource that a process uses, over time.
struct Usage {
    of: &'static str,
    values: Vec<(Moment, u64)>,
    /// How much of it may be used in addition to a quarter more than at the beginning.
    spare: u64,
}

pub fn are_flat(run_data: &RunData) -> Check {
    let (mut wrong, mut judged, mut most) = (Vec::new(), 0, 0);
    for observed in &run_data.incarnations {
        most = observed.samples.iter().map(|sample| sample.memory_kib).max().unwrap_or(0).max(most);
        let event_log = run_data.event_logs.get(&observed.incarnation).map_or(&[][..], Vec::as_slice);
        let usages = usages(observed, event_log).map(|usage| usage.after(observed.from + WARM_UP));
        judged += u32::from(usages.iter().any(Usage::is_long_enough));
        let grown = usages.iter().filter_map(Usage::growth);
        wrong.extend(grown.map(|growth| format!("{}: {growth}", observed.incarnation)));
    }
    let of = run_data.incarnations.len();
    let detail = format!("{judged} incarnations of {of} were long enough, at most {} MiB", most / 1024);
    Check::new("memory, open files, threads and tasks are flat", &wrong, detail)
}

fn usages(observed: &ObservedIncarnation, event_log: &[Entry]) -> [Usage; 4] {
    let samples = || observed.samples.iter();
    let tasks = event_log.iter().filter_map(|entry| match entry.kind {
        LogEntryKind::Tasks(count) => Some((entry.moment(), count as u64)),
        _ => None,
    });
    [
        Usage {
            of: "memory in KiB",
            values: samples().map(|sample| (sample.at, sample.memory_kib)).collect(),
            spare: 4096,
        },
        Usage { of: "open files", values: samples().map(|sample| (sample.at, sample.files)).collect(), spare: 8 },
        Usage { of: "threads", values: samples().map(|sample| (sample.at, sample.threads)).collect(), spare: 2 },
        // Each partition that an instance owns has a few.
        Usage { of: "tasks", values: tasks.collect(), spare: 64 },
    ]
}

impl Usage {
    fn after(mut self, from: Moment) -> Self {
        self.values.retain(|(at, _)| *at > from);
        self
    }

    fn length(&self) -> Duration {
        let (Some((first, _)), Some((last, _))) = (self.values.first(), self.values.last()) else {
            return Duration::ZERO;
        };
        last.saturating_sub(*first)
    }

    fn is_long_enough(&self) -> bool {
        self.length() >= LEAST
    }

    /// Returns by how much it has grown, unless that is little.
    fn growth(&self) -> Option<String> {
        let before = self.typical(0)?;
        let after = self.typical(2)?;
        let has_grown = self.is_long_enough() && after > before + before / 4 + self.spare;
        has_grown.then(|| format!("{} from {before} to {after}", self.of))
    }

    /// Returns the median of one third of the time: 0, 1 or 2.
    fn typical(&self, third: u32) -> Option<u64> {
        let length = self.length() / 3;
        let from = self.values.first()?.0 + length * third;
        let within = |at: Moment| from <= at && at <= from + length;
        let mut values: Vec<_> = self.values.iter().filter(|(at, _)| within(*at)).map(|(_, value)| *value).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::run_data::tests::{entry, in_order};
    use crate::chaos::samples::Sample;
    use crate::chaos::writes::tests::incarnation;

    /// One incarnation that runs for so many seconds.
    fn observed(seconds: u64, memory: impl Fn(u64) -> u64) -> RunData {
        let sample = |at| Sample { at: Moment::from_secs(at), memory_kib: memory(at), files: 30, threads: 5 };
        let observed = ObservedIncarnation {
            incarnation: incarnation(0),
            from: Moment::ZERO,
            end: None,
            samples: (0..seconds).map(sample).collect(),
        };
        RunData { incarnations: vec![observed], event_logs: [].into(), ..in_order() }
    }

    #[test]
    fn only_steady_growth_is_found() {
        assert!(are_flat(&observed(300, |at| 30_000 + at % 7 * 500)).holds);
        let check = are_flat(&observed(300, |at| 30_000 + at * 100));
        assert!(!check.holds);
        assert!(check.detail.starts_with("i1.1: memory in KiB from 3"), "{}", check.detail);
    }

    #[test]
    fn tasks_that_never_end_are_found() {
        for (more_each_second, holds) in [(0, true), (3, false)] {
            let mut run_data = observed(300, |_| 30_000);
            let tasks = |second: u64| {
                let count = usize::try_from(20 + second * more_each_second).unwrap();
                entry(second * 1000, LogEntryKind::Tasks(count))
            };
            run_data.event_logs = [(incarnation(0), (0..300).map(tasks).collect())].into();
            let check = are_flat(&run_data);
            assert_eq!((check.holds, check.detail.contains("i1.1: tasks from")), (holds, !holds), "{}", check.detail);
        }
    }

    #[test]
    fn the_warm_up_and_short_incarnations_do_not_count() {
        assert!(are_flat(&observed(300, |at| if at < 15 { 5_000 } else { 40_000 })).holds);
        let check = are_flat(&observed(60, |at| at * 10_000));
        assert_eq!(
            (check.holds, check.detail.as_str()),
            (true, "0 incarnations of 1 were long enough, at most 576 MiB")
        );
    }
}
