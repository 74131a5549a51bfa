//! The HTTP client with a failing service: every call ends when its caller's time is over, reads are retried, writes
//! are not, and a blocked runtime delays only itself.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ETag, Metadata};
use eventhubs_checkpoint::internal::blob::limit_request;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use futures::future::join_all;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::{pause, resume, sleep, timeout};

use crate::stub::{Act, Stub};

/// The time of a request. Less than the client waits for the next byte of a response.
const DEADLINE: Duration = Duration::from_secs(50);
/// Far longer than any step here takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Longer than the service needs to begin its response.
const BEGINNING: Duration = Duration::from_millis(100);

const HEADERS: &str = "date: Fri, 20 Nov 2026 12:00:00 GMT\r\nx-ms-request-id: 1\r\netag: \"0x1\"\r\n\
                       last-modified: Fri, 20 Nov 2026 11:59:00 GMT\r\n";
const PAGE: &str = "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>";

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{HEADERS}content-length: {}\r\n\r\n{body}", body.len())
}

fn success() -> Act {
    Act::Send(response("200 OK", ""))
}

fn container_at(address: std::net::SocketAddr) -> AzureContainer {
    AzureContainer::from_account_key(format!("http://{address}/a"), "a", "aHVzaA==", "leases").unwrap()
}

fn container(stub: &Stub) -> AzureContainer {
    container_at(stub.address)
}

/// Returns the outcome of a request that its caller drops after this time.
async fn in_time<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    limit_request(DEADLINE, "test", request).await
}

/// Returns the outcome of what makes this many requests, whose time is over as soon as the service has begun to respond
/// to all of them: time does not pass by itself anymore, but jumps to the next timeout.
async fn timed_out<T>(stub: &Stub, requests: usize, calls: impl Future<Output = T>) -> T {
    let passing = async {
        while stub.requests().len() < requests {
            sleep(BEGINNING / 10).await;
        }
        sleep(BEGINNING).await;
        pause();
        pending().await
    };
    let outcome = tokio::select! {
        outcome = calls => outcome,
        never = passing => never,
    };
    resume();
    outcome
}

/// Returns the name of each operation and its error; all run concurrently.
async fn all_errors(stub: &Stub) -> [(&'static str, Error); 5] {
    let container = container(stub);
    let metadata = Metadata::new();
    let etag = ETag::new("0x1");
    let condition = Condition::IfMatch(etag.clone());
    let calls = async {
        tokio::join!(
            in_time(container.list("p")),
            in_time(container.get("a")),
            in_time(container.write("a", &metadata, &condition)),
            in_time(container.delete("a", &etag)),
            in_time(container.create_container()),
        )
    };
    let (list, get, write, delete, create) = timed_out(stub, 5, calls).await;
    [
        ("list", list.unwrap_err()),
        ("get", get.unwrap_err()),
        ("write", write.unwrap_err()),
        ("delete", delete.unwrap_err()),
        ("create_container", create.unwrap_err()),
    ]
}

/// Systems differ in how they report a full queue.
#[cfg(target_os = "linux")]
mod unaccepted {
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    /// A service whose queue of connections is full: the system does not even let the client connect.
    async fn unaccepting() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        (listener, queued)
    }

    /// Nothing was sent: the client waits for a connection for less time than a request usually has.
    #[tokio::test]
    async fn a_connection_that_is_not_accepted_is_unavailable() {
        let (listener, _queued) = unaccepting().await;
        let container = container_at(listener.local_addr().unwrap());
        let metadata = Metadata::new();
        let usual = Duration::from_secs(5);
        let read = limit_request(usual, "test", container.get("a"));
        let write = limit_request(usual, "test", container.write("a", &metadata, &Condition::Create));
        let (read, write) = tokio::join!(read, write);
        for error in [read.unwrap_err(), write.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("cannot connect to 127.0.0.1"), "{error}");
        }
    }
}

