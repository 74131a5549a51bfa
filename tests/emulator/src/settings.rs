//! Settings of one event hub.

use super::retention::Retention;
use crate::emptied::EmptiedReport;
use crate::error::StartError;

/// The default number of events that a partition keeps: see [`HubSettings::with_retention_count`].
pub const DEFAULT_RETENTION_COUNT: usize = 50_000;

const DEFAULT_PARTITIONS: u16 = 4;

/// Describes one event hub of an emulator. Passed to the closure of
/// [`EventHubEmulatorBuilder::with_event_hub`](super::EventHubEmulatorBuilder::with_event_hub).
#[derive(Clone, Debug)]
#[must_use = "settings have no effect until the closure returns them"]
pub struct HubSettings {
    pub(super) name: String,
    pub(super) partitions: u16,
    pub(super) consumer_groups: Vec<String>,
    pub(super) retention: Retention,
    pub(super) emptied: EmptiedReport,
    pub(super) is_geo_replicated: bool,
}

impl HubSettings {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            partitions: DEFAULT_PARTITIONS,
            consumer_groups: Vec::new(),
            retention: Retention { count: DEFAULT_RETENTION_COUNT, reject_expired: false },
            emptied: EmptiedReport::default(),
            is_geo_replicated: false,
        }
    }

    /// Sets the number of partitions. Default 4, enough for several instances. At least 1.
    ///
    /// [`EventHubEmulator::grow_to`](super::EventHubEmulator::grow_to) adds more at run time.
    pub fn with_partitions(mut self, count: u16) -> Self {
        self.partitions = count;
        self
    }

    /// Adds a consumer group. `$Default` always exists. Names are compared without case, as in the service.
    pub fn with_consumer_group(mut self, name: impl Into<String>) -> Self {
        self.consumer_groups.push(name.into());
        self
    }

    /// Sets the number of events that each partition keeps. Default [`DEFAULT_RETENTION_COUNT`]. At least 1.
    ///
    /// Each event above the count expires the oldest one. The default is more than most tests publish, and bounds the
    /// memory: a partition full of events of 1 KiB takes about 120 MB. `usize::MAX` keeps everything.
    ///
    /// The service uses age and size instead of a count. For its treatment of expired positions, see
    /// [`with_expired_positions_rejected`](Self::with_expired_positions_rejected).
    pub fn with_retention_count(mut self, events: usize) -> Self {
        self.retention.count = events;
        self
    }

    /// Rejects a receiver whose first event has expired. By default the receiver starts at the oldest event.
    ///
    /// The default is the behavior of the service: the tests of `spotflow-io/in-memory-azure-test-sdk`, which also run
    /// against the real service, get the first available event for a lower sequence number
    /// (`Starting_Position_Lower_Than_Beginning_Event_Should_Return_First_Available_Event`), and so do the readers of
    /// Azure/azure-event-hubs-spark#361. Skipped events are not reported: a consumer that must detect them compares
    /// sequence numbers.
    ///
    /// The rejection is for tests of consumers that handle an error for a checkpoint out of range. It has the condition
    /// of the service for a position after the last event, `com.microsoft:argument-error`
    /// (Azure/azure-event-hubs-python#13). Starts at the earliest event and at a time are never rejected.
    pub fn with_expired_positions_rejected(mut self) -> Self {
        self.retention.reject_expired = true;
        self
    }

    /// Sets what the partitions report when all of their events have expired. Default [`EmptiedReport::BeginIsLast`].
    ///
    /// Retention by count always keeps an event;
    /// [`EventHubEmulator::expire_before`](super::EventHubEmulator::expire_before) empties a partition.
    pub fn with_emptied_report(mut self, report: EmptiedReport) -> Self {
        self.emptied = report;
        self
    }

    /// Makes the event hub one of a geo-replicated namespace.
    ///
    /// The offsets of its events are text, such as `1:4294967296:500`. A receiver that starts at a number as offset is
    /// rejected with `com.microsoft:georeplication:invalid-offset`. The offset in the properties of a partition is such
    /// a number, so it cannot be used as a start; its sequence number can. All of this is what a live test of the Go
    /// client shows (`TestConsumerClient_GeoDR` of Azure/azure-sdk-for-go).
    ///
    /// The connection and the links offer the capability `com.microsoft:georeplication`.
    /// [`EventHubEmulator::promote`](super::EventHubEmulator::promote) makes another region the primary one.
    pub fn with_geo_replication(mut self) -> Self {
        self.is_geo_replicated = true;
        self
    }

    pub(super) fn check(&self) -> Result<(), StartError> {
        check_name("event hub", &self.name)?;
        for group in &self.consumer_groups {
            check_name("consumer group", group)?;
        }
        if self.partitions == 0 {
            return Err(StartError::setting("`with_partitions` is 0, but an event hub has at least one partition"));
        }
        if self.retention.count == 0 {
            return Err(StartError::setting("`with_retention_count` is 0, but a partition keeps at least one event"));
        }
        Ok(())
    }
}

/// Checks for the characters of the service's names, which need no escape in an address or a connection string.
fn check_name(what: &str, name: &str) -> Result<(), StartError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '$');
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(StartError::setting(format!(
            "{what} name {name:?} is invalid: use letters, digits, '.', '-', '_' and '$'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(settings: &HubSettings) -> String {
        settings.check().expect_err("an invalid setting").to_string()
    }

    #[test]
    fn zero_partitions_and_zero_events_are_rejected() {
        assert!(refusal(&HubSettings::new("hub").with_partitions(0)).contains("with_partitions"));
        assert!(refusal(&HubSettings::new("hub").with_retention_count(0)).contains("with_retention_count"));
    }

    #[test]
    fn names_invalid_in_an_address_are_rejected() {
        assert!(refusal(&HubSettings::new("")).contains("event hub name \"\" is invalid"));
        assert!(refusal(&HubSettings::new("hub").with_consumer_group("a/b")).contains("\"a/b\""));
    }
}
