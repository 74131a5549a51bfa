//! The SDK as this crate meets it: an HTTP client for it, which names it can carry, what its blobs and failures mean.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_core::http::{HttpClient, Method, Request, new_http_client};
use azure_core_legacy::error::{Error as SdkError, ErrorKind as SdkErrorKind, HttpError};
use azure_core_legacy::headers::Headers as SdkHeaders;
use azure_core_legacy::{
    Body, BytesStream, ClientOptions, HttpClient as SdkHttpClient, Request as SdkRequest, Response,
    Result as SdkResult, RetryOptions, StatusCode, TransportOptions, Url,
};
use azure_storage_blobs::blob::Blob as SdkBlob;
use percent_encoding::percent_decode_str;

use crate::blob::azure::errors::{ErrorResponse, NoResponse, Operation, unusable_response};
use crate::blob::azure::headers::{retry_after, server_time};
use crate::blob::azure::shared_key::compare_header_names;
use crate::blob::validation::validate_blob_name;
use crate::blob::{Blob, ETag, Metadata, ResponseInfo};
use crate::error::{Error, ErrorKind, Result};

/// How the HTTP client says that a connection was never there, at whatever depth.
const NOT_CONNECTED: &str = "client error (Connect)";

/// The header that the SDK wants in the response to a deletion, and that Azurite does not send.
const DELETE_TYPE: &str = "x-ms-delete-type-permanent";

const LONGEST_SUMMARY: usize = 200;

/// Options for a client that serves this crate well: it keeps its connections, repeats nothing by itself, and uses the
/// TLS of [`blob::azure`](crate::blob::azure). Each call makes a pool of connections of its own.
///
/// Made for blobs without content: a response is held in memory as a whole, and a body that is a stream is refused. For
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
        let lost = |error: azure_core::Error| SdkError::full(SdkErrorKind::Io, error, "the request has no response");
        let response = self.0.execute_request(&request).await.map_err(lost)?;
        let (status, headers, body) = response.deconstruct();
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

/// Refuses a name that would reach another blob, or that a listing would show as another one.
///
/// The SDK cuts slashes off both ends of a name, leaves out segments `.` and `..`, tabs and line breaks, and trims what
/// a listing shows. What it makes of the name is compared with what it should be, so no rule of it is copied here.
pub(super) fn check_address(container: &Url, blob: &Url, name: &str) -> Result<()> {
    validate_blob_name(name)?;
    let expected = format!("{}/{name}", decoded(container));
    if decoded(blob) != expected {
        return Err(refused(name, "it cuts slashes off the ends and leaves out segments . and .."));
    }
    if name.trim() != name {
        return Err(refused(name, "its listings show names without spaces at the ends"));
    }
    Ok(())
}

fn decoded(url: &Url) -> String {
    percent_decode_str(url.path()).decode_utf8_lossy().into_owned()
}

fn refused(name: &str, why: &str) -> Error {
    let message = format!("azure_storage_blobs cannot carry the blob name {name:?}: {why}; use blob::azure for it");
    Error::new(ErrorKind::InvalidArgument, message)
}

/// As much of a prefix as the SDK sends unchanged. It writes a space as `+`, which the service takes for a plus sign;
/// the rest is left to whoever looks through the response.
pub(super) fn prefix_to_ask_for(prefix: &str) -> Option<String> {
    prefix.split(' ').next().filter(|part| !part.is_empty()).map(str::to_owned)
}

/// A blob of a listing, or as reading it showed it.
pub(super) fn blob_of(blob: SdkBlob, response: ResponseInfo) -> Blob {
    let SdkBlob { name, properties, metadata, .. } = blob;
    Blob {
        name,
        metadata: metadata_of(metadata.unwrap_or_default()),
        etag: ETag::new(properties.etag.as_ref()),
        last_modified: properties.last_modified,
        response,
    }
}

