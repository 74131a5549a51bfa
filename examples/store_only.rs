//! Uses only the store: ownerships and checkpoints, with a custom loop and a custom reader.
//!
//! Two workers, one partition, one change of the owner. The `match` expressions show all decisions of a custom loop.

use std::sync::Arc;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::store::GroupStore;
use eventhubs_checkpoint::store::protocol::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Position};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let container = MemoryContainer::new();
    let first = connect_store(&container, "worker-1").await?;
    let second = connect_store(&container, "worker-2").await?;
    let partition = PartitionId::from(0);

    // A claim is not enough: only adoption ensures that no later checkpoint of a former owner is accepted.
    let lease = claim(&first, &partition).await?.ok_or("the partition has an owner")?;
    let mut adoption = adopt(&first, &lease).await?;
    println!("worker-1 starts after {:?}", adoption.record().sequence_number);

    // A claim of an owned partition is lost. That is not an error.
    assert!(claim_unseen(&second, &partition).await.is_none());

    // Each call is one request, unless another writer interferes. Only the last of many events must be checkpointed.
    assert_eq!(first.checkpoint(&mut adoption, &event(41)).await?, CheckpointOutcome::Written);
    // The lease must be renewed well before `lease_durations().own` has passed. The renewed lease replaces it.
    let lease = renew(&first, lease).await?;
    println!("worker-1 is at event 41, and must renew within {:?}", first.lease_durations().own);

    // Other instances can claim a released partition at once. Otherwise they must wait until it expires.
    let released = first.release_all(vec![lease]).await.remove(0).1;
    assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");

    let lease = claim(&second, &partition).await?.ok_or("the partition has an owner")?;
    let second_adoption = adopt(&second, &lease).await?;
    println!("worker-2 continues after {:?}", second_adoption.record().sequence_number);

    // A late checkpoint of the former owner, for example of a process that was paused, is rejected.
    match first.checkpoint(&mut adoption, &event(42)).await? {
        CheckpointOutcome::Fenced { by } => println!("worker-1 is fenced by {by:?} and stops"),
        other => return Err(format!("not fenced, but {other:?}").into()),
    }
    Ok(())
}

/// Connects to the records of the group for one owner. Other SDKs see the same records.
async fn connect_store(container: &MemoryContainer, owner: &str) -> Result<GroupStore, Failure> {
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    Ok(GroupStore::builder(Arc::new(container.clone()), group, OwnerId::new(owner)?).connect().await?)
}

/// Claims the partition if it is unowned. For a record with an owner, a balancer decides by its age.
async fn claim(store: &GroupStore, partition: &PartitionId) -> Result<Option<Lease>, Failure> {
    let seen = store.list_ownerships().await?.records.into_iter().find(|seen| seen.partition == *partition);
    let claim = match seen {
        None => Claim::unowned(partition.clone()),
        Some(seen) if seen.record.owner.is_none() => Claim::over(&seen),
        Some(_) => return Ok(None),
    };
    lease_of(store.claim_all(vec![claim]).await.remove(0).1)
}

/// Claims without reading the record first, which is safe because the write is conditional.
async fn claim_unseen(store: &GroupStore, partition: &PartitionId) -> Option<Lease> {
    lease_of(store.claim_all(vec![Claim::unowned(partition.clone())]).await.remove(0).1).ok().flatten()
}

async fn renew(store: &GroupStore, lease: Lease) -> Result<Lease, Failure> {
    lease_of(store.renew_all(vec![lease]).await.remove(0).1)?.ok_or_else(|| "lost: stop processing".into())
}

fn lease_of(outcome: ClaimOutcome) -> Result<Option<Lease>, Failure> {
    match outcome {
        ClaimOutcome::Won(lease) => Ok(Some(lease)),
        ClaimOutcome::Lost { .. } => Ok(None),
        // A newer process runs with this owner ID, so this one must end.
        ClaimOutcome::Replaced { by } => Err(format!("replaced by {by:?}").into()),
        // Neither the write nor a read got a response, so the state is unchanged for the caller. Try again.
        ClaimOutcome::Indeterminate(error) => Err(error.into()),
        other => Err(format!("an unknown outcome: {other:?}").into()),
    }
}

/// Takes over the checkpoint. If there is none, records the start position, so that a crash does not change it.
async fn adopt(store: &GroupStore, lease: &Lease) -> Result<Adoption, Failure> {
    let before_first = Position::new(-1, "-1");
    match store.adopt(lease.partition(), lease.epoch(), Some(&before_first)).await? {
        AdoptOutcome::Adopted(adoption) => Ok(adoption),
        other => Err(format!("lost before the start: {other:?}").into()),
    }
}

fn event(sequence_number: i64) -> Position {
    Position::new(sequence_number, (sequence_number * 100).to_string())
}
