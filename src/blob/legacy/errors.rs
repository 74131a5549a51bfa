//! What a failure of the SDK means, in the words of [`crate::Error`].

use std::error::Error as StdError;

use azure_core::http::headers::Headers;
use azure_core_legacy::Error as SdkError;
use azure_core_legacy::error::{ErrorKind as SdkErrorKind, HttpError};

use crate::blob::Metadata;
use crate::blob::azure::errors::{NoAnswer, Operation, Refusal, unusable_answer};
use crate::blob::azure::headers::{retry_after, server_time};
use crate::blob::azure::shared_key::compare_header_names;
use crate::error::{Error, ErrorKind};

/// How the HTTP client says that a connection was never there, at whatever depth.
const NOT_CONNECTED: &str = "client error (Connect)";

/// The header that the SDK wants in the answer to a deletion, and that Azurite does not send.
const DELETE_TYPE: &str = "x-ms-delete-type-permanent";

const LONGEST_SUMMARY: usize = 200;

/// The error for a request that the SDK reports as failed. Neither message nor causes hold a secret: the SDK's own text
/// shows whole URLs and answers.
pub(super) fn failure(error: &SdkError, operation: Operation<'_>, host: &str) -> Error {
    let why = match error.kind() {
        SdkErrorKind::HttpResponse { .. } => match error.as_http_error() {
            Some(answer) => return refusal(answer, operation),
            None => NoAnswer::Lost,
        },
        SdkErrorKind::DataConversion => return unusable_answer(operation, &summary(error)),
        SdkErrorKind::Credential if is_temporary(error) => NoAnswer::IssuerSilent,
        SdkErrorKind::Credential => NoAnswer::NoToken,
        _ if causes(error).any(|cause| cause.to_string().contains(NOT_CONNECTED)) => NoAnswer::NotConnected,
        _ => NoAnswer::Lost,
    };
    why.into_error(operation, host, error)
}

/// Whether the service did delete the blob, and the SDK only misses a header in its answer. It looks for headers in
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

fn refusal(answer: &HttpError, operation: Operation<'_>) -> Error {
    let headers = headers_of(answer);
    let refusal = Refusal {
        status: answer.status().into(),
        code: answer.error_code(),
        retry_after: retry_after(&headers),
        server_time: server_time(&headers),
        clock_skew: None,
    };
    refusal.into_error(operation, None)
}

/// The SDK keeps the headers of a refusal to itself but for the long form of its text, one a line. The body stands
/// there on a line of its own, escaped.
fn headers_of(answer: &HttpError) -> Headers {
    let text = format!("{answer:#}");
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

/// The first line: the others are the answer.
fn summary(error: &SdkError) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().chars().take(LONGEST_SUMMARY).collect()
}
