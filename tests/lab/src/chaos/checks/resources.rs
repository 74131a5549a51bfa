//! The resource usage of a process must not grow with time.

use std::time::Duration;

use super::Check;
use crate::chaos::clock::Moment;
use crate::chaos::fleet::ObservedIncarnation;
use crate::chaos::samples::Sample;

/// A process first fills its buffers and its caches.
const WARM_UP: Duration = Duration::from_secs(20);

/// Incarnations that ran for less are skipped.
const LEAST: Duration = Duration::from_secs(60);

pub fn are_flat(incarnations: &[ObservedIncarnation]) -> Check {
    let (mut wrong, mut judged, mut most) = (Vec::new(), 0, 0);
    for observed in incarnations {
        let samples: Vec<_> = observed.samples.iter().filter(|sample| sample.at > observed.from + WARM_UP).collect();
        most = observed.samples.iter().map(|sample| sample.memory_kib).max().unwrap_or(0).max(most);
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { continue };
        if last.at.saturating_sub(first.at) < LEAST {
            continue;
        }
        judged += 1;
        let growth = |measure: &str, value: fn(&Sample) -> u64, spare: u64| {
            let (before, after) = (typical(&samples, 0, value), typical(&samples, 2, value));
            let grown = after > before + before / 4 + spare;
            grown.then(|| format!("{}: {measure} from {before} to {after}", observed.incarnation))
        };
        wrong.extend(growth("memory in KiB", |sample| sample.memory_kib, 4096));
        wrong.extend(growth("open files", |sample| sample.files, 8));
        wrong.extend(growth("threads", |sample| sample.threads, 2));
    }
    let detail =
        format!("{judged} incarnations of {} were long enough, at most {} MiB", incarnations.len(), most / 1024);
    Check::new("memory, open files and threads are flat", &wrong, detail)
}

/// Returns the median of one third of the time: 0, 1 or 2.
fn typical(samples: &[&Sample], third: u32, value: fn(&Sample) -> u64) -> u64 {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0 };
    let length = last.at.saturating_sub(first.at) / 3;
    let (from, to) = (first.at + length * third, first.at + length * (third + 1));
    let within = |at: Moment| from <= at && at <= to;
    let mut values: Vec<_> = samples.iter().filter(|sample| within(sample.at)).map(|sample| value(sample)).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::writes::tests::incarnation;

    fn observed(seconds: u64, memory: impl Fn(u64) -> u64) -> ObservedIncarnation {
        let sample = |at| Sample { at: Moment::from_secs(at), memory_kib: memory(at), files: 30, threads: 5 };
        ObservedIncarnation {
            incarnation: incarnation(0),
            from: Moment::ZERO,
            end: None,
            samples: (0..seconds).map(sample).collect(),
        }
    }

    #[test]
    fn only_steady_growth_is_found() {
        assert!(are_flat(&[observed(300, |at| 30_000 + at % 7 * 500)]).holds);
        let check = are_flat(&[observed(300, |at| 30_000 + at * 100)]);
        assert!(!check.holds);
        assert!(check.detail.starts_with("i1.1: memory in KiB from 3"), "{}", check.detail);
    }

    #[test]
    fn the_warm_up_and_short_incarnations_do_not_count() {
        assert!(are_flat(&[observed(300, |at| if at < 15 { 5_000 } else { 40_000 })]).holds);
        let check = are_flat(&[observed(60, |at| at * 10_000)]);
        assert_eq!(
            (check.holds, check.detail.as_str()),
            (true, "0 incarnations of 1 were long enough, at most 576 MiB")
        );
    }
}
