//! The builder of a processor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::Span;

use super::Processor;
use super::config::ProcessorConfig;
use super::dead_letters::{DeadLetterSink, DeadLetters};
use super::handle::ProcessorHandle;
use super::handler::Handler;
use super::monitoring::spans::{BatchSpans, SpanEvents, SpanHook};
use super::partition::control::Registry;
use super::policies::DeadLetterPolicy;
use super::shared::{HubCreation, InitialPartitions, SharedResources};
use super::shutdown::{ShutdownReport, ShutdownRequests, stopping_time};
use crate::balancer::Balancer;
use crate::error::{Error, Result};
use crate::source::EventSource;
use crate::source::offset_format::OffsetFormat;
use crate::store::GroupStore;
use crate::telemetry::Spans;

/// Partition properties are stale after this many missed lag checks.
const LAG_CHECKS_MISSED: u32 = 3;

/// Describes a [`Processor`]: its settings are a [`ProcessorConfig`]. Setters cannot fail; [`build`](Self::build) can.
#[must_use = "nothing happens until `build` is called"]
pub struct ProcessorBuilder<S, H> {
    pub(super) source: S,
    pub(super) store: GroupStore,
    pub(super) handler: H,
    pub(super) config: ProcessorConfig,
    pub(super) dead_letters: Option<DeadLetters>,
    pub(super) span_hook: Option<Arc<SpanHook>>,
    /// Whether the handler passes the batches to streams.
    pub(super) streams: bool,
}

