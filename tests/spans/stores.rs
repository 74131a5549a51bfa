//! Stores that are called outside of any span.

use azure_messaging_eventhubs::CheckpointStore;
use azure_messaging_eventhubs::models::Ownership;
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::eventhubs::BlobCheckpointStore;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::Fault;
use tracing::{Dispatch, Instrument, Level, info_span};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;

use crate::scoped::Scoped;
use crate::{Group, capture, dedicated};

#[tokio::test(start_paused = true)]
async fn a_store_logs_inside_its_span() {
    let (log, _guard) = capture();
    let group = Group::new("orders", "$Default", 1);
    group.world.faulty.inject(Fault::Unreachable);
    let store = group.builder("a").connect().await.unwrap();
    let name = "ns.servicebus.windows.net/orders/$default/ownership/0";
    group.world.container.overwrite(name, &Metadata::new()).await.unwrap();
    assert_eq!(store.list_ownerships().await.unwrap().malformed.len(), 1);
    log.check(&[group.instance("a")]);
    // With the event of the injected fault, which is inside the span, too.
    let of_the_store = log.records().into_iter().filter(|record| record.target == "eventhubs_checkpoint::store");
    let messages: Vec<_> = of_the_store.map(|record| record.message().to_owned()).collect();
    assert_eq!(messages, ["cannot connect to storage; retrying", "malformed record; unreadable fields are ignored"]);
}

/// The spans are kept by a filter that allows warnings only, or one area only if the spans are named.
#[tokio::test(start_paused = true)]
async fn a_filter_at_warn_keeps_the_spans() {
    for filter in ["warn", "eventhubs_checkpoint=error,eventhubs_checkpoint::store=debug"] {
        dedicated::of_the_process();
        let log = Scoped::default();
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(filter)).with(log.clone());
        let _guard = tracing::dispatcher::set_default(&Dispatch::new(subscriber));
        let group = Group::new("orders", "$Default", 1);
        group.world.faulty.inject(Fault::Unreachable);
        group.builder("a").connect().await.unwrap();
        log.check(&[group.instance("a")]);
        assert_eq!(log.records()[0].level, Level::WARN, "{filter}");
    }
}

/// The span of the application around `connect` is the parent.
#[tokio::test(start_paused = true)]
async fn a_span_of_the_application_is_the_parent() {
    let (log, _guard) = capture();
    let group = Group::new("orders", "$Default", 1);
    group.world.faulty.inject(Fault::Unreachable);
    group.builder("a").connect().instrument(info_span!("tenant")).await.unwrap();
    let names: Vec<_> = log.records()[0].spans.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["tenant", "processor"]);
}

fn wanted(partition: u32) -> Ownership {
    Ownership {
        fully_qualified_namespace: "ns.servicebus.windows.net".to_owned(),
        event_hub_name: "orders".to_owned(),
        consumer_group: "$Default".to_owned(),
        partition_id: partition.to_string(),
        owner_id: Some("a".to_owned()),
        ..Ownership::default()
    }
}

#[tokio::test]
async fn the_official_checkpoint_store_logs_in_its_span() {
    let (log, _guard) = capture();
    let group = Group::new("orders", "$Default", 1);
    let container = MemoryContainer::new();
    let store = BlobCheckpointStore::new(container.clone());
    assert_eq!(store.claim_ownership(&[wanted(0), wanted(1)]).await.unwrap().len(), 2);
    let name = "ns.servicebus.windows.net/orders/$default/ownership/1";
    container.overwrite(name, &Metadata::from([("ownerid", "b")])).await.unwrap();
    store.list_ownerships("ns.servicebus.windows.net", "orders", "$Default").await.unwrap();
    store.release_all().await;
    log.check(&[group.instance("a")]);
    let messages: Vec<_> = log.records().iter().map(|record| record.message().to_owned()).collect();
    assert_eq!(messages, ["partition claimed", "partition claimed", "partition lost", "partition released"]);
}
