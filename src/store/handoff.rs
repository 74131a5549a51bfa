//! Handoff: asking a cooperative owner for a partition, so that it moves without an event being processed twice.
//!
//! Whoever wants a partition [marks](GroupStore::mark) its record, and then [pursues](GroupStore::pursue) it: looks at
//! it until it is released, or for as long as it has patience. The owner learns of it from its
//! [lease](super::Lease::asked_for_by), [acknowledges](super::Lease::with_draining), settles its last checkpoint, and
//! releases; the release is reserved for the one that asked.

use std::time::Duration;

use tokio::time::timeout;

use super::{Claim, GroupStore, MAX_ATTEMPTS, Ownership, back_off, is_doubtful};
use crate::blob::{Condition, ETag, Metadata};
use crate::codec::{self, RecordKind};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, OwnershipRecord, PartitionId};
use crate::protocol::{Looked, MarkedFor, Marking, Pursuing, Step, Waits, Whose, marking};
use crate::telemetry::Operation;

/// A partition that was asked for, and how far that got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    partition: PartitionId,
    victim: Victim,
    pursuing: Pursuing,
}

impl Handoff {
    /// The partition.
    #[must_use]
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The owner that was asked.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.victim.owner
    }

    /// Whether that owner has answered that it drains, as far as it was [looked at](GroupStore::pursue).
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.pursuing.is_acknowledged()
    }
}

/// The life of an owner that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Victim {
    owner: OwnerId,
    incarnation: Option<Incarnation>,
}

impl Victim {
    fn of(record: &OwnershipRecord) -> Option<Self> {
        let owner = record.owner.clone()?;
        Some(Self { owner, incarnation: record.incarnation.clone() })
    }
}

/// What became of a mark.
#[derive(Debug)]
#[non_exhaustive]
pub enum MarkOutcome {
    /// The record says who asks. Look at it every half interval, with [`GroupStore::pursue`].
    Standing(Handoff),
    /// The partition is not that owner's any more, or was mine all the time. Plan anew.
    Lost,
    /// That record is not to be marked.
    NotEligible(Unmarked),
    /// Nobody can tell. If the mark stands, the partition will be reserved for this owner when it is released, for a
    /// while.
    Undecided(Error),
}

/// Why a record is not to be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmarked {
    /// Its owner does not hand over on request: an owner of another SDK, or one that is not
    /// [cooperative](super::GroupStore::cooperative). Steal it.
    NotCooperative,
    /// Another owner has asked for it.
    Taken,
    /// It was last renewed half an expiry ago or longer. A mark would make it look alive: wait for a renewal, or for
    /// its end.
    TooOld,
}

/// What became of a mark that was looked into.
enum Marked {
    /// It stands, since this moment at the latest.
    At(Duration),
    Lost,
    Not(Unmarked),
}

/// How long to wait for an owner that was asked, before the partition is stolen from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Patience {
    /// From the mark until its record says that it drains. At least half the expiry and a request deadline, for an
    /// owner need not look more often.
    pub acknowledgement: Duration,
    /// From then on until it releases. Less than the expiry, and more than its time to drain.
    pub release: Duration,
}

impl Patience {
    /// The time until the acknowledgement, and the time from there until the release.
    #[must_use]
    pub const fn new(acknowledgement: Duration, release: Duration) -> Self {
        Self { acknowledgement, release }
    }
}

/// What to do next about a partition that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pursuit {
    /// Look again after half an interval.
    Wait,
    /// It was released for me. No event is processed twice, unless its owner could not settle its checkpoint.
    Take(Claim),
    /// Its owner did not answer in time: events may be processed twice. If the claim is lost to a renewal or to the
    /// release, pursue it further.
    Steal(Claim),
    /// Somebody else has it, or it is reserved for another, or for nobody. Plan anew.
    Over,
}

impl GroupStore {
    /// The time that this crate's owners have for a handoff by default: half the expiry and a request deadline to
    /// answer, three quarters of the expiry to release.
    #[must_use]
    pub fn patience(&self) -> Patience {
        let expiry = self.terms().expiry;
        Patience { acknowledgement: expiry / 2 + self.request_deadline(), release: expiry * 3 / 4 }
    }

    /// Asks the owner of a partition, as a listing showed it, to hand it over. Every other key of its record stays as
    /// it is.
    ///
    /// Only the young record of a [cooperative](super::GroupStore::cooperative) owner is marked: a mark renews it, and
    /// must not keep a dead owner alive. A record has one mark at a time, but any number of partitions can be asked for
    /// at once, also of one owner: each is drained and released by itself. A mark cannot be taken back; one that is not
    /// pursued ends when the partition is released and the reservation lapses.
    pub async fn mark(&self, seen: &Ownership) -> MarkOutcome {
        let Some(victim) = Victim::of(&seen.record) else { return MarkOutcome::Lost };
        let _turn = self.turn(RecordKind::Ownership, &seen.partition).await;
        match self.marked(&seen.partition, &victim).await {
            Ok(Marked::At(now)) => {
                let (partition, pursuing) = (seen.partition.clone(), Pursuing::since(now));
                MarkOutcome::Standing(Handoff { partition, victim, pursuing })
            }
            Ok(Marked::Lost) => MarkOutcome::Lost,
            Ok(Marked::Not(reason)) => MarkOutcome::NotEligible(reason),
            Err(error) => MarkOutcome::Undecided(error),
        }
    }

