//! The processor over custom partitions: two instances share the logs of a broker that is not Event Hubs.
//!
//! Any source with logs of numbered entries can be used. The broker of this example is in memory; for a real one,
//! replace `impl EventSource`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::{PartitionContext, Processor, ProcessorConfig, handler_fn};
use eventhubs_checkpoint::source::{
    EventHubProperties, EventReceiver, EventSource, PartitionProperties, Positioned, StartPosition,
};
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::{ConsumerGroup, Error, ErrorKind, OwnerId, PartitionId, Result};
use tokio::sync::watch;

#[derive(Clone)]
struct Entry {
    number: i64,
    /// The number again, because a checkpoint needs a text for its offset. In Event Hubs it is different.
    offset: String,
}

impl Positioned for Entry {
    fn sequence_number(&self) -> Option<i64> {
        Some(self.number)
    }

    fn offset(&self) -> Option<&str> {
        Some(&self.offset)
    }
}

/// A broker: logs by name. A reader can wait for new entries. Each instance has its own client of the broker.
#[derive(Clone)]
struct Broker(Arc<BTreeMap<PartitionId, watch::Sender<Vec<Entry>>>>);

impl Broker {
    fn subscribe(&self, log: &PartitionId) -> Result<watch::Receiver<Vec<Entry>>> {
        let sender = self.0.get(log);
        let sender = sender.ok_or_else(|| Error::new(ErrorKind::Config, format!("there is no log {log}")))?;
        Ok(sender.subscribe())
    }
}

impl EventSource for Broker {
    type Event = Entry;

    async fn event_hub_properties(&self) -> Result<EventHubProperties> {
        Ok(EventHubProperties::new("cities".to_owned(), self.0.keys().cloned().collect()))
    }

    async fn partition_properties(&self, id: &PartitionId) -> Result<PartitionProperties> {
        let last = self.subscribe(id)?.borrow().last().and_then(Positioned::position);
        // Nothing expires here, so only an unused log is empty.
        Ok(PartitionProperties::new(0, last, false))
    }

    // This broker does not compare readers, so it ignores the epoch.
    async fn open_receiver(
        &self,
        id: &PartitionId,
        from: StartPosition,
        prefetch: usize,
        _epoch: i64,
    ) -> Result<EventReceiver<Entry>> {
        let mut log = self.subscribe(id)?;
        let mut after = match from {
            StartPosition::AfterSequenceNumber(number) => number,
            StartPosition::Latest => log.borrow().last().map_or(-1, |entry| entry.number),
            // An earlier start loses nothing. This broker has no times.
            _ => -1,
        };
        // The task of this reader ends when the receiver is dropped or the broker is gone.
        Ok(EventReceiver::spawn(prefetch, async move |reader| {
            loop {
                let news =
                    log.borrow_and_update().iter().filter(|entry| entry.number > after).cloned().collect::<Vec<_>>();
                after = news.last().map_or(after, |entry| entry.number);
                if !reader.send_all(news).await {
                    break;
                }
                tokio::select! {
                    () = reader.closed() => break,
                    changed = log.changed() => if changed.is_err() { break },
                }
            }
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let logs = ["berlin", "lisbon", "oslo", "rome"].map(|name| Ok((PartitionId::new(name)?, watch::Sender::default())));
    let broker = Broker(Arc::new(logs.into_iter().collect::<Result<_>>()?));
    let container = MemoryContainer::new();
    let total = watch::Sender::new(0);
    let instances =
        ['a', 'b'].map(|owner| tokio::spawn(run_instance(owner, broker.clone(), container.clone(), total.clone())));
    for number in 0..10 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        for log in broker.0.values() {
            log.send_modify(|log| log.push(Entry { number, offset: number.to_string() }));
        }
    }
    for instance in instances {
        println!("shut down cleanly: {}", instance.await??);
    }
    Ok(())
}

/// Runs an instance that processes its share until all 40 entries were processed, and then releases it.
async fn run_instance(
    owner: char,
    broker: Broker,
    container: MemoryContainer,
    total: watch::Sender<usize>,
) -> Result<bool> {
    // Any three names are valid if all instances use the same.
    let group = ConsumerGroup::new("broker.example", "cities", "readers")?;
    let store = GroupStore::builder(Arc::new(container), group, OwnerId::new(owner.to_string())?).connect().await?;
    let mut done = total.subscribe();
    let handler = handler_fn(move |entries: Vec<Entry>, log: PartitionContext| {
        for entry in &entries {
            println!("{owner} reads entry {} of {}", entry.number, log.partition_id());
            log.checkpoint(entry);
        }
        total.send_modify(|count| *count += entries.len());
        async { Ok(()) }
    });
    // The interval is only this short so that both instances get their share at once.
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_millis(200)));
    let all = async move { drop(done.wait_for(|count| *count == 40).await) };
    Ok(Processor::builder(broker, store, handler).with_config(config).run(all).await?.is_clean())
}
