//! The data of a picture of a group, independent of the drawing.

use std::time::Duration;

#[derive(Debug)]
pub struct Picture {
    pub title: String,
    pub length: Duration,
    pub lanes: Vec<Lane>,
    pub rows: Vec<Row>,
    /// Events that concern the whole group.
    pub moments: Vec<Moment>,
    pub disturbances: Vec<Disturbance>,
}

/// A member.
#[derive(Debug)]
pub struct Lane {
    pub name: String,
    /// How it differs from the other members: the rules that it follows, the skew of its clock.
    pub note: String,
    /// Without gaps from the beginning to the end.
    pub spans: Vec<Span<ProcessState>>,
    pub crashes: Vec<Duration>,
    pub disturbances: Vec<Disturbance>,
}

/// A partition.
#[derive(Debug)]
pub struct Row {
    /// Without gaps from the beginning to the end.
    pub spans: Vec<Span<Owner>>,
    /// How many events the checkpoint lags behind.
    pub lag: Vec<(Duration, i64)>,
    pub moments: Vec<Moment>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Span<T> {
    pub from: Duration,
    pub to: Duration,
    pub value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Down,
    Up,
    Frozen,
}

/// The owner of a partition, and whether a handler reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The hub does not have the partition yet.
    Absent,
    /// No handler runs, regardless of the record.
    NoReader,
    Member(u32),
    /// The owner has crashed, but its lease is still valid; no handler reads.
    Crashed(u32),
    /// The handler runs, but its process is frozen.
    Frozen(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    pub at: Duration,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Disturbance {
    pub from: Duration,
    pub to: Duration,
    pub name: String,
}

/// A value that changes over time.
pub struct Steps<T> {
    spans: Vec<Span<T>>,
    since: Duration,
    now: T,
}

impl<T: Copy + PartialEq> Steps<T> {
    pub fn new(now: T) -> Self {
        Self { spans: Vec::new(), since: Duration::ZERO, now }
    }

    pub fn step(&mut self, at: Duration, next: T) {
        if next == self.now {
            return;
        }
        if at > self.since {
            self.spans.push(Span { from: self.since, to: at, value: self.now });
        }
        (self.since, self.now) = (at, next);
    }

    pub fn until(mut self, end: Duration) -> Vec<Span<T>> {
        if end > self.since {
            self.spans.push(Span { from: self.since, to: end, value: self.now });
        }
        self.spans
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn stepped<T: Copy + PartialEq>(first: T, changes: &[(u64, T)], end: u64) -> Vec<Span<T>> {
        let mut steps = Steps::new(first);
        for (at, what) in changes {
            steps.step(Duration::from_secs(*at), *what);
        }
        steps.until(Duration::from_secs(end))
    }

    /// Two members, one of which freezes while the other crashes, and two partitions.
    pub(crate) fn sample() -> Picture {
        let seconds = Duration::from_secs;
        let lane = |name: &str, note: &str, crashes, changes: &[(u64, ProcessState)]| {
            let spans = stepped(ProcessState::Down, changes, 90);
            Lane { name: name.to_owned(), note: note.to_owned(), spans, crashes, disturbances: Vec::new() }
        };
        let disturbance = Disturbance { from: seconds(10), to: seconds(12), name: "clock".to_owned() };
        let first = lane(
            "m0",
            "clock +9 s",
            Vec::new(),
            &[(1, ProcessState::Up), (30, ProcessState::Frozen), (50, ProcessState::Up)],
        );
        let second = lane("m1", "", vec![seconds(60)], &[(2, ProcessState::Up), (60, ProcessState::Down)]);
        let whole = |changes: &[(u64, Owner)]| stepped(Owner::NoReader, changes, 90);
        let rows = [
            whole(&[(3, Owner::Member(0)), (30, Owner::Frozen(0)), (45, Owner::Member(1)), (60, Owner::Crashed(1))]),
            whole(&[(0, Owner::Absent), (9, Owner::Member(1)), (60, Owner::Crashed(1)), (70, Owner::Member(0))]),
        ];
        let lag = vec![(seconds(5), 0), (seconds(40), 100), (seconds(80), 9)];
        let row = |spans| Row { spans, lag: lag.clone(), moments: Vec::new() };
        Picture {
            title: "A sample".to_owned(),
            length: seconds(90),
            lanes: vec![Lane { disturbances: vec![disturbance], ..first }, second],
            rows: rows.map(row).into(),
            moments: vec![Moment { at: seconds(85), name: "calm".to_owned() }],
            disturbances: Vec::new(),
        }
    }

    #[test]
    fn a_value_has_no_gaps_and_no_empty_steps() {
        let seconds = Duration::from_secs;
        let spans = stepped('a', &[(0, 'b'), (3, 'b'), (5, 'c'), (5, 'd')], 9);
        let span = |from, to, value| Span { from: seconds(from), to: seconds(to), value };
        assert_eq!(spans, [span(0, 5, 'b'), span(5, 9, 'd')]);
    }
}