/// Listings give keys as they were written, headers in lower case. `@` begins attributes of the XML, which the SDK
/// takes for keys: those of a foreign blob that was encrypted with a key of its own.
pub(super) fn metadata_of(metadata: HashMap<String, String>) -> Metadata {
    let own = metadata.into_iter().filter(|(key, _)| !key.starts_with('@'));
    own.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}

/// The error for a request that the SDK reports as failed. Neither message nor causes hold a secret: the SDK's own text
/// shows whole URLs and answers.
pub(super) fn failure(error: &SdkError, operation: Operation<'_>, host: &str) -> Error {
    let why = match error.kind() {
        SdkErrorKind::HttpResponse { .. } => match error.as_http_error() {
            Some(response) => return refusal(response, operation),
            None => NoResponse::Lost,
        },
        SdkErrorKind::DataConversion => return unusable_response(operation, &summary(error)),
        SdkErrorKind::Credential if is_temporary(error) => NoResponse::IssuerTimedOut,
        SdkErrorKind::Credential => NoResponse::NoToken,
        _ if causes(error).any(|cause| cause.to_string().contains(NOT_CONNECTED)) => NoResponse::NotConnected,
        _ => NoResponse::Lost,
    };
    why.into_error(operation, host, error)
}

/// Whether the service did delete the blob, and the SDK only misses a header in its response. It looks for headers in
/// successful answers alone.
pub(super) fn is_deleted_all_the_same(error: &SdkError) -> bool {
    *error.kind() == SdkErrorKind::DataConversion && error.to_string().contains(DELETE_TYPE)
}

pub(super) fn code(error: &SdkError) -> Option<&str> {
    error.as_http_error().and_then(HttpError::error_code)
}

/// A write with metadata that the SDK signs in another order than the service: it sorts by bytes, so that digits come
/// before `_`. Without an account key nothing is signed, so only a refusal tells that it matters.
pub(super) fn explained(error: Error, metadata: &Metadata) -> Error {
    let in_order = metadata.keys().is_sorted_by(|left, right| compare_header_names(left, right).is_le());
    if error.kind() != ErrorKind::Unauthorized || in_order {
        return error;
    }
    let keys: Vec<&str> = metadata.keys().map(String::as_str).collect();
    let message = format!(
        "{error}; or azure_storage has signed the metadata keys {keys:?} in another order than the service sorts them, \
         as it does where one key has a digit and another _ in the same place: use a SAS or a token, or blob::azure"
    );
    Error::new(ErrorKind::Rejected, message).with_server_time(error.server_time())
}

fn refusal(response: &HttpError, operation: Operation<'_>) -> Error {
    let headers = headers_of(response);
    let refusal = ErrorResponse {
        status: response.status().into(),
        code: response.error_code(),
        retry_after: retry_after(&headers),
        server_time: server_time(&headers),
        clock_skew: None,
    };
    refusal.into_error(operation, None)
}

/// The SDK keeps the headers of a refusal to itself but for the long form of its text, one a line. The body stands
/// there on a line of its own, escaped.
fn headers_of(response: &HttpError) -> Headers {
    let text = format!("{response:#}");
    let lines = text.lines().skip_while(|line| *line != "\tHeaders: [").skip(1);
    let mut headers = Headers::new();
    for (name, value) in lines.map_while(|line| line.strip_prefix("\t\t")?.split_once(':')) {
        headers.insert(name.to_owned(), value.to_owned());
    }
    headers
}

/// Whether a credential failed for want of a network or of a healthy issuer.
fn is_temporary(error: &SdkError) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<SdkError>()).any(|cause| match cause.kind() {
        SdkErrorKind::Io => true,
        SdkErrorKind::HttpResponse { status, .. } => matches!(u16::from(*status), 408 | 429 | 500..),
        _ => false,
    })
}

fn causes(error: &SdkError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

/// The first line: the others are the response.
fn summary(error: &SdkError) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().chars().take(LONGEST_SUMMARY).collect()
}
