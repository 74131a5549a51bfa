//! The order of single events within one start of a partition.
//!
//! A lane has the events that are processed one after another: all of the partition, or those with one key. Without
//! an order, each event is a lane of its own.

use std::collections::HashMap;

use crate::single_events::Order;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Failed,
    Finished,
}

/// The current or last event of a lane.
struct Lane {
    generation: u32,
    number: i64,
    state: State,
}

#[derive(Default)]
pub struct Lanes(HashMap<i64, Lane>);

impl Lanes {
    /// Records an attempt at an event. All events before `first` have expired. Returns what is wrong with it.
    pub fn begin(&mut self, order: Order, generation: u32, number: i64, first: i64) -> Option<String> {
        let lane = Lane { generation, number, state: State::Running };
        let before = self.0.insert(order.lane_of(number), lane)?;
        let again = (before.generation, before.number) == (generation, number);
        let is_next = order
            .step()
            .is_some_and(|step| number > before.number && number <= before.number.max(first - 1).saturating_add(step));
        let wrong = match before.state {
            State::Running => "while it was running",
            State::Failed if !again => "before the next attempt at it",
            State::Finished if again => "although it was finished in this session",
            State::Finished if before.generation == generation && !is_next => "with a gap",
            State::Failed | State::Finished => return None,
        };
        Some(format!("event {number} began after event {} {wrong}", before.number))
    }

    pub fn fail(&mut self, order: Order, number: i64) {
        self.end(order, number, State::Failed);
    }

    /// Records that an event is processed or moved to the dead letters.
    pub fn finish(&mut self, order: Order, number: i64) {
        self.end(order, number, State::Finished);
    }

    fn end(&mut self, order: Order, number: i64, state: State) {
        if let Some(lane) = self.0.get_mut(&order.lane_of(number)).filter(|lane| lane.number == number) {
            lane.state = state;
        }
    }
}

#[test]
fn a_broken_order_is_reported() {
    for (order, next) in [(Order::Partition, 11), (Order::Key, 17), (Order::None, 11)] {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.begin(order, 0, 10, 0), None);
        assert!(lanes.begin(order, 0, 10, 0).unwrap().contains("running"), "{order:?}");
        lanes.fail(order, 10);
        assert_eq!(lanes.begin(order, 0, 10, 0), None, "a retry");
        lanes.finish(order, 10);
        assert!(lanes.begin(order, 0, 10, 0).unwrap().contains("finished"), "{order:?}");
        lanes.finish(order, 10);
        assert_eq!(lanes.begin(order, 0, next, 0), None, "{order:?}");
    }
    for (order, next) in [(Order::Partition, 11), (Order::Key, 17)] {
        let begun = |end: fn(&mut Lanes, Order, i64), number, first| {
            let mut lanes = Lanes::default();
            assert_eq!(lanes.begin(order, 0, 10, 0), None);
            end(&mut lanes, order, 10);
            lanes.begin(order, 0, number, first)
        };
        assert!(begun(Lanes::fail, next, 0).unwrap().contains("next attempt"), "{order:?}");
        assert!(begun(Lanes::finish, 24, 0).unwrap().contains("gap"), "{order:?}");
        assert_eq!(begun(Lanes::finish, 24, 24), None, "the events before it have expired");
    }
}
