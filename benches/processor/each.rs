//! Events one by one: a handler that only counts them, or that takes 10 ms for each.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    EventContext, EventHandler, EventOrder, Handler, HandlerError, PartitionContext, each_event,
};
use eventhubs_checkpoint::source::Positioned;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::cost::{Cost, Stopwatch};

/// The time of a slow call, as that of a request to a database.
const SLOW_CALL: Duration = Duration::from_millis(10);

/// The keys of the events, which come in turns.
const KEYS: i64 = 1024;

/// How events are processed one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Each {
    pub(crate) order: Order,
    pub(crate) concurrency: u32,
    /// Each call takes 10 ms.
    pub(crate) is_slow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Partition,
    Key,
    None,
}

impl Order {
    pub(crate) const ALL: [Self; 3] = [Self::Partition, Self::Key, Self::None];
}

impl Each {
    /// The concurrencies of the table.
    pub(crate) const CONCURRENCIES: [u32; 3] = [1, 8, 64];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let orders = Order::ALL.into_iter();
        let counts = orders.flat_map(|order| Self::CONCURRENCIES.map(|concurrency| (order, concurrency)));
        counts.flat_map(|(order, concurrency)| [false, true].map(|is_slow| Self { order, concurrency, is_slow }))
    }

    /// Returns a handler, and the cost once it has processed all events.
    pub(crate) fn handler<E: Positioned + Send + Sync + 'static>(
        self,
        events: u32,
    ) -> (impl Handler<E>, oneshot::Receiver<Cost>) {
        let (counting, cost) = Counting::new(events, self.is_slow.then_some(SLOW_CALL));
        let order = match self.order {
            Order::Partition => EventOrder::Partition,
            Order::Key => EventOrder::by_key(key_of),
            Order::None => EventOrder::None,
        };
        (each_event(counting).with_concurrency(self.concurrency as usize).with_order(order), cost)
    }
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, concurrency, is_slow } = self;
        let speed = if *is_slow { "slow" } else { "fast" };
        write!(f, "each-{}-{concurrency}-{speed}", format!("{order:?}").to_lowercase())
    }
}

pub(crate) fn key_of(event: &impl Positioned) -> Option<i64> {
    event.sequence_number().map(|number| number % KEYS)
}

/// Measures from the first `started` until all events were processed.
pub(crate) struct Counting {
    left: AtomicU32,
    takes: Option<Duration>,
    watch: OnceLock<Stopwatch>,
    finished: Mutex<Option<oneshot::Sender<Cost>>>,
}

impl Counting {
    /// Returns a counter of these events, and the cost once all are counted.
    pub(crate) fn new(events: u32, takes: Option<Duration>) -> (Self, oneshot::Receiver<Cost>) {
        let (finished, cost) = oneshot::channel();
        let finished = Mutex::new(Some(finished));
        (Self { left: AtomicU32::new(events), takes, watch: OnceLock::new(), finished }, cost)
    }

    pub(crate) fn start(&self) {
        self.watch.get_or_init(Stopwatch::start);
    }

    pub(crate) fn count_event(&self) -> Result<(), HandlerError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Ok(());
        }
        let cost = self.watch.get().ok_or("not started")?.stop();
        let finished = self.finished.lock().map_err(|_| "poisoned")?.take();
        finished.ok_or("too many events")?.send(cost).map_err(|_| "the receiver was dropped".into())
    }
}

impl<E: Send + Sync + 'static> EventHandler<E> for Counting {
    async fn handle(&self, _: Arc<E>, _: EventContext) -> Result<(), HandlerError> {
        if let Some(takes) = self.takes {
            sleep(takes).await;
        }
        self.count_event()
    }

    async fn started(&self, _: PartitionContext) -> Result<(), HandlerError> {
        self.start();
        Ok(())
    }
}
