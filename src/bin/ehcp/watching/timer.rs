//! Waits for the next look at a group, and reads its beacon meanwhile.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::admin::Reader;
use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::pace::LookPace;
use crate::args::LookIntervals;

/// How long a reading of the beacon may take, at least. A healthy storage needs less.
const WAIT: Duration = Duration::from_secs(1);

/// Tells when to look.
pub struct LookTimer {
    ticks: Interval,
    pace: LookPace,
    /// Notified when the user wants to see the group as it is now.
    wanted: Arc<Notify>,
}

impl LookTimer {
    pub fn new(intervals: LookIntervals, wanted: Arc<Notify>) -> Self {
        let mut ticks = interval(intervals.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, pace: LookPace::new(intervals), wanted }
    }

    /// Waits until a look is due. Without a reader, the beacon is not read. If the beacon cannot be read, the looks go
    /// on without it.
    pub async fn wait(&mut self, reader: Option<&Reader>) {
        loop {
            let (now, is_wanted) = tokio::select! {
                now = self.ticks.tick() => (now, false),
                () = self.wanted.notified() => (Instant::now(), true),
            };
            if is_wanted && !self.pace.is_older_than_interval(now) {
                continue;
            }
            if let Some(reader) = reader.filter(|_| self.pace.needs_beacon())
                && let Ok(Ok(change)) = timeout(self.ticks.period().max(WAIT), reader.last_change()).await
            {
                self.pace.on_beacon(change);
            }
            if is_wanted || self.pace.is_due(now) {
                return self.pace.on_look_begun(now);
            }
        }
    }

    /// Notes how the look ended for which [`wait`](Self::wait) has returned.
    pub fn on_look_ended(&mut self, has_succeeded: bool) {
        self.pace.on_look_ended(has_succeeded);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use eventhubs_checkpoint::ConsumerGroup;
    use eventhubs_checkpoint::blob::memory::MemoryContainer;
    use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
    use eventhubs_checkpoint::store::StorageOperation;
    use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, FaultyContainer, Target};
    use tokio::time::sleep;

    use super::*;

    const BEACON: &str = "ns.servicebus.windows.net/orders/$default/beacon";

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        looks: LookIntervals,
    }

    /// A watch with the default intervals.
    struct Watch {
        container: Arc<FaultyContainer>,
        reader: Reader,
        timer: LookTimer,
        wanted: Arc<Notify>,
        looked: Instant,
    }

    impl Watch {
        /// Returns a watch after the first look.
        async fn new() -> Self {
            let container = Arc::new(FaultyContainer::new(Arc::new(MemoryContainer::new()), 1));
            let group = ConsumerGroup::new("ns.servicebus.windows.net", "orders", "$Default").unwrap();
            let reader = Reader::connect(container.clone(), group).await.unwrap();
            let wanted = Arc::new(Notify::new());
            let timer = LookTimer::new(Options::parse_from(["ehcp"]).looks, wanted.clone());
            let mut watch = Self { container, reader, timer, wanted, looked: Instant::now() };
            watch.next_look().await;
            watch
        }

        /// Looks, and returns how many seconds after the look before.
        async fn next_look(&mut self) -> u64 {
            self.timer.wait(Some(&self.reader)).await;
            self.reader.read().await.unwrap();
            self.timer.on_look_ended(true);
            std::mem::replace(&mut self.looked, Instant::now()).elapsed().as_secs()
        }

        async fn light(&self, change: i64) {
            let metadata = Metadata::from([("ehcchange", change.to_string())]);
            let condition = match self.container.get(BEACON).await {
                Ok(lit) => Condition::IfMatch(lit.etag),
                Err(_) => Condition::Create,
            };
            self.container.write(BEACON, &metadata, &condition).await.unwrap();
        }

        /// Returns how many listings and readings of the beacon there were.
        fn requests(&self) -> [u64; 2] {
            let counts = self.reader.request_counts();
            [StorageOperation::List, StorageOperation::Beacon].map(|operation| counts.total(operation))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_at_the_next_interval() {
        let mut watch = Watch::new().await;
        for change in [1, 2] {
            watch.light(change).await;
            assert_eq!(watch.next_look().await, 3, "{change}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_change_nothing_is_listed() {
        let mut watch = Watch::new().await;
        watch.light(1).await;
        watch.next_look().await;
        let before = watch.requests();
        assert_eq!(watch.next_look().await, 60);
        let after = watch.requests();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 20], "one look, one reading per interval");
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_without_a_beacon_is_listed() {
        let mut watch = Watch::new().await;
        assert_eq!([watch.next_look().await, watch.next_look().await], [60, 60]);
        watch.light(1).await;
        assert_eq!(watch.next_look().await, 3, "the first instance of this crate");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_beacon_delays_no_listing() {
        for fault in [Fault::Unauthorized, Fault::Hang] {
            let mut watch = Watch::new().await;
            watch.container.set_plan(FaultPlan::default().with_on(1.0, Target::any().ending("/beacon"), fault.clone()));
            for _ in 0..2 {
                let seconds = watch.next_look().await;
                assert!((60..=66).contains(&seconds), "{fault:?}: {seconds}");
            }
            watch.container.set_plan(FaultPlan::default());
            watch.light(1).await;
            assert!(watch.next_look().await <= 3, "{fault:?}: it can be read again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_sees_the_group_as_it_is_now() {
        let mut watch = Watch::new().await;
        watch.wanted.notify_one();
        assert_eq!(watch.next_look().await, 60, "the last refresh was just now");
        sleep(Duration::from_secs(5)).await;
        watch.wanted.notify_one();
        assert_eq!(watch.next_look().await, 5);
    }
}
