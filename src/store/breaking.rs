//! Breaking: declaring an owner dead whose ownerships live by its presence, before one of them is taken over.
//!
//! The version of an ownership record does not cover such a lease, for its owner renews it without touching the record.
//! The version of the presence does: once it is broken, the owner's next announcement fails, and tells it to
//! [rewrite](super::Lease::rewritten) what it believes to own. If the owner was faster, breaking fails.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{GroupStore, MAX_ATTEMPTS, Ownership, Presence, back_off, condition, is_doubtful};
use crate::blob::{Blob, ETag};
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Incarnation, OwnerId, PresenceRecord};
use crate::protocol::{Breaking, Remains, breaking};
use crate::telemetry::Operation;

/// Whether an owner that was taken for dead is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing lives by its presence any more: claim.
    Dead,
    /// It has shown a sign of life since it was looked at: leave its partitions alone.
    Alive,
}

impl GroupStore {
    /// Declares the owner of a partition dead, as far as its leases live by its presence, which was listed as given, or
    /// was not there. To be done before its partitions are claimed because it has not renewed them in time; not before
    /// they are stolen from a live owner, for all its partitions count as abandoned from here on.
    ///
    /// Asked for an owner that has been declared dead already it sends nothing.
    ///
    /// # Errors
    ///
    /// What the storage answered; [`ErrorKind::Contended`] if nothing could be told for long. Do not claim; look again
    /// in the next cycle.
    pub async fn declare_dead(&self, of: &Ownership, listed: Option<&Presence>) -> Result<Verdict> {
        let (Some(owner), life) = (&of.record.owner, of.record.incarnation.as_ref()) else { return Ok(Verdict::Dead) };
        let name = self.inner.names.presence(owner);
        let metadata = codec::encode_presence(&self.broken(owner, life));
        let stale = listed.map(|seen| &seen.etag);
        let mut remains =
            listed.map(|seen| remains(&seen.record, seen.etag.clone(), seen.age_at(self.lease_time()), life));
        for attempt in 0..MAX_ATTEMPTS {
            back_off(attempt).await;
            let under = match breaking(stale, remains, self.terms().expiry) {
                Breaking::Broken => return Ok(Verdict::Dead),
                Breaking::Alive => return Ok(Verdict::Alive),
                Breaking::Write(under) => under,
            };
            match self.write(Operation::Presence, &name, &metadata, &condition(under)).await {
                Ok(_) => return Ok(Verdict::Dead),
                Err(error) if is_doubtful(&error) => {}
                Err(error) => return Err(error),
            }
            remains = self.read(&name).await?.map(|blob| remains_in(&blob, owner, life));
        }
        Err(Error::new(ErrorKind::Contended, format!("the presence of {owner} changes all the time")))
    }

    fn broken(&self, owner: &OwnerId, life: Option<&Incarnation>) -> PresenceRecord {
        PresenceRecord {
            owner: owner.clone(),
            incarnation: life.cloned(),
            broken_by: Some(self.identity().owner.clone()),
            other: BTreeMap::new(),
        }
    }
}

fn remains(record: &PresenceRecord, etag: ETag, age: Duration, life: Option<&Incarnation>) -> Remains<ETag> {
    Remains { life: record.incarnation.as_ref().cmp(&life), etag, age, broken: record.broken_by.is_some() }
}

fn remains_in(blob: &Blob, owner: &OwnerId, life: Option<&Incarnation>) -> Remains<ETag> {
    let (record, _) = codec::decode_presence(&blob.name, owner.clone(), &blob.metadata);
    remains(&record, blob.etag.clone(), blob.age(), life)
}
