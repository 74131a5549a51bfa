//! What the screen shows: plain values, changed by looks, keys and time.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::describe::{GroupDescription, PartitionDescription};
use time::OffsetDateTime;

use super::row::PartitionRow;
use crate::args::LookIntervals;
use crate::exit::Result;
use crate::output::printable_text;
use crate::text::format_duration;
use crate::watching::{CountedLook, GroupHistory};

/// How much later than the refresh and two intervals a look may be before the screen says so.
const SLOW: Duration = Duration::from_secs(3);

/// What does not change while the screen is shown.
#[derive(Clone, Debug)]
pub struct ScreenSettings {
    pub colors: bool,
    pub intervals: LookIntervals,
    /// Whether the event hub is read.
    pub has_hub: bool,
    /// The options of the connection, for commands that are shown.
    pub given: Vec<String>,
}

/// What the middle of the screen shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScreenView {
    /// All partitions.
    #[default]
    Partitions,
    /// One partition in detail.
    Partition(PartitionId),
    /// The commands that reset a partition.
    Reset(PartitionId),
    Help,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    #[default]
    Partition,
    /// The greatest lag first.
    Lag,
    /// The fastest first.
    Rate,
    /// The oldest checkpoint first.
    Updated,
}

/// How much was drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawnSize {
    /// The rows of a page.
    pub page: usize,
    /// The lines of the text, if the view is one.
    pub lines: usize,
}

/// The records under names in the other blob-name casing.
#[derive(Debug)]
pub enum OtherNameCase {
    Reading,
    Read(GroupDescription),
    Failed(String),
}

#[derive(Debug)]
pub struct ScreenState {
    pub settings: ScreenSettings,
    pub history: GroupHistory,
    pub view: ScreenView,
    pub sort: RowOrder,
    pub filter: String,
    /// Whether keys change the filter.
    pub is_typing: bool,
    /// The first line of a text that is shown.
    pub scroll: usize,
    pub other_name_case: Option<OtherNameCase>,
    /// How many requests the listing of the latest look took.
    pub list_requests: Option<u64>,
    pub drawn: DrawnSize,
    /// The time since the last refresh that succeeded.
    age: Duration,
    selected: Option<PartitionId>,
    failure: Option<String>,
    hub_failure: Option<String>,
    message: Option<String>,
}

impl RowOrder {
    pub fn next_order(self) -> Self {
        match self {
            Self::Partition => Self::Lag,
            Self::Lag => Self::Rate,
            Self::Rate => Self::Updated,
            Self::Updated => Self::Partition,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Lag => "lag",
            Self::Rate => "rate",
            Self::Updated => "updated",
        }
    }
}

impl ScreenState {
    pub fn new(settings: ScreenSettings) -> Self {
        Self {
            settings,
            history: GroupHistory::default(),
            view: ScreenView::default(),
            sort: RowOrder::default(),
            filter: String::new(),
            is_typing: false,
            scroll: 0,
            other_name_case: None,
            list_requests: None,
            drawn: DrawnSize::default(),
            age: Duration::ZERO,
            selected: None,
            failure: None,
            hub_failure: None,
            message: None,
        }
    }

    /// Adds a look. One that failed leaves the last one visible.
    pub fn on_look(&mut self, seen: CountedLook) {
        self.list_requests = Some(seen.list_requests);
        match seen.look {
            Ok(look) => {
                self.history.add_look(look.group, look.is_hub_read);
                self.age = Duration::ZERO;
                self.failure = None;
                self.hub_failure = look.hub_failure;
            }
            Err(failure) => self.failure = Some(failure.to_string()),
        }
    }

    /// Notes how long ago the last refresh was.
    pub fn on_time(&mut self, age: Duration) {
        self.age = age;
    }

    /// Notes how much was drawn, which limits scrolling.
    pub fn on_drawn(&mut self, drawn: DrawnSize) {
        self.scroll = self.scroll.min(drawn.lines.saturating_sub(drawn.page));
        self.drawn = drawn;
    }

