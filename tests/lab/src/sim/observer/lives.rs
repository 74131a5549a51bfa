//! Who there is.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::{Identity, OwnerId};
use tokio::time::Instant;

use super::resets::Progress;
use super::restraint::Refused;
use super::timeline::Mark;
use super::{Partition, State};
use crate::history::{self, Delivery};
use crate::sim::host::Ended;
use crate::sim::invariant::Invariant;

/// One life of a member, or an operator.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Life {
    pub(super) member: Option<u32>,
    pub(super) owner: OwnerId,
    pub(super) incarnation: Option<String>,
    pub(super) ours: bool,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    /// It was frozen, or shown the past: what it believes may be wrong in good faith.
    pub(super) misled: bool,
    /// It was told to end while all was well, and held so many partitions then.
    pub(super) leaves: Option<usize>,
    /// When it last said that it is there, if nobody has declared it dead since.
    pub(super) present_at: Option<Instant>,
    pub(super) requests: u64,
    /// Since its requests are refused.
    pub(super) refused: Option<Refused>,
    pub(super) sessions: BTreeMap<usize, Session>,
    /// What an operator is to do with each partition.
    pub(super) resets: BTreeMap<usize, Progress>,
}

/// From a start of the handler to its stop.
pub(super) struct Session {
    pub(super) since: history::Moment,
    pub(super) busy: bool,
    pub(super) delivery: Delivery,
}

/// Who enters.
pub(in super::super) struct Entering {
    pub(in super::super) member: Option<u32>,
    pub(in super::super) owner: OwnerId,
    pub(in super::super) ours: bool,
}

impl State {
    pub(in super::super) fn enters(&mut self, entering: Entering) -> usize {
        let Entering { member, owner, ours } = entering;
        self.lives.push(Life {
            member,
            owner,
            incarnation: None,
            ours,
            alive: true,
            frozen: false,
            misled: false,
            leaves: None,
            present_at: None,
            requests: 0,
            refused: None,
            sessions: BTreeMap::new(),
            resets: BTreeMap::new(),
        });
        let life = self.lives.len() - 1;
        self.saw(life, "starts", 0, 0);
        self.mark(life, Mark::Started);
        life
    }

    pub(super) fn name_of(&self, life: usize) -> String {
        let owner = self.lives.get(life).map_or("?", |life| life.owner.as_str());
        format!("{owner}#{life}")
    }

    pub(in super::super) fn identified(&mut self, life: usize, identity: &Identity) {
        self.lives[life].incarnation = Some(identity.incarnation.as_str().to_owned());
        self.is_connected(life);
        self.saw(life, "connects", 0, 0);
    }

    pub(in super::super) fn freezes(&mut self, life: usize, frozen: bool) {
        let book = &mut self.lives[life];
        (book.frozen, book.misled) = (frozen, true);
        self.saw(life, if frozen { "freezes" } else { "wakes" }, 0, 0);
        self.mark(life, if frozen { Mark::Frozen } else { Mark::Woke });
    }

    pub(in super::super) fn misleads(&mut self, life: usize) {
        self.lives[life].misled = true;
    }

    pub(in super::super) fn crashes(&mut self, life: usize) {
        self.saw(life, "crashes", 0, 0);
        self.mark(life, Mark::Crashed);
        self.dies(life);
        self.watch_what_is_left_by(life);
    }

    pub(super) fn dies(&mut self, life: usize) {
        let book = &mut self.lives[life];
        book.alive = false;
        book.sessions.clear();
        self.darkens(life);
    }

    pub(in super::super) fn ends(&mut self, life: usize, ended: &Ended) {
        if !self.lives[life].alive {
            return;
        }
        self.saw(life, "ends", 0, 0);
        self.note(format!("{} ended: {ended:?}", self.name_of(life)));
        let unstopped: Vec<_> = self.lives[life].sessions.keys().copied().collect();
        let ours = self.lives[life].ours;
        self.mark(life, Mark::Ended);
        self.dies(life);
        if !ours {
            return;
        }
        match ended {
            Ended::Shutdown { .. } => {
                let name = self.name_of(life);
                self.check(Invariant::OneHandler, unstopped.is_empty(), || {
                    format!("{name} never stopped {unstopped:?}")
                });
            }
            Ended::Replaced => self.was_replaced(life),
            Ended::Failed(error) => {
                let what = format!("{} ended by itself: {error}", self.name_of(life));
                self.check(Invariant::CleanEnd, false, || what);
            }
        }
    }

    fn was_replaced(&mut self, life: usize) {
        self.count("replaced");
        let me = &self.lives[life];
        let later = |other: &Life| other.owner == me.owner && other.incarnation > me.incarnation;
        let replaced = self.lives.iter().any(later);
        let name = self.name_of(life);
        self.check(Invariant::NewerStays, replaced, || format!("{name} says it was replaced, but nobody came later"));
    }

    /// Of those that are alive, how many there are; of two with one name the newer counts.
    pub(in super::super) fn survivors(&self) -> Vec<usize> {
        let newest = |life: &usize| {
            let me = &self.lives[*life];
            !self.lives[life + 1..].iter().any(|other| other.alive && other.owner == me.owner)
        };
        let members = |life: &usize| self.lives[*life].alive && self.lives[*life].member.is_some();
        (0..self.lives.len()).filter(members).filter(newest).collect()
    }

    /// Whether there is an owner of another SDK, or the records of one that has died: as long as those live, its share
    /// is left to it.
    pub(super) fn foreigners_count(&self) -> bool {
        let foreign = |life: &Life| !life.ours && life.member.is_some();
        let holds = |book: &Partition| book.holder().is_some_and(|holder| foreign(&self.lives[holder]));
        self.lives.iter().any(|life| life.alive && foreign(life)) || self.partitions.iter().any(holds)
    }

    /// Storage requests of each member.
    pub(in super::super) fn requests_by_member(&self) -> BTreeMap<u32, u64> {
        let mut requests = BTreeMap::new();
        for life in &self.lives {
            if let Some(member) = life.member {
                *requests.entry(member).or_default() += life.requests;
            }
        }
        requests
    }

    /// Counts the time that partitions of the dead have been without a living owner.
    fn darkens(&mut self, life: usize) {
        let now = Instant::now();
        for partition in &mut self.partitions {
            if partition.holder() == Some(life) {
                partition.unowned_since.get_or_insert(now);
            }
        }
    }

    pub(in super::super) fn add_dark(&mut self, time: Duration) {
        self.totals.dark += time;
    }
}
