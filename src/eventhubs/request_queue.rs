//! Sends the requests of a client one after the other, each to its end.
//!
//! Two properties of the official client (0.16, on `fe2o3-amqp` 0.16) require this:
//!
//! - It returns the next response that arrives, whatever the request was. After a canceled request, the properties of
//!   one partition would be returned for another.
//! - It sends a request before it registers it. If the thread is suspended in between, the client misses the response
//!   and waits forever.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tracing::Instrument;

/// How long to wait for a response. A healthy event hub needs less than a second, the first login of a tool more.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);

/// The requests of a client.
pub(super) struct RequestQueue {
    /// False if a response is missing. A late one would be returned for the next request. Locked during a request.
    in_step: Arc<Mutex<bool>>,
}

impl RequestQueue {
    pub(super) fn new() -> Self {
        Self { in_step: Arc::new(Mutex::new(true)) }
    }

    /// Sends the request after all earlier ones, and returns the response. Returns `None` if there is no response within
    /// 10 s, or was none to an earlier request, or if the sender of `open` is dropped.
    ///
    /// If this future is dropped before the request is sent, it is not sent; later, the request continues.
    pub(super) async fn send<T: Send + 'static>(
        &self,
        mut open: watch::Receiver<()>,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut in_step = Arc::clone(&self.in_step).lock_owned().await;
        if !*in_step {
            return None;
        }
        *in_step = false;
        let sending = async move {
            let response = tokio::select! {
                response = timeout(RESPONSE_LIMIT, request) => response.ok()?,
                _ = open.changed() => return None,
            };
            *in_step = true;
            Some(response)
        };
        match tokio::spawn(sending.in_current_span()).await {
            Ok(response) => response,
            Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
            // The runtime is shutting down.
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_canceled_request_continues() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let started = Instant::now();
        let canceled = timeout(SECOND, queue.send(open.subscribe(), sleep(3 * SECOND))).await;
        assert!(canceled.is_err());
        assert_eq!(queue.send(open.subscribe(), ready(7)).await, Some(7));
        assert_eq!(started.elapsed(), 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_canceled_in_the_queue_is_not_sent() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let first = queue.send(open.subscribe(), sleep(3 * SECOND));
        let unsent = async { unreachable!("sent") };
        let second = timeout(SECOND, queue.send::<()>(open.subscribe(), unsent));
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Some(()));
        assert!(second.is_err(), "{second:?}");
        assert_eq!(queue.send(open.subscribe(), ready(7)).await, Some(7));
    }

    /// The time in the queue does not count.
    #[tokio::test(start_paused = true)]
    async fn each_request_has_the_whole_limit() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let sent = (0..3).map(|number| {
            let request = async move {
                sleep(RESPONSE_LIMIT * 9 / 10).await;
                number
            };
            queue.send(open.subscribe(), request)
        });
        assert_eq!(futures::future::join_all(sent).await, [Some(0), Some(1), Some(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_follows_a_missing_response() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let started = Instant::now();
        let hung = queue.send(open.subscribe(), pending::<()>());
        let waiting = queue.send(open.subscribe(), async { unreachable!("sent") });
        let (hung, waiting): (_, Option<()>) = tokio::join!(hung, waiting);
        assert_eq!((hung, waiting, started.elapsed()), (None, None, RESPONSE_LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_end_when_the_source_closes() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let started = Instant::now();
        let (response, ()) = tokio::join!(queue.send(open.subscribe(), pending::<()>()), async { drop(open) });
        assert_eq!((response, started.elapsed()), (None, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a defect")]
    async fn a_panic_reaches_the_caller() {
        let (queue, open) = (RequestQueue::new(), watch::Sender::new(()));
        let _: Option<()> = queue.send(open.subscribe(), async { panic!("a defect") }).await;
    }
}
