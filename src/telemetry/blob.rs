//! Events of Azure Blob Storage.

use std::time::Duration;

use tracing::{info, warn};

use super::failures::Causes;
use super::spans::BLOB;
use crate::error::Error;

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
