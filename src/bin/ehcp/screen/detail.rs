//! One partition in detail, as text.

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::admin::describe::{CheckpointDescription, OwnerDescription, PartitionDescription};
use time::OffsetDateTime;

use super::figures::{draw_sparkline, format_clock, format_rate, group_digits};
use super::row::{PartitionRow, last_hour};
use super::state::{OtherNameCase, ScreenState};
use crate::pauses::format_pause;
use crate::text::{format_ago, format_duration, format_time};

/// The width of the names of fields.
const NAME: usize = 13;
/// What one character of the last hour stands for.
const PART_OF_HOUR: time::Duration = time::Duration::MINUTE;
const HOUR: usize = 60;

/// Returns the lines about a partition. It may have disappeared.
pub fn partition_lines(state: &ScreenState, row: Option<&PartitionRow<'_>>) -> Vec<String> {
    let (Some(row), Some(now)) = (row, state.group().map(|group| group.taken_at)) else {
        return vec!["The partition has no records anymore.".to_owned()];
    };
    let partition = row.partition;
    let mut lines = vec![format!("Partition {}, {}", partition.id, row.state_text()), String::new()];
    lines.extend(owner_lines(row, now));
    lines.extend(checkpoint_lines(partition.checkpoint.as_ref(), now));
    lines.extend(partition.active_pause().map(|pause| field_line("pause", format_pause(pause))));
    lines.extend(event_lines(row, now));
    let slots = state.history.slots(&partition.id);
    lines.push(field_line("lag, 1 hour", draw_sparkline(&last_hour(slots, now, PART_OF_HOUR, HOUR))));
    lines.push(other_name_case_line(state, partition));
    lines.extend([String::new(), "Checkpoints that were seen, the latest first".to_owned()]);
    lines.extend(recorded_checkpoint_lines(state, partition));
    lines
}

fn field_line(name: &str, value: impl AsRef<str>) -> String {
    format!("  {name:<NAME$}  {}", value.as_ref())
}

fn digits_or(number: Option<i64>, missing: &str) -> String {
    number.map_or_else(|| missing.to_owned(), group_digits)
}

fn owner_lines(row: &PartitionRow<'_>, now: OffsetDateTime) -> Vec<String> {
    let Some(owner) = &row.partition.owner else { return vec![field_line("owner", "-")] };
    let OwnerDescription { id, sdk, since, renewed, epoch, load, handoff_to, .. } = owner;
    let left = format_duration(row.lease.map_or(owner.expires_in, |(left, _)| left));
    let mut lines = vec![
        field_line("owner", format!("{id}, of the SDK {sdk}")),
        field_line("lease", format!("renewed {} ago, valid for {left}", format_ago(now, *renewed))),
    ];
    lines.extend(since.map(|since| field_line("since", format_time(since))));
    lines.extend(epoch.map(|epoch| field_line("epoch", epoch.to_string())));
    lines.extend(load.map(|load| field_line("load", group_digits(load))));
    lines.extend(handoff_to.as_ref().map(|to| field_line("requested by", to.as_str())));
    lines
}

fn checkpoint_lines(checkpoint: Option<&CheckpointDescription>, now: OffsetDateTime) -> Vec<String> {
    let Some(checkpoint) = checkpoint else { return vec![field_line("checkpoint", "-")] };
    let CheckpointDescription { position, updated, .. } = checkpoint;
    let number = digits_or(position.sequence_number, "no sequence number");
    let offset = position.offset.as_deref().unwrap_or("none");
    let initial = if checkpoint.initial { ", before any event was processed" } else { "" };
    let kept = if checkpoint.own_position { ", but the application keeps its own position" } else { "" };
    // The owner may have adopted the checkpoint after its position was written.
    let owner = checkpoint.owner.as_ref().map_or("-", OwnerId::as_str);
    vec![
        field_line("checkpoint", format!("{number}, offset {offset}{initial}{kept}")),
        field_line("written", format!("{} ago, at {}", format_ago(now, *updated), format_time(*updated))),
        field_line("last owner", owner),
        field_line("ETag", checkpoint.etag.as_str()),
    ]
}

fn event_lines(row: &PartitionRow<'_>, now: OffsetDateTime) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(hub) = &row.partition.hub {
        let first = group_digits(hub.first);
        let last = digits_or(hub.last, "none");
        let offset = hub.last_offset.as_deref().map(|offset| format!(", offset {offset}")).unwrap_or_default();
        let enqueued =
            hub.last_enqueued_at.map(|at| format!(", enqueued {} ago", format_ago(now, at))).unwrap_or_default();
        lines.push(field_line("events", format!("first {first}, last {last}{offset}{enqueued}")));
    }
    let lag = row.partition.lag;
    let behind = row.behind.filter(|_| lag.events.is_some_and(|events| events > 0));
    let behind = behind.map(|behind| format!(", the next event was enqueued {behind} ago")).unwrap_or_default();
    lines.push(field_line("lag", format!("{lag}{behind}")));
    let processed = row.rates.processed.map_or_else(|| "-".to_owned(), format_rate);
    let enqueued = row.rates.enqueued.map_or_else(|| "-".to_owned(), format_rate);
    lines.push(field_line("events per s", format!("{processed} processed, {enqueued} enqueued")));
    lines
}

/// Returns what the records under names in the other blob-name casing say.
fn other_name_case_line(state: &ScreenState, partition: &PartitionDescription) -> String {
    let shown = match &state.other_name_case {
        None => "no records".to_owned(),
        Some(OtherNameCase::Reading) => "reading".to_owned(),
        Some(OtherNameCase::Failed(failure)) => failure.clone(),
        Some(OtherNameCase::Read(group)) => {
            let other = group.partition(&partition.id);
            let owner = other.and_then(|other| other.owner.as_ref()).map_or("-", |owner| owner.id.as_str());
            let number = other.and_then(|other| other.checkpoint.as_ref()?.position.sequence_number);
            format!(
                "{} names at {}: owner {owner}, checkpoint {}",
                group.group.blob_name_case,
                format_clock(group.taken_at),
                digits_or(number, "-")
            )
        }
    };
    field_line("other casing", shown)
}

fn recorded_checkpoint_lines(state: &ScreenState, partition: &PartitionDescription) -> impl Iterator<Item = String> {
    state.history.checkpoints(&partition.id).rev().map(|seen| {
        let number = digits_or(seen.sequence_number, "-");
        let offset = seen.offset.as_deref().unwrap_or("-");
        let owner = seen.owner.as_ref().map_or("-", OwnerId::as_str);
        format!("  {}  {number:>15}  offset {offset}  {owner}", format_clock(seen.updated))
    })
}
