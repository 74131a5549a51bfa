//! Maps error responses and failures of requests to [`crate::Error`], without the secrets of their causes.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use azure_core::error::ErrorKind as AzureErrorKind;
use time::OffsetDateTime;

use super::refusals::{Class, CredentialKind, Operation, Verb, meaning_of_response};
use crate::error::{Error, ErrorKind};

/// A response other than success. The body is not used: a HEAD request has none.
#[derive(Clone, Copy, Debug)]
pub(in crate::blob) struct ErrorResponse<'a> {
    pub(in crate::blob) status: u16,
    /// The header `x-ms-error-code`.
    pub(in crate::blob) code: Option<&'a str>,
    pub(in crate::blob) retry_after: Option<Duration>,
    pub(in crate::blob) server_time: Option<OffsetDateTime>,
    /// How far the local clock, which dated the signature, is ahead of the clock of the service. Only set if the
    /// difference may be the cause.
    pub(in crate::blob) clock_skew: Option<time::Duration>,
}

impl ErrorResponse<'_> {
    /// Converts the response. `credentials` is the kind that was used, if it is known.
    pub(in crate::blob) fn into_error(self, operation: Operation<'_>, credentials: Option<CredentialKind>) -> Error {
        let (class, advice) =
            meaning_of_response(operation.verb, self.status, self.code.unwrap_or_default(), credentials);
        let code = self.code.unwrap_or("no error code");
        let clock = match self.clock_skew.filter(|_| code == "AuthenticationFailed") {
            Some(skew) => format!(
                "; the cause may be the local clock, which is {} s {} the clock of the service: set the local clock",
                skew.whole_seconds().abs(),
                if skew.is_negative() { "behind" } else { "ahead of" }
            ),
            None => String::new(),
        };
        Error::new(
            self.kind(class, operation.verb),
            format!("{operation}: the service responded {} ({code}){advice}{clock}", self.status),
        )
        .with_server_time(self.server_time)
    }

    fn kind(self, class: Class, verb: Verb) -> ErrorKind {
        match class {
            Class::Conflict => ErrorKind::Conflict,
            Class::NotFound => ErrorKind::NotFound,
            Class::ContainerNotFound => ErrorKind::ContainerNotFound,
            Class::Unauthorized => ErrorKind::Unauthorized,
            Class::Throttled => ErrorKind::Throttled { retry_after: self.retry_after },
            // A write may have been applied.
            Class::Failed if !matches!(verb, Verb::List | Verb::Get) => ErrorKind::Indeterminate,
            Class::Failed | Class::NotNow => ErrorKind::Unavailable,
            Class::Rejected => ErrorKind::Rejected,
        }
    }
}

/// The beginning of errors about tokens.
const NOT_SENT: &str = "the request was not sent: there is no valid token";

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blob) enum NoResponse {
    /// The request was not sent.
    NotConnected,
    /// The request was not sent: the token issuer is unreachable, fails, or asks the client to wait.
    IssuerTimedOut,
    /// The request was not sent, because the credential returned no token.
    NoToken,
    /// The request may have arrived.
    Lost,
}

