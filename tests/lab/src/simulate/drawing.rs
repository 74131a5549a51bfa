//! The picture of a simulated run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::draw::picture::{Disturbance, Lane, Moment, Owner, Picture, ProcessState, Row, Steps};
use crate::sim::{Plan, Report, Role, TimelineEntry, TimelineEvent};

/// How much of the time after balancing is shown.
const AFTERMATH: Duration = Duration::from_secs(120);

pub fn picture(plan: &Plan, report: &Report, headline: &str) -> Picture {
    let balanced = report.timeline.iter().find(|entry| entry.event == TimelineEvent::Balanced).map(|entry| entry.at);
    let length = balanced.map_or(report.elapsed, |at| (at + AFTERMATH).min(report.elapsed));
    let mut drawing = Drawing::new(plan, length);
    for entry in report.timeline.iter().filter(|entry| entry.at <= length) {
        drawing.add(entry);
    }
    drawing.finish(plan, headline)
}

/// The state up to a moment.
struct Drawing {
    length: Duration,
    lanes: Vec<(Lane, Steps<ProcessState>)>,
    rows: Vec<(Row, Steps<Owner>)>,
    moments: Vec<Moment>,
    disturbances: Vec<Disturbance>,
    incarnations: BTreeMap<usize, IncarnationState>,
    /// The incarnation that owns each partition.
    holders: BTreeMap<usize, usize>,
}

struct IncarnationState {
    member: Option<u32>,
    alive: bool,
    frozen: bool,
    reads: BTreeSet<usize>,
}

