//! Describes a processor.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Processor;
use super::added::Added;
use super::config::ProcessorConfig;
use super::handle::ProcessorHandle;
use super::handler::Handler;
use super::limits::{CLOSE_LIMIT, stopping_time};
use super::registry::Registry;
use super::shared::Shared;
use super::shutdown::Requests;
use super::source::EventSource;
use crate::balancer::Balancer;
use crate::error::{Error, Result};
use crate::model::ConsumerGroup;
use crate::store::GroupStore;

/// Numbers from the hub that are older than so many probes are stale.
const PROBES_MISSED: u32 = 3;

/// Describes a [`Processor`]. Setters cannot fail; [`build`](Self::build) can.
#[derive(Debug)]
#[must_use = "nothing happens until `build` is called"]
pub struct ProcessorBuilder<S, H> {
    pub(super) source: S,
    pub(super) store: GroupStore,
    pub(super) handler: H,
    pub(super) config: ProcessorConfig,
}

impl<S: EventSource, H: Handler<S::Event>> ProcessorBuilder<S, H> {
    /// Sets how the processor works.
    pub fn config(mut self, config: ProcessorConfig) -> Self {
        self.config = config;
        self
    }

    fn check_group(&self) -> Result<()> {
        let kept = self.store.group();
        let same = |read: &ConsumerGroup| read.to_string().eq_ignore_ascii_case(&kept.to_string());
        match self.source.consumer_group().filter(|read| !same(read)) {
            Some(read) => Err(Error::config(format!(
                "the event source reads {read}, but the store keeps the records of {kept}: configure the same consumer group for both"
            ))),
            None => Ok(()),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) names the setting and the rule.
    pub fn build(self) -> Result<Processor<S, H>> {
        self.config.check()?;
        self.check_group()?;
        let (partitions, named) = watch::channel(Arc::from([]));
        let (balancer, handle) = Balancer::new(self.store.clone(), self.config.balancer.clone(), named)?;
        let settings = &self.config.balancer;
        let drain = self.config.drain.unwrap_or_else(|| settings.default_drain(&self.store, CLOSE_LIMIT));
        let is_chosen = self.config.drain.is_some() || settings.handoff_timeout.is_some();
        let stopping = if is_chosen { stopping_time(drain) } else { drain };
        settings.check_handoff(&self.store, drain, stopping)?;
        let balancer = balancer.with_drain(stopping_time(drain))?;
        let probes_due = self.config.probe_every.map_or(Duration::MAX, |period| period.saturating_mul(PROBES_MISSED));
        let requests = Requests::new(self.store.telemetry().span().clone());
        let shared = Shared {
            added: Added::default(),
            group: Arc::new(self.store.group().clone()),
            drain,
            vitals: handle.vitals().clone(),
            loads: handle.loads().clone(),
            source: self.source,
            handler: self.handler,
            store: self.store,
            config: self.config,
        };
        let registry = Registry::default();
        let handle = ProcessorHandle { balancer: handle, registry, requests, probes_due };
        Ok(Processor { shared: Arc::new(shared), balancer, handle, partitions })
    }
}
