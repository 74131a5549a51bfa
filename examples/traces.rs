//! Traces from the producer to the handler to the checkpoint, exported with OpenTelemetry to a collector.
//!
//! Starts an event hub emulator, keeps its records in memory, and has a collector of its own, which receives OTLP over
//! HTTP. Prints each trace as a tree. With a real collector, only `ENDPOINT` differs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::{EventData, ReceivedEventData};
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::processor::traces::SpanEvents;
use eventhubs_checkpoint::processor::{LoadBalancingStrategy, ProcessorConfig};
use eventhubs_checkpoint::{
    ConsumerGroup, EventHubSource, GroupStore, OwnerId, PartitionContext, Processor, handler_fn,
};
use eventhubs_emulator::EventHubEmulator;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{Level, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

#[path = "traces/collector.rs"]
mod collector;

use collector::{Collected, Collector};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    print!("{}", run().await?);
    Ok(())
}

/// Processes one single event and a batch of three, and returns the spans that the collector received.
async fn run() -> Result<Collected, BoxError> {
    let collector = Collector::start().await?;
    let provider = export_to(collector.endpoint())?;
    let emulator = EventHubEmulator::builder("orders").with_partitions(2).start("127.0.0.1:0").await?;
    publish(&emulator, "0", &["single"]).await?;
    publish(&emulator, "1", &["first", "second", "third"]).await?;

    let hub = emulator.connection_string_with_port();
    let group = ConsumerGroup::from_connection_string(&hub, "$Default")?;
    let store = GroupStore::connect(Arc::new(MemoryContainer::new()), group.clone(), OwnerId::random()?).await?;
    let source = EventHubSource::from_connection_string(&group, hub);
    let done = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&done);
    let handler = handler_fn(move |events: Vec<ReceivedEventData>, partition: PartitionContext| {
        let counted = Arc::clone(&counted);
        async move {
            // Spans of the application are children of the span of the batch.
            let _entered = info_span!("store order").entered();
            for event in &events {
                partition.checkpoint(event);
            }
            counted.add_permits(events.len());
            Ok(())
        }
    });
    let config = ProcessorConfig::default()
        // The events of a batch arrive one after another.
        .with_max_batch_size(3)
        .with_max_batch_wait(Duration::from_secs(1))
        .with_balancer(|balancer| balancer.with_load_balancing_strategy(LoadBalancingStrategy::Greedy));
    let processor =
        Processor::builder(source.connect().await?, store, handler).with_config(config).with_span_hook(link_span);
    processor
        .run(async {
            // An error means that it took too long.
            drop(timeout(TIMEOUT, done.acquire_many(4)).await);
        })
        .await?;
    // The exporter waits for its connection, which needs this runtime.
    tokio::task::spawn_blocking(move || provider.shutdown()).await??;
    Ok(collector.collected())
}

/// Exports the spans of this crate and of the application. The long-lived spans for log events are left out: they would
/// be the parents of everything.
fn export_to(endpoint: String) -> Result<SdkTracerProvider, BoxError> {
    let exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpJson).with_endpoint(endpoint).build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("orders").build())
        .build();
    let filter =
        Targets::new().with_target("eventhubs_checkpoint::spans", Level::DEBUG).with_target("traces", Level::INFO);
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("orders")).with_filter(filter);
    tracing_subscriber::registry().with(layer).init();
    Ok(provider)
}

/// Links the span of a batch or a checkpoint to the spans in which its events were created. A span for a single event
/// also continues the trace of the event.
fn link_span(span: &Span, events: SpanEvents<'_>) {
    for context in events.contexts {
        let carrier = HashMap::from([
            ("traceparent".to_owned(), context.traceparent.clone()),
            ("tracestate".to_owned(), context.tracestate.clone().unwrap_or_default()),
        ]);
        let created_in = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let enqueued_at = context
            .enqueued_at
            .map(|time| KeyValue::new("messaging.eventhubs.message.enqueued_time", time.unix_timestamp()));
        span.add_link_with_attributes(created_in.span().span_context().clone(), enqueued_at.into_iter().collect());
        if events.count == 1 {
            // An error means that the span is not exported.
            let _ = span.set_parent(created_in);
        }
    }
}

/// Publishes events in one batch, each in a span of its own, whose context it carries.
async fn publish(emulator: &EventHubEmulator, partition: &str, bodies: &[&str]) -> Result<(), BoxError> {
    let producer = ProducerClient::builder()
        .with_custom_endpoint(emulator.endpoint())
        .open_with_connection_string(&emulator.connection_string(), None)
        .await?;
    let options = EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await?;
    for body in bodies {
        let span = info_span!("create order", otel.kind = "producer", body);
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
        let event = EventData::builder().with_body(body.as_bytes().to_vec());
        let event = carrier.into_iter().fold(event, |event, (name, value)| event.add_property(name, value));
        batch.try_add_event_data(event.build(), None)?;
    }
    producer.send_batch(batch, None).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_collector_receives_the_traces() {
        let collected = run().await.unwrap();
        // Of the single event: one trace.
        let created = collected.one("create order", "body", "single");
        let process = collected.one("process orders", "messaging.destination.partition.id", "0");
        let checkpoint = collected.one("checkpoint orders", "messaging.destination.partition.id", "0");
        let stored = collected.child_of(process, "store order");
        for span in [process, checkpoint] {
            assert_eq!((&span.trace_id, &span.parent_span_id), (&created.trace_id, &created.span_id), "{span:?}");
            assert_eq!(span.links.len(), 1);
            assert_eq!(span.links[0].span_id, created.span_id);
            assert!(span.links[0].attributes.contains_key("messaging.eventhubs.message.enqueued_time"));
            assert_eq!(span.attributes["messaging.system"], "eventhubs");
            assert_eq!(span.attributes["messaging.destination.name"], "orders");
            assert_eq!(span.attributes["messaging.consumer.group.name"], "$Default");
            assert_eq!(span.attributes["server.address"], "localhost");
        }
        assert_eq!(stored.trace_id, created.trace_id);
        let kinds = [created.kind, process.kind, checkpoint.kind];
        assert_eq!(kinds, [collector::PRODUCER, collector::CONSUMER, collector::CLIENT]);
        let types = [process, checkpoint].map(|span| span.attributes["messaging.operation.type"].as_str());
        assert_eq!(types, ["process", "settle"]);
        assert_eq!(process.attributes["messaging.batch.message_count"], "1");

        // Of the batch: three links instead of a parent.
        let batch = collected.one("process orders", "messaging.batch.message_count", "3");
        let linked: Vec<_> = batch.links.iter().map(|link| link.span_id.clone()).collect();
        let created =
            ["first", "second", "third"].map(|body| collected.one("create order", "body", body).span_id.clone());
        assert_eq!((linked, batch.parent_span_id.as_str()), (created.to_vec(), ""));
        let checkpoint = collected.one("checkpoint orders", "messaging.destination.partition.id", "1");
        assert_eq!(checkpoint.links.len(), 3);
    }
}
