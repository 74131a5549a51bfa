//! The owners of a group, as a call of the official processor needs them. Its `run` ends if such a call fails, so the
//! requests of the call are repeated.

use std::future::Future;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::listed::Listed;
use crate::error::Result;
use crate::store::membership::Heartbeat;
use crate::store::{Attempts, GroupStore, Ownership};
use crate::telemetry;

/// The owners of a group, all listed in one attempt: if one part were older than the others, live owners would look
/// expired.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) requested_at: Instant,
    pub(super) ownerships: Vec<Ownership>,
    pub(super) heartbeats: Vec<Heartbeat>,
    /// The ownerships as a claim needs them.
    pub(super) listed: Listed,
}

impl Owners {
    pub(super) async fn list(store: &GroupStore) -> Result<Self> {
        let requested_at = Instant::now();
        let here = store.list_ownerships().await?;
        let heartbeats = heartbeats_needed_by(store, &here.records).await?;
        Ok(Self {
            requested_at,
            listed: Listed::of(store, &here.records, &heartbeats),
            ownerships: here.records,
            heartbeats,
        })
    }
}

/// Lists the heartbeats, if the leases of other owners depend on them.
async fn heartbeats_needed_by(store: &GroupStore, listed: &[Ownership]) -> Result<Vec<Heartbeat>> {
    if listed.iter().any(|seen| seen.is_kept_alive_by_heartbeat(store.identity())) {
        return Ok(store.list_heartbeats().await?.records);
    }
    Ok(Vec::new())
}

/// Repeats a request until it succeeds, fails for good, or the time for attempts is over. One that is under way then is given
/// up for a last one: it may wait for a response that never comes.
pub(super) async fn repeated<T, F>(mut attempts: Attempts, request: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        let response = match attempts.until().filter(|until| *until > Instant::now()) {
            Some(until) => match timeout_at(until, request()).await {
                Ok(response) => response,
                Err(_) => continue,
            },
            None => request().await,
        };
        let error = match response {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let Some(next) = attempts.next_after(&error) else { return Err(error) };
        telemetry::processor_waits(&error, next - Instant::now());
        sleep_until(next).await;
    }
}
