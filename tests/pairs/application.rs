//! The application: handles events, and fails or hangs on request.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionStream, PartitionStreams, ShutdownReport, StopReason,
    TrackedEvent,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub};
use eventhubs_checkpoint::{PartitionId, Result};
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::feature::SECOND;
use crate::ledger::Ledger;
use crate::misbehaviors::{Misbehavior, Misbehaviors};

/// Time to handle a batch.
const WORK_TIME: Duration = Duration::from_millis(50);

/// Less than the drain time, so that all events in flight can be finished when a partition stops.
const MAX_IN_FLIGHT_TIME: Duration = Duration::from_secs(10);

/// One incarnation of the application on one instance.
pub struct Application {
    pub incarnation: usize,
    pub ledger: Ledger,
    pub hub: MemoryHub,
    pub misbehaviors: Misbehaviors,
    pub tracks: bool,
    pub rng: Mutex<StdRng>,
    /// The session of each open partition.
    pub sessions: Mutex<HashMap<u32, usize>>,
    /// Events that are finished later.
    pub in_flight: Mutex<JoinSet<()>>,
}

pub fn number_of(partition: &PartitionId) -> u32 {
    partition.as_str().parse().unwrap()
}

fn number(context: &PartitionContext) -> u32 {
    number_of(context.partition_id())
}

impl Application {
    pub fn new(incarnation: usize, ledger: Ledger, hub: MemoryHub, misbehaviors: Misbehaviors, tracks: bool) -> Self {
        let rng = Mutex::new(StdRng::seed_from_u64(incarnation as u64));
        Self {
            incarnation,
            ledger,
            hub,
            misbehaviors,
            tracks,
            rng,
            sessions: Mutex::default(),
            in_flight: Mutex::default(),
        }
    }

    fn handler_started(&self, context: &PartitionContext) -> usize {
        self.ledger.lock().handler_started(self.incarnation, number(context) as usize)
    }

    pub fn session(&self, partition: u32) -> usize {
        self.sessions.lock().unwrap()[&partition]
    }

    pub fn open_session(&self, context: &PartitionContext) {
        let session = self.handler_started(context);
        self.sessions.lock().unwrap().insert(number(context), session);
    }

    pub fn close_session(&self, context: &PartitionContext) {
        self.ledger.lock().handler_stopped(self.session(number(context)));
    }

    async fn work(
        &self,
        session: usize,
        events: &[MemoryEvent],
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        self.ledger.lock().delivered(session, events);
        if let Some(misbehavior) = self.misbehaviors.take(number(context)) {
            self.misbehave(misbehavior, number(context)).await?;
        }
        if self.tracks {
            for event in events {
                self.finish_later(session, event, context.track(event));
            }
            return Ok(());
        }
        sleep(WORK_TIME).await;
        self.ledger.lock().handled(session, events);
        if let Some(last) = events.last() {
            context.checkpoint(last);
        }
        Ok(())
    }

    pub async fn misbehave(&self, misbehavior: Misbehavior, partition: u32) -> Result<(), HandlerError> {
        match misbehavior {
            Misbehavior::Hang(time) => {
                sleep(time).await;
                return Ok(());
            }
            Misbehavior::Panic => panic!("panicked on request"),
            Misbehavior::FailAndExpire => {
                self.hub.expire_before(partition, i64::MAX);
                self.ledger.lock().expired(partition);
            }
            Misbehavior::Fail | Misbehavior::FailAttempts(_) | Misbehavior::Bad => {}
        }
        Err("failed on request".into())
    }

    fn finish_later(&self, session: usize, event: &MemoryEvent, token: TrackedEvent) {
        let time = MAX_IN_FLIGHT_TIME.mul_f64(self.rng.lock().unwrap().random_range(0.0..1.0));
        let (ledger, event) = (self.ledger.clone(), event.clone());
        let mut in_flight = self.in_flight.lock().unwrap();
        while in_flight.try_join_next().is_some() {}
        in_flight.spawn(async move {
            sleep(time).await;
            ledger.lock().handled(session, std::slice::from_ref(&event));
            token.finish();
        });
    }
}

impl Handler<MemoryEvent> for Application {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.open_session(&context);
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.work(self.session(number(&context)), &events, &context).await
    }

    async fn stopped(&self, context: PartitionContext, _: StopReason) {
        self.close_session(&context);
    }
}

/// The same application in pull mode.
pub async fn pull(
    mut partitions: PartitionStreams<MemoryEvent>,
    application: Application,
    mut shutdown_requested: oneshot::Receiver<()>,
) -> Result<ShutdownReport> {
    let application = Arc::new(application);
    let mut consumers = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut shutdown_requested => break,
            started = partitions.next() => match started {
                Some(events) => consumers.spawn(consume(events, application.clone())),
                None => break,
            },
        };
    }
    partitions.shutdown().await
}

/// A batch that fails, or that hangs while the partition stops, is dropped together with the stream.
async fn consume(mut events: PartitionStream<MemoryEvent>, application: Arc<Application>) {
    let context = events.context().clone();
    let session = application.handler_started(&context);
    while let Some(batch) = events.next().await {
        let work = AssertUnwindSafe(application.work(session, &batch, &context)).catch_unwind();
        let succeeded = tokio::select! {
            biased;
            succeeded = work => matches!(succeeded, Ok(Ok(()))),
            () = stop_timeout(&context) => false,
        };
        if !succeeded {
            break;
        }
    }
    application.ledger.lock().handler_stopped(session);
}

async fn stop_timeout(context: &PartitionContext) {
    context.stopping().await;
    sleep(SECOND).await;
}
