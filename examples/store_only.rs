//! Only the records: ownerships and checkpoints by hand, with a loop and a way of reading of your own.
//!
//! Two workers, one partition, one handover. What is shown by `match` here is all that a loop of your own has to
//! decide.

use std::sync::Arc;

use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::store::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, GroupStore, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::{ConsumerGroup, OwnerId, PartitionId, Position};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let container = MemoryContainer::new();
    let (first, second) = (store(&container, "worker-1").await?, store(&container, "worker-2").await?);
    let partition = PartitionId::from(0);

    // Winning is not enough: only adopting makes sure that no former owner's checkpoint comes in between.
    let lease = claim(&first, &partition).await?.ok_or("nobody else is there")?;
    let mut mine = adopt(&first, &lease).await?;
    println!("worker-1 starts behind {:?}", mine.record().sequence_number);

    // A claim of what somebody owns is lost, and no error.
    assert!(claim_unseen(&second, &partition).await.is_none());

    // One request each, as long as nobody interferes. Only the last of many events needs to be written.
    assert_eq!(first.checkpoint(&mut mine, &event(41)).await?, CheckpointOutcome::Written);
    // Well before `terms().expiry` has passed, the lease has to be renewed; the renewed one replaces it.
    let lease = renew(&first, lease).await?;
    println!("worker-1 is at event 41, and has to renew within {:?}", first.lease_durations().own);

    // Given back, others may have it at once; without this, only when it has expired.
    let released = first.release_all(vec![lease]).await.remove(0).1;
    assert!(matches!(released, ReleaseOutcome::Released), "{released:?}");

    let lease = claim(&second, &partition).await?.ok_or("it is free")?;
    let theirs = adopt(&second, &lease).await?;
    println!("worker-2 goes on behind {:?}", theirs.record().sequence_number);

    // A late checkpoint of the former owner, as from a process that was paused, is refused.
    match first.checkpoint(&mut mine, &event(42)).await? {
        CheckpointOutcome::Fenced { by } => println!("worker-1 is fenced by {by:?} and stops"),
        other => return Err(format!("not fenced but {other:?}").into()),
    }
    Ok(())
}

/// One owner's view of the group. Other SDKs see the same records.
async fn store(container: &MemoryContainer, owner: &str) -> Result<GroupStore, Failure> {
    let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
    Ok(GroupStore::builder(Arc::new(container.clone()), group, OwnerId::new(owner)?).connect().await?)
}

/// Claims the partition if nobody owns it: a record with an owner is for the balancing to judge, by its age.
async fn claim(store: &GroupStore, partition: &PartitionId) -> Result<Option<Lease>, Failure> {
    let seen = store.list_ownerships().await?.records.into_iter().find(|seen| seen.partition == *partition);
    let claim = match seen {
        None => Claim::unowned(partition.clone()),
        Some(seen) if seen.record.owner.is_none() => Claim::over(&seen),
        Some(_) => return Ok(None),
    };
    won(store.claim_all(vec![claim]).await.remove(0).1)
}

/// Claims without having looked, which a conditional write makes harmless.
async fn claim_unseen(store: &GroupStore, partition: &PartitionId) -> Option<Lease> {
    won(store.claim_all(vec![Claim::unowned(partition.clone())]).await.remove(0).1).ok().flatten()
}

async fn renew(store: &GroupStore, lease: Lease) -> Result<Lease, Failure> {
    won(store.renew_all(vec![lease]).await.remove(0).1)?.ok_or_else(|| "lost: stop processing".into())
}

fn won(outcome: ClaimOutcome) -> Result<Option<Lease>, Failure> {
    match outcome {
        ClaimOutcome::Won(lease) => Ok(Some(lease)),
        ClaimOutcome::Lost { .. } => Ok(None),
        // A later process runs under this owner's name: this one has to end.
        ClaimOutcome::Replaced { by } => Err(format!("replaced by {by:?}").into()),
        // The storage gave no answer, and a read gave none either: what was believed before stands. Try again.
        ClaimOutcome::Indeterminate(error) => Err(error.into()),
        other => Err(format!("an outcome of a later version: {other:?}").into()),
    }
}

/// Takes the checkpoint over. Where there is none, the start is written down, so that a crash does not move it.
async fn adopt(store: &GroupStore, lease: &Lease) -> Result<Adoption, Failure> {
    let before_everything = Position::new(-1, "-1");
    match store.adopt(lease.partition(), lease.epoch(), Some(&before_everything)).await? {
        AdoptOutcome::Adopted(adoption) => Ok(adoption),
        other => Err(format!("lost before it began: {other:?}").into()),
    }
}

fn event(sequence_number: i64) -> Position {
    Position::new(sequence_number, (sequence_number * 100).to_string())
}
