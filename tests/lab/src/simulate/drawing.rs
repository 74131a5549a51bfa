//! The picture of a simulated run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::draw::picture::{Lane, Moment, Owner, Picture, Row, Steps, Trouble, Vigour};
use crate::sim::{Mark, Marked, Plan, Report, Role};

/// How much of the calm is shown.
const AFTERMATH: Duration = Duration::from_secs(120);

pub fn picture(plan: &Plan, report: &Report, headline: &str) -> Picture {
    let balanced = report.timeline.iter().find(|entry| entry.mark == Mark::Balanced).map(|entry| entry.at);
    let length = balanced.map_or(report.elapsed, |at| (at + AFTERMATH).min(report.elapsed));
    let mut drawing = Drawing::new(plan, length);
    for entry in report.timeline.iter().filter(|entry| entry.at <= length) {
        drawing.add(entry);
    }
    drawing.finish(plan, headline)
}

/// What is known up to a moment.
struct Drawing {
    length: Duration,
    lanes: Vec<(Lane, Steps<Vigour>)>,
    rows: Vec<(Row, Steps<Owner>)>,
    moments: Vec<Moment>,
    troubles: Vec<Trouble>,
    lives: BTreeMap<usize, Life>,
    /// The life that each partition belongs to.
    holders: BTreeMap<usize, usize>,
}

