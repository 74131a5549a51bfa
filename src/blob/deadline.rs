//! The time limit of a request. Its caller sets it; a backend has none of its own.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::{Error, ErrorKind, Result};

tokio::task_local! {
    /// When the request that this task polls is dropped.
    static DEADLINE: Instant;
}

/// Drops a request when its time is over. `what` names it in the error. The backend can ask how much time is
/// left, so that it fails with a reason before that.
///
/// # Errors
///
/// [`ErrorKind::Indeterminate`] when the time is over, otherwise the error of the request.
pub async fn within<T>(limit: Duration, what: &str, request: impl Future<Output = Result<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    timeout_at(deadline, DEADLINE.scope(deadline, request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Indeterminate, format!("no response to the {what} request within {limit:?}")))
    })
}

/// Returns how much time the current request has left. `None` if its caller set no limit.
#[cfg(feature = "azure")]
pub(in crate::blob) fn time_left() -> Option<Duration> {
    DEADLINE.try_with(|deadline| deadline.saturating_duration_since(Instant::now())).ok()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_dropped_when_its_time_is_over() {
        let began = Instant::now();
        let error = within(Duration::from_secs(2), "list", pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (ErrorKind::Indeterminate, Duration::from_secs(2)));
        assert!(error.to_string().contains("list request within 2s"), "{error}");
    }

    #[cfg(feature = "azure")]
    #[tokio::test(start_paused = true)]
    async fn a_request_knows_how_much_time_is_left() {
        let request = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(time_left())
        };
        let left = within(Duration::from_secs(5), "read", request).await.unwrap();
        assert_eq!((left, time_left()), (Some(Duration::from_secs(3)), None));
    }
}
