//! What one event hub is like.

use super::log::Retention;
use crate::error::{Error, Result};
use crate::testing::EmptiedReport;

/// How many events a partition keeps unless told otherwise: see [`HubSettings::with_retention_count`].
pub const DEFAULT_RETENTION_COUNT: usize = 50_000;

const DEFAULT_PARTITIONS: u16 = 4;

/// Describes one event hub of a stand-in; handed out by
/// [`EventHubEmulatorBuilder::with_event_hub`](super::EventHubEmulatorBuilder::with_event_hub).
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are given back"]
pub struct HubSettings {
    pub(super) name: String,
    pub(super) partitions: u16,
    pub(super) consumer_groups: Vec<String>,
    pub(super) retention: Retention,
    pub(super) emptied: EmptiedReport,
}

impl HubSettings {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            partitions: DEFAULT_PARTITIONS,
            consumer_groups: Vec::new(),
            retention: Retention { count: DEFAULT_RETENTION_COUNT, refuse_expired: false },
            emptied: EmptiedReport::default(),
        }
    }

    /// How many partitions there are: 4 by default, enough to be shared among a few instances.
    ///
    /// [`EventHubEmulator::grow_to`](super::EventHubEmulator::grow_to) adds more at run time.
    pub fn with_partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// Adds a consumer group. `$Default` is always there. Case does not tell names apart, as in the service.
    pub fn with_consumer_group(mut self, name: impl Into<String>) -> Self {
        self.consumer_groups.push(name.into());
        self
    }

    /// How many events every partition keeps: [`DEFAULT_RETENTION_COUNT`] by default, at least 1.
    ///
    /// With each event above the count the oldest one expires. The default is more than most tests publish, and it
    /// bounds the memory: a partition full of events of 1 KiB takes about 120 MB. `usize::MAX` keeps everything.
    ///
    /// The service goes by age and size instead of a count. What it does with a position before the oldest event is
    /// told at [`with_expired_positions_rejected`](Self::with_expired_positions_rejected).
    pub fn with_retention_count(mut self, events: usize) -> Self {
        self.retention.count = events;
        self
    }

    /// Refuses a receiver whose first event has expired. By default it starts at the oldest event there is.
    ///
    /// The default is what the service does: the tests of `spotflow-io/in-memory-azure-test-sdk`, which run against the
    /// real service too, get the first available event for a lower sequence number
    /// (`Starting_Position_Lower_Than_Beginning_Event_Should_Return_First_Available_Event`), and so do the readers of
    /// Azure/azure-event-hubs-spark#361. Nobody is told that events were missed: a consumer that has to know compares
    /// sequence numbers.
    ///
    /// The refusal is for consumers that want to see how they take an error for a checkpoint that went out of range. It
    /// has the condition that the service has for a position above the last event, `com.microsoft:argument-error`
    /// (Azure/azure-event-hubs-python#13). Asking for the earliest event is never refused, nor is a time.
    pub fn with_expired_positions_rejected(mut self) -> Self {
        self.retention.refuse_expired = true;
        self
    }

    /// What its partitions report when all of their events have expired: [`EmptiedReport::BeginIsLast`] by default.
    ///
    /// Retention by count always leaves an event; [`EventHubEmulator::expire_before`](super::EventHubEmulator::expire_before) empties a
    /// partition.
    pub fn with_emptied_report(mut self, report: EmptiedReport) -> Self {
        self.emptied = report;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        check_name("event hub", &self.name)?;
        for group in &self.consumer_groups {
            check_name("consumer group", group)?;
        }
        if self.partitions == 0 {
            return Err(Error::config("an event hub has at least one partition, 0 were asked for: ask for 1 or more"));
        }
        if self.retention.count == 0 {
            return Err(Error::config(
                "a partition keeps at least one event, a retention of 0 was asked for: ask for 1 or more",
            ));
        }
        Ok(())
    }
}

/// The characters of the service's names, which need no escape in an address or a connection string.
fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '$');
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(Error::config(format!(
            "{name:?} is no name for an {what}: use letters, digits, '.', '-', '_' and '$'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn refusal(settings: &HubSettings) -> String {
        let error = settings.check().expect_err("the setting is wrong");
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    }

    #[test]
    fn refuses_no_partitions_and_no_events() {
        assert!(refusal(&HubSettings::new("hub").with_partitions(0)).contains("0 were asked for"));
        assert!(refusal(&HubSettings::new("hub").with_retention_count(0)).contains("a retention of 0"));
    }

    #[test]
    fn refuses_names_that_no_address_can_hold() {
        assert!(refusal(&HubSettings::new("")).contains("\"\" is no name for an event hub"));
        assert!(refusal(&HubSettings::new("hub").with_consumer_group("a/b")).contains("\"a/b\""));
    }
}
