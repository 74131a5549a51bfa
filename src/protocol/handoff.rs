//! Handoff: asking a cooperative owner for a partition, and waiting until it gives it back.

use std::time::Duration;

/// How often the owner is asked, if what was written is erased.
const MAX_MARKS: u8 = 3;

/// Whose a record is, to the one that asks for its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// That life of the owner that is asked.
    Victims,
    /// It was released.
    Nobodys,
    /// Somebody else's, or mine.
    Anothers,
}

/// For whom a record is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkedFor {
    Nobody,
    Me,
    Another,
}

/// The ownership blob as it was read by the one that asks for its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Looked<E> {
    pub etag: E,
    pub whose: Whose,
    pub marked_for: MarkedFor,
    pub cooperative: bool,
    pub draining: bool,
    pub age: Duration,
}

/// What to do in order to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Marking<E> {
    /// The owner is asked, by the record that was read.
    Stands,
    /// Add the mark, under this version.
    Write(E),
    /// The partition is not that owner's any more.
    Lost,
    /// Another asked first.
    Taken,
    /// That owner does not hand over on request.
    NotCooperative,
    /// It renews too late, or is dead: a mark would make it look alive.
    TooOld,
}

/// Whether, and under which version, to mark a record; asked anew after a doubtful write.
pub fn marking<E>(looked: Option<Looked<E>>, expiry: Duration) -> Marking<E> {
    let Some(looked) = looked.filter(|looked| looked.whose == Whose::Victims) else { return Marking::Lost };
    match looked.marked_for {
        MarkedFor::Me => Marking::Stands,
        MarkedFor::Another => Marking::Taken,
        MarkedFor::Nobody if !looked.cooperative => Marking::NotCooperative,
        MarkedFor::Nobody if looked.age >= expiry / 2 => Marking::TooOld,
        MarkedFor::Nobody => Marking::Write(looked.etag),
    }
}

/// How long the one that asked waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// For a record that says that its owner is draining. One that is merely young says nothing: a mark makes it young.
    pub acknowledgement: Duration,
    /// From then on, for the release.
    pub release: Duration,
}

/// A mark that stood, and what came of it so far. The moments are of any one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pursuing {
    marked: Duration,
    acknowledged: Option<Duration>,
    marks: u8,
}

/// What to do next about a partition that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step<E> {
    /// Look again later.
    Wait,
    /// The mark was erased: ask again, as at first. Once it stands, the waits begin anew.
    MarkAgain,
    /// It was released for me: claim it, over this version.
    Take(E),
    /// The time is over: claim it all the same, over this version.
    Steal(E),
    /// It has gone to somebody else, or nobody keeps it for me.
    Over,
}

impl Pursuing {
    pub fn since(marked: Duration) -> Self {
        Self { marked, acknowledged: None, marks: 1 }
    }

    /// The mark stands again.
    pub fn marked_again(&mut self, now: Duration) {
        *self = Self { marks: self.marks + 1, ..Self::since(now) };
    }

    /// Whether the owner was seen to drain.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// How often the mark was written.
    #[cfg(feature = "testing")]
    pub fn marks(&self) -> u8 {
        self.marks
    }