struct Life {
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
            troubles: Vec::new(),
            lives: BTreeMap::new(),
            holders: BTreeMap::new(),
        };
        for (index, member) in plan.members.iter().enumerate() {
            let role = match member.role {
                Role::Foreign(sdk) => Some(format!("like {sdk:?}")),
                _ => None,
            };
            let clock = (member.skew_seconds != 0).then(|| format!("clock {:+} s", member.skew_seconds));
            let note = role.into_iter().chain(clock).collect::<Vec<_>>().join(", ");
            let lane =
                Lane { name: format!("m{index}"), note, spans: Vec::new(), crashes: Vec::new(), troubles: Vec::new() };
            drawing.lanes.push((lane, Steps::new(Vigour::Down)));
        }
        for partition in 0..plan.partitions {
            drawing.look(Duration::ZERO, partition as usize);
        }
        drawing
    }

    /// Partitions may be added later.
    fn row(&mut self, partition: usize) -> &mut (Row, Steps<Owner>) {
        while self.rows.len() <= partition {
            let row = Row { spans: Vec::new(), lag: Vec::new(), moments: Vec::new() };
            self.rows.push((row, Steps::new(Owner::Absent)));
        }
        &mut self.rows[partition]
    }

    fn add(&mut self, entry: &Marked) {
        let at = entry.at;
        match (&entry.mark, entry.life) {
            (Mark::Started, Some(life)) => {
                self.lives
                    .insert(life, Life { member: entry.member, alive: true, frozen: false, reads: BTreeSet::new() });
                self.member_changes(entry);
            }
            (Mark::Crashed, Some(life)) => {
                if let Some((lane, _)) = entry.member.and_then(|member| self.lanes.get_mut(member as usize)) {
                    lane.crashes.push(at);
                }
                self.dies(entry, life);
            }
            (Mark::Ended, Some(life)) => self.dies(entry, life),
            (Mark::Frozen | Mark::Woke, Some(life)) => {
                if let Some(life) = self.lives.get_mut(&life) {
                    life.frozen = entry.mark == Mark::Frozen;
                }
                self.member_changes(entry);
                self.look_at_all(at);
            }
            (Mark::Owner { partition }, life) => {
                match life {
                    Some(life) => drop(self.holders.insert(*partition, life)),
                    None => drop(self.holders.remove(partition)),
                }
                self.look(at, *partition);
            }
            (Mark::HandlerStarted { partition } | Mark::HandlerStopped { partition }, Some(life)) => {
                if let Some(life) = self.lives.get_mut(&life) {
                    match entry.mark {
                        Mark::HandlerStarted { .. } => life.reads.insert(*partition),
                        _ => life.reads.remove(partition),
                    };
                }
                self.look(at, *partition);
            }
            (Mark::Lag { partition, events }, _) => {
                self.look(at, *partition);
                self.row(*partition).0.lag.push((at, *events));
            }
            (Mark::Reset { partition, to }, _) => {
                self.row(*partition).0.moments.push(Moment { at, name: format!("put to {to}") });
            }
            (Mark::Incident { name, lasts, partition }, _) => self.incident(entry, name, *lasts, *partition),
            (Mark::Calm, _) => self.moments.push(Moment { at, name: "calm".to_owned() }),
            (Mark::Balanced, _) => self.moments.push(Moment { at, name: "balanced".to_owned() }),
            _ => {}
        }
    }

    fn dies(&mut self, entry: &Marked, life: usize) {
        if let Some(life) = self.lives.get_mut(&life) {
            life.alive = false;
            life.reads.clear();
        }
        self.member_changes(entry);
        self.look_at_all(entry.at);
    }

    fn member_changes(&mut self, entry: &Marked) {
        let Some(member) = entry.member else { return };
        let alive: Vec<_> = self.lives.values().filter(|life| life.member == Some(member) && life.alive).collect();
        let vigour = match alive.as_slice() {
            [] => Vigour::Down,
            alive if alive.iter().all(|life| life.frozen) => Vigour::Frozen,
            _ => Vigour::Up,
        };
        if let Some((_, steps)) = self.lanes.get_mut(member as usize) {
            steps.step(entry.at, vigour);
        }
    }

    fn look_at_all(&mut self, at: Duration) {
        for partition in 0..self.rows.len() {
            self.look(at, partition);
        }
    }

    fn look(&mut self, at: Duration, partition: usize) {
        let owner = self.owner_of(partition);
        self.row(partition).1.step(at, owner);
    }

    /// While a partition changes hands, its reader counts.
    fn owner_of(&self, partition: usize) -> Owner {
        let holder = self.holders.get(&partition).and_then(|life| self.lives.get(life));
        let readers = || self.lives.values().filter(|life| life.alive && life.reads.contains(&partition));
        let reading = |life: &&Life| life.reads.contains(&partition);
        let shown = holder.filter(reading).or_else(|| readers().next());
        match (shown.and_then(|life| Some((life.member?, life.frozen))), holder) {
            (Some((member, true)), _) => Owner::Frozen(member),
            (Some((member, false)), _) => Owner::Member(member),
            (None, Some(holder)) if !holder.alive => holder.member.map_or(Owner::Dark, Owner::Dead),
            (None, _) => Owner::Dark,
        }
    }

    fn incident(&mut self, entry: &Marked, name: &str, lasts: Duration, partition: Option<u32>) {
        let (at, name) = (entry.at, name.to_owned());
        // What is drawn anyway.
        if ["crash", "restart", "freeze"].contains(&name.as_str()) {
            return;
        }
        if let Some(partition) = partition {
            self.row(partition as usize).0.moments.push(Moment { at, name });
            return;
        }
        let to = (at + lasts).min(self.length);
        let trouble = Trouble { from: at, to, name: name.clone() };
        match entry.member.and_then(|member| self.lanes.get_mut(member as usize)) {
            Some((lane, _)) => lane.troubles.push(trouble),
            None if lasts.is_zero() => self.moments.push(Moment { at, name }),
            None => self.troubles.push(trouble),
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
            troubles: self.troubles,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::{Scale, Sdk, Usual, What};

    use super::*;
    use crate::draw::picture::Span;
    use crate::simulate::workers;

    /// A short one, with something of everything that is drawn.
    fn of_a_storm() -> Picture {
        let seconds = Duration::from_secs;
        let scale = Scale { instances: 3, partitions: 6, storm: seconds(900), ..Scale::default() };
        let plan = Plan::calm(5, &scale)
            .with(seconds(300), What::Crash { member: 1, down: seconds(60) })
            .with(seconds(500), What::Freeze { member: 2, lasts: seconds(20) })
            .with(seconds(520), What::Growth(2))
            .with(seconds(600), What::HeavyLoad { member: 0, lasts: seconds(60) })
            .with(seconds(700), What::LinkBreaks(3));
        let report = workers::play(&plan, &Usual, false).unwrap();
        picture(&plan, &report, "A storm")
    }

    fn assert_whole<T: std::fmt::Debug + PartialEq>(spans: &[Span<T>], length: Duration) {
        assert_eq!(spans.first().unwrap().from, Duration::ZERO);
        assert_eq!(spans.last().unwrap().to, length);
        for pair in spans.windows(2) {
            assert_eq!(pair[0].to, pair[1].from, "{pair:?}");
            assert_ne!(pair[0].what, pair[1].what, "{pair:?}");
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
    fn what_happened_is_in_the_picture() {
        let picture = of_a_storm();
        assert_eq!(picture.lanes[1].crashes, [Duration::from_secs(300)]);
        assert!(picture.lanes[2].spans.iter().any(|span| span.what == Vigour::Frozen));
        assert_eq!(picture.lanes[0].troubles[0].name, "heavy load");
        assert_eq!(picture.rows[3].moments[0].name, "link breaks");
        assert!(picture.moments.iter().any(|moment| moment.name == "growth"));
        assert!(picture.moments.iter().any(|moment| moment.name == "balanced"));
        let dead = picture.rows.iter().flat_map(|row| &row.spans).filter(|span| span.what == Owner::Dead(1)).count();
        assert!(dead > 0, "the crash left nothing behind");
        assert!(picture.rows.iter().any(|row| row.spans.iter().any(|span| span.what == Owner::Frozen(2))));
    }

    #[test]
    fn a_partition_is_dark_until_somebody_reads_it_and_absent_before_it_is_added() {
        let picture = of_a_storm();
        for row in &picture.rows[..6] {
            assert!(matches!(&row.spans[..2], [Span { what: Owner::Dark, .. }, Span { what: Owner::Member(_), .. }]));
        }
        for row in &picture.rows[6..] {
            assert_eq!(row.spans[0].what, Owner::Absent);
            assert!(row.spans[0].to >= Duration::from_secs(520));
        }
    }

    #[test]
    fn a_clock_that_is_wrong_is_noted() {
        let mut plan = Plan::calm(1, &Scale { instances: 2, partitions: 2, ..Scale::default() });
        plan.members[0].skew_seconds = -90;
        plan.members[1].role = Role::Foreign(Sdk::Go);
        plan.members[1].skew_seconds = 7;
        let drawing = Drawing::new(&plan, Duration::from_secs(1));
        let notes: Vec<_> = drawing.lanes.iter().map(|(lane, _)| lane.note.as_str()).collect();
        assert_eq!(notes, ["clock -90 s", "like Go, clock +7 s"]);
    }
}