impl NoResponse {
    pub(in crate::blob) fn into_error(
        self,
        operation: Operation<'_>,
        host: &str,
        cause: &(dyn StdError + 'static),
    ) -> Error {
        let (kind, what) = match self {
            Self::NotConnected => (
                ErrorKind::Unavailable,
                format!("cannot connect to {host}: check DNS, firewall, proxy and TLS certificate"),
            ),
            Self::IssuerTimedOut => {
                (ErrorKind::Unavailable, format!("{NOT_SENT}, and the token issuer is unavailable or failing"))
            }
            Self::NoToken => (ErrorKind::Unauthorized, "cannot get a token from the credential".to_owned()),
            Self::Lost => {
                (ErrorKind::Indeterminate, format!("the connection to {host} failed before the response was complete"))
            }
        };
        Error::new(kind, format!("{operation}: {what}")).with_source(RedactedCause::new(cause))
    }
}

/// Returns the error of a request without a response.
pub(super) fn no_response_error(error: &azure_core::Error, operation: Operation<'_>, host: &str) -> Error {
    let why = match error.kind() {
        AzureErrorKind::Connection => NoResponse::NotConnected,
        AzureErrorKind::Credential if is_temporary(error) => NoResponse::IssuerTimedOut,
        AzureErrorKind::Credential => NoResponse::NoToken,
        _ => NoResponse::Lost,
    };
    why.into_error(operation, host, error)
}

/// Returns the error of a request that is not sent, because the credential returned this error instead of a token.
pub(super) fn no_token_error(error: &azure_core::Error, operation: Operation<'_>) -> Error {
    let why = if is_temporary(error) { NoResponse::IssuerTimedOut } else { NoResponse::NoToken };
    why.into_error(operation, "", error)
}

/// Returns the error of a request that is not sent, because no token arrived in time. `last` is the error of the last
/// attempt to get a token.
pub(super) fn issuer_timed_out(operation: Operation<'_>, waited: Duration, last: Option<&azure_core::Error>) -> Error {
    let error = Error::new(
        ErrorKind::Unavailable,
        format!("{operation}: {NOT_SENT}, and the token issuer returned none within {waited:?}"),
    );
    match last {
        Some(last) => error.with_source(RedactedCause::new(last)),
        None => error,
    }
}

/// Returns the error of a failed attempt to replace a token, for the log.
pub(super) fn refresh_error(error: &azure_core::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the credential returned no token").with_source(RedactedCause::new(error))
}

/// Returns the error of a successful response that lacks a required part.
pub(in crate::blob) fn unusable_response(operation: Operation<'_>, what: &str) -> Error {
    Error::new(ErrorKind::Indeterminate, format!("{operation}: unusable response: {what}"))
}

/// The most blobs of a listing, so that another program that writes below the prefix cannot exhaust the memory. A group
/// with 2048 partitions has about 5000, so this is enough for the listing of many groups.
const MOST_LISTED: usize = 250_000;

/// Rejects a listing that has become too large.
pub(in crate::blob) fn check_listed(blobs: usize, operation: Operation<'_>) -> Result<(), Error> {
    if blobs <= MOST_LISTED {
        return Ok(());
    }
    Err(Error::config(format!(
        "{operation}: more than {MOST_LISTED} blobs: another program writes below this prefix; delete its blobs, or \
         use another container"
    )))
}

/// Returns whether a credential failed because of the network or because its issuer is unhealthy. An unreadable
/// response is considered the response of a gateway, because the error responses of issuers are readable.
pub(super) fn is_temporary(error: &azure_core::Error) -> bool {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |cause| (*cause).source())
        .filter_map(|cause| cause.downcast_ref::<azure_core::Error>())
        .any(|cause| match cause.kind() {
            AzureErrorKind::Connection | AzureErrorKind::Io | AzureErrorKind::DataConversion => true,
            AzureErrorKind::HttpResponse { status, .. } => matches!(u16::from(*status), 408 | 429 | 500..),
            _ => false,
        })
}

/// A chain of errors as text, without the queries of URLs: a query may contain a signature, and the HTTP client shows
/// whole URLs.
pub(super) struct RedactedCause {
    text: String,
    source: Option<Box<RedactedCause>>,
}

impl RedactedCause {
    pub(super) fn new(error: &(dyn StdError + 'static)) -> Self {
        Self {
            text: without_queries(&error.to_string()),
            source: error.source().map(|source| Box::new(Self::new(source))),
        }
    }
}

impl fmt::Display for RedactedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for RedactedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)?;
        match &self.source {
            Some(source) => write!(f, " caused by {source:?}"),
            None => Ok(()),
        }
    }
}

