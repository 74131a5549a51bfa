//! Executes the requests that the balancer decides on.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::action::Request;
use super::happened::Done;
use crate::error::Result;
use crate::store::{ClaimOutcome, GroupStore, Lease, ReleaseOutcome};
use crate::telemetry::StorageOperation;

/// Makes a request, and returns its outcome.
pub(super) async fn perform(store: GroupStore, request: Request) -> Done {
    match request {
        Request::List => Done::Listed(store.list_ownerships().await.map(|listing| listing.records)),
        Request::ListWithHeartbeats => {
            let records = store.list_records_reported().await;
            Done::ListedWithHeartbeats(records.map(|listed| (listed.ownerships.records, listed.heartbeats.records)))
        }
        Request::ListHeartbeats => Done::HeartbeatsListed(store.list_heartbeats().await.map(|listing| listing.records)),
        Request::FindCaseConflict => Done::CaseConflictFound(store.find_case_conflict().await),
        Request::DeclareDead { of, heartbeat, claims } => {
            Done::DeclaredDead { claims, outcome: store.declare_dead(&of, heartbeat.as_ref()).await }
        }
        Request::Claim(claim) => {
            let outcome = store.claim(&claim).await;
            Done::Claimed { partition: claim.partition().clone(), outcome }
        }
        Request::Renew(lease) => {
            let outcome = store.renew(&lease).await;
            Done::Renewed { partition: lease.partition().clone(), epoch: lease.epoch(), outcome }
        }
        Request::Release { lease, until } => {
            let left = until.map(|until| until.saturating_sub(store.lease_clock_now()));
            let outcome = release(&store, &lease, left).await;
            Done::Released { partition: lease.partition().clone(), outcome }
        }
        Request::Keep(lease) => {
            let outcome = keep(&store, &lease).await;
            Done::Kept { partition: lease.partition().clone(), outcome }
        }
        Request::RequestHandoff(seen) => {
            let outcome = store.request_handoff(&seen).await;
            Done::HandoffRequested { partition: seen.partition, outcome }
        }
        Request::PollHandoff(mut handoff) => {
            let outcome = store.poll_handoff(&mut handoff).await;
            Done::HandoffPolled { handoff, outcome }
        }
        Request::SendHeartbeat => Done::HeartbeatSent(store.send_heartbeat().await),
        Request::EndHeartbeat { persistently } => Done::HeartbeatEnded(end_heartbeat(&store, persistently).await),
        Request::DeleteHeartbeats(heartbeats) => {
            Done::HeartbeatsDeleted(store.delete_stale_heartbeats(&heartbeats).await)
        }
    }
}

/// Repeats a release until its outcome is known, the time is over, or a retry cannot help.
async fn release(store: &GroupStore, lease: &Lease, left: Option<Duration>) -> ReleaseOutcome {
    let mut attempts = store.attempts(left.map(|left| Instant::now() + left));
    loop {
        match store.release(lease).await {
            ReleaseOutcome::Indeterminate(error) => {
                let Some(next) = attempts.next_after(&error) else { return ReleaseOutcome::Indeterminate(error) };
                store.telemetry().ownership_indeterminate(StorageOperation::Release, lease.partition(), &error);
                sleep_until(next).await;
            }
            settled => return settled,
        }
    }
}

/// Repeats a renewal until its outcome is known, or a retry cannot help.
async fn keep(store: &GroupStore, lease: &Lease) -> ClaimOutcome {
    let mut attempts = store.attempts(None);
    loop {
        match store.renew(lease).await {
            ClaimOutcome::Indeterminate(error) if attempts.again_after(&error).await => {}
            outcome => return outcome,
        }
    }
}

async fn end_heartbeat(store: &GroupStore, persistently: bool) -> Result<()> {
    let mut attempts = store.attempts((!persistently).then(Instant::now));
    loop {
        match store.end_heartbeat().await {
            Err(error) if attempts.again_after(&error).await => {}
            outcome => return outcome,
        }
    }
}
