//! Events of the connections to the event hub, and of the store for the official `EventProcessor`.

use std::fmt;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::Telemetry;
use super::failures::{Causes, warn_retry};
use super::spans::EVENTHUBS;
use crate::error::Error;
use crate::model::PartitionId;

impl Telemetry {
    pub(crate) fn adoption_failed(&self, partition: &PartitionId, error: &Error) {
        warn_retry!(EVENTHUBS, self, error, "cannot take over checkpoint yet; retrying", partition_id = %partition);
    }
}

/// The store for the official processor repeats what the processor would not survive.
pub(crate) fn processor_waits(error: &Error, retry_in: Duration) {
    warn!(target: EVENTHUBS, error = %Causes(error), ?retry_in, "cannot list records for official processor; retrying");
}

pub(crate) fn link_not_closed(partition: &str, error: &dyn fmt::Display) {
    debug!(target: EVENTHUBS, partition_id = %partition, %error, "failed to close link cleanly");
}

pub(crate) fn hub_reconnected(event_hub: &str) {
    warn!(target: EVENTHUBS, event_hub, "reconnected to event hub");
}

pub(crate) fn hub_not_reconnected(event_hub: &str, error: &Error, retry_in: Duration) {
    warn!(
        target: EVENTHUBS,
        event_hub,
        error = %Causes(error),
        ?retry_in,
        "failed to reconnect to event hub; retrying"
    );
}

pub(crate) fn hub_token_not_renewed(error: &azure_core::Error) {
    warn!(target: EVENTHUBS, error = %Causes(error), "failed to get a token for the event hub; retrying");
}

pub(crate) fn hub_token_renewed() {
    info!(target: EVENTHUBS, "obtained a token for the event hub after failed attempts");
}
