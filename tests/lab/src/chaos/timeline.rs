//! The picture of a run: which instance processed each partition, and the faults, over time.

use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::faults::Happened;
use crate::chaos::fleet::End;
use crate::chaos::incarnation::owner;
use crate::chaos::plan::Fault;
use crate::chaos::run_data::{RunData, Session};
use crate::draw::picture::{Disturbance, Lane, Owner, Picture, ProcessState, Row, Steps};

pub fn picture(run_data: &RunData, title: String) -> Picture {
    let ends = run_data.incarnations.iter().filter_map(|observed| Some(observed.end.as_ref()?.0));
    let length = ends.max().unwrap_or_default();
    let sessions = run_data.sessions();
    let common = run_data.happened.iter().filter(|happened| happened.instance.is_none());
    Picture {
        title,
        length,
        lanes: (0..run_data.instances).map(|instance| lane(run_data, instance, length)).collect(),
        rows: (0..run_data.partitions).map(|partition| row(run_data, &sessions, partition, length)).collect(),
        moments: Vec::new(),
        disturbances: common.map(|happened| disturbance(happened, length)).collect(),
    }
}

fn disturbance(happened: &Happened, length: Duration) -> Disturbance {
    Disturbance { from: happened.from, to: happened.to.min(length), name: happened.fault.name() }
}

fn lane(run_data: &RunData, instance: u32, length: Duration) -> Lane {
    let mut changes = vec![];
    let mut crashes = Vec::new();
    for observed in run_data.incarnations.iter().filter(|observed| observed.incarnation.instance == instance) {
        changes.push((observed.from, ProcessState::Up));
        if let Some((at, end)) = &observed.end {
            changes.push((*at, ProcessState::Down));
            crashes.extend((*end == End::Killed).then_some(*at));
        }
    }
    for freeze in freezes(run_data, instance) {
        changes.extend([(freeze.from, ProcessState::Frozen), (freeze.to, ProcessState::Up)]);
    }
    changes.sort_by_key(|(at, _)| *at);
    let mut steps = Steps::new(ProcessState::Down);
    for (at, state) in changes {
        steps.step(at.min(length), state);
    }
    // Drawn by the lane anyway.
    let shown = |fault| matches!(fault, Fault::Kill | Fault::Restart | Fault::Freeze);
    let own = run_data.happened.iter().filter(|happened| happened.instance == Some(instance) && !shown(happened.fault));
    let disturbances = own.map(|happened| disturbance(happened, length)).collect();
    Lane { name: owner(instance), note: String::new(), spans: steps.until(length), crashes, disturbances }
}

fn freezes(run_data: &RunData, instance: u32) -> impl Iterator<Item = &Happened> {
    let of = move |happened: &&Happened| happened.fault == Fault::Freeze && happened.instance == Some(instance);
    run_data.happened.iter().filter(of)
}

fn row(run_data: &RunData, sessions: &[Session], partition: u16, length: Duration) -> Row {
    let partition = partition.to_string();
    let own: Vec<_> = sessions.iter().filter(|session| session.partition == partition).collect();
    let ends: Vec<_> = own.iter().map(|session| end_of(run_data, session).min(length)).collect();
    let mut moments: Vec<_> = own.iter().map(|session| session.from).chain(ends.iter().copied()).collect();
    let frozen = own.iter().flat_map(|session| freezes(run_data, session.incarnation.instance));
    moments.extend(frozen.flat_map(|freeze| [freeze.from, freeze.to]));
    moments.sort();
    let mut steps = Steps::new(Owner::NoReader);
    for at in moments {
        let running = own.iter().zip(&ends).filter(|(session, end)| session.from <= at && at < **end);
        // The session that started last is the rightful one.
        let last = running.max_by_key(|(session, _)| session.from);
        let over = || own.iter().zip(&ends).filter(|(_, end)| **end <= at).max_by_key(|(_, end)| **end);
        let owner = match last {
            Some((session, _)) if is_frozen(run_data, session, at) => Owner::Frozen(session.incarnation.instance),
            Some((session, _)) => Owner::Member(session.incarnation.instance),
            None => match over() {
                Some((session, _)) if was_killed(run_data, session) => Owner::Crashed(session.incarnation.instance),
                _ => Owner::NoReader,
            },
        };
        steps.step(at.min(length), owner);
    }
    Row { spans: steps.until(length), lag: Vec::new(), moments: Vec::new() }
}

fn is_frozen(run_data: &RunData, session: &Session, at: Moment) -> bool {
    freezes(run_data, session.incarnation.instance).any(|freeze| freeze.from <= at && at < freeze.to)
}

fn was_killed(run_data: &RunData, session: &Session) -> bool {
    session.stopped.is_none() && matches!(run_data.end_of(session.incarnation), Some((_, End::Killed)))
}

fn end_of(run_data: &RunData, session: &Session) -> Moment {
    let stopped = session.stopped.as_ref().map(|(at, _)| *at);
    stopped.or_else(|| Some(run_data.end_of(session.incarnation)?.0)).unwrap_or(Moment::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::run_data::tests::in_order;
    use crate::chaos::writes::tests::incarnation;
    use crate::draw::picture::Span;

    #[test]
    fn a_partition_moves_and_freezes_with_its_owner() {
        let mut run_data = in_order();
        let millis = Duration::from_millis;
        run_data.happened =
            vec![Happened { fault: Fault::Freeze, instance: Some(1), from: millis(60), to: millis(70) }];
        let picture = picture(&run_data, String::new());
        let span = |from, to, value| Span { from: millis(from), to: millis(to), value };
        let expected = [
            span(0, 10, Owner::NoReader),
            span(10, 30, Owner::Member(0)),
            span(30, 40, Owner::NoReader),
            span(40, 60, Owner::Member(1)),
            span(60, 70, Owner::Frozen(1)),
            span(70, 80, Owner::Member(1)),
            span(80, 100, Owner::NoReader),
        ];
        assert_eq!(picture.rows[0].spans, expected);
        assert_eq!(picture.lanes[1].spans.len(), 3);
    }

    #[test]
    fn a_killed_owner_leaves_its_partition_unread() {
        let mut run_data = in_order();
        run_data.incarnations[1].end = Some((Moment::from_millis(70), End::Killed));
        run_data.event_logs.get_mut(&incarnation(1)).unwrap().truncate(2);
        let picture = picture(&run_data, String::new());
        assert_eq!(picture.lanes[1].crashes, [Moment::from_millis(70)]);
        assert_eq!(picture.rows[0].spans.last().map(|span| span.value), Some(Owner::Crashed(1)));
    }
}