#[tokio::test]
async fn calls_time_out_wherever_the_response_stops() {
    let slow = |text: String| Act::Drip(text, Duration::from_millis(20));
    for act in [
        Act::hang(),
        Act::SendAndHang("HTTP/1.1 20".to_owned()),
        Act::SendAndHang(format!("HTTP/1.1 200 OK\r\n{HEADERS}")),
        slow(response("200 OK", PAGE)),
    ] {
        let stub = Stub::start([act.clone()]);
        for (operation, error) in all_errors(&stub).await {
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{operation} {act:?}: {error}");
            assert!(error.to_string().contains("within 50s"), "{operation} {act:?}: {error}");
        }
        assert_eq!(stub.requests().len(), 5, "{act:?}: {:?}", stub.requests());
    }
}

#[tokio::test]
async fn a_listing_times_out_in_the_middle_of_its_body() {
    let half = response("200 OK", PAGE).replace("<NextMarker/></EnumerationResults>", "");
    let stub = Stub::start([Act::SendAndHang(half)]);
    let error = timed_out(&stub, 1, in_time(container(&stub).list("p"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("within 50s"), "{error}");
}

/// The service then sees the end of the connection, and the request occupies nothing.
#[tokio::test]
async fn a_dropped_request_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let container = container_at(listener.local_addr().unwrap());
    let dropped = container.clone();
    let request = tokio::spawn(async move { dropped.get("a").await });
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        assert!(connection.read_buf(&mut received).await.unwrap() > 0, "the request is not dropped yet");
    }
    assert!(received.starts_with(b"HEAD /a/leases/a HTTP/1.1"), "{}", String::from_utf8_lossy(&received));
    request.abort();
    timeout(TIMEOUT, connection.read_to_end(&mut received)).await.unwrap().unwrap();
    drop(container);
}

/// Each stands for a request that failed in a different way.
fn failures() -> [Act; 5] {
    [
        Act::Send(response("500 Internal Server Error", "")),
        Act::Send(response("503 Service Unavailable", "")),
        Act::reset(),
        Act::SendAndReset("HTTP/1.1 201 Cre".to_owned()),
        Act::SendAndReset(format!("HTTP/1.1 201 Created\r\n{HEADERS}content-length: 9\r\n\r\nhalf")),
    ]
}

