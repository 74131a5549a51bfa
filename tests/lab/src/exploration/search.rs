//! Breadth-first search over every state that a system can reach.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::hash::{BuildHasherDefault, Hash};

use rustc_hash::{FxHashSet, FxHasher};

use super::notes::{Invariant, Notes};
use crate::explored::Step;

/// A system to explore.
pub(super) trait System {
    type State: Copy + Eq + Hash;
    type Label: Copy + Display;

    fn start(&self) -> Self::State;

    /// Adds every step that any participant may take from here.
    fn steps(&self, from: &Self::State, edges: &mut Vec<Edge<Self::State, Self::Label>>);

    /// Returns whether an owner owns the partition and has made progress, or waits because the partition is paused.
    fn is_goal(&self, state: &Self::State) -> bool;

    /// Returns whether no participant is left that could make progress.
    fn is_hopeless(&self, state: &Self::State) -> bool;

    /// Returns what others can see of a step from this state.
    fn observed(&self, _from: &Self::State, _notes: &Notes) -> impl Iterator<Item = Step> {
        std::iter::empty()
    }
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge<S, L> {
    pub(super) label: L,
    pub(super) to: S,
    /// It needs a fault, or a freedom of the clock. After the last fault it is not taken anymore.
    pub(super) fault: bool,
    pub(super) notes: Notes,
}

/// What to check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) invariants: &'static [Invariant],
    /// Whether a path without faults must lead on from every state.
    pub(super) live: bool,
}

/// A violated invariant, and a shortest path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) invariant: Invariant,
    pub(super) trace: Vec<String>,
}

/// The result. Without a violation, every state was visited.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) steps: usize,
    /// The events of all steps.
    pub(super) notes: Notes,
    /// What others can see of them.
    pub(super) observed: FxHashSet<Step>,
    pub(super) violation: Option<Violation>,
}

struct Search<'a, M: System> {
    system: &'a M,
    aim: Aim,
    numbers: HashMap<M::State, u32, BuildHasherDefault<FxHasher>>,
    /// For each state, the state and the step from which it was first reached.
    origins: Vec<Option<(u32, M::Label)>>,
    /// The steps without a fault, backward; kept only if `live` is to be checked.
    fault_free: Vec<(u32, u32)>,
    steps: usize,
    notes: Notes,
    observed: FxHashSet<Step>,
}

pub(super) fn explore<M: System>(system: &M, aim: Aim) -> Explored {
    let mut search = Search {
        system,
        aim,
        numbers: HashMap::default(),
        origins: Vec::new(),
        fault_free: Vec::new(),
        steps: 0,
        notes: Notes::default(),
        observed: FxHashSet::default(),
    };
    let violation = search.forwards().or_else(|| search.backward());
    let Search { origins, steps, notes, observed, .. } = search;
    Explored { states: origins.len(), steps, notes, observed, violation }
}

