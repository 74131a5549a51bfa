//! The writes to the records that the storage proxy recorded, in the order in which the storage accepted them.

use std::collections::BTreeMap;

use eventhubs_checkpoint::blob::Metadata;

use crate::chaos::clock::Moment;
use crate::chaos::incarnation::IncarnationId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Ownership,
    Checkpoint,
}

/// One request to write a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub by: IncarnationId,
    pub kind: Kind,
    pub partition: String,
    pub sent: Moment,
    /// When the storage had responded; `None` if it never did.
    pub responded: Option<Moment>,
    /// 0 without a response.
    pub status: u16,
    /// The ETag that it replaces; `None` if it creates.
    pub replaces: Option<String>,
    /// The ETag that it created.
    pub etag: Option<String>,
    /// It is accepted only if the blob is as its writer knows it.
    pub is_conditional: bool,
    pub metadata: Metadata,
    pub owner: String,
    /// Of a checkpoint; -1 before the first event.
    pub position: i64,
}

impl Write {
    pub fn is_accepted(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Another writer was first, or is the owner now.
    pub fn is_rejected(&self) -> bool {
        matches!(self.status, 409 | 412)
    }

    /// Makes its writer the owner, or keeps it the owner.
    pub fn claims(&self) -> bool {
        let names_writer = self.owner == self.by.owner() || (self.by.is_operator() && !self.owner.is_empty());
        self.kind == Kind::Ownership && names_writer
    }

    /// It is unknown whether it was applied.
    pub fn is_open(&self) -> bool {
        self.responded.is_none() || self.status >= 500
    }
}

/// Finds operators' checkpoints that the storage applied without a response: the next accepted write reveals them. It
/// has the same position, because it comes from an owner or operator that adopted the partition there, and it replaces
/// another version than the open write did.
pub fn settled(mut writes: Vec<Write>) -> Vec<Write> {
    let is_open = |write: &Write| write.kind == Kind::Checkpoint && write.by.is_operator() && write.is_open();
    let applied: Vec<_> = (0..writes.len())
        .filter(|index| is_open(&writes[*index]))
        .filter_map(|index| {
            let open = &writes[index];
            let later = writes.iter().filter(|write| write.kind == open.kind && write.partition == open.partition);
            let next =
                later.filter(|write| write.is_accepted() && write.sent > open.sent).min_by_key(|write| write.sent)?;
            let shows = next.position == open.position && next.replaces != open.replaces;
            shows.then(|| (index, next.sent, next.replaces.clone()))
        })
        .collect();
    for (index, responded, etag) in applied {
        writes[index] = Write { responded: Some(responded), status: 201, etag, ..writes[index].clone() };
    }
    writes
}

/// Returns the accepted writes to one blob, each after the one that it replaced. The storage orders them by their
/// ETags, regardless of the order of their responses; if a link is missing because a response was lost, the time
/// decides.
pub fn chain<'a>(writes: impl IntoIterator<Item = &'a Write>) -> Vec<&'a Write> {
    let mut accepted: Vec<_> = writes.into_iter().filter(|write| write.is_accepted()).collect();
    accepted.sort_by_key(|write| write.responded);
    let made: BTreeMap<_, _> = accepted.iter().filter_map(|write| Some((write.etag.as_deref()?, *write))).collect();
    let next: BTreeMap<_, _> = accepted.iter().filter_map(|write| Some((write.replaces.as_deref()?, *write))).collect();
    let is_first = |write: &&&Write| write.replaces.as_deref().is_none_or(|etag| !made.contains_key(etag));
    let mut chain = Vec::with_capacity(accepted.len());
    for first in accepted.iter().filter(is_first) {
        let mut link = Some(*first);
        while let Some(write) = link {
            chain.push(write);
            link = write.etag.as_deref().and_then(|etag| next.get(etag).copied());
        }
    }
    chain
}

