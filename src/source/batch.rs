//! Gathers the events of a receiver into batches that are limited by number and waiting time.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::event::Positioned;
use super::receiver::EventReceiver;
use crate::error::{Error, Result};

/// When a batch is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// The most events.
    pub(crate) events: usize,
    /// The longest wait after the first event of the batch was received.
    pub(crate) wait: Duration,
}

impl<E: Positioned + Send + 'static> EventReceiver<E> {
    /// Waits for events and returns a batch when one is due. A batch is never empty. Returns `None` if events were
    /// gathered but no batch is due, or if the waiting time has ended: call it again. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The errors of [`next_batch`](Self::next_batch), after all earlier events.
    pub(crate) async fn gather_batch(&mut self, limits: &BatchLimits) -> Result<Option<Vec<E>>> {
        if limits.wait.is_zero() && self.gathered.events.is_empty() {
            let batch = self.next_batch(limits.events).await?;
            self.gathered.count_received(&batch);
            return Ok(Some(batch));
        }
        let count = self.gathered.events.len().min(limits.events);
        let due = self.gathered.since.map(|since| since + limits.wait);
        let enough = count == limits.events || self.failure.is_some() || due.is_some_and(|due| due <= Instant::now());
        if count > 0 && enough {
            return Ok(Some(self.gathered.take_first(count)));
        }
        let more = tokio::select! {
            biased;
            more = self.next_batch(limits.events - count) => more,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => return Ok(None),
        };
        match more {
            Ok(events) => self.gathered.add_events(events),
            Err(error) if count == 0 => return Err(error),
            Err(error) => self.failure = Some(error),
        }
        Ok(None)
    }

    /// Ends reading with this error, after the gathered events.
    pub(crate) fn fail_after_gathered(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Keeps receiving while the caller takes no batches, until `ahead` events are gathered. Never returns.
    /// Cancel-safe.
    ///
    /// A stream of the official client that is not polled while it restores its link holds a lock that all partitions
    /// of the client need. A source with its own task does not need this.
    pub(crate) async fn read_ahead(&mut self, ahead: usize) -> Infallible {
        while self.is_polled_here() && self.failure.is_none() && self.gathered.events.len() < ahead {
            match self.next_batch(ahead - self.gathered.events.len()).await {
                Ok(events) => self.gathered.add_events(events),
                Err(error) => self.failure = Some(error),
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[derive(Debug, PartialEq, Eq)]
    struct Numbered(u64);

    impl Positioned for Numbered {
        fn sequence_number(&self) -> Option<i64> {
            None
        }

        fn offset(&self) -> Option<&str> {
            None
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Yields events with these numbers, each after its number of seconds; then an error.
    fn receiver(events: &'static [(u64, u64)]) -> EventReceiver<Numbered> {
        EventReceiver::spawn(100, |sender| async move {
            for (seconds, number) in events {
                tokio::time::sleep(SECOND * u32::try_from(*seconds).unwrap()).await;
                sender.send(Ok(Numbered(*number))).await;
            }
            sender.send(Err(Error::new(ErrorKind::EventSource, "broken"))).await;
        })
    }

    async fn next(receiver: &mut EventReceiver<Numbered>, limits: &BatchLimits) -> Result<Vec<Numbered>> {
        loop {
            if let Some(batch) = receiver.gather_batch(limits).await? {
                return Ok(batch);
            }
        }
    }

    async fn batches(mut receiver: EventReceiver<Numbered>, limits: BatchLimits) -> Vec<Vec<u64>> {
        let mut batches = Vec::new();
        // Wait until the events without a delay are received.
        tokio::time::sleep(SECOND / 10).await;
        while let Ok(batch) = next(&mut receiver, &limits).await {
            batches.push(batch.iter().map(|event| event.0).collect());
        }
        batches
    }

    mod limits {
        use super::*;

        #[tokio::test(start_paused = true)]
        async fn a_batch_is_limited_by_events() {
            let all: &[_] = &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)];
            let limits = BatchLimits { events: 100, wait: Duration::ZERO };
            assert_eq!(batches(receiver(all), limits).await, [vec![1, 2, 3, 4, 5, 6]]);
            let few = BatchLimits { events: 4, ..limits };
            assert_eq!(batches(receiver(all), few).await, [vec![1, 2, 3, 4], vec![5, 6]]);
        }

        #[tokio::test(start_paused = true)]
        async fn a_batch_waits_for_more_events_up_to_a_limit() {
            let slow: &[_] = &[(1, 1), (1, 2), (1, 3), (4, 4), (1, 5)];
            let limits = BatchLimits { events: 10, wait: SECOND * 3 };
            assert_eq!(batches(receiver(slow), limits).await, [vec![1, 2, 3], vec![4, 5]]);
            let few = BatchLimits { events: 2, ..limits };
            assert_eq!(batches(receiver(slow), few).await, [vec![1, 2], vec![3], vec![4, 5]]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_read_ahead_up_to_a_limit() {
        let (sender, events) = futures::channel::mpsc::unbounded();
        let mut receiver = EventReceiver::new(|_stopped| events);
        for number in 1..=5 {
            sender.unbounded_send(Ok(Numbered(number))).unwrap();
        }
        sender.unbounded_send(Err(Error::new(ErrorKind::EventSource, "broken"))).unwrap();
        assert!(tokio::time::timeout(SECOND, receiver.read_ahead(3)).await.is_err());
        assert_eq!(receiver.gathered.events.len(), 3);
        let limits = BatchLimits { events: 2, wait: Duration::ZERO };
        assert_eq!(next(&mut receiver, &limits).await.unwrap(), [Numbered(1), Numbered(2)]);
        assert!(tokio::time::timeout(SECOND, receiver.read_ahead(10)).await.is_err());
        assert_eq!(batches(receiver, limits).await, [vec![3, 4], vec![5]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_wait_loses_no_events() {
        let mut receiver = receiver(&[(1, 1), (1, 2), (1, 3)]);
        let limits = BatchLimits { events: 3, wait: SECOND * 60 };
        for _ in 0..5 {
            let canceled = tokio::time::timeout(SECOND / 2, next(&mut receiver, &limits)).await;
            assert!(canceled.is_err());
        }
        assert_eq!(next(&mut receiver, &limits).await.unwrap(), [Numbered(1), Numbered(2), Numbered(3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_follows_the_gathered_events() {
        let mut receiver = receiver(&[(1, 1), (1, 2), (1, 3)]);
        let limits = BatchLimits { events: 10, wait: SECOND * 60 };
        assert_eq!(receiver.gathered.events.last(), None);
        for _ in 0..2 {
            assert!(receiver.gather_batch(&limits).await.unwrap().is_none());
        }
        assert_eq!(receiver.gathered.events.last(), Some(&Numbered(2)));
        receiver.fail_after_gathered(Error::new(ErrorKind::EventSource, "silent"));
        assert_eq!(receiver.gather_batch(&limits).await.unwrap(), Some(vec![Numbered(1), Numbered(2)]));
        assert_eq!(receiver.gather_batch(&limits).await.unwrap_err().to_string(), "silent");
    }
}
