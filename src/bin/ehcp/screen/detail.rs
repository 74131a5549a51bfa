//! One partition in detail, as text.

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::admin::{CheckpointDescription, OwnerDescription, PartitionDescription};
use time::OffsetDateTime;

use super::figures::{clock, group_digits, rate, sparkline};
use super::row::{Row, last_hour};
use super::state::{OtherNameCase, State};
use crate::text::{ago, short, time as date};

/// The width of the names of fields.
const NAME: usize = 13;
/// What one character of the last hour stands for.
const PART_OF_HOUR: time::Duration = time::Duration::MINUTE;
const HOUR: usize = 60;

/// Returns the lines about a partition. It may have disappeared.
pub fn lines(state: &State, row: Option<&Row<'_>>) -> Vec<String> {
    let (Some(row), Some(now)) = (row, state.now()) else {
        return vec!["The partition has no records anymore.".to_owned()];
    };
    let partition = row.partition;
    let mut lines = vec![format!("Partition {}, {}", partition.id, row.condition.text()), String::new()];
    lines.extend(owner(row, now));
    lines.extend(checkpoint(partition.checkpoint.as_ref(), now));
    lines.extend(events(row, now));
    let hour = last_hour(state.history.slots(&partition.id), now, PART_OF_HOUR, HOUR);
    lines.push(field("lag, 1 hour", sparkline(&hour)));
    lines.push(other_name_case(state, partition));
    lines.extend([String::new(), "Checkpoints that were seen, the latest first".to_owned()]);
    lines.extend(checkpoints(state, partition));
    lines
}

fn field(name: &str, value: impl AsRef<str>) -> String {
    format!("  {name:<NAME$}  {}", value.as_ref())
}

fn owner(row: &Row<'_>, now: OffsetDateTime) -> Vec<String> {
    let Some(owner) = &row.partition.owner else { return vec![field("owner", "-")] };
    let OwnerDescription { id, sdk, since, renewed, epoch, load, handoff_to, .. } = owner;
    let left = row.lease.map_or(owner.expires_in, |(left, _)| left);
    let mut lines = vec![
        field("owner", format!("{id}, of the SDK {sdk}")),
        field("lease", format!("renewed {} ago, valid for {}", ago(now, *renewed), short(left))),
    ];
    lines.extend(since.map(|since| field("since", date(since))));
    lines.extend(epoch.map(|epoch| field("epoch", epoch.to_string())));
    lines.extend(load.map(|load| field("load", group_digits(load))));
    lines.extend(handoff_to.as_ref().map(|to| field("requested by", to.as_str())));
    lines
}

fn checkpoint(checkpoint: Option<&CheckpointDescription>, now: OffsetDateTime) -> Vec<String> {
    let Some(checkpoint) = checkpoint else { return vec![field("checkpoint", "-")] };
    let position = &checkpoint.position;
    let number = position.sequence_number.map_or_else(|| "no sequence number".to_owned(), group_digits);
    let offset = position.offset.as_deref().unwrap_or("none");
    let initial = if checkpoint.initial { ", before any event was processed" } else { "" };
    let by = checkpoint.owner.as_ref().map(|owner| format!(" by {owner}")).unwrap_or_default();
    vec![
        field("checkpoint", format!("{number}, offset {offset}{initial}")),
        field("written", format!("{} ago{by}, at {}", ago(now, checkpoint.updated), date(checkpoint.updated))),
        field("ETag", checkpoint.etag.as_str()),
    ]
}

fn events(row: &Row<'_>, now: OffsetDateTime) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(hub) = &row.partition.hub {
        let last = hub.last.map_or_else(|| "none".to_owned(), group_digits);
        let offset = hub.last_offset.as_deref().map(|offset| format!(", offset {offset}")).unwrap_or_default();
        let enqueued = hub.last_enqueued_at.map(|at| format!(", enqueued {} ago", ago(now, at))).unwrap_or_default();
        lines.push(field("events", format!("first {}, last {last}{offset}{enqueued}", group_digits(hub.first))));
    }
    let behind = row.behind().map(|behind| format!(", the next event was enqueued {behind} ago"));
    let behind = behind.filter(|_| row.partition.lag.events.is_some_and(|events| events > 0)).unwrap_or_default();
    lines.push(field("lag", format!("{}{behind}", row.partition.lag)));
    let processed = row.rates.processed.map_or_else(|| "-".to_owned(), rate);
    let enqueued = row.rates.enqueued.map_or_else(|| "-".to_owned(), rate);
    lines.push(field("events per s", format!("{processed} processed, {enqueued} enqueued")));
    lines
}

/// Returns what the records under names in the other letter case say.
fn other_name_case(state: &State, partition: &PartitionDescription) -> String {
    let shown = match &state.other_name_case {
        None => "no records".to_owned(),
        Some(OtherNameCase::Reading) => "reading".to_owned(),
        Some(OtherNameCase::Failed(failure)) => failure.clone(),
        Some(OtherNameCase::Read(group)) => {
            let other = group.partition(&partition.id);
            let owner = other.and_then(|other| other.owner.as_ref()).map_or("-", |owner| owner.id.as_str());
            let number = other.and_then(|other| other.checkpoint.as_ref()?.position.sequence_number);
            let number = number.map_or_else(|| "-".to_owned(), group_digits);
            let case = group.group.blob_name_case;
            format!("{case} names at {}: owner {owner}, checkpoint {number}", clock(group.taken_at))
        }
    };
    field("other case", shown)
}

fn checkpoints(state: &State, partition: &PartitionDescription) -> impl Iterator<Item = String> {
    state.history.checkpoints(&partition.id).rev().map(|seen| {
        let number = seen.sequence_number.map_or_else(|| "-".to_owned(), group_digits);
        let offset = seen.offset.as_deref().unwrap_or("-");
        let owner = seen.owner.as_ref().map_or("-", OwnerId::as_str);
        format!("  {}  {number:>15}  offset {offset}  {owner}", clock(seen.updated))
    })
}