#[cfg(test)]
pub mod tests {
    use eventhubs_checkpoint::internal::codec::{encode_checkpoint, encode_ownership};
    use eventhubs_checkpoint::store::{CheckpointRecord, OwnershipRecord};
    use eventhubs_checkpoint::{Incarnation, OwnerId};
    use time::macros::datetime;

    use super::*;

    pub fn incarnation(instance: u32) -> IncarnationId {
        IncarnationId { instance, number: 1 }
    }

    pub fn write(kind: Kind, by: IncarnationId, at: u64, etags: (&str, &str), position: i64) -> Write {
        Write {
            by,
            kind,
            partition: "0".to_owned(),
            sent: Moment::from_millis(at),
            responded: Some(Moment::from_millis(at + 5)),
            status: 200,
            replaces: (!etags.0.is_empty()).then(|| etags.0.to_owned()),
            etag: Some(etags.1.to_owned()),
            is_conditional: true,
            metadata: metadata(kind, by, at, position),
            owner: by.owner(),
            position,
        }
    }

    /// Returns what an instance or an operator records.
    fn metadata(kind: Kind, by: IncarnationId, at: u64, position: i64) -> Metadata {
        let owner = OwnerId::new(by.owner()).unwrap();
        match kind {
            Kind::Ownership => {
                let incarnation = Incarnation::new(datetime!(2026-01-01 00:00 UTC), by.number);
                let mut record = OwnershipRecord::owned_by(owner.clone(), Some(incarnation));
                record.operator = by.is_operator().then_some(owner);
                record.epoch = i64::try_from(at).ok();
                encode_ownership(&record)
            }
            Kind::Checkpoint => {
                let mut record = CheckpointRecord::default();
                record.sequence_number = Some(position);
                record.owner = Some(owner);
                encode_checkpoint(&record)
            }
        }
    }

    #[test]
    fn etags_order_the_writes_and_time_fills_gaps() {
        let checkpoint = |at, etags| write(Kind::Checkpoint, incarnation(0), at, etags, 0);
        let rejected = Write { status: 412, etag: None, ..checkpoint(3, ("b", "x")) };
        // The response of "b" came last, and that of "d" was lost.
        let writes = [
            checkpoint(9, ("a", "b")),
            checkpoint(4, ("b", "c")),
            checkpoint(1, ("", "a")),
            checkpoint(20, ("d", "e")),
        ];
        let chain = chain(writes.iter().chain([&rejected]));
        let etags: Vec<_> = chain.iter().filter_map(|write| write.etag.as_deref()).collect();
        assert_eq!(etags, ["a", "b", "c", "e"]);
    }

    #[test]
    fn the_next_write_reveals_an_applied_open_write() {
        let operator = IncarnationId::of_operator(1);
        let responded = write(Kind::Checkpoint, operator, 10, ("b", ""), 4);
        let open = Write { responded: None, status: 0, etag: None, ..responded };
        for (next, position, applied) in [("x", 4, true), ("b", 4, false), ("x", 9, false)] {
            let adoption = write(Kind::Checkpoint, incarnation(0), 20, (next, "y"), position);
            let settled = settled(vec![open.clone(), adoption]);
            assert_eq!(settled[0].is_accepted(), applied, "{next} {position}");
            assert_eq!(settled[0].etag.as_deref(), applied.then_some("x"));
        }
        assert!(settled(vec![open])[0].is_open());
    }

    #[test]
    fn an_operator_claims_with_its_own_name() {
        let claim = write(Kind::Ownership, IncarnationId::of_operator(1), 1, ("", "a"), 0);
        let of = |owner: &str| Write { owner: owner.to_owned(), ..claim.clone() };
        assert!(of("operator-0123").claims());
        assert!(!of("").claims());
        let request =
            Write { owner: incarnation(1).owner(), ..write(Kind::Ownership, incarnation(0), 1, ("", "a"), 0) };
        assert!(!request.claims());
    }
}
