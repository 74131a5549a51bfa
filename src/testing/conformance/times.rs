//! Rules about the server's clock.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Container, with_value};
use crate::blob::{Condition, ETag, ResponseInfo};
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
        container.delete("a", &written.etag).await?,
    ];
    assert!(
        responses.iter().all(|response| are_close(response.server_time, written.response.server_time)),
        "{responses:?}"
    );
    assert!(responses.is_sorted_by_key(|response: &ResponseInfo| response.received_at), "{responses:?}");
    assert!(started <= responses[0].received_at && responses[4].received_at <= Instant::now());
    Ok(())
}

/// An error response also carries the server's time.
pub async fn every_refusal_carries_the_servers_time(container: Container) -> Result<()> {
    let written = container.write("a", &with_value("1"), &Condition::Create).await?;
    let stale = Condition::IfMatch(written.etag.clone());
    let current = container.write("a", &with_value("2"), &stale).await?;
    let errors = [
        container.write("a", &with_value("3"), &Condition::Create).await.err(),
        container.write("a", &with_value("3"), &stale).await.err(),
        container.write("missing", &with_value("3"), &stale).await.err(),
        container.get("missing").await.err(),
        container.delete("a", &written.etag).await.err(),
        container.delete("missing", &written.etag).await.err(),
    ];
    assert_dated(errors, current.response.server_time);
    Ok(())
}

/// The error response to a request to a missing container also carries the server's time.
pub async fn every_refusal_of_a_missing_container_carries_the_servers_time(container: Container) -> Result<()> {
    let errors = [
        container.list("").await.err(),
        container.get("a").await.err(),
        container.write("a", &with_value("1"), &Condition::Create).await.err(),
        container.delete("a", &ETag::new("0x0")).await.err(),
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
    let read = container.get("a").await?;
    assert_eq!(read.last_modified.nanosecond(), 0);
    assert!(are_close(written.response.server_time, read.last_modified));
    assert_eq!(container.list("").await?.blobs[0].last_modified, read.last_modified);
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
    let mut written = container.write("a", &with_value("1"), &Condition::Create).await?;
    for value in ["2", "3"] {
        let before = container.get("a").await?.last_modified;
        written = container.write("a", &with_value(value), &Condition::IfMatch(written.etag)).await?;
        let after = container.get("a").await?.last_modified;
        assert!(before <= after && are_close(written.response.server_time, after));
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
