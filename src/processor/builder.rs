//! The builder of a processor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::Span;

use super::Processor;
use super::config::ProcessorConfig;
use super::handle::ProcessorHandle;
use super::handler::Handler;
use super::monitoring::spans::{BatchSpans, SpanEvents, SpanHook};
use super::partition::control::Registry;
use super::shared::{HubCreation, InitialPartitions, SharedResources};
use super::shutdown::{ShutdownReport, ShutdownRequests, stopping_time};
use crate::balancer::Balancer;
use crate::error::{Error, Result};
use crate::source::offset_format::OffsetFormat;
use crate::source::{CLOSE_LIMIT, EventSource};
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
    pub(super) span_hook: Option<Arc<SpanHook>>,
    /// Whether the handler passes the batches to streams.
    pub(super) streams: bool,
}

impl<S: fmt::Debug, H: fmt::Debug> fmt::Debug for ProcessorBuilder<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, store, handler, config, .. } = self;
        f.debug_struct("ProcessorBuilder")
            .field("source", source)
            .field("store", store)
            .field("handler", handler)
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
    /// Those of [`build`](Self::build) and [`Processor::run`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<ShutdownReport> {
        self.build()?.run(shutdown).await
    }

    /// Builds the processor and runs it until a signal arrives. See [`Processor::run_until_signal`].
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build) and [`Processor::run_until_signal`].
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

    /// Checks the settings and creates the processor. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is invalid: the message names the setter and the
    /// rule. Correct the setting.
    pub fn build(self) -> Result<Processor<S, H>> {
        self.config.check_settings()?;
        self.check_group()?;
        let (partitions, named) = watch::channel(Arc::from([]));
        let settings = self.config.balancer.clone();
        let (balancer, handle) = Balancer::new(self.store.clone(), settings.clone(), named)?;
        let drain =
            self.config.drain_timeout.unwrap_or_else(|| settings.default_drain_timeout(&self.store, CLOSE_LIMIT));
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
            store: self.store,
            config: self.config,
        };
        Ok(Processor { shared: Arc::new(shared), balancer, handle, partitions })
    }
}
