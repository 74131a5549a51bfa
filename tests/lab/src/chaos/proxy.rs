//! The proxy between one incarnation of an instance, or an operator, and the storage: forwards requests as the network
//! faults allow, and records the writes with their writer and outcome.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::internal::lock::lock;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{DATE, HOST, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use time::OffsetDateTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::chaos::Failure;
use crate::chaos::clock::Clock;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::network_faults::{Condition, NetworkFaults, Treatment};
use crate::chaos::request;
use crate::chaos::writes::Write;
use crate::support::azurite::{ACCOUNT, ACCOUNT_KEY};

type ProxyResponse = Response<Full<Bytes>>;
type Storage = Client<HttpConnector, Full<Bytes>>;

/// By how much the date of a signature may be wrong: the service checks it, the emulator does not.
const TOLERATED_SKEW: time::Duration = time::Duration::minutes(15);

/// The state that all proxies share.
pub struct ProxyShared {
    pub network_faults: NetworkFaults,
    clock: Clock,
    /// Host and port of the storage; it has another port after a restart.
    authority: Mutex<String>,
    storage: Storage,
    writes: Mutex<Vec<Write>>,
}

impl ProxyShared {
    pub fn new(network_faults: NetworkFaults, clock: Clock, endpoint: &str) -> Arc<Self> {
        let storage = Client::builder(TokioExecutor::new()).build_http();
        let authority = Mutex::new(authority(endpoint));
        Arc::new(Self { network_faults, clock, authority, storage, writes: Mutex::default() })
    }

    pub fn lead_to(&self, endpoint: &str) {
        *lock(&self.authority) = authority(endpoint);
    }

    pub fn take_writes(&self) -> Vec<Write> {
        std::mem::take(&mut *lock(&self.writes))
    }

    async fn carry(&self, incarnation: IncarnationId, head: Parts, body: Bytes) -> Result<ProxyResponse, Failure> {
        let noted = request::written(incarnation, &head, self.clock.now());
        let response = self.forward(head, body).await;
        if let Some(mut write) = noted {
            if let Ok(response) = &response {
                write.responded = Some(self.clock.now());
                write.status = response.status().as_u16();
                write.etag = request::etag(response.headers());
            }
            lock(&self.writes).push(write);
        }
        response
    }

    async fn forward(&self, mut head: Parts, body: Bytes) -> Result<ProxyResponse, Failure> {
        let authority = lock(&self.authority).clone();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
        head.headers.remove(HOST);
        let (head, body) = self.storage.request(Request::from_parts(head, Full::new(body))).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Response::from_parts(head, Full::new(body)))
    }
}

fn authority(endpoint: &str) -> String {
    let address = endpoint.split_once("://").map_or(endpoint, |(_, address)| address);
    address.split('/').next().unwrap_or(address).to_owned()
}

/// A proxy that is open until it is dropped.
pub struct Proxy {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn open(shared: Arc<ProxyShared>, incarnation: IncarnationId) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, shared, incarnation));
        Ok(Self { port, _tasks: tasks })
    }

    /// Returns the storage's endpoint through this proxy.
    fn endpoint(&self, account: &str) -> String {
        format!("http://127.0.0.1:{}/{account}", self.port)
    }

    /// For a client of the storage.
    pub fn connection_string(&self) -> String {
        format!("AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={}", self.endpoint(ACCOUNT))
    }
}

async fn listen(listener: TcpListener, shared: Arc<ProxyShared>, incarnation: IncarnationId) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // Too many open files, for example: the client will try again.
                let Ok((connection, _)) = accepted else { continue };
                connections.spawn(serve(connection, shared.clone(), incarnation));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves the connection until the client leaves or a network fault breaks it.
async fn serve(connection: TcpStream, shared: Arc<ProxyShared>, incarnation: IncarnationId) {
    let service = service_fn(|request| treat(request, &shared, incarnation));
    let serving = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
    tokio::select! {
        // Fails when the client leaves.
        _ = serving => {}
        () = shared.network_faults.strikes(incarnation.instance, Condition::Cut) => {}
    }
}

async fn treat(
    request: Request<Incoming>,
    shared: &Arc<ProxyShared>,
    incarnation: IncarnationId,
) -> Result<ProxyResponse, Failure> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if request::is_skewed(&head, now(), TOLERATED_SKEW) {
        return Ok(rejection(StatusCode::FORBIDDEN, "AuthenticationFailed"));
    }
    let treatment = shared.network_faults.treatment(incarnation.instance);
    let before = if let Treatment::Delay { request, .. } = treatment { request } else { Duration::ZERO };
    match treatment {
        Treatment::Cut => return Err("the connection breaks".into()),
        Treatment::Refuse => return Ok(rejection(StatusCode::SERVICE_UNAVAILABLE, "ServerBusy")),
        Treatment::Hang => {
            shared.network_faults.spares(incarnation.instance, Condition::Hang).await;
            return Err("the connection breaks".into());
        }
        Treatment::Pass | Treatment::LoseResponse | Treatment::Delay { .. } => {}
    }
    let shared = shared.clone();
    // In its own task: a request that was sent arrives even if the client gives up.
    let carried = tokio::spawn(async move {
        sleep(before).await;
        shared.carry(incarnation, head, body).await
    });
    let response = carried.await??;
    match treatment {
        Treatment::LoseResponse => Err("the response is lost".into()),
        Treatment::Delay { response: late, .. } => {
            sleep(late).await;
            Ok(response)
        }
        _ => Ok(response),
    }
}

