//! Scenarios of two or three instances that share partitions. `a` and `b` are instances of this crate.

use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::store::OwnershipRecord;
use eventhubs_checkpoint::store::protocol::InitOutcome;
use eventhubs_checkpoint::store::protocol::handoff::HandoffRequestOutcome;
use eventhubs_checkpoint::{OwnerId, PartitionId, Position};

use super::peer::{Owners, Peer, Positions};
use crate::bench::{Adopted, Bench, Describe, Owner, Win, at, metadata};

/// Returns the owners that this crate lists, without any malformed record.
async fn owners(own: &Owner) -> Owners {
    let listing = own.store.list_ownerships().await.unwrap();
    assert!(listing.malformed.is_empty(), "{:?}", listing.malformed);
    let name = |owner: Option<OwnerId>| owner.map(|owner| owner.to_string()).unwrap_or_default();
    let seen = listing.records.into_iter();
    seen.map(|seen| (number(&seen.partition), (name(seen.record.owner), seen.etag))).collect()
}

/// Returns the positions that this crate lists.
async fn positions(own: &Owner) -> Positions {
    let listing = own.store.list_checkpoints().await.unwrap();
    assert!(listing.malformed.is_empty(), "{:?}", listing.malformed);
    let seen = listing.records.into_iter().map(|seen| {
        let (sequence_number, offset) = (seen.record.sequence_number.unwrap(), seen.record.offset.unwrap());
        (number(&seen.partition), Position::new(sequence_number, offset))
    });
    seen.collect()
}

fn number(partition: &PartitionId) -> u32 {
    partition.as_str().parse().unwrap()
}

fn names(owners: &Owners) -> Vec<&str> {
    owners.values().map(|(owner, _)| owner.as_str()).collect()
}

/// The position that an official client uses for the first event.
fn beginning() -> Position {
    Position::new(-1, "-1")
}

/// An owner whose records have all keys.
async fn talkative(bench: &Bench) -> Owner {
    let mut a = bench.owner("a").await;
    a.cooperative = true;
    a
}

pub async fn each_lists_only_the_records_of_the_other(bench: Bench, peer: Peer) {
    let a = talkative(&bench).await;
    let _ = a.store.send_heartbeat().await.unwrap();
    let (lease, _) = a.run(0).await;
    a.renew(&lease.with_load(Some(7))).await.lease();
    peer.claim(1, None).unwrap();
    let listed = owners(&a).await;
    assert_eq!(names(&listed), ["a", peer.name()]);
    assert_eq!(peer.owners(), listed);
}

pub async fn each_claims_a_partition_released_by_the_other(bench: Bench, peer: Peer) {
    let a = talkative(&bench).await;
    let lease = a.win(0).await;
    assert_eq!(a.release(&lease).await.describe(), "released");
    assert_eq!(names(&peer.owners()), [""]);
    peer.take(0);
    assert_eq!(names(&owners(&a).await), [peer.name()]);

    peer.release(0);
    let listed = owners(&a).await;
    assert_eq!(names(&listed), [""]);
    let lease = a.claim_over(0, &listed[&0].1).await.lease();
    assert_eq!(a.renew(&lease).await.describe(), "won");
    assert_eq!(names(&peer.owners()), ["a"]);
}

pub async fn each_is_rejected_with_a_replaced_etag(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let etag = peer.claim(1, None).unwrap();
    let (foreign, own) = (peer.owners(), owners(&a).await);
    let lease = a.renew(&lease).await.lease();
    peer.claim(1, Some(&etag)).unwrap();

    assert_eq!(peer.claim(0, Some(&foreign[&0].1)), None);
    assert_eq!(a.renew(&lease).await.describe(), "won");
    assert_eq!(a.claim_over(1, &own[&1].1).await.describe(), format!("lost to {}", peer.name()));
    assert_eq!(names(&owners(&a).await), ["a", peer.name()]);
}

