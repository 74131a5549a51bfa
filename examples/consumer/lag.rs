//! The lag of the instances of this process, from the properties of the event hub.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::source::EventSource;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::ledger::Ledger;

const EVERY: Duration = Duration::from_secs(5);

/// Sends at intervals the number of events after the last processed one, summed over the partitions with processed
/// events.
pub async fn watch(
    source: impl EventSource,
    ledger: Arc<Ledger>,
    lag: watch::Sender<Option<i64>>,
) -> Result<(), Failure> {
    loop {
        sleep(EVERY).await;
        let mut total = None;
        for (partition, processed) in ledger.last_sequence_numbers() {
            let response = timeout(EVERY, source.partition_properties(&partition)).await;
            // Without a response the partition is skipped. The processor logs what is wrong.
            let Ok(Ok(properties)) = response else { continue };
            let last = properties.last_enqueued().map_or(-1, |last| last.sequence_number);
            total = Some(total.unwrap_or(0) + (last - processed).max(0));
        }
        lag.send_replace(total);
    }
}
