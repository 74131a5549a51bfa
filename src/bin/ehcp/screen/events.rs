//! What happened in the group, as text.

use eventhubs_checkpoint::OwnerId;

use super::figures::{format_clock, group_digits};
use crate::output::Tone;
use crate::pauses::format_new_pause;
use crate::watching::{ChangeKind, GroupChange};

/// Returns the line of a change.
pub fn format_change(change: &GroupChange) -> String {
    let from = change.from.as_ref().map_or("-", OwnerId::as_str);
    let to = change.to.as_ref().map_or("-", OwnerId::as_str);
    let what = match change.kind {
        ChangeKind::Claimed => format!("{to} claimed it"),
        ChangeKind::HandedOver => format!("{from} -> {to}  handed over"),
        ChangeKind::TakenOver => format!("{from} -> {to}  taken over"),
        ChangeKind::Released => format!("{from} released it"),
        ChangeKind::Expired => format!("{from} did not renew in time"),
        ChangeKind::Reset => format!("an operator set the checkpoint{}", format_numbers(change)),
        ChangeKind::WentBack => format!("the checkpoint went back{}", format_numbers(change)),
        ChangeKind::Removed => format!("the checkpoint was removed{}", format_numbers(change)),
        ChangeKind::Paused | ChangeKind::Parked => change.pause.as_ref().map(format_new_pause).unwrap_or_default(),
        ChangeKind::Resumed => "resumed".to_owned(),
        ChangeKind::Joined => format!("{to} joined"),
        ChangeKind::Left => format!("{from} left"),
    };
    let partition = change.partition.as_ref().map(|id| format!("partition {id}  ")).unwrap_or_default();
    format!("{}  {partition}{what}", format_clock(change.at))
}

fn format_numbers(change: &GroupChange) -> String {
    match change.checkpoints {
        Some((Some(from), Some(to))) => format!(" from {} to {}", group_digits(from), group_digits(to)),
        Some((Some(from), None)) => format!("; it was {}", group_digits(from)),
        _ => String::new(),
    }
}

pub fn change_tone(change: &GroupChange) -> Tone {
    match change.kind {
        ChangeKind::Expired | ChangeKind::Parked => Tone::Bad,
        ChangeKind::TakenOver | ChangeKind::Reset | ChangeKind::WentBack | ChangeKind::Removed | ChangeKind::Paused => {
            Tone::Warning
        }
        _ => Tone::Plain,
    }
}