impl StdError for RedactedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Removes each query, from its question mark to the end of the word.
fn without_queries(text: &str) -> String {
    let mut parts = text.split('?');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push('?');
        let end = part.find(|letter: char| letter.is_whitespace() || matches!(letter, ')' | '>' | '"' | '\''));
        result.push_str(end.map_or("", |end| &part[end..]));
    }
    result
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::CredentialKind::{AccountKey, Sas, Token};
    use super::*;

    fn operation(verb: Verb) -> Operation<'static> {
        Operation { verb, name: "ns/1", container: "leases" }
    }

    fn error(verb: Verb, status: u16, code: &str, credentials: CredentialKind) -> Error {
        let code = Some(code).filter(|code| !code.is_empty());
        let retry_after = Some(Duration::from_secs(3));
        let server_time = Some(datetime!(2026-01-01 00:00:00 UTC));
        ErrorResponse { status, code, retry_after, server_time, clock_skew: None }
            .into_error(operation(verb), Some(credentials))
    }

    const THROTTLED: ErrorKind = ErrorKind::Throttled { retry_after: Some(Duration::from_secs(3)) };

    /// The request, the credentials, the status, the error code, the error kind and a part of the advice. First each
    /// row of the table, and then responses without a row.
    const CASES: &[(Verb, CredentialKind, u16, &str, ErrorKind, &str)] = &[
        (Verb::Write, Token, 409, "BlobAlreadyExists", ErrorKind::Conflict, ""),
        (Verb::Write, Token, 412, "ConditionNotMet", ErrorKind::Conflict, ""),
        (Verb::Get, Token, 404, "BlobNotFound", ErrorKind::NotFound, ""),
        (Verb::List, Token, 404, "ContainerNotFound", ErrorKind::ContainerNotFound, "create the container"),
        (Verb::CreateContainer, Token, 409, "ContainerBeingDeleted", ErrorKind::ContainerNotFound, "wait and create"),
        (Verb::Write, Token, 409, "ContainerDisabled", ErrorKind::ContainerNotFound, "has disabled"),
        (Verb::Write, Token, 409, "AccountBeingCreated", ErrorKind::Unavailable, "being created"),
        (Verb::Write, Token, 503, "ServerBusy", THROTTLED, ""),
        (Verb::List, Token, 503, "ServerBusy", THROTTLED, ""),
        (Verb::Get, Token, 500, "InternalError", ErrorKind::Unavailable, ""),
        (Verb::Delete, Token, 500, "InternalError", ErrorKind::Indeterminate, ""),
        (Verb::Write, Token, 500, "OperationTimedOut", ErrorKind::Indeterminate, ""),
        (Verb::List, Token, 500, "OperationTimedOut", ErrorKind::Unavailable, ""),
        (Verb::List, AccountKey, 403, "AuthenticationFailed", ErrorKind::Unauthorized, "account key is wrong"),
        (Verb::List, Sas, 403, "AuthenticationFailed", ErrorKind::Unauthorized, "SAS has expired"),
        (Verb::List, Token, 403, "AuthenticationFailed", ErrorKind::Unauthorized, "token was not accepted"),
        (Verb::Get, Token, 401, "InvalidAuthenticationInfo", ErrorKind::Unauthorized, "of another tenant"),
        (Verb::Get, Sas, 401, "InvalidAuthenticationInfo", ErrorKind::Unauthorized, "not accepted"),
        (Verb::Write, Token, 403, "AuthorizationPermissionMismatch", ErrorKind::Unauthorized, "Blob Data Contributor"),
        (Verb::Write, Sas, 403, "AuthorizationPermissionMismatch", ErrorKind::Unauthorized, "lacks permissions"),
        (Verb::List, Sas, 403, "AuthorizationResourceTypeMismatch", ErrorKind::Unauthorized, "lacks permissions"),
        (Verb::List, Sas, 403, "AuthorizationServiceMismatch", ErrorKind::Unauthorized, "lacks permissions"),
        (Verb::Write, Sas, 403, "UnauthorizedBlobOverwrite", ErrorKind::Unauthorized, "lacks permissions"),
        (Verb::List, Sas, 403, "AuthorizationSourceIPMismatch", ErrorKind::Unauthorized, "does not allow this address"),
        (Verb::List, Sas, 403, "AuthorizationProtocolMismatch", ErrorKind::Unauthorized, "or protocol"),
        (Verb::List, AccountKey, 403, "AuthorizationFailure", ErrorKind::Unauthorized, "firewall"),
        (Verb::List, Sas, 403, "KeyBasedAuthenticationNotPermitted", ErrorKind::Unauthorized, "use a token credential"),
        (Verb::Write, Token, 403, "InsufficientAccountPermissions", ErrorKind::Unauthorized, "currently read-only"),
        (Verb::Get, Token, 403, "AccountIsDisabled", ErrorKind::Unauthorized, "account is disabled"),
        (Verb::Get, Token, 403, "KeyVaultEncryptionKeyNotFound", ErrorKind::Unauthorized, "key vault"),
        (Verb::Get, Token, 403, "KeyVaultAccessTokenCannotBeAcquired", ErrorKind::Unauthorized, "key vault"),
        (Verb::Get, Token, 403, "KeyVaultVaultNotFound", ErrorKind::Unauthorized, "key vault"),
        (Verb::Get, Token, 401, "NoAuthenticationInformation", ErrorKind::Unauthorized, "without credentials"),
        (Verb::Get, Token, 400, "InvalidAuthenticationInfo", ErrorKind::Unauthorized, "cannot read the credentials"),
        (Verb::Get, Token, 409, "PublicAccessNotPermitted", ErrorKind::Unauthorized, "without credentials"),
        (Verb::Get, AccountKey, 400, "AccountRequiresHttps", ErrorKind::Rejected, "https only"),
        (Verb::Write, Token, 412, "LeaseIdMissing", ErrorKind::Rejected, "break the lease"),
        (Verb::Write, Token, 412, "LeaseIdMismatchWithBlobOperation", ErrorKind::Rejected, "break the lease"),
        (Verb::Write, Token, 412, "LeaseLost", ErrorKind::Rejected, "break the lease"),
        (Verb::Write, Token, 409, "BlobImmutableDueToPolicy", ErrorKind::Rejected, "immutability policy"),
        (Verb::Delete, Token, 409, "BlobImmutableDueToLegalHold", ErrorKind::Rejected, "legal hold"),
        (Verb::Write, Token, 409, "BlobArchived", ErrorKind::Rejected, "archived"),
        (Verb::Write, Token, 409, "BlobBeingRehydrated", ErrorKind::Rejected, "archived"),
        (Verb::Write, Token, 409, "BlobUsesCustomerSpecifiedEncryption", ErrorKind::Rejected, "its own encryption key"),
        (Verb::Delete, Token, 409, "SnapshotsPresent", ErrorKind::Rejected, "snapshots"),
        (Verb::Write, Token, 409, "InvalidBlobType", ErrorKind::Rejected, "another type"),
        (Verb::Write, Token, 409, "FeatureVersionMismatch", ErrorKind::Rejected, "newer version"),
        (Verb::Write, Token, 400, "InvalidHeaderValue", ErrorKind::Rejected, "with_api_version"),
        (Verb::Write, Token, 400, "InvalidMetadata", ErrorKind::Rejected, ""),
        (Verb::Write, Token, 400, "EmptyMetadataKey", ErrorKind::Rejected, ""),
        (Verb::Write, Token, 400, "MetadataTooLarge", ErrorKind::Rejected, ""),
        (Verb::Write, Token, 400, "InvalidResourceName", ErrorKind::Rejected, "does not accept the name"),
        (Verb::List, Token, 400, "OutOfRangeQueryParameterValue", ErrorKind::Rejected, ""),
        (Verb::List, Token, 400, "InvalidQueryParameterValue", ErrorKind::Rejected, ""),
        (Verb::List, Token, 400, "InvalidUri", ErrorKind::Rejected, ""),
        (Verb::List, Token, 400, "UnsupportedHeader", ErrorKind::Rejected, "with_api_version"),
        (Verb::Get, Token, 404, "ResourceNotFound", ErrorKind::Rejected, "address of a blob service"),
        // By status only.
        (Verb::Delete, Token, 412, "", ErrorKind::Conflict, ""),
        (Verb::Get, Token, 404, "", ErrorKind::NotFound, ""),
        (Verb::Write, Token, 404, "SomethingNew", ErrorKind::NotFound, ""),
        (Verb::Delete, Token, 404, "", ErrorKind::NotFound, ""),
        (Verb::List, Token, 404, "", ErrorKind::Rejected, "address of a blob service"),
        (Verb::CreateContainer, Token, 404, "", ErrorKind::Rejected, "address of a blob service"),
        (Verb::Get, Token, 403, "", ErrorKind::Unauthorized, "not accepted"),
        (Verb::List, Token, 403, "SomethingNew", ErrorKind::Unauthorized, "not accepted"),
        (Verb::Write, Token, 409, "SomethingNew", ErrorKind::Conflict, ""),
        (Verb::Delete, Token, 409, "", ErrorKind::Conflict, ""),
        (Verb::Get, Token, 409, "SomethingNew", ErrorKind::Rejected, ""),
        (Verb::CreateContainer, Token, 409, "SomethingNew", ErrorKind::Rejected, ""),
        (Verb::Write, Token, 429, "", THROTTLED, ""),
        (Verb::List, Token, 503, "", ErrorKind::Unavailable, ""),
        (Verb::Delete, Token, 503, "", ErrorKind::Indeterminate, ""),
        (Verb::CreateContainer, Token, 502, "", ErrorKind::Indeterminate, ""),
        (Verb::Get, Token, 408, "", ErrorKind::Unavailable, ""),
        (Verb::Write, Token, 408, "", ErrorKind::Indeterminate, ""),
        (Verb::List, Token, 302, "", ErrorKind::Rejected, "address of a blob service"),
    ];

    #[test]
    fn error_responses_have_a_kind_and_advice() {
        for &(verb, credentials, status, code, kind, advice) in CASES {
            let error = error(verb, status, code, credentials);
            let message = error.to_string();
            assert_eq!(error.kind(), kind, "{verb:?} {status} {code}");
            assert!(message.contains(code) && message.contains(&status.to_string()), "{message}");
            assert!(message.contains(advice) && advice.is_empty() != message.contains(");"), "{message}");
            assert_eq!(error.server_time(), Some(datetime!(2026-01-01 00:00:00 UTC)));
        }
    }

    #[test]
    fn message_names_operation_blob_container_and_code() {
        assert_eq!(
            error(Verb::Write, 412, "ConditionNotMet", CredentialKind::Sas).to_string(),
            "writing blob \"ns/1\" in container \"leases\": the service responded 412 (ConditionNotMet)"
        );
    }

    #[test]
    fn unsent_request_differs_from_lost_response() {
        let without_response = |kind, source: AzureErrorKind| {
            let error = azure_core::Error::with_error(kind, source.into_error(), "context");
            no_response_error(&error, operation(Verb::Write), "a.example")
        };
        let unreachable = without_response(AzureErrorKind::Connection, AzureErrorKind::Other);
        assert_eq!(unreachable.kind(), ErrorKind::Unavailable);
        assert!(unreachable.to_string().contains("cannot connect to a.example: check DNS, firewall"));
        for kind in [AzureErrorKind::Io, AzureErrorKind::Other, AzureErrorKind::DataConversion] {
            assert_eq!(without_response(kind, AzureErrorKind::Other).kind(), ErrorKind::Indeterminate);
        }
    }

    #[test]
    fn credential_failure_without_network_is_temporary() {
        let failed = |source: AzureErrorKind| {
            let error = azure_core::Error::with_error(AzureErrorKind::Credential, source.into_error(), "no token");
            no_response_error(&error, operation(Verb::List), "a.example").kind()
        };
        let status =
            |status: u16| AzureErrorKind::HttpResponse { status: status.into(), error_code: None, raw_response: None };
        let unreadable = AzureErrorKind::DataConversion;
        for temporary in [AzureErrorKind::Connection, AzureErrorKind::Io, unreadable, status(503), status(429)] {
            assert_eq!(failed(temporary), ErrorKind::Unavailable);
        }
        for lasting in [AzureErrorKind::Credential, AzureErrorKind::Other, status(400), status(401)] {
            assert_eq!(failed(lasting), ErrorKind::Unauthorized);
        }
    }

    #[test]
    fn queries_are_removed_and_the_rest_is_kept() {
        for (text, expected) in [
            ("for url (http://a/c?sv=1&sig=hush): refused", "for url (http://a/c?): refused"),
            ("http://a/c?sig=hush", "http://a/c?"),
            ("'http://a?sig=hush' then \"http://b?x=hush?sig=hush\"", "'http://a?' then \"http://b??\""),
            ("why? because", "why? because"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_queries(text), expected);
        }
    }
}
