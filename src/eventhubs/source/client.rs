//! The clients of the official crate, which are opened and closed in the same way, and the queue of their requests.
//!
//! A client sends its requests one after another, each to its end. Two properties of the official client (0.16, on
//! `fe2o3-amqp` 0.16) require this:
//!
//! - It does not match responses with requests: a request returns the next response that arrives. If a request is
//!   canceled, the next request returns its response, such as the properties of another partition.
//! - It sends a request before it registers it. If the thread is suspended in between, the client misses the response
//!   and waits forever.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_messaging_eventhubs::builders::{ConsumerClientBuilder, ProducerClientBuilder};
use azure_messaging_eventhubs::{ConsumerClient, EventHubsError, ProducerClient};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tracing::Instrument;

use crate::eventhubs::CLIENT_REQUEST_TIMEOUT;
use crate::eventhubs::sdk::HubConnectionString;

/// A client, for [`Connector`](super::connection::Connector).
pub(crate) trait Client: Sized + Send + Sync + 'static {
    /// The builder of the official crate.
    type Builder: Send;

    fn builder() -> Self::Builder;

    fn at_endpoint(builder: Self::Builder, endpoint: String) -> Self::Builder;

    fn open_with_connection_string(
        builder: Self::Builder,
        connection_string: &HubConnectionString,
        event_hub: &str,
    ) -> impl Future<Output = Result<Self, EventHubsError>> + Send;

    fn open_with_credential(
        builder: Self::Builder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> impl Future<Output = Result<Self, EventHubsError>> + Send;

    fn close(self) -> impl Future<Output = Result<(), EventHubsError>> + Send;
}

/// A client that reads, and its requests for properties.
pub(super) struct Consumer {
    pub(super) client: ConsumerClient,
    pub(super) requests: RequestQueue,
}

impl Client for Consumer {
    type Builder = ConsumerClientBuilder;

    fn builder() -> ConsumerClientBuilder {
        ConsumerClient::builder()
    }

    fn at_endpoint(builder: ConsumerClientBuilder, endpoint: String) -> ConsumerClientBuilder {
        builder.with_custom_endpoint(endpoint)
    }

    async fn open_with_connection_string(
        builder: ConsumerClientBuilder,
        connection_string: &HubConnectionString,
        event_hub: &str,
    ) -> Result<Self, EventHubsError> {
        Ok(Self {
            client: connection_string.open_consumer(builder, event_hub).await?,
            requests: RequestQueue::new(Duration::ZERO),
        })
    }

    async fn open_with_credential(
        builder: ConsumerClientBuilder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> Result<Self, EventHubsError> {
        Ok(Self {
            client: builder.open(namespace, event_hub.to_owned(), credential).await?,
            // The first request includes the login, and a credential may start a tool for it.
            requests: RequestQueue::new(CLIENT_REQUEST_TIMEOUT),
        })
    }

    async fn close(self) -> Result<(), EventHubsError> {
        self.client.close().await
    }
}

impl Client for ProducerClient {
    type Builder = ProducerClientBuilder;

    fn builder() -> ProducerClientBuilder {
        Self::builder()
    }

    fn at_endpoint(builder: ProducerClientBuilder, endpoint: String) -> ProducerClientBuilder {
        builder.with_custom_endpoint(endpoint)
    }

    async fn open_with_connection_string(
        builder: ProducerClientBuilder,
        connection_string: &HubConnectionString,
        event_hub: &str,
    ) -> Result<Self, EventHubsError> {
        connection_string.open_producer(builder, event_hub).await
    }

    async fn open_with_credential(
        builder: ProducerClientBuilder,
        namespace: &str,
        event_hub: &str,
        credential: Arc<dyn TokenCredential>,
    ) -> Result<Self, EventHubsError> {
        builder.open(namespace, event_hub, credential).await
    }

    async fn close(self) -> Result<(), EventHubsError> {
        Self::close(self).await
    }
}

/// How long to wait for a response. A healthy event hub needs less than a second.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);

/// What the responses so far show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueProgress {
    /// No request was sent. The first one includes the login.
    New,
    InStep,
    /// A response is missing. If it arrives, the client returns it for the next request.
    OutOfStep,
}

/// The requests of a client.
pub(super) struct RequestQueue {
    first_limit: Duration,
    /// Locked during a request.
    progress: Arc<Mutex<QueueProgress>>,
}

impl RequestQueue {
    /// Creates a queue whose first request may take this long if that is more than 10 s, because it includes the login.
    pub(super) fn new(first_limit: Duration) -> Self {
        Self { first_limit, progress: Arc::new(Mutex::new(QueueProgress::New)) }
    }

