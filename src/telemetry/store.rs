//! Events of the records of a group.

use std::fmt::Display;
use std::time::Duration;

use tracing::warn;

use super::Telemetry;
use super::failures::Causes;
use super::spans::STORE;
use crate::codec::MalformedRecord;
use crate::error::Error;
use crate::model::NameCase;

pub(crate) fn storage_warning(advice: &str) {
    warn!(target: STORE, advice, "storage check reported a problem");
}

pub(crate) fn connect_failed(error: &Error, retry_in: Duration) {
    warn!(target: STORE, error = %Causes(error), ?retry_in, "cannot connect to storage; retrying");
}

pub(crate) fn other_name_case(used: NameCase, warning: &dyn Display) {
    warn!(target: STORE, %used, %warning, "the group also has records in the other blob-name case");
}

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
}
