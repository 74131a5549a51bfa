//! Writes of ownerships.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::internal::codec::{decode_heartbeat, decode_ownership};
use eventhubs_checkpoint::internal::recorded;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::{Incarnation, OwnerId};
use tokio::time::Instant;

use super::State;
use super::timeline::Mark;
use crate::history::Hands;
use crate::sim::invariant::Invariant;

/// The key that says who asks for a partition.
const MARK: &str = "handoffto";

/// The key that says what keeps an ownership alive.
const SCOPE: &str = "leasescope";

impl State {
    pub(super) fn ownership_written(&mut self, life: usize, partition: usize, name: &str, metadata: &Metadata) {
        let (record, _) = decode_ownership(name, metadata);
        self.operator_is_known(life, &record);
        let holder = self.named_by(&record);
        self.saw(life, "owns", partition, holder.map_or(-1, |holder| i64::try_from(holder).unwrap_or(-1)));
        let expired = self.is_expired(partition);
        self.check_record(life, partition, metadata, holder, expired);
        self.partitions[partition].record = metadata.clone();
        self.partitions[partition].epochs.written(record.epoch);
        let hands = self.partitions[partition].history.owned_by(holder);
        if hands.changed {
            self.changes_hands(partition, &hands, holder, expired);
        }
        self.partitions[partition].written = Instant::now();
    }

    /// Somebody says that it is there, or that another is not.
    pub(super) fn presence_written(&mut self, name: &str, metadata: &Metadata) {
        let Some(owner) = metadata.get("ownerid").filter(|_| name.contains("/heartbeat/")) else { return };
        let (record, _) = decode_heartbeat(name, recorded::owner(owner), metadata);
        if let Some(life) = self.life_of(&record.owner, record.incarnation.as_ref()) {
            self.lives[life].present_at = record.declared_dead_by.is_none().then(Instant::now);
        }
    }

    /// Whether its owner has given no sign of life for so long that anybody may take it.
    fn is_expired(&self, partition: usize) -> bool {
        let book = &self.partitions[partition];
        let by_presence = book.record.get(SCOPE).is_some_and(|scope| scope == "instance");
        let presence = book.holder().filter(|_| by_presence).and_then(|holder| self.lives[holder].present_at);
        presence.map_or(book.written, |presence| presence.max(book.written)).elapsed() >= self.expiry
    }

    fn named_by(&self, record: &OwnershipRecord) -> Option<usize> {
        self.life_of(record.owner.as_ref()?, record.incarnation.as_ref())
    }

    fn life_of(&self, owner: &OwnerId, incarnation: Option<&Incarnation>) -> Option<usize> {
        let incarnation = incarnation.map(Incarnation::as_str);
        self.lives.iter().rposition(|life| {
            life.owner == *owner
                && match incarnation {
                    Some(incarnation) => life.incarnation.as_deref() == Some(incarnation),
                    None => !life.ours,
                }
        })
    }

    fn check_record(
        &mut self,
        life: usize,
        partition: usize,
        metadata: &Metadata,
        holder: Option<usize>,
        expired: bool,
    ) {
        let book = &self.lives[life];
        if !book.ours {
            return;
        }
        let before = self.partitions[partition].holder();
        let asks = holder == before && self.is_mark(life, partition, metadata);
        let own = holder == Some(life) || asks;
        let nobody = holder.is_none() && metadata.get("ownerid").is_some_and(String::is_empty);
        let name = self.name_of(life);
        self.check(Invariant::OwnRecord, own || nobody, || {
            format!("{name} wrote {metadata:?} to partition {partition}")
        });
        let its_own = before.is_none() || before == Some(life) || expired;
        self.check(Invariant::OwnRecord, !nobody || its_own, || format!("{name} released partition {partition}"));
        if asks && holder != Some(life) {
            self.asks(life, partition);
        }
    }

    /// Nothing but that this one asks for it.
    fn is_mark(&self, life: usize, partition: usize, metadata: &Metadata) -> bool {
        let mut marked = self.partitions[partition].record.clone();
        marked.insert(MARK.to_owned(), self.lives[life].owner.as_str().to_owned());
        *metadata == marked
    }

    fn changes_hands(&mut self, partition: usize, hands: &Hands<usize>, holder: Option<usize>, expired: bool) {
        let before = hands.before;
        if let (Some(from), Some(to)) = (before, holder) {
            self.taken_over(partition, from, to, expired);
        }
        if let Some(to) = holder {
            self.must_be_still(partition, to);
        }
        let now = Instant::now();
        let lives = holder.is_some_and(|holder| self.lives[holder].alive);
        let book = &mut self.partitions[partition];
        let dark = if lives { book.unowned_since.take() } else { book.unowned_since.replace(now) };
        if let Some(since) = dark {
            self.add_dark(now - since);
        }
        if let Some(owner) = holder.filter(|_| hands.begins) {
            self.gains(owner);
        }
        match (before, holder) {
            _ if lives => self.is_claimed(partition),
            (Some(before), None) => self.is_free(partition, before),
            _ => {}
        }
        self.mark_owner(partition, holder);
    }

    fn taken_over(&mut self, partition: usize, from: usize, to: usize, expired: bool) {
        let victim = &self.lives[from];
        let same_name = victim.owner == self.lives[to].owner;
        if self.is_operator(from) || self.is_operator(to) {
            return self.taken_with_an_operator(partition, from, to, expired);
        }
        let victim = &self.lives[from];
        if victim.alive && !same_name {
            self.totals.moves += 1;
            self.count(if expired { "taken from a silent owner" } else { "stolen" });
            self.mark(to, Mark::Took { partition, from });
        }
        let victim = &self.lives[from];
        let bound = self.strict && expired && victim.ours && victim.alive && !victim.misled && self.lives[to].ours;
        if bound && !same_name {
            let idle = !victim.sessions.contains_key(&partition);
            let (from, to) = (self.name_of(from), self.name_of(to));
            self.check(Invariant::StrictLease, idle, || {
                format!("{to} took partition {partition}, whose lease had expired, while {from} was still at it")
            });
        }
    }
}