    /// Sends the request after all earlier ones, and returns its response. The request returns `None` for the response
    /// to another request. Passes the outcome to `record`, also if the caller no longer waits.
    ///
    /// Returns `None` if no response arrives in time, if an earlier response is missing, or if the sender of `open` is
    /// dropped. If this future is dropped while the request is queued, the request is not sent. Once sent, it runs to
    /// its end.
    pub(super) async fn send<T: Send + 'static>(
        &self,
        mut open: watch::Receiver<()>,
        request: impl Future<Output = Option<T>> + Send + 'static,
        record: impl FnOnce(Option<&T>) + Send + 'static,
    ) -> Option<T> {
        let mut progress = Arc::clone(&self.progress).lock_owned().await;
        let limit = match *progress {
            QueueProgress::New => self.first_limit.max(RESPONSE_LIMIT),
            QueueProgress::InStep => RESPONSE_LIMIT,
            QueueProgress::OutOfStep => return None,
        };
        *progress = QueueProgress::OutOfStep;
        let sending = async move {
            let response = tokio::select! {
                response = timeout(limit, request) => response.unwrap_or_default(),
                _ = open.changed() => None,
            };
            if response.is_some() {
                *progress = QueueProgress::InStep;
            }
            record(response.as_ref());
            response
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
    use std::future::{pending, poll_fn, ready};

    use futures::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Requests {
        queue: RequestQueue,
        open: watch::Sender<()>,
        /// Whether each request had a response.
        recorded: watch::Sender<Vec<bool>>,
    }

    impl Requests {
        fn new() -> Self {
            let queue = RequestQueue::new(SECOND);
            Self { queue, open: watch::Sender::new(()), recorded: watch::Sender::default() }
        }

        async fn send<T: Send + 'static>(
            &self,
            request: impl Future<Output = Option<T>> + Send + 'static,
        ) -> Option<T> {
            let recorded = self.recorded.clone();
            let record = move |response: Option<&T>| recorded.send_modify(|all| all.push(response.is_some()));
            self.queue.send(self.open.subscribe(), request, record).await
        }
    }

    async fn after(duration: Duration) -> Option<()> {
        sleep(duration).await;
        Some(())
    }

    fn unsent() -> impl Future<Output = Option<()>> + Send {
        poll_fn(|_| unreachable!("the request was sent"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_request_continues() {
        let requests = Requests::new();
        let started = Instant::now();
        assert!(timeout(SECOND, requests.send(after(3 * SECOND))).await.is_err());
        assert_eq!(requests.send(ready(Some(7))).await, Some(7));
        assert_eq!(started.elapsed(), 3 * SECOND);
        assert_eq!(*requests.recorded.borrow(), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_canceled_in_the_queue_is_not_sent() {
        let requests = Requests::new();
        let second = timeout(SECOND, requests.send(unsent()));
        let (first, second) = tokio::join!(requests.send(after(3 * SECOND)), second);
        assert_eq!(first, Some(()));
        assert!(second.is_err(), "{second:?}");
        assert_eq!(requests.send(ready(Some(7))).await, Some(7));
    }

    /// The time in the queue does not count.
    #[tokio::test(start_paused = true)]
    async fn each_request_has_the_whole_limit() {
        let requests = Requests::new();
        let sent = (0..3).map(|_| requests.send(after(RESPONSE_LIMIT * 9 / 10)));
        assert_eq!(join_all(sent).await, [Some(()); 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_request_includes_the_login() {
        let login = RESPONSE_LIMIT * 3 / 2;
        let requests = Requests { queue: RequestQueue::new(2 * RESPONSE_LIMIT), ..Requests::new() };
        assert_eq!(requests.send(after(login)).await, Some(()));
        assert_eq!(requests.send(after(login)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_follows_a_missing_response() {
        let requests = Requests::new();
        let started = Instant::now();
        let hung = timeout(SECOND, requests.send(pending::<Option<()>>()));
        let (hung, waiting) = tokio::join!(hung, requests.send(unsent()));
        assert!(hung.is_err());
        assert_eq!((waiting, started.elapsed()), (None, RESPONSE_LIMIT));
        assert_eq!(*requests.recorded.borrow(), [false], "the first caller no longer waits");
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_follows_the_response_to_another() {
        let requests = Requests::new();
        assert_eq!(requests.send(ready(None::<()>)).await, None);
        assert_eq!(requests.send(unsent()).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_end_when_the_source_closes() {
        let mut requests = Requests::new();
        let started = Instant::now();
        let canceled = timeout(SECOND, requests.send(pending::<Option<()>>())).await;
        assert!(canceled.is_err());
        let mut recorded = requests.recorded.subscribe();
        requests.open = watch::Sender::new(());
        recorded.wait_for(|all| *all == [false]).await.unwrap();
        assert_eq!(started.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "a defect")]
    async fn a_panic_reaches_the_caller() {
        let _: Option<()> = Requests::new().send(async { panic!("a defect") }).await;
    }
}
