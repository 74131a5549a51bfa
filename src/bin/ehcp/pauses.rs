//! Pauses as text.

use std::collections::BTreeMap;

use eventhubs_checkpoint::admin::describe::PartitionDescription;
use eventhubs_checkpoint::{PartitionId, Pause};

use crate::output::printable_text;
use crate::text::format_time;

/// Returns `parked` after a failure, and `paused` if an operator asked for it.
pub fn pause_name(pause: &Pause) -> &'static str {
    if pause.parked { "parked" } else { "paused" }
}

/// Returns what a partition is, since when and until when, and why.
pub fn format_pause(pause: &Pause) -> String {
    format!("{} since {}{}", pause_name(pause), format_time(pause.since), end_and_reason(pause))
}

/// Returns what a partition is from now on, until when, and why.
pub fn format_new_pause(pause: &Pause) -> String {
    format!("{}{}", pause_name(pause), end_and_reason(pause))
}

fn end_and_reason(pause: &Pause) -> String {
    let until = pause.until.map(|until| format!(" until {}", format_time(until))).unwrap_or_default();
    let reason = pause.reason.as_ref().map(|reason| format!(": {}", printable_text(reason))).unwrap_or_default();
    format!("{until}{reason}")
}

/// Returns the partitions that are paused, by their pauses: one that concerns several partitions is shown once.
pub fn group_pauses<'a>(
    paused: impl IntoIterator<Item = (&'a PartitionId, &'a Pause)>,
) -> BTreeMap<String, Vec<&'a PartitionId>> {
    let mut by_pause = BTreeMap::<_, Vec<_>>::new();
    for (partition, pause) in paused {
        by_pause.entry(format_new_pause(pause)).or_default().push(partition);
    }
    by_pause
}

/// Returns how many partitions are paused and how many are parked, as `2 paused`. A count of zero is left out.
pub fn count_pauses(partitions: &[PartitionDescription]) -> Vec<String> {
    let mut counts = BTreeMap::<_, u32>::new();
    for pause in partitions.iter().filter_map(PartitionDescription::active_pause) {
        *counts.entry(pause_name(pause)).or_default() += 1;
    }
    counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_pause_has_its_cause_its_end_and_its_reason() {
        let since = datetime!(2026-11-23 10:40 UTC);
        let until = datetime!(2026-11-23 12:00 UTC);
        let paused = Pause::new(since, Some(until), Some("a migration"));
        assert_eq!(format_pause(&paused), "paused since 2026-11-23T10:40:00Z until 2026-11-23T12:00:00Z: a migration");
        assert_eq!(format_pause(&Pause::new(since, None, None)), "paused since 2026-11-23T10:40:00Z");
        assert_eq!(format_new_pause(&Pause::after_failure(since, "no database")), "parked: no database");
        assert_eq!(
            format_new_pause(&Pause::after_failure(since, "\u{1b}[31m\nred")),
            "parked:  [31m red",
            "it steers nothing"
        );
    }

    #[test]
    fn equal_pauses_are_one_of_several_partitions() {
        let pause = |minute| Pause::new(datetime!(2026-11-23 10:00 UTC).replace_minute(minute).unwrap(), None, None);
        let ids = [0, 1].map(PartitionId::from);
        let pauses = [pause(1), pause(2)];
        let grouped = group_pauses(ids.iter().zip(&pauses));
        assert_eq!(grouped, BTreeMap::from([("paused".to_owned(), ids.iter().collect())]));
    }
}