#[tokio::test]
async fn a_conditional_write_is_sent_exactly_once() {
    let condition = Condition::IfMatch(ETag::new("0x1"));
    for random_faults in failures() {
        let stub = Stub::start([random_faults.clone(), success()]);
        let container = container(&stub);
        let error = container.write("a", &Metadata::new(), &condition).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{random_faults:?}: {error}");
        assert_eq!(stub.requests(), ["PUT /a/leases/a?comp=metadata HTTP/1.1"], "{random_faults:?}");

        let stub = Stub::start([random_faults.clone(), success()]);
        let container = self::container(&stub);
        let error = container.delete("a", &ETag::new("0x1")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{random_faults:?}: {error}");
        assert_eq!(stub.requests(), ["DELETE /a/leases/a HTTP/1.1"], "{random_faults:?}");
    }
}

/// HTTP clients tend to repeat a request by themselves if a pooled connection turns out to be closed.
#[tokio::test]
async fn also_on_a_used_connection_a_write_is_sent_once() {
    for random_faults in failures() {
        let stub = Stub::start([success(), random_faults.clone(), success()]);
        let container = container(&stub);
        container.get("a").await.unwrap();
        let error = container.write("a", &Metadata::new(), &Condition::Create).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{random_faults:?}: {error}");
        assert_eq!(stub.requests()[1..], ["PUT /a/leases/a HTTP/1.1"], "{random_faults:?}");
    }
}

/// The service keeps the case of metadata names. Clients and proxies change it on the way: Go writes `Ownerid`
/// (<https://github.com/fsspec/adlfs/pull/418>), JavaScript `ownerid`
/// (<https://github.com/Azure/azure-sdk-for-js/issues/8117>). A directory can even have a name twice
/// (<https://github.com/Azure/azure-storage-azcopy/pull/3312>).
#[tokio::test]
async fn metadata_names_are_read_in_lower_case() {
    let head = "HTTP/1.1 200 OK\r\nDate: Fri, 20 Nov 2026 12:00:00 GMT\r\nX-Ms-Request-Id: 1\r\nEtag: \"0x1\"\r\n\
                Last-Modified: Fri, 20 Nov 2026 11:59:00 GMT\r\nX-Ms-Meta-Ownerid: Me\r\nx-ms-meta-sequenceNumber: 7\r\n\
                Content-Length: 0\r\n\r\n";
    let stub = Stub::start([Act::Send(head.to_owned())]);
    let read = container(&stub).get("a").await.unwrap().metadata;
    let expected = [("ownerid", "Me"), ("sequencenumber", "7")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(read, Metadata::from(expected.clone()));

    let properties =
        "<Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x1</Etag></Properties>";
    let page = format!(
        "<EnumerationResults><Blobs><Blob><Name>a</Name>{properties}<Metadata><Ownerid>Me</Ownerid><sequenceNumber>7\
         </sequenceNumber></Metadata></Blob><Blob><Name>d</Name>{properties}<Metadata><Hdi_isfolder>true</Hdi_isfolder>\
         <hdi_isfolder>true</hdi_isfolder></Metadata></Blob></Blobs><NextMarker/></EnumerationResults>"
    );
    let stub = Stub::start([Act::Send(response("200 OK", &page))]);
    let listed = container(&stub).list("").await.unwrap().blobs;
    assert_eq!(listed[0].metadata, Metadata::from(expected));
    assert_eq!(listed[1].metadata, Metadata::from([("hdi_isfolder".to_owned(), "true".to_owned())]));
}

/// Whether a second failure is retried, too, depends on how long the first retry takes.
#[tokio::test]
async fn a_read_is_retried_after_a_failure() {
    let again = [
        Act::Send(response("500 Internal Server Error", "")),
        Act::Send(response("502 Bad Gateway", "")),
        Act::reset(),
        Act::SendAndReset("HTTP/1.1 200 O".to_owned()),
    ];
    let retried = again.map(|failure| async move {
        let stub = Stub::start([failure.clone(), success()]);
        container(&stub).get("a").await.unwrap();
        assert_eq!(stub.requests(), ["HEAD /a/leases/a HTTP/1.1"; 2], "{failure:?}");

        let stub = Stub::start([failure.clone(), Act::Send(response("200 OK", PAGE))]);
        assert!(container(&stub).list("p").await.unwrap().blobs.is_empty());
        assert_eq!(stub.requests().len(), 2, "{failure:?}");
    });
    join_all(retried).await;
}

#[tokio::test]
async fn a_listing_truncated_in_its_body_is_retried() {
    let half = response("200 OK", PAGE).replace("<NextMarker/></EnumerationResults>", "");
    let stub = Stub::start([Act::SendAndReset(half), Act::Send(response("200 OK", PAGE))]);
    assert!(container(&stub).list("p").await.unwrap().blobs.is_empty());
}

#[tokio::test]
async fn a_read_that_fails_repeatedly_ends() {
    let stub = Stub::start([Act::reset()]);
    let error = container(&stub).get("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!((2..=4).contains(&stub.requests().len()), "{:?}", stub.requests());
}

/// The same for a read whose first attempt hangs: the time limit applies to the call, not to an attempt.
#[tokio::test]
async fn a_read_that_hangs_is_not_retried() {
    let stub = Stub::start([Act::hang(), success()]);
    let error = timed_out(&stub, 1, in_time(container(&stub).get("a"))).await.unwrap_err();
    assert_eq!((error.kind(), stub.requests().len()), (ErrorKind::Indeterminate, 1));
}

#[test]
fn only_a_shared_client_is_delayed_by_the_runtime() {
    let stub = Stub::start([success()]);
    let application = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    let shared: Arc<dyn BlobContainer> = Arc::new(container(&stub));
    let isolated = shared.with_new_connections().unwrap();
    // From the application's worker, on which the connection then runs.
    let first = shared.clone();
    other.block_on(application.spawn(async move { first.get("a").await })).unwrap().unwrap();

    let (blocks, blocked) = mpsc::channel();
    let (unblock, unblocked) = mpsc::channel();
    let blocking = application.spawn(async move {
        blocks.send(()).unwrap();
        unblocked.recv_timeout(TIMEOUT).unwrap();
    });
    blocked.recv().unwrap();
    other.block_on(async {
        isolated.get("a").await.unwrap();
        let mut read = pin!(shared.get("a"));
        timeout(Duration::from_millis(300), &mut read).await.expect_err("the connection is not the application's");
        unblock.send(()).unwrap();
        read.await.unwrap();
        blocking.await.unwrap();
    });
}

/// Values that a response shows, and a listing does not, or the other way round.
mod listed_values {
    use std::sync::Arc;

    use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
    use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

    use super::*;
    use crate::captured::Captured;

    const OWNER: &str = "gr\u{f6}\u{df}e";

    /// The HTTP client drops header values that are not text, with only a log message. A listing has all values.
    #[tokio::test]
    async fn an_owner_beyond_ascii_is_read_from_a_listing() {
        let read = format!("HTTP/1.1 200 OK\r\n{HEADERS}x-ms-meta-ownerid: {OWNER}\r\ncontent-length: 0\r\n\r\n");
        let blob = format!(
            "<Blob><Name>ns/hub/g/ownership/0</Name><Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT\
             </Last-Modified><Etag>0x1</Etag></Properties><Metadata><ownerid>{OWNER}</ownerid></Metadata></Blob>"
        );
        let page =
            |blobs: &str| Act::Send(response("200 OK", &PAGE.replace("<Blobs/>", &format!("<Blobs>{blobs}</Blobs>"))));
        let stub = Stub::start([page(""), page(""), Act::Send(read), page(&blob)]);
        let group = ConsumerGroup::new("ns", "hub", "g").unwrap();
        let container = Arc::new(container(&stub));
        let builder = GroupStore::builder(container, group, OwnerId::new("a").unwrap());
        let store = builder.with_config(StoreConfig::default().with_verify_storage(false)).connect().await.unwrap();
        let seen = store.read_ownership(&0.into()).await.unwrap().unwrap();
        assert_eq!(seen.record.owner.as_ref().map(OwnerId::as_str), Some(OWNER));
        assert_eq!(stub.requests().len(), 4, "{:?}", stub.requests());
    }

    fn page_without_dates(etag: &str) -> Act {
        let blob = |name: &str, etag: &str| {
            format!("<Blob><Name>{name}</Name><Properties><Last-Modified/><Etag>{etag}</Etag></Properties></Blob>")
        };
        let blobs = format!("{}{}", blob("p/one", etag), blob("p/two", "0x1"));
        let body = format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>");
        Act::Send(response("200 OK", &body))
    }

    #[tokio::test]
    async fn an_unusable_blob_is_logged_once_per_version() {
        let (log, _guard) = Captured::begin();
        let times = |blob: &str| log.text().matches(&format!("blob=\"{blob}\"")).count();
        let stub = Stub::start([
            page_without_dates("0x1"),
            page_without_dates("0x1"),
            page_without_dates("0x1"),
            page_without_dates("0x2"),
            page_without_dates("0x2"),
        ]);
        let container = container(&stub);
        let isolated = container.with_new_connections().unwrap();
        for expected in [1, 1, 1, 2, 2] {
            assert!(container.list("p/").await.unwrap().blobs.is_empty());
            assert_eq!((times("p/one"), times("p/two")), (expected, 1));
        }
        isolated.list("p/").await.unwrap();
        assert_eq!((times("p/one"), times("p/two")), (2, 1));
        container.list("p/o").await.unwrap();
        assert!(log.text().contains("without valid ETag or Last-Modified"));
    }
}