    /// After the record was read, at this moment.
    pub fn look<E: Clone>(
        &mut self,
        looked: Option<Looked<E>>,
        now: Duration,
        waits: Waits,
        expiry: Duration,
    ) -> Step<E> {
        let Some(looked) = looked else { return Step::Over };
        match (looked.whose, looked.marked_for) {
            (Whose::Nobodys, MarkedFor::Me) => return Step::Take(looked.etag),
            (Whose::Nobodys | Whose::Anothers, _) | (Whose::Victims, MarkedFor::Another) => return Step::Over,
            (Whose::Victims, MarkedFor::Me) if looked.draining && self.acknowledged.is_none() => {
                self.acknowledged = Some(now);
            }
            (Whose::Victims, MarkedFor::Me | MarkedFor::Nobody) => {}
        }
        let (since, limit) = match self.acknowledged {
            Some(acknowledged) => (acknowledged, waits.release),
            None => (self.marked, waits.acknowledgement),
        };
        if now.saturating_sub(since) >= limit {
            return Step::Steal(looked.etag);
        }
        match marking(Some(looked), expiry) {
            Marking::Write(_) if self.marks < MAX_MARKS => Step::MarkAgain,
            _ => Step::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(60);
    const WAITS: Waits = Waits { acknowledgement: Duration::from_secs(35), release: Duration::from_secs(45) };
    const ASKED: Looked<u8> = Looked {
        etag: 7,
        whose: Whose::Victims,
        marked_for: MarkedFor::Me,
        cooperative: true,
        draining: false,
        age: Duration::ZERO,
    };
    const DRAINING: Looked<u8> = Looked { draining: true, ..ASKED };
    const UNMARKED: Looked<u8> = Looked { marked_for: MarkedFor::Nobody, ..ASKED };

    fn look(pursuing: &mut Pursuing, looked: Looked<u8>, second: u64) -> Step<u8> {
        pursuing.look(Some(looked), Duration::from_secs(second), WAITS, EXPIRY)
    }

    fn first_look(looked: Looked<u8>) -> Step<u8> {
        look(&mut Pursuing::since(Duration::ZERO), looked, 1)
    }

    #[test]
    fn only_a_young_record_of_a_cooperative_owner_that_nobody_asked_for_is_marked() {
        let next = |looked| marking(Some(looked), EXPIRY);
        let aged = |seconds| Looked { age: Duration::from_secs(seconds), ..UNMARKED };
        assert_eq!(next(aged(29)), Marking::Write(7));
        assert_eq!(next(aged(30)), Marking::TooOld);
        assert_eq!(next(Looked { cooperative: false, ..UNMARKED }), Marking::NotCooperative);
        assert_eq!(next(Looked { marked_for: MarkedFor::Another, ..UNMARKED }), Marking::Taken);
        for whose in [Whose::Nobodys, Whose::Anothers] {
            assert_eq!(next(Looked { whose, ..UNMARKED }), Marking::Lost);
        }
        assert_eq!(marking::<u8>(None, EXPIRY), Marking::Lost);
    }

    #[test]
    fn a_mark_found_on_the_record_of_the_same_owner_stands() {
        assert_eq!(marking(Some(ASKED), EXPIRY), Marking::Stands);
        assert_eq!(marking(Some(Looked { whose: Whose::Nobodys, ..ASKED }), EXPIRY), Marking::Lost);
    }

    #[test]
    fn what_was_released_for_me_is_taken_and_for_nobody_or_another_it_is_over() {
        let released = |marked_for| first_look(Looked { whose: Whose::Nobodys, marked_for, ..ASKED });
        assert_eq!(released(MarkedFor::Me), Step::Take(7));
        assert_eq!(released(MarkedFor::Nobody), Step::Over);
        assert_eq!(released(MarkedFor::Another), Step::Over);
    }

    #[test]
    fn once_the_owner_changed_or_another_asked_it_is_over() {
        assert_eq!(first_look(Looked { whose: Whose::Anothers, ..DRAINING }), Step::Over);
        assert_eq!(first_look(Looked { marked_for: MarkedFor::Another, ..DRAINING }), Step::Over);
        assert_eq!(Pursuing::since(Duration::ZERO).look::<u8>(None, Duration::ZERO, WAITS, EXPIRY), Step::Over);
    }

    #[test]
    fn a_young_record_that_does_not_drain_is_no_acknowledgement() {
        let mut pursuing = Pursuing::since(Duration::from_secs(100));
        assert_eq!(look(&mut pursuing, ASKED, 134), Step::Wait);
        assert!(!pursuing.is_acknowledged());
        assert_eq!(look(&mut pursuing, ASKED, 135), Step::Steal(7));
    }

    #[test]
    fn an_owner_that_drains_has_time_from_the_acknowledgement_on() {
        let mut pursuing = Pursuing::since(Duration::ZERO);
        assert_eq!(look(&mut pursuing, DRAINING, 34), Step::Wait);
        assert!(pursuing.is_acknowledged());
        assert_eq!(look(&mut pursuing, DRAINING, 78), Step::Wait);
        assert_eq!(look(&mut pursuing, DRAINING, 79), Step::Steal(7));
    }

    #[test]
    fn an_erased_mark_is_added_again_a_few_times_and_each_time_the_waits_begin_anew() {
        let mut pursuing = Pursuing::since(Duration::ZERO);
        for mark in 1..u64::from(MAX_MARKS) {
            assert_eq!(look(&mut pursuing, DRAINING, 30 * mark - 1), Step::Wait);
            assert_eq!(look(&mut pursuing, UNMARKED, 30 * mark), Step::MarkAgain);
            pursuing.marked_again(Duration::from_secs(30 * mark));
            assert!(!pursuing.is_acknowledged());
        }
        assert_eq!(look(&mut pursuing, UNMARKED, 94), Step::Wait);
        assert_eq!(look(&mut pursuing, UNMARKED, 95), Step::Steal(7));
        assert_eq!(first_look(Looked { age: EXPIRY / 2, ..UNMARKED }), Step::Wait);
        assert_eq!(first_look(Looked { cooperative: false, ..UNMARKED }), Step::Wait);
    }
}
