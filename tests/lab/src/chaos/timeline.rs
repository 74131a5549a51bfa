//! The picture of a run: who processed each partition when, and what went wrong.

use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::evidence::{Evidence, Session};
use crate::chaos::faults::Happened;
use crate::chaos::fleet::End;
use crate::chaos::life::owner;
use crate::chaos::plan::Fault;
use crate::draw::picture::{Lane, Owner, Picture, Row, Steps, Trouble, Vigour};

pub fn picture(evidence: &Evidence, title: String) -> Picture {
    let ends = evidence.lives.iter().filter_map(|biography| Some(biography.end.as_ref()?.0));
    let length = ends.max().unwrap_or_default();
    let sessions = evidence.sessions();
    let common = evidence.happened.iter().filter(|happened| happened.instance.is_none());
    Picture {
        title,
        length,
        lanes: (0..evidence.instances).map(|instance| lane(evidence, instance, length)).collect(),
        rows: (0..evidence.partitions).map(|partition| row(evidence, &sessions, partition, length)).collect(),
        moments: Vec::new(),
        troubles: common.map(|happened| trouble(happened, length)).collect(),
    }
}

fn trouble(happened: &Happened, length: Duration) -> Trouble {
    Trouble { from: happened.from, to: happened.to.min(length), name: happened.fault.name() }
}

fn lane(evidence: &Evidence, instance: u32, length: Duration) -> Lane {
    let mut changes = vec![];
    let mut crashes = Vec::new();
    for biography in evidence.lives.iter().filter(|biography| biography.life.instance == instance) {
        changes.push((biography.from, Vigour::Up));
        if let Some((at, end)) = &biography.end {
            changes.push((*at, Vigour::Down));
            crashes.extend((*end == End::Killed).then_some(*at));
        }
    }
    for freeze in freezes(evidence, instance) {
        changes.extend([(freeze.from, Vigour::Frozen), (freeze.to, Vigour::Up)]);
    }
    changes.sort_by_key(|(at, _)| *at);
    let mut steps = Steps::new(Vigour::Down);
    for (at, vigour) in changes {
        steps.step(at.min(length), vigour);
    }
    // What the lane shows anyway.
    let shown = |fault| matches!(fault, Fault::Kill | Fault::Restart | Fault::Freeze);
    let own = evidence.happened.iter().filter(|happened| happened.instance == Some(instance) && !shown(happened.fault));
    let troubles = own.map(|happened| trouble(happened, length)).collect();
    Lane { name: owner(instance), note: String::new(), spans: steps.until(length), crashes, troubles }
}

fn freezes(evidence: &Evidence, instance: u32) -> impl Iterator<Item = &Happened> {
    let of = move |happened: &&Happened| happened.fault == Fault::Freeze && happened.instance == Some(instance);
    evidence.happened.iter().filter(of)
}

fn row(evidence: &Evidence, sessions: &[Session], partition: u16, length: Duration) -> Row {
    let partition = partition.to_string();
    let own: Vec<_> = sessions.iter().filter(|session| session.partition == partition).collect();
    let ends: Vec<_> = own.iter().map(|session| end_of(evidence, session).min(length)).collect();
    let mut moments: Vec<_> = own.iter().map(|session| session.from).chain(ends.iter().copied()).collect();
    let frozen = own.iter().flat_map(|session| freezes(evidence, session.life.instance));
    moments.extend(frozen.flat_map(|freeze| [freeze.from, freeze.to]));
    moments.sort();
    let mut steps = Steps::new(Owner::Dark);
    for at in moments {
        let running = own.iter().zip(&ends).filter(|(session, end)| session.from <= at && at < **end);
        // The one that began last is the rightful one.
        let last = running.max_by_key(|(session, _)| session.from);
        let over = || own.iter().zip(&ends).filter(|(_, end)| **end <= at).max_by_key(|(_, end)| **end);
        let owner = match last {
            Some((session, _)) if is_frozen(evidence, session, at) => Owner::Frozen(session.life.instance),
            Some((session, _)) => Owner::Member(session.life.instance),
            None => match over() {
                Some((session, _)) if was_killed(evidence, session) => Owner::Dead(session.life.instance),
                _ => Owner::Dark,
            },
        };
        steps.step(at.min(length), owner);
    }
    Row { spans: steps.until(length), lag: Vec::new(), moments: Vec::new() }
}

fn is_frozen(evidence: &Evidence, session: &Session, at: Moment) -> bool {
    freezes(evidence, session.life.instance).any(|freeze| freeze.from <= at && at < freeze.to)
}

fn was_killed(evidence: &Evidence, session: &Session) -> bool {
    session.stopped.is_none() && matches!(evidence.end_of(session.life), Some((_, End::Killed)))
}

fn end_of(evidence: &Evidence, session: &Session) -> Moment {
    let stopped = session.stopped.as_ref().map(|(at, _)| *at);
    stopped.or_else(|| Some(evidence.end_of(session.life)?.0)).unwrap_or(Moment::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::evidence::tests::in_order;
    use crate::chaos::writes::tests::life;
    use crate::draw::picture::Span;

    #[test]
    fn a_partition_goes_from_one_to_the_other_and_freezes_with_its_owner() {
        let mut evidence = in_order();
        let millis = Duration::from_millis;
        evidence.happened =
            vec![Happened { fault: Fault::Freeze, instance: Some(1), from: millis(60), to: millis(70) }];
        let picture = picture(&evidence, String::new());
        let span = |from, to, what| Span { from: millis(from), to: millis(to), what };
        let expected = [
            span(0, 10, Owner::Dark),
            span(10, 30, Owner::Member(0)),
            span(30, 40, Owner::Dark),
            span(40, 60, Owner::Member(1)),
            span(60, 70, Owner::Frozen(1)),
            span(70, 80, Owner::Member(1)),
            span(80, 100, Owner::Dark),
        ];
        assert_eq!(picture.rows[0].spans, expected);
        assert_eq!(picture.lanes[1].spans.len(), 3);
    }

    #[test]
    fn who_was_killed_leaves_its_partition_behind() {
        let mut evidence = in_order();
        evidence.lives[1].end = Some((Moment::from_millis(70), End::Killed));
        evidence.diaries.get_mut(&life(1)).unwrap().truncate(2);
        let picture = picture(&evidence, String::new());
        assert_eq!(picture.lanes[1].crashes, [Moment::from_millis(70)]);
        assert_eq!(picture.rows[0].spans.last().map(|span| span.what), Some(Owner::Dead(1)));
    }
}
