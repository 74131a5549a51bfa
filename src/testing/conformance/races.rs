//! Rules about concurrent writers, on which the safety of all other layers depends.

use futures::future::{join, join_all};

use super::{Container, assert_holds, with_value};
use crate::blob::{Condition, WriteResult};
use crate::error::{ErrorKind, Result};

const WRITERS: usize = 20;

/// Exactly one of many creators of a blob wins, the others get a conflict, and the blob has the winner's metadata.
pub async fn of_racing_creators_one_wins(container: Container) -> Result<()> {
    let outcomes = race(&container, &Condition::Create).await;
    assert_one_winner(&container, outcomes).await
}

/// Exactly one of many updaters of a version wins, the others get a conflict, and the blob has the winner's metadata.
pub async fn of_racing_updaters_one_wins(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("first"), &Condition::Create).await?;
    let outcomes = race(&container, &Condition::IfMatch(written.etag)).await;
    assert_one_winner(&container, outcomes).await
}

/// Exactly one of many deleters of a version wins. The others find no blob.
pub async fn of_racing_deleters_one_wins(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("first"), &Condition::Create).await?;
    let outcomes = join_all((0..WRITERS).map(|_| container.delete("a", &written.etag))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    Ok(())
}

/// Exactly one of a writer and a deleter of a version wins, and the blob shows the winner's change.
pub async fn of_a_writer_and_a_deleter_one_wins(container: Container) -> Result<()> {
    for round in 0..5 {
        let name = round.to_string();
        let first = container.write(&name, &with_value("first"), &Condition::Create).await?;
        let condition = Condition::IfMatch(first.etag.clone());
        let metadata = with_value("second");
        let (written, deleted) =
            join(container.write(&name, &metadata, &condition), container.delete(&name, &first.etag)).await;
        assert!(written.is_ok() != deleted.is_ok(), "{written:?} {deleted:?}");
        let found = container.get(&name).await.ok();
        assert_eq!(found.map(|blob| blob.metadata), written.ok().map(|_| with_value("second")));
    }
    Ok(())
}

/// Writers with separate connections compete like any others: exactly one wins.
pub async fn of_racing_isolated_containers_one_wins(container: Container) -> Result<()> {
    let containers = (0..5).map(|_| container.with_new_connections()).collect::<Result<Vec<_>>>()?;
    let write = async |(index, container): (usize, &Container)| {
        let value = index.to_string();
        let outcome = container.write("a", &with_value(&value), &Condition::Create).await;
        (value, outcome)
    };
    let outcomes = join_all(containers.iter().enumerate().map(write)).await;
    assert_one_winner(&container, outcomes).await
}

/// Writers of different blobs do not affect each other.
pub async fn writers_of_different_blobs_all_win(container: Container) -> Result<()> {
    let write = async |index: usize| container.write(&index.to_string(), &with_value("1"), &Condition::Create).await;
    for outcome in join_all((0..WRITERS).map(write)).await {
        outcome?;
    }
    assert_eq!(container.list("").await?.blobs.len(), WRITERS);
    Ok(())
}

async fn race(container: &Container, condition: &Condition) -> Vec<(String, Result<WriteResult>)> {
    let write = async |index: usize| {
        let value = index.to_string();
        let outcome = container.write("a", &with_value(&value), condition).await;
        (value, outcome)
    };
    join_all((0..WRITERS).map(write)).await
}

async fn assert_one_winner(container: &Container, outcomes: Vec<(String, Result<WriteResult>)>) -> Result<()> {
    let (winners, losers): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(_, outcome)| outcome.is_ok());
    for (value, outcome) in losers {
        let kind = outcome.map_err(|error| error.kind());
        assert!(matches!(kind, Err(ErrorKind::Conflict)), "writer {value}: {kind:?}");
    }
    let [(value, Ok(written))] = winners.as_slice() else {
        panic!("not exactly one winner: {winners:?}");
    };
    assert_holds(container, "a", &with_value(value), &written.etag).await
}