impl<S: fmt::Debug, H> fmt::Debug for ProcessorBuilder<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, store, config, .. } = self;
        f.debug_struct("ProcessorBuilder")
            .field("source", source)
            .field("store", store)
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl<S: EventSource, H: Handler<S::Event>> ProcessorBuilder<S, H> {
    /// Sets how the processor works. Default: [`ProcessorConfig::default`]. A second call replaces the settings of the
    /// first one.
    pub fn with_config(mut self, config: ProcessorConfig) -> Self {
        self.config = config;
        self
    }

    /// Moves events that cannot be processed to a sink, so that their partition continues. Default: none. Such an event
    /// stops its partition until the handler can process it.
    ///
    /// ```
    /// use eventhubs_checkpoint::processor::dead_letters::{DeadLetter, DeadLetterPolicy};
    /// use eventhubs_checkpoint::processor::{EventError, PartitionContext, Processor, handler_fn};
    /// use eventhubs_checkpoint::source::{EventSource, Positioned};
    /// use eventhubs_checkpoint::store::GroupStore;
    ///
    /// # fn parse<E>(_: &E) -> Result<i32, std::num::ParseIntError> { Ok(1) }
    /// # fn build<S: EventSource>(source: S, store: GroupStore) {
    /// let handler = handler_fn(|events: Vec<S::Event>, context: PartitionContext| async move {
    ///     for event in &events {
    ///         let order = parse(event).map_err(|error| EventError::permanent(event, error))?;
    ///         println!("order {order}");
    ///         context.checkpoint(event);
    ///     }
    ///     Ok(())
    /// });
    /// let sink = |letter: DeadLetter<S::Event>| async move {
    ///     println!("{:?} of {}: {}", letter.event.sequence_number(), letter.partition_id, letter.error);
    ///     Ok(())
    /// };
    /// let builder = Processor::builder(source, store, handler).with_dead_letters(sink, DeadLetterPolicy::default());
    /// # let _ = builder;
    /// # }
    /// ```
    ///
    /// Which events are moved, and when:
    ///
    /// - [`each_event`](super::each_event) moves an event that has failed as often and as long as the
    ///   [policy](DeadLetterPolicy) requires, in its place: nothing restarts.
    /// - *Handlers of batches* have to name the event: they return an [`EventError`](super::EventError), or a [tracked
    ///   event fails](super::TrackedEvent::fail). Each failure restarts the partition, as
    ///   [`OnFailure`](super::OnFailure) says. Once the policy is met, the partition restarts at once, also with
    ///   another `OnFailure`, and the event goes to the sink instead of the handler: after the events before it were
    ///   processed, and before the events after it are. A failure that names no event moves nothing.
    /// - [`PartitionContext::dead_letter`](super::PartitionContext::dead_letter) moves an event from inside of the
    ///   handler, and nothing restarts.
    /// - With [`OnUndecodable::Skip`](super::OnUndecodable) the sink also gets what is known of each event that the
    ///   source cannot decode, before the event is skipped.
    ///
    /// Neither the checkpoint nor an application's [own position](Handler::start_position) passes an event that is
    /// neither processed nor stored. The owner remembers in memory which events it has moved. If one is redelivered, it
    /// is neither given to the handler nor stored again. What is known of an event that cannot be decoded may be stored
    /// more than once.
    ///
    /// Nothing is moved, and the partition fails as without dead letters, if the partition is to stop, if the ownership
    /// record does not show that this instance owns the partition, or if the sink fails. Each dead letter costs one
    /// read of that record.
    ///
    /// For batches, the [handler timeout](ProcessorConfig::handler_timeout) limits each call of the handler, and of the
    /// sink between two of them. For single events, [`with_event_timeout`](super::EachEvent::with_event_timeout) limits
    /// each attempt and each call of the sink. Without them, which is the default, a call that hangs never fails, so
    /// its event is never moved.
    #[doc(alias = "poison")]
    pub fn with_dead_letters<K>(mut self, sink: K, policy: DeadLetterPolicy) -> Self
    where
        K: DeadLetterSink<S::Event>,
    {
        self.dead_letters = Some(DeadLetters::new(sink, policy));
        self
    }

    /// Calls this function with every span of a batch or a checkpoint before anything happens in it, and with its
    /// events. Link the span to their trace contexts there, with the version of your tracing library, as
    /// `examples/traces.rs` does.
    ///
    /// It is called only if a subscriber has enabled the span, in the tasks of the partition: it should not block. A
    /// panic is logged and changes nothing else. Default: none, and trace contexts are not read.
    pub fn with_span_hook(mut self, hook: impl Fn(&Span, SpanEvents<'_>) + Send + Sync + 'static) -> Self {
        self.span_hook = Some(Arc::new(hook));
        self
    }

    /// Builds the processor and runs it. See [`Processor::run`].
    ///
    /// # Errors
    ///
    /// The errors of [`build`](Self::build) and [`Processor::run`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<ShutdownReport> {
        self.build()?.run(shutdown).await
    }

    /// Builds the processor and runs it until a signal arrives. See [`Processor::run_until_signal`].
    ///
    /// # Errors
    ///
    /// The errors of [`build`](Self::build) and [`Processor::run_until_signal`].
    pub async fn run_until_signal(self) -> Result<ShutdownReport> {
        self.build()?.run_until_signal().await
    }

    fn check_group(&self) -> Result<()> {
        let kept = self.store.group();
        match self.source.consumer_group() {
            Some(read) if !read.to_string().eq_ignore_ascii_case(&kept.to_string()) => Err(Error::config(format!(
                "the event source reads {read}, but the store keeps the records of {kept}: configure the same consumer \
                 group for both"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks the settings and creates the processor. Sends no request. Before the store is connected,
    /// [`ProcessorConfig::check_settings`] checks the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is invalid: the message names the setter and the
    /// rule. Correct the setting.
    pub fn build(self) -> Result<Processor<S, H>> {
        self.config.check_for(self.store.lease_times())?;
        self.check_group()?;
        let (partitions, named) = watch::channel(Arc::from([]));
        let (balancer, handle) = Balancer::new(self.store.clone(), self.config.balancer.clone(), named)?;
        let drain = self.config.effective_drain_timeout(self.store.lease_times());
        let balancer = balancer.with_drain(stopping_time(drain))?.with_start_reports();
        let handle = ProcessorHandle {
            balancer: handle,
            registry: Registry::default(),
            requests: ShutdownRequests::new(self.store.telemetry().span().clone()),
            lag_checks_due: self
                .config
                .lag_check_interval
                .map_or(Duration::MAX, |period| period.saturating_mul(LAG_CHECKS_MISSED)),
        };
        let shared = SharedResources {
            initial_partitions: InitialPartitions::default(),
            hub_creation: HubCreation::default(),
            offset_format: OffsetFormat::default(),
            spans: BatchSpans::new(Spans::new(self.store.group()), self.span_hook, self.streams),
            group: Arc::new(self.store.group().clone()),
            drain_timeout: drain,
            liveness: handle.balancer.liveness().clone(),
            loads: handle.balancer.loads().clone(),
            source: self.source,
            handler: self.handler,
            dead_letters: self.dead_letters.map(Arc::new),
            store: self.store,
            config: self.config,
        };
        Ok(Processor { shared: Arc::new(shared), balancer, handle, partitions })
    }
}
