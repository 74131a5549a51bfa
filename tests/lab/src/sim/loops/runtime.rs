//! The runtime of an application, which tells its loop that it runs.

use std::time::Duration;

use eventhubs_checkpoint::balancer::BalancerHandle;
use tokio::sync::watch;
use tokio::time::sleep;

/// How often it does so.
const TICK: Duration = Duration::from_millis(500);

/// Ticks, except while it is blocked. Never ends.
pub(super) async fn tick(handle: BalancerHandle, mut blocked: watch::Receiver<bool>) {
    while blocked.wait_for(|blocked| !blocked).await.is_ok() {
        handle.liveness().tick();
        sleep(TICK).await;
    }
}
