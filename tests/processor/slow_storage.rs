//! A storage that answers each request, but slowly.

use std::time::Duration;

use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId};
use tokio::time::sleep;

use crate::slow::Latency;
use crate::world::{Recorder, World};

/// An adoption is four requests in a row, and the sum of their times is longer than any of them may take.
#[tokio::test(start_paused = true)]
async fn slow_requests_do_not_keep_partitions_dark() {
    let (store, fast_store) = (StoreConfig::default(), StoreConfig::fast_failover());
    let (config, fast_config) = (ProcessorConfig::default(), ProcessorConfig::fast_failover());
    for (store, config, milliseconds) in [
        (&store, &config, 2600),
        (&store, &config, 4000),
        (&fast_store, &fast_config, 1100),
        (&fast_store, &fast_config, 1500),
    ] {
        let mut world = World::new(4);
        world.config = config.clone();
        for partition in 0..4 {
            world.hub.publish_many(partition, 100, "event").unwrap();
        }
        let latency = Latency::default();
        latency.set(Duration::from_millis(milliseconds));
        let group = ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap();
        let container = latency.before(world.container.clone());
        let builder = GroupStore::builder(container, group, OwnerId::new("a").unwrap()).with_config(store.clone());
        let handler = Recorder { owner: "a".into(), log: world.log.clone(), checkpoint: true };
        let instance = world.start_on(builder.connect().await.unwrap(), world.hub.source(), handler);
        sleep(Duration::from_secs(600)).await;
        assert_eq!(world.log.times("event"), 400, "{milliseconds} ms");
        instance.shut_down().await.unwrap();
    }
}
