//! The HTTP client of this crate for clients of the old SDK.

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::{HttpClient, Method, Request, new_http_client};
use azure_core_legacy::error::{Error as SdkError, ErrorKind as SdkErrorKind};
use azure_core_legacy::headers::Headers as SdkHeaders;
use azure_core_legacy::{
    Body, BytesStream, ClientOptions, HttpClient as SdkHttpClient, Request as SdkRequest, Response,
    Result as SdkResult, RetryOptions, StatusCode, TransportOptions,
};

/// Options for a client that serves this crate well: it keeps its connections, repeats nothing by itself, and uses the
/// TLS of [`blob::azure`](crate::blob::azure). Each call makes a pool of connections of its own.
///
/// Made for blobs without content: an answer is held in memory as a whole, and a body that is a stream is refused. For
/// large blobs give the application a client of its own.
#[must_use]
pub fn client_options() -> ClientOptions {
    let transport = TransportOptions::new(Arc::new(PooledClient(new_http_client(None))));
    ClientOptions::new(transport).retry(RetryOptions::none())
}

#[derive(Debug)]
struct PooledClient(Arc<dyn HttpClient>);

#[async_trait]
impl SdkHttpClient for PooledClient {
    async fn execute_request(&self, request: &SdkRequest) -> SdkResult<Response> {
        let request = translated(request)?;
        let lost = |error: azure_core::Error| SdkError::full(SdkErrorKind::Io, error, "the request has no answer");
        let answer = self.0.execute_request(&request).await.map_err(lost)?;
        let (status, headers, body) = answer.deconstruct();
        let status = StatusCode::try_from(u16::from(status))
            .map_err(|_| SdkError::message(SdkErrorKind::DataConversion, format!("status {status} is unknown")))?;
        let mut sdk_headers = SdkHeaders::new();
        for (name, value) in headers.iter() {
            sdk_headers.insert(name.as_str().to_owned(), value.as_str().to_owned());
        }
        let body = body.collect().await.map_err(lost)?;
        Ok(Response::new(status, sdk_headers, Box::pin(BytesStream::new(body))))
    }
}

fn translated(request: &SdkRequest) -> SdkResult<Request> {
    let method: Method = request
        .method()
        .as_ref()
        .parse()
        .map_err(|error: azure_core::Error| SdkError::new(SdkErrorKind::DataConversion, error))?;
    let Body::Bytes(body) = request.body() else {
        return Err(SdkError::message(SdkErrorKind::Other, "these client options carry no streams: give bytes"));
    };
    let mut translated = Request::new(request.url().clone(), method);
    for (name, value) in request.headers().iter() {
        translated.insert_header(name.as_str().to_owned(), value.as_str().to_owned());
    }
    translated.set_body(body.clone());
    Ok(translated)
}
