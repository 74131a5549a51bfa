//! Handlers of loops that have no processor: each one stops a while after the request to stop.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::balancer::{BalancerHandle, OwnershipEvent};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

/// The default of a processor with the default lease duration.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Releases each partition that the loop wants to release, up to `longest` later. Ends with the loop.
pub(super) async fn run(handle: BalancerHandle, longest: Duration, seed: u64) {
    let (mut events, mut rng) = (handle.ownership_events(), StdRng::seed_from_u64(seed));
    let mut epochs = BTreeMap::new();
    loop {
        match events.recv().await {
            Ok(OwnershipEvent::Claimed { partition, epoch, .. }) => drop(epochs.insert(partition, epoch)),
            Ok(OwnershipEvent::Releasing { partition, .. }) => {
                let Some(epoch) = epochs.get(&partition).copied() else { continue };
                let (handle, stop) = (handle.clone(), longest.mul_f64(rng.random_range(0.0..1.0)));
                tokio::spawn(async move {
                    sleep(stop).await;
                    handle.release(partition, epoch, Duration::ZERO);
                });
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
