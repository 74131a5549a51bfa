//! The spans for tracing systems.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    CheckpointPolicy, HandlerError, PartitionContext, Processor, SpanEvents, handler_fn,
};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::captured::let_threads_decide;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

type Fields = BTreeMap<&'static str, String>;

/// Keeps the fields of all spans, in the order of their creation.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(Id, Fields)>>>);

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Visitor(&mut fields));
        self.0.lock().unwrap().push((id.clone(), fields));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        // Ids are used again.
        let (_, fields) = spans.iter_mut().rev().find(|(known, _)| known == id).unwrap();
        record.record(&mut Visitor(fields));
    }
}

impl Spans {
    fn capture(&self, level: Level) -> tracing::subscriber::DefaultGuard {
        let_threads_decide();
        let filter = Targets::new().with_target("eventhubs_checkpoint::spans", level);
        tracing_subscriber::registry().with(filter).with(self.clone()).set_default()
    }

    fn named(&self, name: &str) -> Vec<Fields> {
        let spans = self.0.lock().unwrap();
        spans.iter().map(|(_, fields)| fields).filter(|fields| fields["otel.name"] == name).cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_has_its_kind() {
    let spans = Spans::default();
    let _captured = spans.capture(Level::DEBUG);
    let world = World::new(1);
    world.hub.publish_many(0, 3, "fail");
    let a = world.start("a").await;
    world.log.wait_for("another attempt", |log| log.times("fail") >= 4).await;
    sleep(10 * SECOND).await;
    a.shut_down().await.unwrap();
    let calls = spans.named("process hub");
    let fields = |name| calls.iter().map(|span| span.get(name).map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(fields("otel.status_code"), [Some("ERROR"), None]);
    assert_eq!(fields("error.type"), [Some("handler"), None]);
    assert_eq!(calls[0]["messaging.batch.message_count"], "3");
    assert_eq!(calls[0]["otel.kind"], "consumer");
    let written = spans.named("checkpoint hub");
    assert!(!written.is_empty() && written.iter().all(|span| !span.contains_key("error.type")), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_displaced_checkpoint_is_fenced() {
    let spans = Spans::default();
    let _captured = spans.capture(Level::DEBUG);
    let mut world = World::new(1);
    world.config.checkpoint_policy = CheckpointPolicy::default().with_interval(SECOND);
    let mut a = world.start("a").await;
    a.wait_until_it_holds(1).await;
    // The cycle soon after the claim has passed, so that the checkpoint detects the loss.
    sleep(3 * SECOND).await;
    world.give_to("b").await;
    world.checkpoint_as_another_sdk(0).await;
    world.hub.publish(0, "x");
    a.wait_until_it_holds(0).await;
    let fenced = |span: &Fields| span.get("error.type").is_some_and(|kind| kind == "fenced");
    assert!(spans.named("checkpoint hub").iter().any(fenced), "{:?}", spans.named("checkpoint hub"));
    a.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_receives_and_does_not_process() {
    let spans = Spans::default();
    let _captured = spans.capture(Level::DEBUG);
    let world = World::new(1);
    world.hub.publish_many(0, 5, "x");
    let builder = Processor::streams(world.hub.source(), world.store("a").await);
    let mut partitions = builder.with_config(world.config.clone()).build().unwrap().start_streams();
    let mut partition = partitions.next().await.unwrap();
    assert_eq!(partition.next().await.unwrap().len(), 5);
    let received = spans.named("receive hub");
    assert_eq!((received.len(), received[0]["otel.kind"].as_str()), (1, "client"));
    assert_eq!(received[0]["messaging.operation.type"], "receive");
    assert!(spans.named("process hub").is_empty());
    partitions.shutdown().await.unwrap();
}

/// Counts the calls of the hook.
async fn hook_calls(level: Level, hook: impl Fn() + Send + Sync + 'static) -> usize {
    let spans = Spans::default();
    let _captured = spans.capture(level);
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let world = World::new(1);
    world.hub.publish(0, "x");
    let handler = handler_fn(|events: Vec<MemoryEvent>, context: PartitionContext| async move {
        context.checkpoint(&events[0]);
        Ok::<_, HandlerError>(())
    });
    let builder = Processor::builder(world.hub.source(), world.store("a").await, handler);
    let builder = builder.with_config(world.config.clone()).with_span_hook(move |_, events: SpanEvents<'_>| {
        assert_eq!((events.count, events.contexts.len()), (1, 0), "events in memory have no trace context");
        *counted.lock().unwrap() += 1;
        hook();
    });
    let report = builder.build().unwrap().run(sleep(20 * SECOND)).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(world.checkpoint().await, Some(0));
    *calls.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_hook_is_called_for_enabled_spans_only() {
    assert_eq!(hook_calls(Level::INFO, || ()).await, 0);
    assert_eq!(hook_calls(Level::DEBUG, || ()).await, 2, "a batch and a checkpoint");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_changes_nothing() {
    assert_eq!(hook_calls(Level::DEBUG, || panic!("on request")).await, 2);
}
