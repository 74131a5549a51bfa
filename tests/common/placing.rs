//! Writes any position of a partition, as its owner.

use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::{AdoptOutcome, Claim, ClaimOutcome, ReleaseOutcome};
use eventhubs_checkpoint::{PartitionId, Position};

/// Claims the partition over its current record, adopts it, writes the position, and releases the partition.
pub async fn place(store: &GroupStore, partition: impl Into<PartitionId>, to: &Position) {
    let partition = partition.into();
    let listed = store.list_ownerships().await.unwrap().records;
    let seen = listed.into_iter().find(|seen| seen.partition == partition);
    let claim = match seen {
        Some(seen) => Claim::over(&seen),
        None => Claim::unowned(partition.clone()),
    };
    let claimed = store.claim_all(vec![claim]).await.remove(0).1;
    let ClaimOutcome::Won(lease) = claimed else { panic!("not won: {claimed:?}") };
    let adopted = store.adopt(&partition, lease.epoch(), None).await.unwrap();
    let AdoptOutcome::Adopted(mut adoption) = adopted else { panic!("not adopted: {adopted:?}") };
    store.replace_checkpoint(&mut adoption, to).await.unwrap();
    let released = store.release_all(vec![lease]).await.remove(0).1;
    assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");
}
