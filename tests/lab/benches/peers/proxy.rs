//! A proxy before the storage that counts requests.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HOST;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::Result;
use crate::support::azurite::{ACCOUNT, ACCOUNT_KEY};

/// The number of requests of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) listings: u32,
    pub(crate) reads: u32,
    pub(crate) writes: u32,
}

impl Requests {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            listings: self.listings - earlier.listings,
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
        }
    }

    pub(crate) fn all(self) -> u32 {
        self.listings + self.reads + self.writes
    }
}

/// A proxy for one consumer, open until the program ends.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    listings: AtomicU32,
    reads: AtomicU32,
    writes: AtomicU32,
}

impl Proxy {
    /// Opens a proxy before the storage with this endpoint. It forwards each request after the delay.
    pub(crate) async fn open(endpoint: &str, delay: Duration) -> Result<Self> {
        let address = endpoint.split_once("://").map_or(endpoint, |(_, address)| address);
        let authority = address.split('/').next().unwrap_or(address).to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let proxy = Self { port: listener.local_addr()?.port(), counts: Arc::default() };
        tokio::spawn(serve(listener, authority, delay, Arc::clone(&proxy.counts)));
        Ok(proxy)
    }

    /// Returns a connection string of the storage through this proxy.
    pub(crate) fn connection_string(&self) -> String {
        let port = self.port;
        format!(
            "DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};\
             BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        )
    }

    pub(crate) fn requests(&self) -> Requests {
        let read = |count: &AtomicU32| count.load(Ordering::Relaxed);
        let Counts { listings, reads, writes } = &*self.counts;
        Requests { listings: read(listings), reads: read(reads), writes: read(writes) }
    }
}

async fn serve(listener: TcpListener, authority: String, delay: Duration, counts: Arc<Counts>) {
    let storage: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    while let Ok((connection, _)) = listener.accept().await {
        // Without it, each request waits for the acknowledgment of the last one.
        let _ = connection.set_nodelay(true);
        let (storage, authority, counts) = (storage.clone(), authority.clone(), Arc::clone(&counts));
        tokio::spawn(async move {
            let service = service_fn(|request| {
                counts.add(&request);
                forward(&storage, &authority, delay, request)
            });
            // Fails when the client leaves.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
        });
    }
}

impl Counts {
    fn add<B>(&self, request: &Request<B>) {
        let is_listing = request.uri().query().is_some_and(|query| query.contains("comp=list"));
        let count = match *request.method() {
            Method::GET if is_listing => &self.listings,
            Method::GET | Method::HEAD => &self.reads,
            _ => &self.writes,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn forward(
    storage: &Client<HttpConnector, Full<Bytes>>,
    authority: &str,
    delay: Duration,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>> {
    sleep(delay).await;
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
    head.headers.remove(HOST);
    let (head, body) = storage.request(Request::from_parts(head, Full::new(body))).await?.into_parts();
    Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
}