    /// Looks once at a partition that was asked for, and says what to do about it. A mark that was erased is added
    /// again, a few times, and the owner has its time anew.
    ///
    /// # Errors
    ///
    /// What the storage answered. Nothing is decided; look again.
    pub async fn pursue(&self, handoff: &mut Handoff, patience: &Patience) -> Result<Pursuit> {
        let _turn = self.turn(RecordKind::Ownership, &handoff.partition).await;
        let (looked, found) = self.look_at(&handoff.partition, &handoff.victim).await?.unzip();
        let waits = Waits { acknowledgement: patience.acknowledgement, release: patience.release };
        let claim = found.map(|(seen, _)| Claim::over(&seen));
        Ok(match (handoff.pursuing.look(looked, self.lease_time(), waits, self.terms().expiry), claim) {
            (Step::Wait, _) => Pursuit::Wait,
            (Step::Take(_), Some(claim)) => Pursuit::Take(claim),
            (Step::Steal(_), Some(claim)) => Pursuit::Steal(claim),
            (Step::Over | Step::Take(_) | Step::Steal(_), _) => Pursuit::Over,
            (Step::MarkAgain, _) => match self.marked(&handoff.partition, &handoff.victim).await? {
                Marked::At(now) => {
                    handoff.pursuing.marked_again(now);
                    Pursuit::Wait
                }
                Marked::Lost | Marked::Not(_) => Pursuit::Over,
            },
        })
    }

    /// Marks until it is known whether the mark stands, for two request deadlines at the most.
    async fn marked(&self, partition: &PartitionId, victim: &Victim) -> Result<Marked> {
        let limit = 2 * self.request_deadline();
        timeout(limit, self.marked_in_time(partition, victim)).await.unwrap_or_else(|_| {
            let message = format!("the mark of partition {partition} took longer than {limit:?}");
            Err(Error::new(ErrorKind::Unknown, message))
        })
    }

    async fn marked_in_time(&self, partition: &PartitionId, victim: &Victim) -> Result<Marked> {
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let (looked, found) = self.look_at(partition, victim).await?.unzip();
            let metadata = found.map(|(_, metadata)| metadata).unwrap_or_default();
            let stands = match marking(looked, self.terms().expiry) {
                Marking::Stands => true,
                Marking::Write(etag) => self.mark_written(partition, metadata, etag).await?,
                Marking::Lost => return Ok(Marked::Lost),
                Marking::Taken => return Ok(Marked::Not(Unmarked::Taken)),
                Marking::NotCooperative => return Ok(Marked::Not(Unmarked::NotCooperative)),
                Marking::TooOld => return Ok(Marked::Not(Unmarked::TooOld)),
            };
            if stands {
                return Ok(Marked::At(self.lease_time()));
            }
        }
        let message = format!("the ownership of partition {partition} changes all the time");
        Err(Error::new(ErrorKind::Contended, message))
    }

    /// Whether it was written; not if only a read can tell.
    async fn mark_written(&self, partition: &PartitionId, metadata: Metadata, over: ETag) -> Result<bool> {
        let name = self.inner.names.of(RecordKind::Ownership, partition);
        let marked = codec::with_mark(metadata, &self.identity().owner);
        match self.write(Operation::Mark, &name, &marked, &Condition::Match(over)).await {
            Ok(_) => Ok(true),
            Err(error) if is_doubtful(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn look_at(
        &self,
        partition: &PartitionId,
        victim: &Victim,
    ) -> Result<Option<(Looked<ETag>, (Ownership, Metadata))>> {
        let Some(blob) = self.read(&self.inner.names.of(RecordKind::Ownership, partition)).await? else {
            return Ok(None);
        };
        let seen = self.ownership(partition.clone(), &blob).0;
        let mut looked = self.looked(&seen, victim);
        if looked.whose == Whose::Victims {
            looked.age = self.age_of_life(&seen.record, looked.age).await?;
        }
        Ok(Some((looked, (seen, blob.metadata))))
    }

    fn looked(&self, seen: &Ownership, victim: &Victim) -> Looked<ETag> {
        let (record, me) = (&seen.record, &self.identity().owner);
        let whose = match Victim::of(record) {
            None => Whose::Nobodys,
            Some(owner) if owner == *victim && owner.owner != *me => Whose::Victims,
            Some(_) => Whose::Anothers,
        };
        let marked_for = match &record.handoff_to {
            None => MarkedFor::Nobody,
            Some(asking) if asking == me => MarkedFor::Me,
            Some(_) => MarkedFor::Another,
        };
        let (cooperative, draining) = (record.cooperative, record.draining);
        Looked { etag: seen.etag.clone(), whose, marked_for, cooperative, draining, age: seen.age }
    }
}