    pub fn on_other_name_case(&mut self, read: Result<GroupDescription>) {
        self.other_name_case = Some(match read {
            Ok(group) => OtherNameCase::Read(group),
            Err(failure) => OtherNameCase::Failed(failure.to_string()),
        });
    }

    pub fn on_export(&mut self, saved: Result<PathBuf>) {
        self.message = Some(match saved {
            Ok(file) => format!("wrote the checkpoints to {}", file.display()),
            Err(failure) => format!("error: {failure}"),
        });
    }

    /// Removes what was said about the last key.
    pub fn clear_message(&mut self) {
        self.message = None;
    }

    /// Returns the last refresh that succeeded.
    pub fn group(&self) -> Option<&GroupDescription> {
        self.history.last_look()
    }

    /// Returns the time, by the server's clock.
    pub fn now(&self) -> Option<OffsetDateTime> {
        self.group().map(|group| group.taken_at + self.age)
    }

    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns what is wrong with what is shown, one line each.
    pub fn failures(&self) -> Vec<String> {
        let age = format_duration(self.age);
        let storage = self.failure.as_ref().map(|failure| match self.group() {
            Some(_) => format!("this is {age} old, because the storage failed: {failure}"),
            None => format!("the storage failed: {failure}"),
        });
        // Storage requests have a timeout, but there may be several.
        let LookIntervals { interval, refresh, .. } = self.settings.intervals;
        let due = refresh.saturating_add(interval.saturating_mul(2)).saturating_add(SLOW);
        let is_late = storage.is_none() && self.group().is_some() && self.age > due;
        let failures = [
            storage,
            is_late.then(|| format!("this is {age} old, because the storage is slow")),
            self.hub_failure.as_ref().map(|failure| format!("LAST and LAG are old or missing: {failure}")),
        ];
        failures.into_iter().flatten().map(|failure| printable_text(&failure)).collect()
    }

    /// Returns the row of a partition.
    pub fn row(&self, partition: &PartitionId) -> Option<PartitionRow<'_>> {
        self.group()?.partition(partition).map(|partition| self.row_of(partition))
    }

    fn row_of<'a>(&'a self, partition: &'a PartitionDescription) -> PartitionRow<'a> {
        PartitionRow::new(partition, &self.history)
    }

    /// Returns the rows that the filter admits, in order.
    pub fn rows(&self) -> Vec<PartitionRow<'_>> {
        let partitions = self.group().map(|group| group.partitions.as_slice()).unwrap_or_default();
        let mut rows: Vec<_> = partitions.iter().map(|partition| self.row_of(partition)).collect();
        let filter = self.filter.to_lowercase();
        rows.retain(|row| {
            let text = format!("{} {} {}", row.partition.id, row.owner_id(), row.state_text());
            text.to_lowercase().contains(&filter)
        });
        match self.sort {
            RowOrder::Partition => {}
            RowOrder::Lag => rows.sort_by_key(|row| Reverse(row.partition.lag.events)),
            RowOrder::Rate => {
                rows.sort_by(|a, b| b.rates.processed.unwrap_or(-1.0).total_cmp(&a.rates.processed.unwrap_or(-1.0)));
            }
            RowOrder::Updated => rows.sort_by_key(PartitionRow::checkpoint_updated_at),
        }
        rows
    }

    /// Returns the place of the selected row: the first one if the selected partition is not there.
    pub fn selection_place(&self, rows: &[PartitionRow<'_>]) -> Option<usize> {
        rows.iter()
            .position(|row| Some(&row.partition.id) == self.selected.as_ref())
            .or_else(|| (!rows.is_empty()).then_some(0))
    }

    pub fn selected_partition(&self) -> Option<PartitionId> {
        let rows = self.rows();
        self.selection_place(&rows).map(|place| rows[place].partition.id.clone())
    }

    /// Selects the row that this function returns for the place of the selected row and of the last one.
    pub fn select(&mut self, place: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let Some(selected) = self.selection_place(&rows) else { return };
        let last = rows.len() - 1;
        self.selected = Some(rows[place(selected, last).min(last)].partition.id.clone());
    }
}