/// Both had listed no record. The JavaScript SDK overwrites any record. The Python SDK requires that there is none,
/// which Azurite ignores if metadata is set. This crate detects it with its next renewal.
pub async fn of_two_first_claims_one_holds(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    let lease = a.win(0).await;
    let overwritten = peer.claim(0, None).is_some();
    let lost = format!("lost to {}", peer.name());
    assert_eq!(a.renew(&lease).await.describe(), if overwritten { &lost } else { "won" });
    assert_eq!(bench.owner_of(0).await, if overwritten { peer.name() } else { "a" });

    peer.claim(1, None).unwrap();
    assert_eq!(a.claim(1).await.describe(), lost);
}

/// The peer's record has one key. It counts for the foreign lease duration, not this crate's.
pub async fn a_takeover_by_a_peer_erases_the_other_keys(bench: Bench, peer: Peer) {
    let a = talkative(&bench).await;
    let lease = a.win(0).await;
    let b = bench.owner("b").await;
    let seen = b.store.list_ownerships().await.unwrap().records.remove(0);
    assert!(matches!(b.store.request_handoff(&seen).await, Ok(HandoffRequestOutcome::Requested(_))));
    peer.take(0);
    assert_eq!(bench.read(&bench.ownership(0)).await, metadata(&[("ownerid", peer.name())]));
    assert_eq!(a.renew(&lease).await.describe(), format!("lost to {}", peer.name()));
    assert_eq!(a.release(&lease).await.describe(), format!("lost to {}", peer.name()));

    let record = b.store.list_ownerships().await.unwrap().records.remove(0).record;
    let foreign = OwnershipRecord::owned_by(OwnerId::new(peer.name()).unwrap(), None);
    assert_eq!(record, foreign);
    let terms = b.store.lease_durations();
    assert!(terms.counts_as_live(&record, terms.foreign) && terms.foreign > terms.own);
}

/// Other SDKs do not adopt what they take over. Before their first checkpoint a displaced owner's one may land.
pub async fn a_peer_fences_with_its_first_checkpoint(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    peer.take(0);
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    assert_eq!(peer.positions()[&0], at(5));
    peer.checkpoint(0, &at(3));
    assert_eq!(a.checkpoint(&mut adoption, 9).await.describe(), format!("fenced by {}", peer.name()));
    assert_eq!(bench.position_of(0).await, 3);
}

/// A peer that uses this crate's owner ID erases the keys that identify the incarnation.
pub async fn its_name_without_keys_is_an_earlier_incarnation(bench: Bench, peer: Peer) {
    let a = talkative(&bench).await;
    let (lease, mut adoption) = a.run(0).await;
    let record = bench.read(&bench.ownership(0)).await;
    peer.write_ownership(0, "a", Some(&peer.owners()[&0].1)).unwrap();
    assert_eq!(bench.read(&bench.ownership(0)).await, metadata(&[("ownerid", "a")]));
    peer.checkpoint(0, &at(3));
    assert_eq!(a.checkpoint(&mut adoption, 9).await.describe(), "fenced by a");
    assert_eq!(a.renew(&lease).await.describe(), "lost to a");

    let lease = a.claim_over(0, &owners(&a).await[&0].1).await.lease();
    let keys = |record: &Metadata| record.keys().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(keys(&bench.read(&bench.ownership(0)).await), keys(&record));
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(3));
    assert_eq!(a.renew(&lease).await.describe(), "won");
}

pub async fn each_reads_the_checkpoints_of_the_other(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    let (_, mut adoption) = a.run(0).await;
    assert_eq!(a.checkpoint(&mut adoption, 7).await.describe(), "written");
    peer.claim(1, None).unwrap();
    peer.checkpoint(1, &at(5));
    let expected = Positions::from([(0, at(7)), (1, at(5))]);
    assert_eq!(peer.positions(), expected);
    assert_eq!(positions(&a).await, expected);

    peer.release(1);
    a.take(1).await;
    let mut adoption = a.adopted(1).await;
    assert_eq!(adoption.record().sequence_number, Some(5));
    assert_eq!(peer.positions(), expected);
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "written");
    assert_eq!(peer.positions()[&1], at(6));
}

