//! A partition as a row of the table.

use std::time::Duration;

use eventhubs_checkpoint::admin::describe::PartitionDescription;
use time::OffsetDateTime;

use super::columns::ScreenColumn;
use super::condition::{ConditionFacts, PartitionCondition};
use super::figures::{draw_bar, draw_sparkline, end_of, format_rate, group_digits};
use crate::output::Tone;
use crate::pauses::pause_name;
use crate::text::{format_ago, format_duration, or_empty};
use crate::watching::{GroupHistory, Rates, Slot, WaitingTime};

/// The longest owner ID that is shown completely.
const OWNER: usize = 24;
/// What one character of the last hour stands for.
const PART_OF_HOUR: time::Duration = time::Duration::minutes(5);
const HOUR: usize = 12;
/// A slot stands for the time until the next one, unless that is longer: then there were no looks.
const MAX_GAP: time::Duration = time::Duration::minutes(3);

/// A partition as of the last refresh. Renewals and checkpoints since then are not seen, so nothing grows older.
#[derive(Clone, Debug)]
pub struct PartitionRow<'a> {
    pub partition: &'a PartitionDescription,
    pub rates: Rates,
    /// How long the next event has waited.
    pub behind: Option<WaitingTime>,
    /// What is left of the lease, and the whole of it.
    pub lease: Option<(Duration, Duration)>,
    pub condition: PartitionCondition,
}

impl<'a> PartitionRow<'a> {
    pub fn new(partition: &'a PartitionDescription, history: &GroupHistory) -> Self {
        let rates = history.rates(partition);
        let lease = partition.owner.as_ref().map(|owner| (owner.expires_in, owner.lease_duration));
        Self {
            partition,
            rates,
            behind: history.waiting_time(partition),
            lease,
            condition: PartitionCondition::of(ConditionFacts {
                state: partition.state,
                lease,
                behind: history.waited_at_least(partition),
                processed: rates.processed,
                is_beyond_end: rates.is_beyond_end,
                pause: partition.active_pause(),
            }),
        }
    }

    pub fn checkpoint_updated_at(&self) -> Option<OffsetDateTime> {
        self.partition.checkpoint.as_ref().map(|checkpoint| checkpoint.updated)
    }

    pub fn owner_id(&self) -> &'a str {
        self.partition.owner.as_ref().map_or("", |owner| owner.id.as_str())
    }

    /// Returns the tone. That a partition is parked counts as much as its condition.
    pub fn tone(&self) -> Tone {
        let is_parked = self.partition.active_pause().is_some_and(|pause| pause.parked);
        if is_parked { Tone::Bad } else { self.condition.tone() }
    }

    /// Returns the condition. If something else is more important than the pause, the pause follows.
    pub fn state_text(&self) -> String {
        let condition = self.condition.text();
        match self.partition.active_pause() {
            Some(pause) if !matches!(self.condition, PartitionCondition::Paused | PartitionCondition::Parked) => {
                format!("{condition}, {}", pause_name(pause))
            }
            _ => condition.to_owned(),
        }
    }

    /// Returns the text of a cell at the time of the look. An empty one is shown as a dash.
    pub fn cell_text(&self, column: ScreenColumn, history: &GroupHistory, now: OffsetDateTime) -> String {
        let checkpoint = self.partition.checkpoint.as_ref();
        let number = checkpoint.and_then(|checkpoint| checkpoint.position.sequence_number);
        match column {
            ScreenColumn::Partition => self.partition.id.to_string(),
            ScreenColumn::Owner => end_of(self.owner_id(), OWNER),
            ScreenColumn::Lease => or_empty(
                self.lease.map(|(left, whole)| format!("{} {:>4}", draw_bar(left, whole), format_duration(left))),
            ),
            ScreenColumn::Sequence => or_empty(number.map(group_digits)),
            ScreenColumn::Last => or_empty(self.partition.hub.as_ref().and_then(|hub| hub.last).map(group_digits)),
            ScreenColumn::Lag => or_empty(self.partition.lag.events.map(group_digits)),
            ScreenColumn::Rate => or_empty(self.rates.processed.map(format_rate)),
            ScreenColumn::Behind => or_empty(self.behind),
            ScreenColumn::Updated => or_empty(self.checkpoint_updated_at().map(|updated| format_ago(now, updated))),
            ScreenColumn::State => self.state_text(),
            ScreenColumn::Hour => {
                draw_sparkline(&last_hour(history.slots(&self.partition.id), now, PART_OF_HOUR, HOUR))
            }
        }
    }
}

/// Returns the greatest lag of each part of the time before now. Slots may be further apart than a part is long.
pub fn last_hour<'a>(
    slots: impl Iterator<Item = &'a Slot>,
    now: OffsetDateTime,
    part: time::Duration,
    parts: usize,
) -> Vec<Option<u64>> {
    let mut greatest = vec![None; parts];
    let mut slots = slots.peekable();
    while let Some(slot) = slots.next() {
        let end = slots.peek().map_or(now, |next| next.from);
        let end = if end - slot.from <= MAX_GAP { end } else { slot.from };
        let [first, last] = [slot.from, end].map(|at| (now - at).whole_seconds().max(0) / part.whole_seconds().max(1));
        for place in (last..=first).filter_map(|ago| parts.checked_sub(usize::try_from(ago).ok()? + 1)) {
            greatest[place] = greatest[place].max(slot.lag);
        }
    }
    greatest
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::Pause;
    use eventhubs_checkpoint::admin::describe::OwnershipState;
    use time::macros::datetime;

    use super::*;
    use crate::watching::tests::look;

    #[tokio::test(start_paused = true)]
    async fn a_parked_partition_is_bad_whatever_its_lease() {
        let mut group = look().await;
        let partition = &mut group.partitions[0];
        partition.owner.as_mut().unwrap().expires_in = Duration::from_secs(1);
        partition.checkpoint.as_mut().unwrap().paused = Some(Pause::after_failure(OffsetDateTime::UNIX_EPOCH, "x"));
        let history = GroupHistory::of_look(group.clone());
        let row = PartitionRow::new(&group.partitions[0], &history);
        assert_eq!((row.state_text().as_str(), row.tone()), ("renewal late, parked", Tone::Bad));
    }

    #[test]
    fn the_last_hour_ends_now() {
        let now = datetime!(2026-01-01 12:00 UTC);
        let slot = |minutes, lag| Slot {
            from: now - time::Duration::minutes(minutes),
            owner: None,
            state: OwnershipState::Owned,
            lag: Some(lag),
        };
        let slots = [slot(61, 9), slot(14, 1), slot(11, 7), slot(4, 2), slot(0, 3)];
        let hour = last_hour(slots.iter(), now, PART_OF_HOUR, HOUR);
        assert_eq!(hour[..9], [None; 9]);
        assert_eq!(hour[9..], [Some(7), None, Some(3)]);
        let rare = [slot(14, 1), slot(11, 2), slot(8, 3), slot(4, 4)];
        let minutes = last_hour(rare.iter(), now, time::Duration::MINUTE, 16);
        let expected = [0, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0, 4, 0, 0, 0, 0].map(|lag| (lag > 0).then_some(lag));
        assert_eq!(minutes, expected, "looks that are not further apart than three minutes");
    }
}
