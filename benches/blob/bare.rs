//! The same requests, sent by hyper alone: the floor.

use futures::stream::{self, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request, http};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::Result;
use crate::work::{ACCOUNT, API_VERSION, CONCURRENCY, CONTAINER, ETAG, METADATA, PARTITIONS, prefix};

pub(crate) struct Bare {
    client: Client<HttpConnector, Empty<Bytes>>,
    container: String,
    /// The prefix, percent-encoded as in URLs.
    prefix: String,
}

impl Bare {
    pub(crate) fn connect(address: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let prefix = prefix().replace('/', "%2F").replace('$', "%24");
        let container = format!("http://{address}/{ACCOUNT}/{CONTAINER}");
        Self { client: Client::builder(TokioExecutor::new()).build(connector), container, prefix }
    }

    pub(crate) async fn list(&self) -> Result<()> {
        let Self { container, prefix, .. } = self;
        let url = format!("{container}?restype=container&comp=list&include=metadata&prefix={prefix}");
        self.send(request(Method::GET, url)).await
    }

    pub(crate) async fn claim(&self, partition: u32) -> Result<()> {
        let request = request(Method::PUT, self.blob(partition));
        self.send(with_metadata(request.header("x-ms-blob-type", "BlockBlob").header("if-none-match", "*"))).await
    }

    pub(crate) async fn renew(&self, partition: u32) -> Result<()> {
        let request = request(Method::PUT, format!("{}?comp=metadata", self.blob(partition)));
        self.send(with_metadata(request.header("if-match", format!("\"{ETAG}\"")))).await
    }

    pub(crate) async fn claim_all(&self) -> Result<()> {
        let claims = stream::iter((0..PARTITIONS).map(|partition| self.claim(partition)));
        claims.buffer_unordered(CONCURRENCY).try_collect().await
    }

    fn blob(&self, partition: u32) -> String {
        format!("{}/{}{partition}", self.container, self.prefix)
    }

    async fn send(&self, request: http::request::Builder) -> Result<()> {
        let response = self.client.request(request.body(Empty::new())?).await?;
        if !response.status().is_success() {
            return Err(format!("the stub responded {}", response.status()).into());
        }
        response.into_body().collect().await?;
        Ok(())
    }
}

fn request(method: Method, url: String) -> http::request::Builder {
    Request::builder().method(method).uri(url).header("x-ms-version", API_VERSION)
}

fn with_metadata(request: http::request::Builder) -> http::request::Builder {
    let request = request.header("content-length", "0");
    METADATA.iter().fold(request, |request, (key, value)| request.header(format!("x-ms-meta-{key}"), *value))
}
