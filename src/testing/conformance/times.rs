//! Rules about the server's clock.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Container, with_value};
use crate::blob::{Condition, ResponseInfo};
use crate::error::{Error, Result};

/// Longer than any request of a test.
const SOON: Duration = Duration::from_secs(60);

/// Every response carries the server's time and the time of its arrival. The clocks of several servers of one service
/// may differ by seconds.
pub async fn every_answer_carries_the_servers_time(container: Container) -> Result<()> {
    let started = Instant::now();
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    let responses = [
        written.response,
        container.get("a").await?.response,
        container.list("").await?.blobs[0].response,
        container.list("nothing/").await?.response,
        container.delete("a", &Condition::Unconditional).await?,
    ];
    assert!(responses.iter().all(|response| are_close(response.server_time, written.last_modified)), "{responses:?}");
    assert!(responses.is_sorted_by_key(|response: &ResponseInfo| response.received_at), "{responses:?}");
    assert!(started <= responses[0].received_at && responses[4].received_at <= Instant::now());
    Ok(())
}

/// An error response also carries the server's time.
pub async fn every_refusal_carries_the_servers_time(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    let stale = Condition::IfMatch(written.etag);
    let current = container.write("a", &with_value("2"), &Condition::Unconditional).await?;
    let errors = [
        container.write("a", &with_value("3"), &Condition::Create).await.err(),
        container.write("a", &with_value("3"), &stale).await.err(),
        container.write("missing", &with_value("3"), &stale).await.err(),
        container.get("missing").await.err(),
        container.delete("a", &stale).await.err(),
        container.delete("missing", &stale).await.err(),
        container.delete("missing", &Condition::Unconditional).await.err(),
    ];
    assert_dated(errors, current.response.server_time);
    Ok(())
}

/// The error response to a request to a missing container also carries the server's time.
pub async fn every_refusal_of_a_missing_container_carries_the_servers_time(container: Container) -> Result<()> {
    let errors = [
        container.list("").await.err(),
        container.get("a").await.err(),
        container.write("a", &with_value("1"), &Condition::Unconditional).await.err(),
        container.delete("a", &Condition::Unconditional).await.err(),
    ];
    container.create_container().await?;
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_dated(errors, written.response.server_time);
    Ok(())
}

/// The server's time has whole seconds, like the header that carries it.
pub async fn the_servers_time_is_in_whole_seconds(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    let refused = container.write("a", &with_value("2"), &Condition::Create).await.err();
    let times = [
        Some(written.response.server_time),
        Some(container.get("a").await?.response.server_time),
        Some(container.list("").await?.response.server_time),
        refused.and_then(|error| error.server_time()),
    ];
    assert!(times.iter().all(|time| time.is_some_and(|time| time.nanosecond() == 0)), "{times:?}");
    Ok(())
}

/// The time of the last write has whole seconds, is the same in every response, and is the server's time.
pub async fn last_modified_is_the_servers_time_in_whole_seconds(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    assert_eq!(written.last_modified.nanosecond(), 0);
    assert!(are_close(written.response.server_time, written.last_modified));
    let (read, list) = (container.get("a").await?, container.list("").await?);
    assert_eq!(read.last_modified, written.last_modified);
    assert_eq!(list.blobs[0].last_modified, written.last_modified);
    Ok(())
}

/// The age of a newly written blob is close to zero, whatever the local clock shows.
pub async fn a_blob_just_written_is_young(container: Container) -> Result<()> {
    container.write("a", &with_value("1"), &Condition::Create).await?;
    assert!(container.get("a").await?.age() <= SOON);
    assert!(container.list("").await?.blobs[0].age() <= SOON);
    Ok(())
}

/// A write updates the time of the last write, under every condition.
pub async fn a_write_renews_last_modified(container: Container) -> Result<()> {
    let first = container.write("a", &with_value("1"), &Condition::Create).await?;
    let second = container.write("a", &with_value("2"), &Condition::IfMatch(first.etag)).await?;
    let third = container.write("a", &with_value("3"), &Condition::Unconditional).await?;
    assert!(first.last_modified <= second.last_modified && second.last_modified <= third.last_modified);
    for written in [&second, &third] {
        assert!(are_close(written.response.server_time, written.last_modified));
    }
    Ok(())
}

fn assert_dated<const N: usize>(errors: [Option<Error>; N], server_time: OffsetDateTime) {
    for (index, error) in errors.into_iter().enumerate() {
        let time = error.as_ref().and_then(Error::server_time);
        assert!(time.is_some_and(|time| are_close(time, server_time)), "request {index}: {error:?} at {time:?}");
    }
}

fn are_close(left: OffsetDateTime, right: OffsetDateTime) -> bool {
    (left - right).unsigned_abs() <= SOON
}