impl<M: System> Search<'_, M> {
    /// Visits every state once, in breadth-first order, until an invariant is violated.
    fn forwards(&mut self) -> Option<Violation> {
        let start = self.system.start();
        self.numbers.insert(start, 0);
        self.origins.push(None);
        let mut queue = VecDeque::from([(0, start)]);
        let mut edges = Vec::new();
        while let Some((from, state)) = queue.pop_front() {
            self.system.steps(&state, &mut edges);
            for edge in edges.drain(..) {
                self.steps += 1;
                self.notes |= edge.notes;
                self.observed.extend(self.system.observed(&state, &edge.notes));
                if let Some(invariant) = self.aim.invariants.iter().find(|invariant| edge.notes.breaks(**invariant)) {
                    let mut trace = self.trace(from);
                    trace.push(edge.label.to_string());
                    return Some(Violation { invariant: *invariant, trace });
                }
                let next = u32::try_from(self.origins.len()).expect("the numbers of the states have 32 bits");
                let number = *self.numbers.entry(edge.to).or_insert(next);
                if number == next {
                    self.origins.push(Some((from, edge.label)));
                    queue.push_back((number, edge.to));
                }
                if self.aim.live && !edge.fault {
                    self.fault_free.push((number, from));
                }
            }
        }
        None
    }

    /// Goes back from the goals. A state that is not reached is stuck.
    fn backward(&mut self) -> Option<Violation> {
        if !self.aim.live {
            return None;
        }
        self.fault_free.sort_unstable();
        let mut well = vec![false; self.origins.len()];
        let mut excused = vec![false; self.origins.len()];
        for (state, number) in &self.numbers {
            well[*number as usize] = self.system.is_goal(state);
            excused[*number as usize] = self.system.is_hopeless(state);
        }
        let mut reached: Vec<u32> = (0..).zip(&well).filter(|(_, well)| **well).map(|(number, _)| number).collect();
        while let Some(number) = reached.pop() {
            let first = self.fault_free.partition_point(|(to, _)| *to < number);
            for (_, from) in self.fault_free[first..].iter().take_while(|(to, _)| *to == number) {
                if !well[*from as usize] {
                    well[*from as usize] = true;
                    reached.push(*from);
                }
            }
        }
        let stuck = (0..).zip(well.iter().zip(&excused)).find(|(_, (well, excused))| !**well && !**excused);
        stuck.map(|(number, _)| Violation { invariant: Invariant::Live, trace: self.trace(number) })
    }

    fn trace(&self, mut to: u32) -> Vec<String> {
        let mut labels = Vec::new();
        while let Some((from, label)) = &self.origins[to as usize] {
            labels.push(label.to_string());
            to = *from;
        }
        labels.reverse();
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts from 0 in steps of 2 and 3. A step onto `trap` needs a fault, and no path leads on from there.
    struct Counter {
        goal: u8,
        trap: u8,
        forbidden: Option<u8>,
    }

    impl System for Counter {
        type State = u8;
        type Label = u8;

        fn start(&self) -> u8 {
            0
        }

        fn steps(&self, from: &u8, edges: &mut Vec<Edge<u8, u8>>) {
            for width in [2, 3] {
                let to = from + width;
                if *from != self.trap && to <= self.goal {
                    let notes = Notes::default().breaking(Invariant::Fenced, self.forbidden == Some(to));
                    edges.push(Edge { label: width, to, fault: to == self.trap, notes });
                }
            }
        }

        fn is_goal(&self, state: &u8) -> bool {
            *state == self.goal
        }

        fn is_hopeless(&self, _: &u8) -> bool {
            false
        }
    }

    const AIM: Aim = Aim { invariants: &[Invariant::Fenced], live: true };

    #[test]
    fn every_state_and_every_step_is_visited_once() {
        let explored = explore(&Counter { goal: 5, trap: 99, forbidden: None }, Aim { live: false, ..AIM });
        assert_eq!((explored.states, explored.steps), (5, 5), "0 2 3 4 5, and 5 is reached twice");
        assert_eq!(explored.violation, None);
    }

    #[test]
    fn the_trace_is_a_shortest_one() {
        let explored = explore(&Counter { goal: 20, trap: 99, forbidden: Some(9) }, AIM);
        let violation = explored.violation.unwrap();
        assert_eq!(
            violation,
            Violation { invariant: Invariant::Fenced, trace: ["3", "3", "3"].map(String::from).to_vec() }
        );
    }

    #[test]
    fn a_state_without_a_path_to_a_goal_is_stuck() {
        let explored = explore(&Counter { goal: 9, trap: 5, forbidden: None }, AIM);
        assert_eq!(explored.violation.unwrap().invariant, Invariant::Live);
        // 8 is one below the goal, which steps of 2 and 3 miss; without it and without the trap no state is stuck.
        let stuck = explore(&Counter { goal: 9, trap: 99, forbidden: None }, AIM).violation.unwrap();
        assert_eq!(stuck.trace.iter().map(|label| label.parse::<u8>().unwrap()).sum::<u8>(), 8);
        let well = explore(&Counter { goal: 2, trap: 99, forbidden: None }, AIM);
        assert_eq!(well.violation, None);
    }
}
