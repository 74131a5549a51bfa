//! Adapts the SDK: an HTTP client for it, the names that it can carry, and the conversion of its blobs and errors.

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

use crate::blob::azure::errors::{ErrorResponse, NoResponse, unusable_response};
use crate::blob::azure::headers::{retry_after, server_time_of_error};
use crate::blob::azure::refusals::Operation;
use crate::blob::azure::shared_key::compare_header_names;
use crate::blob::validation::validate_blob_name;
use crate::blob::{Blob, ETag, Metadata, ResponseInfo};
use crate::error::{Error, ErrorKind, Result};

/// The text with which the HTTP client reports, at any depth of the chain, that there was no connection.
const NOT_CONNECTED: &str = "client error (Connect)";

/// The header that the SDK requires in the response to a deletion, and that Azurite does not send.
const DELETE_TYPE: &str = "x-ms-delete-type-permanent";

const LONGEST_SUMMARY: usize = 200;

/// Returns options for a client: it keeps its connections, retries nothing, and uses the same TLS as
/// [`blob::azure`](crate::blob::azure). Each call creates a separate connection pool.
///
/// Intended for blobs without content: responses are held in memory as a whole, and a streamed body is rejected. For
/// large blobs use a separate client.
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
        let request = translate_request(request)?;
        let (status, headers, body) = self.0.execute_request(&request).await.map_err(no_response_error)?.deconstruct();
        let status = StatusCode::try_from(u16::from(status))
            .map_err(|_| SdkError::message(SdkErrorKind::DataConversion, format!("status {status} is unknown")))?;
        let mut sdk_headers = SdkHeaders::new();
        for (name, value) in headers.iter() {
            sdk_headers.insert(name.as_str().to_owned(), value.as_str().to_owned());
        }
        let body = body.collect().await.map_err(no_response_error)?;
        Ok(Response::new(status, sdk_headers, Box::pin(BytesStream::new(body))))
    }
}

fn no_response_error(error: azure_core::Error) -> SdkError {
    SdkError::full(SdkErrorKind::Io, error, "the request has no response")
}

fn translate_request(request: &SdkRequest) -> SdkResult<Request> {
    let method: Method = request
        .method()
        .as_ref()
        .parse()
        .map_err(|error: azure_core::Error| SdkError::new(SdkErrorKind::DataConversion, error))?;
    let Body::Bytes(body) = request.body() else {
        return Err(SdkError::message(SdkErrorKind::Other, "these client options do not support streams: use bytes"));
    };
    let mut translated = Request::new(request.url().clone(), method);
    for (name, value) in request.headers().iter() {
        translated.insert_header(name.as_str().to_owned(), value.as_str().to_owned());
    }
    translated.set_body(body.clone());
    Ok(translated)
}

/// Rejects a name that would reach another blob, or that a listing would show as another name.
///
/// The SDK removes slashes at both ends of a name, segments `.` and `..`, tabs and line breaks, and trims the names in
/// listings. This function compares the SDK's result with the expected one, so it does not duplicate these rules.
pub(super) fn check_address(container: &Url, blob: &Url, name: &str) -> Result<()> {
    validate_blob_name(name)?;
    if decode_path(blob) != format!("{}/{name}", decode_path(container)) {
        return Err(name_error(name, "it removes slashes at the ends and the segments . and .."));
    }
    if name.trim() != name {
        return Err(name_error(name, "its listings trim spaces at the ends of names"));
    }
    Ok(())
}

fn decode_path(url: &Url) -> String {
    percent_decode_str(url.path()).decode_utf8_lossy().into_owned()
}

fn name_error(name: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("azure_storage_blobs cannot carry the blob name {name:?}: {why}; use blob::azure instead"),
    )
}

/// Returns the part of a prefix that the SDK sends unchanged. The SDK encodes a space as `+`, which the service reads
/// as a plus sign. The caller must filter the response by the complete prefix.
pub(super) fn prefix_to_request(prefix: &str) -> Option<String> {
    prefix.split(' ').next().filter(|part| !part.is_empty()).map(str::to_owned)
}

/// Converts a blob of a listing or of a read.
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

