//! What is measured, and on what.

use std::fmt;
use std::str::FromStr;

use crate::cost::Cost;
use crate::handler::Saying;
use crate::processes::Address;
use crate::{Result, amqp, memory};

pub(crate) const PARTITIONS: u16 = 4;
pub(crate) const EVENT_HUB: &str = "orders";
/// Both sides take as many events at once, and hold as many ahead: the processor's defaults.
pub(crate) const BATCH: usize = 100;
pub(crate) const PREFETCH: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A hub in memory, read in a loop.
    MemoryBare,
    /// Read by the processor; the handler checkpoints every event.
    MemoryMark,
    /// As before, and the calls of `checkpoint` are timed; nothing else is.
    MemoryCalls,
    /// The handler tracks and finishes every event, the last of a batch first.
    MemoryTrack,
    /// Partitions that are owned and read, without any events.
    Idle,
    /// A hub over AMQP, read by the official client in a loop.
    AmqpBare,
    /// Read by the processor; the handler checkpoints every event.
    AmqpMark,
}

const ALL: [Work; 7] = [
    Work::MemoryBare,
    Work::MemoryMark,
    Work::MemoryCalls,
    Work::MemoryTrack,
    Work::Idle,
    Work::AmqpBare,
    Work::AmqpMark,
];

/// Measures once. `events` are all that are read; of [`Work::Idle`], the partitions.
pub(crate) async fn measure(work: Work, events: u32, hub: Option<Address>) -> Result<Cost> {
    let hub = || hub.as_ref().ok_or("this needs the address of a hub");
    match work {
        Work::MemoryBare => memory::bare(events).await,
        Work::MemoryMark => memory::ours(events, Saying::Checkpoint).await,
        Work::MemoryCalls => memory::ours(events, Saying::CheckpointTimed).await,
        Work::MemoryTrack => memory::ours(events, Saying::TrackReversed).await,
        Work::Idle => memory::idle(events).await,
        Work::AmqpBare => amqp::bare(events, hub()?).await,
        Work::AmqpMark => amqp::ours(events, hub()?).await,
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MemoryBare => "memory-bare",
            Self::MemoryMark => "memory-mark",
            Self::MemoryCalls => "memory-calls",
            Self::MemoryTrack => "memory-track",
            Self::Idle => "idle",
            Self::AmqpBare => "amqp-bare",
            Self::AmqpMark => "amqp-mark",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ALL.into_iter().find(|work| work.to_string() == text).ok_or_else(|| format!("no such work: {text:?}"))
    }
}
