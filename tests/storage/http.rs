//! The HTTP client with a failing service: every call ends when its caller's time is over, reads are retried, writes are
//! not, and a blocked runtime delays only itself.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ETag, Metadata};
use eventhubs_checkpoint::internal::blob::within;
use eventhubs_checkpoint::{Error, ErrorKind, Result};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::stub::{Act, Stub};

const DEADLINE: Duration = Duration::from_millis(400);
/// Added to the timeout, for a busy machine.
const TOLERANCE: Duration = Duration::from_secs(2);

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
async fn in_time<T>(deadline: Duration, request: impl Future<Output = Result<T>>) -> Result<T> {
    within(deadline, "test", request).await
}

/// Returns the name of each operation and its error; all run concurrently.
async fn all_errors(container: &AzureContainer) -> [(&'static str, Error); 5] {
    let metadata = Metadata::new();
    let etag = ETag::new("0x1");
    let condition = Condition::IfMatch(etag.clone());
    let began = Instant::now();
    let (list, get, write, delete, create) = tokio::join!(
        in_time(DEADLINE, container.list("p")),
        in_time(DEADLINE, container.get("a")),
        in_time(DEADLINE, container.write("a", &metadata, &condition)),
        in_time(DEADLINE, container.delete("a", &etag)),
        in_time(DEADLINE, container.create_container()),
    );
    assert!((DEADLINE..DEADLINE + TOLERANCE).contains(&began.elapsed()), "{:?}", began.elapsed());
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
    use tokio::time::timeout;

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
        let read = in_time(usual, container.get("a"));
        let write = in_time(usual, container.write("a", &metadata, &Condition::Create));
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
        for (operation, error) in all_errors(&container(&stub)).await {
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{operation} {act:?}: {error}");
            assert!(error.to_string().contains("within 400ms"), "{operation} {act:?}: {error}");
        }
        assert_eq!(stub.requests().len(), 5, "{act:?}: {:?}", stub.requests());
    }
}

#[tokio::test]
async fn a_listing_times_out_in_the_middle_of_its_body() {
    let half = response("200 OK", PAGE).replace("<NextMarker/></EnumerationResults>", "");
    let stub = Stub::start([Act::SendAndHang(half)]);
    let began = Instant::now();
    let error = in_time(DEADLINE, container(&stub).list("p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!((DEADLINE..DEADLINE + TOLERANCE).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// The service then sees the end of the connection, and the request occupies nothing.
#[tokio::test]
async fn a_dropped_request_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let container = container_at(listener.local_addr().unwrap());
    let request = tokio::spawn(async move { in_time(DEADLINE, container.get("a")).await });
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut received = Vec::new();
    tokio::time::timeout(TOLERANCE, connection.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received.starts_with(b"HEAD /a/leases/a HTTP/1.1"), "{}", String::from_utf8_lossy(&received));
    assert_eq!(request.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
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

#[tokio::test]
async fn a_read_is_retried_after_a_failure() {
    let again = [
        Act::Send(response("500 Internal Server Error", "")),
        Act::Send(response("502 Bad Gateway", "")),
        Act::reset(),
        Act::SendAndReset("HTTP/1.1 200 O".to_owned()),
    ];
    for random_faults in again {
        let stub = Stub::start([random_faults.clone(), random_faults.clone(), success()]);
        container(&stub).get("a").await.unwrap();
        assert_eq!(stub.requests(), ["HEAD /a/leases/a HTTP/1.1"; 3], "{random_faults:?}");

        let stub = Stub::start([random_faults.clone(), Act::Send(response("200 OK", PAGE))]);
        assert!(container(&stub).list("p").await.unwrap().blobs.is_empty());
        assert_eq!(stub.requests().len(), 2, "{random_faults:?}");
    }
}

#[tokio::test]
async fn a_listing_truncated_in_its_body_is_retried() {
    let half = response("200 OK", PAGE).replace("<NextMarker/></EnumerationResults>", "");
    let stub = Stub::start([Act::SendAndReset(half), Act::Send(response("200 OK", PAGE))]);
    assert!(container(&stub).list("p").await.unwrap().blobs.is_empty());
}

#[tokio::test]
async fn a_read_that_fails_repeatedly_times_out() {
    let stub = Stub::start([Act::reset()]);
    let began = Instant::now();
    let error = in_time(Duration::from_secs(1), container(&stub).get("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(began.elapsed() < Duration::from_secs(1) + TOLERANCE, "{:?}", began.elapsed());
    assert!((2..=4).contains(&stub.requests().len()), "{:?}", stub.requests());
}

/// The same for a read whose first attempt hangs: the time limit applies to the call, not to an attempt.
#[tokio::test]
async fn a_read_that_hangs_is_not_retried() {
    let stub = Stub::start([Act::hang(), success()]);
    let error = in_time(DEADLINE, container(&stub).get("a")).await.unwrap_err();
    assert_eq!((error.kind(), stub.requests().len()), (ErrorKind::Indeterminate, 1));
}

const BLOCKED: Duration = Duration::from_secs(1);

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

    let (sender, receiver) = mpsc::channel();
    let blocking = application.spawn(async move {
        sender.send(Instant::now()).unwrap();
        block();
    });
    let began = receiver.recv().unwrap();
    other.block_on(isolated.get("a")).unwrap();
    let isolated_took = began.elapsed();
    other.block_on(shared.get("a")).unwrap();
    let shared_took = began.elapsed();
    other.block_on(blocking).unwrap();
    assert!(isolated_took < BLOCKED / 2, "{isolated_took:?}");
    assert!(shared_took >= BLOCKED, "{shared_took:?}: is the connection not the application's?");
}

#[expect(clippy::disallowed_methods, reason = "the test needs to block")]
fn block() {
    std::thread::sleep(BLOCKED);
}

/// Defects that were found in review, each under its number.
mod defects {
    use std::sync::Arc;

    use eventhubs_checkpoint::store::{GroupStore, StoreConfig};
    use eventhubs_checkpoint::{ConsumerGroup, OwnerId};

    use super::*;
    use crate::captured::Captured;

    const OWNER: &str = "gr\u{f6}\u{df}e";

    /// The HTTP client drops header values that are not text, with only a log message. A listing has all values.
    #[tokio::test]
    async fn a11_an_owner_beyond_ascii_is_read_from_a_listing() {
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
    async fn a15_an_unusable_blob_is_logged_once_per_version() {
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