/// Returns the service's response for a rejected request.
fn rejection(status: StatusCode, code: &str) -> ProxyResponse {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>{code}</Code><Message>By the proxy.</Message></Error>"
    );
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/xml"));
    if let Ok(code) = HeaderValue::from_str(code) {
        headers.insert("x-ms-error-code", code);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    headers.insert("x-ms-version", HeaderValue::from_static("2023-11-03"));
    if let Some(date) = request::http_date(now()) {
        headers.insert(DATE, date);
    }
    response
}

#[expect(clippy::disallowed_methods, reason = "the proxy plays the server, whose clock this is")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::*;
    use crate::chaos::network_faults::Token;
    use crate::chaos::writes::Kind;
    use crate::stub::{Act, Stub};

    const INCARNATION: IncarnationId = IncarnationId { instance: 1, number: 2 };
    /// Far longer than any request takes that gets a response.
    const PATIENCE: Duration = Duration::from_secs(60);
    const CREATED: &str = "HTTP/1.1 201 Created\r\netag: \"0x1\"\r\ncontent-length: 0\r\n\r\n";

    /// A storage that accepts everything, after a proxy.
    struct World {
        storage: Stub,
        shared: Arc<ProxyShared>,
        proxy: Proxy,
    }

    impl World {
        async fn new() -> Self {
            let storage = Stub::start([Act::Send(CREATED.to_owned())]);
            let endpoint = format!("http://{}/account", storage.address);
            let shared = ProxyShared::new(NetworkFaults::new(1), Clock::start(), &endpoint);
            let proxy = Proxy::open(shared.clone(), INCARNATION).await.unwrap();
            Self { storage, shared, proxy }
        }

        fn during(&self, condition: Condition) -> Token {
            self.shared.network_faults.begin(Some(INCARNATION.instance), condition)
        }

        /// Writes a checkpoint.
        async fn write(&self) -> Result<reqwest::Response, reqwest::Error> {
            self.write_within(PATIENCE).await
        }

        async fn write_within(&self, timeout: Duration) -> Result<reqwest::Response, reqwest::Error> {
            let url = format!("{}/c/ns/hub/g/checkpoint/3?comp=metadata", self.proxy.endpoint("account"));
            let request = reqwest::Client::new().put(url).header("content-length", 0).header("if-match", "\"0x0\"");
            let request = request.header("x-ms-meta-ownerid", "i2").header("x-ms-meta-sequencenumber", "7");
            request.timeout(timeout).send().await
        }

        /// Sends the same request, and is gone before the proxy reads it.
        async fn write_and_leave(&self) {
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, self.proxy.port)).await.unwrap();
            let request = "PUT /account/c/ns/hub/g/checkpoint/3?comp=metadata HTTP/1.1\r\nhost: storage\r\n\
                           content-length: 0\r\nx-ms-meta-ownerid: i2\r\nx-ms-meta-sequencenumber: 7\r\n\r\n";
            client.write_all(request.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn forwarded_writes_are_recorded_with_their_outcome() {
        let world = World::new().await;
        assert_eq!(world.write().await.unwrap().status(), 201);
        let [write] = &world.shared.take_writes()[..] else { panic!("one write") };
        assert_eq!((write.by, write.kind, write.partition.as_str()), (INCARNATION, Kind::Checkpoint, "3"));
        assert_eq!((write.status, write.position, write.owner.as_str()), (201, 7, "i2"));
        assert_eq!((write.replaces.as_deref(), write.etag.as_deref()), (Some("0x0"), Some("0x1")));
        assert!(world.shared.take_writes().is_empty());
    }

    #[tokio::test]
    async fn a_lost_response_was_sent() {
        let world = World::new().await;
        let _lost = world.during(Condition::LostResponses(1.0));
        assert!(world.write().await.is_err());
        assert!(world.shared.take_writes()[0].is_accepted());
    }

    #[tokio::test]
    async fn failed_requests_do_not_arrive() {
        let world = World::new().await;
        let throttled = world.during(Condition::Throttle(1.0));
        let rejected = world.write().await.unwrap();
        assert_eq!((rejected.status().as_u16(), &rejected.headers()["retry-after"]), (503, &"1".parse().unwrap()));
        world.shared.network_faults.end(&throttled);
        let cut = world.during(Condition::Cut);
        assert!(!world.write().await.unwrap_err().is_timeout());
        world.shared.network_faults.end(&cut);
        // To the end: a client may give up before the proxy has its request.
        let _hangs = world.during(Condition::Hang);
        assert!(world.write_within(Duration::from_millis(500)).await.unwrap_err().is_timeout());
        assert!(world.storage.requests().is_empty());
    }

    #[tokio::test]
    async fn a_late_request_arrives_after_the_client_gave_up() {
        let world = World::new().await;
        let _late = world.during(Condition::Delay(1.0, Duration::from_millis(100)));
        world.write_and_leave().await;
        let arrives = async {
            loop {
                if let [write] = &world.shared.take_writes()[..] {
                    return write.clone();
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(timeout(PATIENCE, arrives).await.expect("the request does not arrive").is_accepted());
    }

    #[tokio::test]
    async fn the_storage_may_move() {
        let world = World::new().await;
        let other = Stub::start([Act::Send(CREATED.to_owned())]);
        world.shared.lead_to(&format!("http://{}/account", other.address));
        world.write().await.unwrap();
        assert_eq!((world.storage.requests().len(), other.requests().len()), (0, 1));
    }

    #[test]
    fn the_authority_of_an_endpoint_is_host_and_port() {
        assert_eq!(authority("http://127.0.0.1:10000/devstoreaccount1"), "127.0.0.1:10000");
    }
}
