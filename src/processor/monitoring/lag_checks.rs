//! Compares every running partition with the event hub, to determine its lag and to find receivers that deliver
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tokio::time::sleep;

use crate::processor::jitter::{first_wait, jittered};
use crate::processor::partition::control::Control;
use crate::processor::partition::registry::Registry;
use crate::processor::shared::Shared;
use crate::source::{EventSource, caught_request};
use crate::telemetry;

/// The most requests to the event hub at the same time.
const AT_ONCE: usize = 4;

/// Checks every partition once per period, or slightly sooner, as long as the task runs.
pub(crate) async fn check_lag<S: EventSource, H: Send + Sync + 'static>(
    shared: Arc<Shared<S, H>>,
    registry: Registry,
    period: Duration,
) {
    let mut wait = first_wait(period, shared.store.random());
    loop {
        sleep(wait).await;
        wait = jittered(period, shared.store.random());
        stream::iter(registry.all()).for_each_concurrent(AT_ONCE, |control| check_one(&shared, control)).await;
    }
}

async fn check_one<S: EventSource, H>(shared: &Shared<S, H>, control: Arc<Control>) {
    match caught_request(shared.source.partition_properties(&control.partition)).await {
        Ok(properties) => control.properties_read(properties),
        Err(error) => telemetry::lag_check_failed(&control.partition, &error),
    }
}
