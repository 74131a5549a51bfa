//! The application: handles events, fails and hangs on request.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::processor::{
    Handler, HandlerError, PartitionContext, PartitionStream, Processor, ShutdownReport, StopReason, StreamHandler,
    TrackedEvent,
};
use eventhubs_checkpoint::testing::memory_hub::{MemoryEvent, MemoryHub, MemorySource};
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::feature::SECOND;
use crate::ledger::Ledger;

/// For each batch.
const WORK: Duration = Duration::from_millis(50);

/// Less than the drain time: all events in flight can be finished when a partition stops.
const LONGEST_IN_FLIGHT: Duration = Duration::from_secs(10);

/// What a call for a partition does, instead of handling its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    Fail,
    Panic,
    /// The call fails, and retention takes everything that the partition holds.
    FailAndExpire,
    Hang(Duration),
}

/// What the next calls do, one after another. Clones are the same.
#[derive(Clone, Default)]
pub struct Misdeeds(Arc<Mutex<VecDeque<(u32, Misdeed)>>>);

impl Misdeeds {
    pub fn add(&self, partition: u32, misdeed: Misdeed) {
        self.0.lock().unwrap().push_back((partition, misdeed));
    }

    fn take(&self, partition: u32) -> Option<Misdeed> {
        let mut due = self.0.lock().unwrap();
        let next = due.iter().position(|(of, _)| *of == partition)?;
        due.remove(next).map(|(_, misdeed)| misdeed)
    }

    /// Until nothing is left to be done wrong.
    pub async fn done(&self) {
        while !self.0.lock().unwrap().is_empty() {
            sleep(SECOND).await;
        }
    }
}

/// One life of the application on one instance.
pub struct Application {
    pub life: usize,
    pub ledger: Ledger,
    pub hub: MemoryHub,
    pub misdeeds: Misdeeds,
    pub tracks: bool,
    pub rng: Mutex<StdRng>,
    /// The one of each partition that is open.
    pub sessions: Mutex<HashMap<u32, usize>>,
    /// Events that are finished later.
    pub in_flight: Mutex<JoinSet<()>>,
}

fn number(context: &PartitionContext) -> u32 {
    context.partition_id().as_str().parse().unwrap()
}

impl Application {
    pub fn new(life: usize, ledger: Ledger, hub: MemoryHub, misdeeds: Misdeeds, tracks: bool) -> Self {
        let rng = Mutex::new(StdRng::seed_from_u64(life as u64));
        Self { life, ledger, hub, misdeeds, tracks, rng, sessions: Mutex::default(), in_flight: Mutex::default() }
    }

    fn starts(&self, context: &PartitionContext) -> usize {
        self.ledger.lock().starts(self.life, number(context) as usize)
    }

    fn session(&self, context: &PartitionContext) -> usize {
        self.sessions.lock().unwrap()[&number(context)]
    }

    async fn work(
        &self,
        session: usize,
        events: &[MemoryEvent],
        context: &PartitionContext,
    ) -> Result<(), HandlerError> {
        self.ledger.lock().delivered(session, events);
        if let Some(misdeed) = self.misdeeds.take(number(context)) {
            self.misbehave(misdeed, context).await?;
        }
        if self.tracks {
            for event in events {
                self.finish_later(session, event, context.track(event));
            }
            return Ok(());
        }
        sleep(WORK).await;
        self.ledger.lock().handled(session, events);
        if let Some(last) = events.last() {
            context.checkpoint(last);
        }
        Ok(())
    }

    async fn misbehave(&self, misdeed: Misdeed, context: &PartitionContext) -> Result<(), HandlerError> {
        match misdeed {
            Misdeed::Hang(time) => {
                sleep(time).await;
                return Ok(());
            }
            Misdeed::Panic => panic!("panicked on request"),
            Misdeed::FailAndExpire => {
                self.hub.expire_before(number(context), i64::MAX);
                self.ledger.lock().expired(number(context));
            }
            Misdeed::Fail => {}
        }
        Err("failed on request".into())
    }

    fn finish_later(&self, session: usize, event: &MemoryEvent, token: TrackedEvent) {
        let time = LONGEST_IN_FLIGHT.mul_f64(self.rng.lock().unwrap().random_range(0.0..1.0));
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
    async fn started(&self, context: PartitionContext) {
        let session = self.starts(&context);
        self.sessions.lock().unwrap().insert(number(&context), session);
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.work(self.session(&context), &events, &context).await
    }

    async fn stopped(&self, context: PartitionContext, _: StopReason) {
        self.ledger.lock().stops(self.session(&context));
    }
}

/// The same application, asking for batches.
pub async fn pull(
    processor: Processor<MemorySource, StreamHandler<MemoryEvent>>,
    application: Application,
    mut asked_to_end: oneshot::Receiver<()>,
) -> Result<ShutdownReport> {
    let application = Arc::new(application);
    let mut partitions = processor.start_streams();
    let mut consumers = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut asked_to_end => break,
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
    let session = application.starts(&context);
    while let Some(batch) = events.next().await {
        let work = AssertUnwindSafe(application.work(session, &batch, &context)).catch_unwind();
        let worked = tokio::select! {
            biased;
            worked = work => matches!(worked, Ok(Ok(()))),
            () = stopping_for_long(&context) => false,
        };
        if !worked {
            break;
        }
    }
    application.ledger.lock().stops(session);
}

async fn stopping_for_long(context: &PartitionContext) {
    context.stopping().await;
    sleep(SECOND).await;
}
