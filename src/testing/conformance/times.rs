//! Rules about the server's clock.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Container, marked};
use crate::blob::{Answer, Condition};
use crate::error::Result;

/// More than a request of a test ever takes.
const SOON: Duration = Duration::from_secs(60);

/// Every answer carries the server's time and the moment of its arrival. Several servers of one service need not agree
/// to the second.
pub async fn every_answer_carries_the_servers_time(container: Container) -> Result<()> {
    let started = Instant::now();
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    let answers = [
        written.answer,
        container.get("a").await?.answer,
        container.list("").await?.blobs[0].answer,
        container.list("nothing/").await?.answer,
        container.delete("a", &Condition::Any).await?,
    ];
    assert!(answers.iter().all(|answer| are_close(answer.server_time, written.last_modified)), "{answers:?}");
    assert!(answers.is_sorted_by_key(|answer: &Answer| answer.received), "{answers:?}");
    assert!(started <= answers[0].received && answers[4].received <= Instant::now());
    Ok(())
}

/// A refusal carries the server's time as well.
pub async fn every_refusal_carries_the_servers_time(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    let refusals = [
        container.write("a", &marked("2"), &Condition::Create).await.err(),
        container.get("missing").await.err(),
        container.delete("missing", &Condition::Any).await.err(),
    ];
    for refusal in refusals {
        let server_time = refusal.and_then(|error| error.server_time());
        assert!(server_time.is_some_and(|time| are_close(time, written.answer.server_time)), "{server_time:?}");
    }
    Ok(())
}

/// The time of the last write is whole seconds, is the same in every answer, and is the server's time.
pub async fn last_modified_is_the_servers_time_in_whole_seconds(container: Container) -> Result<()> {
    let written = container.write("a", &marked("1"), &Condition::Create).await?;
    assert_eq!(written.last_modified.nanosecond(), 0);
    assert!(are_close(written.answer.server_time, written.last_modified));
    let (read, list) = (container.get("a").await?, container.list("").await?);
    assert_eq!(read.last_modified, written.last_modified);
    assert_eq!(list.blobs[0].last_modified, written.last_modified);
    Ok(())
}

/// The age of a blob just written is next to nothing, whatever the local clock shows.
pub async fn a_blob_just_written_is_young(container: Container) -> Result<()> {
    container.write("a", &marked("1"), &Condition::Create).await?;
    assert!(container.get("a").await?.age() <= SOON);
    assert!(container.list("").await?.blobs[0].age() <= SOON);
    Ok(())
}

/// A write renews the time of the last write, under every condition.
pub async fn a_write_renews_last_modified(container: Container) -> Result<()> {
    let first = container.write("a", &marked("1"), &Condition::Create).await?;
    let second = container.write("a", &marked("2"), &Condition::Match(first.etag)).await?;
    let third = container.write("a", &marked("3"), &Condition::Any).await?;
    assert!(first.last_modified <= second.last_modified && second.last_modified <= third.last_modified);
    for written in [&second, &third] {
        assert!(are_close(written.answer.server_time, written.last_modified));
    }
    Ok(())
}

fn are_close(left: OffsetDateTime, right: OffsetDateTime) -> bool {
    (left - right).unsigned_abs() <= SOON
}