impl Drawing {
    fn new(plan: &Plan, length: Duration) -> Self {
        let mut drawing = Self {
            length,
            lanes: Vec::new(),
            rows: Vec::new(),
            moments: Vec::new(),
            disturbances: Vec::new(),
            incarnations: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        for (index, member) in plan.members.iter().enumerate() {
            let role = match member.role {
                Role::Foreign(sdk) => Some(format!("like {sdk:?}")),
                _ => None,
            };
            let clock = (member.skew_seconds != 0).then(|| format!("clock {:+} s", member.skew_seconds));
            let note = role.into_iter().chain(clock).collect::<Vec<_>>().join(", ");
            let lane = Lane {
                name: format!("m{index}"),
                note,
                spans: Vec::new(),
                crashes: Vec::new(),
                disturbances: Vec::new(),
            };
            drawing.lanes.push((lane, Steps::new(ProcessState::Down)));
        }
        for partition in 0..plan.partitions {
            drawing.redraw(Duration::ZERO, partition as usize);
        }
        drawing
    }

    /// Returns the row of a partition. Partitions may be added later.
    fn row(&mut self, partition: usize) -> &mut (Row, Steps<Owner>) {
        while self.rows.len() <= partition {
            let row = Row { spans: Vec::new(), lag: Vec::new(), moments: Vec::new() };
            self.rows.push((row, Steps::new(Owner::Absent)));
        }
        &mut self.rows[partition]
    }

    fn add(&mut self, entry: &TimelineEntry) {
        let at = entry.at;
        match (&entry.event, entry.incarnation) {
            (TimelineEvent::Started, Some(incarnation)) => {
                self.incarnations.insert(
                    incarnation,
                    IncarnationState { member: entry.member, alive: true, frozen: false, reads: BTreeSet::new() },
                );
                self.member_changes(entry);
            }
            (TimelineEvent::Crashed, Some(incarnation)) => {
                if let Some((lane, _)) = entry.member.and_then(|member| self.lanes.get_mut(member as usize)) {
                    lane.crashes.push(at);
                }
                self.terminates(entry, incarnation);
            }
            (TimelineEvent::Ended, Some(incarnation)) => self.terminates(entry, incarnation),
            (TimelineEvent::Frozen | TimelineEvent::Woke, Some(incarnation)) => {
                if let Some(incarnation) = self.incarnations.get_mut(&incarnation) {
                    incarnation.frozen = entry.event == TimelineEvent::Frozen;
                }
                self.member_changes(entry);
                self.look_at_all(at);
            }
            (TimelineEvent::Owner { partition }, incarnation) => {
                match incarnation {
                    Some(incarnation) => drop(self.holders.insert(*partition, incarnation)),
                    None => drop(self.holders.remove(partition)),
                }
                self.redraw(at, *partition);
            }
            (
                TimelineEvent::HandlerStarted { partition } | TimelineEvent::HandlerStopped { partition },
                Some(incarnation),
            ) => {
                if let Some(incarnation) = self.incarnations.get_mut(&incarnation) {
                    match entry.event {
                        TimelineEvent::HandlerStarted { .. } => incarnation.reads.insert(*partition),
                        _ => incarnation.reads.remove(partition),
                    };
                }
                self.redraw(at, *partition);
            }
            (TimelineEvent::Lag { partition, events }, _) => {
                self.redraw(at, *partition);
                self.row(*partition).0.lag.push((at, *events));
            }
            (TimelineEvent::Reset { partition, to }, _) => {
                self.row(*partition).0.moments.push(Moment { at, name: format!("reset to {to}") });
            }
            (TimelineEvent::Incident { name, lasts, partition }, _) => self.incident(entry, name, *lasts, *partition),
            (TimelineEvent::Calm, _) => self.moments.push(Moment { at, name: "calm".to_owned() }),
            (TimelineEvent::Balanced, _) => self.moments.push(Moment { at, name: "balanced".to_owned() }),
            _ => {}
        }
    }

    fn terminates(&mut self, entry: &TimelineEntry, incarnation: usize) {
        if let Some(incarnation) = self.incarnations.get_mut(&incarnation) {
            incarnation.alive = false;
            incarnation.reads.clear();
        }
        self.member_changes(entry);
        self.look_at_all(entry.at);
    }

    fn member_changes(&mut self, entry: &TimelineEntry) {
        let Some(member) = entry.member else { return };
        let alive: Vec<_> = self
            .incarnations
            .values()
            .filter(|incarnation| incarnation.member == Some(member) && incarnation.alive)
            .collect();
        let state = match alive.as_slice() {
            [] => ProcessState::Down,
            alive if alive.iter().all(|incarnation| incarnation.frozen) => ProcessState::Frozen,
            _ => ProcessState::Up,
        };
        if let Some((_, steps)) = self.lanes.get_mut(member as usize) {
            steps.step(entry.at, state);
        }
    }

    fn look_at_all(&mut self, at: Duration) {
        for partition in 0..self.rows.len() {
            self.redraw(at, partition);
        }
    }

    fn redraw(&mut self, at: Duration, partition: usize) {
        let owner = self.owner_of(partition);
        self.row(partition).1.step(at, owner);
    }

    /// Returns the owner to draw. During a handover this is the reader.
    fn owner_of(&self, partition: usize) -> Owner {
        let holder = self.holders.get(&partition).and_then(|incarnation| self.incarnations.get(incarnation));
        let readers = || {
            self.incarnations.values().filter(|incarnation| incarnation.alive && incarnation.reads.contains(&partition))
        };
        let reading = |incarnation: &&IncarnationState| incarnation.reads.contains(&partition);
        let shown = holder.filter(reading).or_else(|| readers().next());
        match (shown.and_then(|incarnation| Some((incarnation.member?, incarnation.frozen))), holder) {
            (Some((member, true)), _) => Owner::Frozen(member),
            (Some((member, false)), _) => Owner::Member(member),
            (None, Some(holder)) if !holder.alive => holder.member.map_or(Owner::NoReader, Owner::Crashed),
            (None, _) => Owner::NoReader,
        }
    }

    fn incident(&mut self, entry: &TimelineEntry, name: &str, lasts: Duration, partition: Option<u32>) {
        let (at, name) = (entry.at, name.to_owned());
        // Drawn in another way.
        if ["crash", "restart", "freeze"].contains(&name.as_str()) {
            return;
        }
        if let Some(partition) = partition {
            self.row(partition as usize).0.moments.push(Moment { at, name });
            return;
        }
        let to = (at + lasts).min(self.length);
        let disturbance = Disturbance { from: at, to, name: name.clone() };
        match entry.member.and_then(|member| self.lanes.get_mut(member as usize)) {
            Some((lane, _)) => lane.disturbances.push(disturbance),
            None if lasts.is_zero() => self.moments.push(Moment { at, name }),
            None => self.disturbances.push(disturbance),
        }
    }

    fn finish(self, plan: &Plan, headline: &str) -> Picture {
        let length = self.length;
        let lanes = self.lanes.into_iter().map(|(lane, steps)| Lane { spans: steps.until(length), ..lane });
        let rows = self.rows.into_iter().map(|(row, steps)| Row { spans: steps.until(length), ..row });
        Picture {
            title: format!(
                "{headline}: {} instances, {} partitions, leases of {} s",
                plan.members.len(),
                plan.partitions,
                plan.settings.expiry.as_secs()
            ),
            length,
            lanes: lanes.collect(),
            rows: rows.collect(),
            moments: self.moments,
            disturbances: self.disturbances,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::{BuiltIn, IncidentKind, Scale, Sdk};

    use super::*;
    use crate::draw::picture::Span;
    use crate::simulate::workers;

    /// A short run with every element that can be drawn.
    fn of_a_storm() -> Picture {
        let seconds = Duration::from_secs;
        let scale = Scale { instances: 3, partitions: 6, storm: seconds(900), ..Scale::default() };
        let plan = Plan::calm(5, &scale)
            .with(seconds(300), IncidentKind::Crash { member: 1, down: seconds(60) })
            .with(seconds(500), IncidentKind::Freeze { member: 2, lasts: seconds(20) })
            .with(seconds(520), IncidentKind::Growth(2))
            .with(seconds(600), IncidentKind::HeavyLoad { member: 0, lasts: seconds(60) })
            .with(seconds(700), IncidentKind::LinkBreaks(3));
        let report = workers::play(&plan, &BuiltIn, false).unwrap();
        picture(&plan, &report, "A storm")
    }

    fn assert_whole<T: std::fmt::Debug + PartialEq>(spans: &[Span<T>], length: Duration) {
        assert_eq!(spans.first().unwrap().from, Duration::ZERO);
        assert_eq!(spans.last().unwrap().to, length);
        for pair in spans.windows(2) {
            assert_eq!(pair[0].to, pair[1].from, "{pair:?}");
            assert_ne!(pair[0].value, pair[1].value, "{pair:?}");
        }
    }

    #[test]
    fn rows_and_lanes_have_no_gaps() {
        let picture = of_a_storm();
        assert_eq!((picture.rows.len(), picture.lanes.len()), (8, 3));
        for row in &picture.rows {
            assert_whole(&row.spans, picture.length);
        }
        for lane in &picture.lanes {
            assert_whole(&lane.spans, picture.length);
        }
    }

    #[test]
    fn the_picture_shows_what_happened() {
        let picture = of_a_storm();
        assert_eq!(picture.lanes[1].crashes, [Duration::from_secs(300)]);
        assert!(picture.lanes[2].spans.iter().any(|span| span.value == ProcessState::Frozen));
        assert_eq!(picture.lanes[0].disturbances[0].name, "heavy load");
        assert!(picture.rows[3].moments.iter().any(|moment| moment.name == "link breaks"));
        assert!(picture.moments.iter().any(|moment| moment.name == "growth"));
        assert!(picture.moments.iter().any(|moment| moment.name == "balanced"));
        let crashed =
            picture.rows.iter().flat_map(|row| &row.spans).filter(|span| span.value == Owner::Crashed(1)).count();
        assert!(crashed > 0, "the crash left no unread partition");
        assert!(picture.rows.iter().any(|row| row.spans.iter().any(|span| span.value == Owner::Frozen(2))));
    }

    #[test]
    fn partitions_have_no_reader_or_are_absent_first() {
        let picture = of_a_storm();
        for row in &picture.rows[..6] {
            assert!(matches!(
                &row.spans[..2],
                [Span { value: Owner::NoReader, .. }, Span { value: Owner::Member(_), .. }]
            ));
        }
        for row in &picture.rows[6..] {
            assert_eq!(row.spans[0].value, Owner::Absent);
            assert!(row.spans[0].to >= Duration::from_secs(520));
        }
    }

    #[test]
    fn a_wrong_clock_is_noted() {
        let mut plan = Plan::calm(1, &Scale { instances: 2, partitions: 2, ..Scale::default() });
        plan.members[0].skew_seconds = -90;
        plan.members[1].role = Role::Foreign(Sdk::Go);
        plan.members[1].skew_seconds = 7;
        let drawing = Drawing::new(&plan, Duration::from_secs(1));
        let notes: Vec<_> = drawing.lanes.iter().map(|(lane, _)| lane.note.as_str()).collect();
        assert_eq!(notes, ["clock -90 s", "like Go, clock +7 s"]);
    }
}
