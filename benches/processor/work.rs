//! The measurements and their parameters.

use std::fmt;
use std::str::FromStr;

use crate::cost::Cost;
use crate::each::Each;
use crate::handler::Completion;
use crate::processes::Address;
use crate::{Result, amqp, memory, poison};

pub(crate) const PARTITIONS: u16 = 4;
pub(crate) const EVENT_HUB: &str = "orders";
/// Both sides use the same batch size and the same prefetch: the processor's defaults.
pub(crate) const BATCH: usize = 100;
pub(crate) const PREFETCH: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// An event hub in memory, read in a loop.
    MemoryBare,
    /// Read by the processor. The handler checkpoints every event.
    MemoryCheckpoint,
    /// The same; only the calls of `checkpoint` are measured.
    MemoryCalls,
    /// The handler tracks and finishes every event, beginning with the last of a batch.
    MemoryTrack,
    /// Partitions that are owned and read, without events.
    Idle,
    /// An event hub over AMQP, read by the official client in a loop.
    AmqpBare,
    /// The same, collected in batches as a handler gets them.
    AmqpBatches,
    /// Read by the processor. The handler checkpoints every event.
    AmqpCheckpoint,
    /// An event hub in memory, whose events are processed one by one.
    Each(Each),
    /// Over AMQP, one after another.
    AmqpEach,
    /// Over AMQP, 64 at once by key. None is bad.
    AmqpGood,
    /// The same; one event in a hundred is bad, and moves to a second event hub.
    AmqpPoison,
}

const FIXED: [Work; 11] = [
    Work::MemoryBare,
    Work::MemoryCheckpoint,
    Work::MemoryCalls,
    Work::MemoryTrack,
    Work::Idle,
    Work::AmqpBare,
    Work::AmqpBatches,
    Work::AmqpCheckpoint,
    Work::AmqpEach,
    Work::AmqpGood,
    Work::AmqpPoison,
];

/// Runs one measurement. `events` is the number of events, or of partitions for [`Work::Idle`].
pub(crate) async fn measure(work: Work, events: u32, hubs: &[Address]) -> Result<Cost> {
    let nth = |index| hubs.get(index).ok_or("the address of a hub is missing");
    let hub = || nth(0);
    match work {
        Work::MemoryBare => memory::bare(events).await,
        Work::MemoryCheckpoint => memory::ours(events, Completion::Checkpoint).await,
        Work::MemoryCalls => memory::ours(events, Completion::CheckpointTimed).await,
        Work::MemoryTrack => memory::ours(events, Completion::TrackReversed).await,
        Work::Idle => memory::idle(events).await,
        Work::AmqpBare => amqp::bare(events, 1, hub()?).await,
        Work::AmqpBatches => amqp::bare(events, BATCH, hub()?).await,
        Work::AmqpCheckpoint => amqp::ours(events, hub()?).await,
        Work::Each(each) => memory::each(events, each).await,
        Work::AmqpEach => amqp::each(events, hub()?).await,
        Work::AmqpGood | Work::AmqpPoison => {
            Box::pin(poison::process(events, work == Work::AmqpPoison, hub()?, nth(1)?)).await
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemoryBare => "memory-bare",
            Self::MemoryCheckpoint => "memory-checkpoint",
            Self::MemoryCalls => "memory-calls",
            Self::MemoryTrack => "memory-track",
            Self::Idle => "idle",
            Self::AmqpBare => "amqp-bare",
            Self::AmqpBatches => "amqp-batches",
            Self::AmqpCheckpoint => "amqp-checkpoint",
            Self::Each(each) => return each.fmt(f),
            Self::AmqpEach => "amqp-each",
            Self::AmqpGood => "amqp-good",
            Self::AmqpPoison => "amqp-poison",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = FIXED.into_iter().chain(Each::all().map(Self::Each));
        all.find(|work| work.to_string() == text).ok_or_else(|| format!("no such work: {text:?}"))
    }
}
