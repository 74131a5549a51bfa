//! Events of the services: the blob storage with its records, and the event hub.

use std::error::Error as StdError;
use std::fmt::Display;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::Telemetry;
use super::failures::{Causes, warn_retry};
use super::spans::{BLOB, EVENTHUBS, STORE};
use crate::codec::MalformedRecord;
use crate::error::Error;
use crate::model::{NameCase, PartitionId};

impl Telemetry {
    pub(crate) fn malformed_record(&self, malformed: &MalformedRecord) {
        let MalformedRecord { blob, problem, .. } = malformed;
        self.span().in_scope(|| {
            warn!(target: STORE, blob, problem, "malformed record; unreadable fields are ignored");
        });
    }

    pub(crate) fn malformed_records_not_logged(&self, records: usize) {
        self.span().in_scope(|| {
            warn!(target: STORE, records, "more malformed records in the same listing");
        });
    }

    pub(crate) fn adoption_failed(&self, partition: &PartitionId, error: &Error) {
        warn_retry!(EVENTHUBS, self, error, "cannot take over checkpoint yet; retrying", partition_id = %partition);
    }
}

pub(crate) fn storage_warning(advice: &str) {
    warn!(target: STORE, advice, "storage check reported a problem");
}

pub(crate) fn connect_failed(error: &Error, retry_in: Duration) {
    warn!(target: STORE, error = %Causes(error), ?retry_in, "cannot connect to storage; retrying");
}

pub(crate) fn other_name_case(used: NameCase, warning: &dyn Display) {
    warn!(target: STORE, %used, %warning, "the group also has records in the other blob-name casing");
}

pub(crate) fn clock_differs(offset_seconds: i64) {
    warn!(
        target: BLOB,
        skew = format!("{offset_seconds}s"),
        "local clock is skewed; signing requests with server time"
    );
}

pub(crate) fn clock_agrees() {
    info!(target: BLOB, "local clock is in sync again; signing requests with local time");
}

pub(crate) fn token_not_replaced(error: &Error, valid_for: Duration) {
    warn!(
        target: BLOB,
        error = %Causes(error),
        ?valid_for,
        "failed to refresh token; using the current token until it expires"
    );
}

pub(crate) fn token_replaced() {
    info!(target: BLOB, "obtained a token after failed attempts");
}

pub(crate) fn unusable_blob(blob: &str) {
    warn!(target: BLOB, blob, "skipping blob without valid ETag or Last-Modified");
}

pub(crate) fn unusable_blobs_not_logged(blobs: usize) {
    warn!(target: BLOB, blobs, "skipping more blobs without valid ETag or Last-Modified");
}

/// The store for the official processor repeats what the processor would not survive.
pub(crate) fn processor_waits(error: &Error, retry_in: Duration) {
    warn!(target: EVENTHUBS, error = %Causes(error), ?retry_in, "cannot list records for official processor; retrying");
}

pub(crate) fn link_not_closed(partition: &str, error: &dyn Display) {
    debug!(target: EVENTHUBS, partition_id = %partition, %error, "failed to close link cleanly");
}

/// There is no error if opening the connection took too long.
pub(crate) fn dead_letters_on_one_connection(error: Option<&Error>) {
    warn!(
        target: EVENTHUBS,
        error = error.map(|error| tracing::field::display(Causes(error))),
        "cannot open another connection for dead letters; they share one"
    );
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

pub(crate) fn hub_token_not_renewed(error: &(dyn StdError + 'static)) {
    warn!(target: EVENTHUBS, error = %Causes(error), "failed to get a token for the event hub; retrying");
}

pub(crate) fn hub_token_renewed() {
    info!(target: EVENTHUBS, "obtained a token for the event hub after failed attempts");
}