pub async fn an_initial_checkpoint_is_an_ordinary_one(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    assert_eq!(a.store.init_checkpoint(&0.into(), &beginning()).await.unwrap(), InitOutcome::Written);
    let lease = a.win(1).await;
    a.store.adopt(&1.into(), lease.epoch(), Some(&beginning())).await.unwrap().adoption();
    let expected = Positions::from([(0, beginning()), (1, beginning())]);
    assert_eq!(peer.positions(), expected);
    assert_eq!(positions(&a).await, expected);

    peer.claim(0, None).unwrap();
    peer.checkpoint(0, &at(4));
    peer.release(0);
    a.take(0).await;
    assert_eq!(a.adopted(0).await.record().sequence_number, Some(4));
}

/// The peer's checkpoints have no condition and erase this crate's keys. An earlier position is overwritten; a later
/// one remains.
pub async fn checkpoints_of_a_peer_cause_no_loss(bench: Bench, peer: Peer) {
    let a = bench.owner("a").await;
    let (lease, mut adoption) = a.run(0).await;
    assert_eq!(a.checkpoint(&mut adoption, 5).await.describe(), "written");
    let record = bench.read(&bench.checkpoint(0)).await;
    peer.checkpoint(0, &at(3));
    let erased = metadata(&[("sequencenumber", "3"), ("offset", "30")]);
    assert_eq!(bench.read(&bench.checkpoint(0)).await, erased);
    assert_eq!(a.checkpoint(&mut adoption, 6).await.describe(), "written");
    let written = bench.read(&bench.checkpoint(0)).await;
    assert!(written.keys().eq(record.keys()), "{written:?}");
    assert_eq!(peer.positions()[&0], at(6));

    peer.checkpoint(0, &at(9));
    assert_eq!(a.checkpoint(&mut adoption, 8).await.describe(), "superseded");
    assert_eq!(peer.positions()[&0], at(9));
    assert_eq!(a.checkpoint(&mut adoption, 10).await.describe(), "written");
    assert_eq!(peer.positions()[&0], at(10));
    assert_eq!(a.renew(&lease).await.describe(), "won");
}

/// Each takes over what the next one released, and continues there, until each has had all.
pub async fn all_take_partitions_over_from_each_other(bench: Bench, peers: Vec<Peer>) {
    let a = talkative(&bench).await;
    let everyone: Vec<_> = std::iter::once("a").chain(peers.iter().map(Peer::name)).collect();
    let count = u32::try_from(everyone.len()).unwrap();
    let mut lease = a.win(0).await;
    for (partition, peer) in (1..).zip(&peers) {
        peer.claim(partition, None).unwrap();
    }
    for turn in 0..count {
        // The partitions of everyone, in the same order.
        let partitions: Vec<_> = (0..count).map(|first| (first + count - turn) % count).collect();
        let listed = owners(&a).await;
        for (partition, owner) in partitions.iter().zip(&everyone) {
            assert_eq!(listed[partition].0, *owner, "turn {turn}");
        }
        let mut adoption = a.adopted(partitions[0]).await;
        let _ = a.checkpoint(&mut adoption, position_in(turn, 0).sequence_number).await;
        for (order, (peer, partition)) in (1..).zip(peers.iter().zip(&partitions[1..])) {
            assert_eq!(peer.owners(), listed, "turn {turn}");
            peer.checkpoint(*partition, &position_in(turn, order));
        }
        let expected: Positions = (0..)
            .map(|order| position_in(turn, order))
            .zip(partitions.clone())
            .map(|(at, partition)| (partition, at))
            .collect();
        assert_eq!(positions(&a).await, expected, "turn {turn}");
        for (peer, partition) in peers.iter().zip(&partitions[1..]) {
            assert_eq!(peer.positions(), expected, "turn {turn}");
            peer.release(*partition);
        }
        let _ = a.release(&lease).await;
        lease = a.take(*partitions.last().unwrap()).await;
        for (peer, partition) in peers.iter().zip(&partitions) {
            peer.take(*partition);
        }
    }
}

/// How far the member of this order comes in this turn.
fn position_in(turn: u32, order: u32) -> Position {
    at(i64::from(turn * 10 + order + 1))
}
