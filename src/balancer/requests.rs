//! Executes the requests that the balancer decides on.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::action::Request;
use super::happened::{Done, Others};
use crate::error::Result;
use crate::store::{ClaimOutcome, GroupStore, Lease, ReleaseOutcome};
use crate::telemetry::Operation;

/// Makes a request, and returns what came of it.
pub(super) async fn perform(store: GroupStore, request: Request) -> Done {
    match request {
        Request::List => Done::Listed(store.list_ownerships().await.map(|listing| listing.records)),
        Request::ListOthers { presences, other_tree } => {
            Done::OthersListed(list_others(&store, presences, other_tree).await)
        }
        Request::DeclareDead { of, presence, claims } => {
            Done::Judged { claims, outcome: store.declare_dead(&of, presence.as_ref()).await }
        }
        Request::Claim(claim) => {
            let outcome = store.claim_one(&claim).await;
            Done::Claimed { partition: claim.partition().clone(), outcome }
        }
        Request::Renew(lease) => {
            let outcome = store.renew_one(&lease).await;
            Done::Renewed { partition: lease.partition().clone(), epoch: lease.epoch(), outcome }
        }
        Request::Release { lease, until } => {
            let left = until.map(|until| until.saturating_sub(store.lease_time()));
            let outcome = release(&store, &lease, left).await;
            Done::Released { partition: lease.partition().clone(), outcome }
        }
        Request::Keep(lease) => {
            let outcome = keep(&store, &lease).await;
            Done::Kept { partition: lease.partition().clone(), outcome }
        }
        Request::Mark(seen) => {
            let outcome = store.mark(&seen).await;
            Done::Marked { partition: seen.partition, outcome }
        }
        Request::Pursue { mut handoff, patience } => {
            let outcome = store.pursue(&mut handoff, &patience).await;
            Done::Pursued { handoff, outcome }
        }
        Request::Announce => Done::Announced(store.announce().await),
        Request::Withdraw { persistently } => Done::Withdrawn(withdraw(&store, persistently).await),
        Request::Clear(presences) => Done::Cleared(store.clear_presences(&presences).await),
    }
}

async fn list_others(store: &GroupStore, presences: bool, other_tree: bool) -> Result<Others> {
    let presences = if presences { Some(store.list_presences().await?.records) } else { None };
    let other_tree = if other_tree { store.list_other_tree().await?.records } else { Vec::new() };
    Ok(Others { presences, other_tree })
}

/// Until it is settled, the time is over, or no repetition can help.
async fn release(store: &GroupStore, lease: &Lease, left: Option<Duration>) -> ReleaseOutcome {
    let mut attempts = store.attempts(left.map(|left| Instant::now() + left));
    loop {
        match store.release_one(lease).await {
            ReleaseOutcome::Undecided(error) => {
                let Some(next) = attempts.next_after(&error) else { return ReleaseOutcome::Undecided(error) };
                store.telemetry().ownership_undecided(Operation::Release, lease.partition(), &error);
                sleep_until(next).await;
            }
            settled => return settled,
        }
    }
}

/// Until it is settled, or no repetition can help.
async fn keep(store: &GroupStore, lease: &Lease) -> ClaimOutcome {
    let mut attempts = store.attempts(None);
    loop {
        match store.renew_one(lease).await {
            ClaimOutcome::Undecided(error) if attempts.again_after(&error).await => {}
            outcome => return outcome,
        }
    }
}

async fn withdraw(store: &GroupStore, persistently: bool) -> Result<()> {
    let mut attempts = store.attempts((!persistently).then(Instant::now));
    loop {
        match store.withdraw().await {
            Err(error) if attempts.again_after(&error).await => {}
            outcome => return outcome,
        }
    }
}
