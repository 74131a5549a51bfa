//! Texts: the help, and the commands that reset a partition.

use std::time::Duration;

use eventhubs_checkpoint::PartitionId;

use super::figures::group_digits;
use super::state::ScreenState;
use crate::args::LookIntervals;
use crate::text::{format_count, format_duration, quote_word};

const KEYS: &[(&str, &str)] = &[
    ("q, Ctrl-C", "quit"),
    ("s", "sort by partition, lag, rate, or time of the checkpoint"),
    ("/", "filter by partition, owner or state; Esc removes the filter"),
    ("enter", "one partition in detail, with its recent checkpoints; Esc goes back"),
    ("e", "save the checkpoints of the last refresh in a file, for `ehcp import`"),
    ("r", "show commands that reset the selected partition"),
    ("arrows, PageUp, PageDown, Home, End", "select, or scroll"),
];

const COLUMNS: &[(&str, &str)] = &[
    ("LEASE", "how long the lease was still valid at the last refresh, as part of its duration"),
    ("SEQUENCE, LAST", "the sequence numbers of the checkpoint and of the last event"),
    ("RATE/s", "how many events per second the checkpoint advances, over 30 s or between two refreshes"),
    ("BEHIND", "age of the oldest unprocessed event, accurate to the time between refreshes"),
    ("", "> at least, if it was there before the first refresh"),
    ("UPDATED", "how long before the last refresh the checkpoint was written"),
    ("STATE", "BEHIND: certainly for more than a minute; STUCK: and the checkpoint does not advance"),
    ("", "renewal late: less than a third of the lease is left; PARKED: paused after a failure"),
];

/// Returns the help, with the cost of watching.
pub fn help_lines(state: &ScreenState) -> Vec<String> {
    let mut lines = vec!["Keys".to_owned()];
    lines.extend(table_lines(KEYS));
    lines.push(
        "  Each key also refreshes the group if the last refresh is older than --interval. Nothing is written to the group."
            .to_owned(),
    );
    lines.extend([String::new(), "Columns".to_owned()]);
    lines.extend(table_lines(COLUMNS));
    lines.extend([String::new(), "Cost".to_owned()]);
    lines.extend(cost_lines(state));
    lines
}

fn table_lines(rows: &[(&str, &str)]) -> impl Iterator<Item = String> {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    rows.iter().map(move |(name, text)| format!("  {name:<width$}  {text}"))
}

fn cost_lines(state: &ScreenState) -> Vec<String> {
    let LookIntervals { interval, refresh, hub_interval } = state.settings.intervals;
    let between = refresh.max(interval);
    let lists = state.list_requests.map(|requests| {
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        format!("  storage: {}; each change also needs a listing", cost_line(requests, "list request", between))
    });
    let beacon = (refresh > interval).then(|| format!("  beacon: {}", cost_line(1, "read request", interval)));
    let hub = state.group().filter(|_| state.settings.has_hub).map(|group| {
        let requests = cost_line(group.partitions.len() + 1, "request", hub_interval.max(between));
        format!("  event hub: {requests}, without events")
    });
    let options = "  --interval, --refresh and --hub-interval change that".to_owned();
    lists.into_iter().chain(beacon).chain(hub).chain([options]).collect()
}

fn cost_line(requests: usize, kind: &str, every: Duration) -> String {
    let per_hour = requests as u128 * 3_600_000 / every.as_millis().max(1);
    let every = if every.subsec_millis() == 0 { format_duration(every) } else { format!("{every:?}") };
    format!("{} every {every}, {} an hour", format_count(requests, kind), group_digits(per_hour))
}

/// Returns the commands that would reset a partition, as dry runs.
pub fn reset_lines(state: &ScreenState, id: &PartitionId) -> Vec<String> {
    let partition = quote_word(id.as_str());
    let command = |to: &str| {
        let mut words = vec!["  ehcp reset -p", &partition, to];
        words.extend(state.settings.given.iter().map(String::as_str));
        words.join(" ")
    };
    // A live owner would disconnect a reader of its own consumer group.
    let has_read_group = state.settings.given.iter().any(|word| word.starts_with("--read-group"));
    let read_group = if has_read_group { "" } else { " --read-group GROUP" };
    let described = state.group().and_then(|group| group.partition(id));
    let has_own_position =
        described.and_then(|partition| partition.checkpoint.as_ref()).is_some_and(|checkpoint| checkpoint.own_position);
    if has_own_position {
        return vec![format!(
            "The application keeps its own position of partition {partition}. A reset of the checkpoint has no effect, so \
             `ehcp reset` refuses it: change that position, and release the partition."
        )];
    }
    vec![
        format!(
            "Dry runs for partition {partition}. They show what would change, and write nothing without --execute:"
        ),
        String::new(),
        "To process everything again".to_owned(),
        command("--to-earliest"),
        "To process the last hour again".to_owned(),
        command(&format!("--by-duration 1h{read_group}")),
        "To skip one event".to_owned(),
        command(&format!("--shift-by 1{read_group}")),
        "To skip everything that waits".to_owned(),
        command("--to-latest"),
    ]
}
