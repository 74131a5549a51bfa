//! Many partitions in few words.

use eventhubs_checkpoint::PartitionId;

/// The most ranges of one owner that are shown.
const SHOWN: usize = 5;

/// Returns the number of partitions and their first ranges: `7: 0-3 8 10-11`.
pub fn summarize(partitions: &[PartitionId]) -> String {
    let ranges = list_ranges(partitions);
    let shown = ranges.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" ");
    format!("{}: {shown}{}", partitions.len(), if ranges.len() > SHOWN { " .." } else { "" })
}

/// Returns the ranges of successive ids. An id that is not a number is a range of its own.
fn list_ranges(partitions: &[PartitionId]) -> Vec<String> {
    let mut ranges: Vec<(&PartitionId, &PartitionId)> = Vec::new();
    for partition in partitions {
        match ranges.last_mut() {
            Some((_, last)) if follows(last, partition) => *last = partition,
            _ => ranges.push((partition, partition)),
        }
    }
    ranges
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect()
}

fn follows(last: &PartitionId, next: &PartitionId) -> bool {
    let number = |id: &PartitionId| id.as_str().parse::<u64>().ok();
    number(last).zip(number(next)).is_some_and(|(last, next)| last.checked_add(1) == Some(next))
}
