//! How far the instances of this process are behind, asked of the hub.

use std::time::Duration;

use eventhubs_checkpoint::processor::EventSource;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::ledger::Ledger;

const EVERY: Duration = Duration::from_secs(5);

/// Tells, every now and then, how many events lie behind the last one processed, over the partitions of which one was.
pub async fn watch(
    source: &impl EventSource,
    ledger: &Ledger,
    lag: &watch::Sender<Option<i64>>,
) -> Result<(), Failure> {
    loop {
        sleep(EVERY).await;
        let mut behind = None;
        for (partition, processed) in ledger.last_sequence_numbers() {
            let asked = timeout(EVERY, source.partition_properties(&partition)).await;
            // A hub that does not answer now leaves the figure as it is; the processor tells what is wrong.
            let Ok(Ok(properties)) = asked else { continue };
            let last = properties.last_enqueued().map_or(-1, |last| last.sequence_number);
            let missing = (last - processed).max(0);
            behind = Some(behind.unwrap_or(0) + missing);
        }
        lag.send_replace(behind);
    }
}
