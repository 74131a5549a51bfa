//! Rules about concurrent writers: what all safety above rests on.

use futures::future::{join, join_all};

use super::{Container, assert_holds, marked};
use crate::blob::{Condition, WriteResult};
use crate::error::{ErrorKind, Result};

const WRITERS: usize = 20;

/// Of many creators of one blob exactly one wins, the others have a conflict, and the blob is the winner's.
pub async fn of_racing_creators_one_wins(container: Container) -> Result<()> {
    let outcomes = race(&container, &Condition::Create).await;
    assert_one_winner(&container, outcomes).await
}

/// Of many updaters of one version exactly one wins, the others have a conflict, and the blob is the winner's.
pub async fn of_racing_updaters_one_wins(container: Container) -> Result<()> {
    let written = container.write("a", &marked("first"), &Condition::Create).await?;
    let outcomes = race(&container, &Condition::IfMatch(written.etag)).await;
    assert_one_winner(&container, outcomes).await
}

/// Of many deleters of one version exactly one wins; to the others the blob is gone.
pub async fn of_racing_deleters_one_wins(container: Container) -> Result<()> {
    let written = container.write("a", &marked("first"), &Condition::Create).await?;
    let condition = Condition::IfMatch(written.etag);
    let outcomes = join_all((0..WRITERS).map(|_| container.delete("a", &condition))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    Ok(())
}

/// Of a writer and a deleter of one version exactly one wins, and the blob is what the winner made of it.
pub async fn of_a_writer_and_a_deleter_one_wins(container: Container) -> Result<()> {
    for round in 0..5 {
        let name = round.to_string();
        let first = container.write(&name, &marked("first"), &Condition::Create).await?;
        let condition = Condition::IfMatch(first.etag);
        let mark = marked("second");
        let (written, deleted) =
            join(container.write(&name, &mark, &condition), container.delete(&name, &condition)).await;
        assert!(written.is_ok() != deleted.is_ok(), "{written:?} {deleted:?}");
        let found = container.get(&name).await.ok();
        assert_eq!(found.map(|blob| blob.metadata), written.ok().map(|_| marked("second")));
    }
    Ok(())
}

/// Writers through isolated containers race like any others: exactly one wins.
pub async fn of_racing_isolated_containers_one_wins(container: Container) -> Result<()> {
    let isolated = (0..5).map(|_| container.with_new_connections()).collect::<Result<Vec<_>>>()?;
    let write = async |(index, container): (usize, &Container)| {
        let mark = index.to_string();
        let outcome = container.write("a", &marked(&mark), &Condition::Create).await;
        (mark, outcome)
    };
    let outcomes = join_all(isolated.iter().enumerate().map(write)).await;
    assert_one_winner(&container, outcomes).await
}

/// Writers of different blobs do not get in each other's way.
pub async fn writers_of_different_blobs_all_win(container: Container) -> Result<()> {
    let write = async |index: usize| container.write(&index.to_string(), &marked("1"), &Condition::Create).await;
    for outcome in join_all((0..WRITERS).map(write)).await {
        outcome?;
    }
    assert_eq!(container.list("").await?.blobs.len(), WRITERS);
    Ok(())
}

async fn race(container: &Container, condition: &Condition) -> Vec<(String, Result<WriteResult>)> {
    let write = async |index: usize| {
        let mark = index.to_string();
        let outcome = container.write("a", &marked(&mark), condition).await;
        (mark, outcome)
    };
    join_all((0..WRITERS).map(write)).await
}

async fn assert_one_winner(container: &Container, outcomes: Vec<(String, Result<WriteResult>)>) -> Result<()> {
    let (winners, losers): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(_, outcome)| outcome.is_ok());
    for (mark, outcome) in losers {
        let kind = outcome.map_err(|error| error.kind());
        assert!(matches!(kind, Err(ErrorKind::Conflict)), "writer {mark}: {kind:?}");
    }
    let [(mark, Ok(written))] = winners.as_slice() else {
        panic!("not one winner: {winners:?}");
    };
    assert_holds(container, "a", &marked(mark), &written.etag).await
}