/// Converts metadata. Keys have their original case in listings, and are lowercase in headers. A `@` begins an
/// attribute of the XML, which the SDK reports as a key: a foreign blob with its own encryption key has such
/// attributes.
pub(super) fn metadata_of(metadata: HashMap<String, String>) -> Metadata {
    metadata
        .into_iter()
        .filter(|(key, _)| !key.starts_with('@'))
        .map(|(key, value)| (key.to_ascii_lowercase(), value))
        .collect()
}

/// Converts an error of the SDK. Neither the message nor the causes contain a secret: the SDK's own text contains
/// complete URLs and responses.
pub(super) fn convert_error(error: &SdkError, operation: Operation<'_>, host: &str) -> Error {
    let why = match error.kind() {
        SdkErrorKind::HttpResponse { .. } => match error.as_http_error() {
            Some(response) => return convert_http_error(response, operation),
            None => NoResponse::Lost,
        },
        SdkErrorKind::DataConversion => {
            // The lines after the first one are the response.
            let summary: String =
                error.to_string().lines().next().unwrap_or_default().chars().take(LONGEST_SUMMARY).collect();
            return unusable_response(operation, &summary);
        }
        SdkErrorKind::Credential if is_temporary(error) => NoResponse::IssuerTimedOut,
        SdkErrorKind::Credential => NoResponse::NoToken,
        _ if error_causes(error).any(|cause| cause.to_string().contains(NOT_CONNECTED)) => NoResponse::NotConnected,
        _ => NoResponse::Lost,
    };
    why.into_error(operation, host, error)
}

/// Returns whether the service did delete the blob, and the SDK only lacks a header in the response. The SDK looks for
/// headers only in successful responses.
pub(super) fn is_deleted_nevertheless(error: &SdkError) -> bool {
    *error.kind() == SdkErrorKind::DataConversion && error.to_string().contains(DELETE_TYPE)
}

pub(super) fn error_code(error: &SdkError) -> Option<&str> {
    error.as_http_error().and_then(HttpError::error_code)
}

/// Explains the error of a write whose metadata the SDK signs in a different order than the service: the SDK sorts by
/// bytes, so digits precede `_`. Only a rejection shows that the order matters, because nothing is signed without an
/// account key.
pub(super) fn explain_signature_error(error: Error, metadata: &Metadata) -> Error {
    let in_order = metadata.keys().is_sorted_by(|left, right| compare_header_names(left, right).is_le());
    if error.kind() != ErrorKind::Unauthorized || in_order {
        return error;
    }
    let keys: Vec<&str> = metadata.keys().collect();
    Error::new(
        ErrorKind::Rejected,
        format!(
            "{error}; or azure_storage signed the metadata keys {keys:?} in a different order than the service, \
             which it does if one key has a digit where another has _: use a SAS or a token, or blob::azure"
        ),
    )
    .with_server_time(error.server_time())
}

fn convert_http_error(response: &HttpError, operation: Operation<'_>) -> Error {
    let headers = headers_of(response);
    ErrorResponse {
        status: response.status().into(),
        code: response.error_code(),
        retry_after: retry_after(&headers),
        server_time: server_time_of_error(&headers),
        clock_skew: None,
    }
    .into_error(operation, None)
}

/// Returns the headers of an error response. The SDK exposes them only in the long form of its text, one per line. The
/// body is on its own line, escaped.
fn headers_of(response: &HttpError) -> Headers {
    let text = format!("{response:#}");
    let lines = text.lines().skip_while(|line| *line != "\tHeaders: [").skip(1);
    let mut headers = Headers::new();
    for (name, value) in lines.map_while(|line| line.strip_prefix("\t\t")?.split_once(':')) {
        headers.insert(name.to_owned(), value.to_owned());
    }
    headers
}

/// Returns whether a credential failed because of the network or because its issuer is unhealthy.
fn is_temporary(error: &SdkError) -> bool {
    error_causes(error).filter_map(|cause| cause.downcast_ref::<SdkError>()).any(|cause| match cause.kind() {
        SdkErrorKind::Io => true,
        SdkErrorKind::HttpResponse { status, .. } => matches!(u16::from(*status), 408 | 429 | 500..),
        _ => false,
    })
}

fn error_causes(error: &SdkError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}
