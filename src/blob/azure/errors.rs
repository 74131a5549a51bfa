//! What a refusal or a failure means, in the words of [`crate::Error`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use azure_core::error::ErrorKind as AzureErrorKind;
use time::OffsetDateTime;

use super::auth::CredentialKind;
use super::redacted::RedactedCause;
use crate::error::{Error, ErrorKind};

/// What was asked of the service. `Display` is how errors begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    pub(super) verb: Verb,
    /// The blob, or the prefix of a listing.
    pub(super) name: &'a str,
    pub(super) container: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    List,
    Get,
    Write,
    Delete,
    CreateContainer,
}

impl Verb {
    /// Whether an answer that never came leaves open what happened.
    fn changes_something(self) -> bool {
        !matches!(self, Self::List | Self::Get)
    }
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, name, container } = self;
        match verb {
            Verb::List => write!(f, "listing blobs with prefix {name:?} in container {container:?}"),
            Verb::Get => write!(f, "reading blob {name:?} in container {container:?}"),
            Verb::Write => write!(f, "writing blob {name:?} in container {container:?}"),
            Verb::Delete => write!(f, "deleting blob {name:?} in container {container:?}"),
            Verb::CreateContainer => write!(f, "creating container {container:?}"),
        }
    }
}

/// An answer other than success. The body plays no part: a HEAD request has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal<'a> {
    pub(super) status: u16,
    /// The header `x-ms-error-code`.
    pub(super) code: Option<&'a str>,
    pub(super) retry_after: Option<Duration>,
    pub(super) server_time: Option<OffsetDateTime>,
}

impl Refusal<'_> {
    pub(super) fn into_error(self, operation: Operation<'_>, credentials: CredentialKind) -> Error {
        let kind = self.kind(operation.verb);
        let code = self.code.unwrap_or("no error code");
        let advice = self.advice(kind, credentials);
        let message = format!("{operation}: the service answered {} ({code}){advice}", self.status);
        Error::new(kind, message).with_server_time(self.server_time)
    }

    /// The table of all refusals. Codes:
    /// <https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes>.
    fn kind(self, verb: Verb) -> ErrorKind {
        match (self.status, self.code.unwrap_or_default()) {
            // Somebody holds a lease of the service on the blob; writing it again does not help.
            (412, code) if code.starts_with("Lease") => ErrorKind::Rejected,
            (409, "BlobAlreadyExists") | (412, _) => ErrorKind::Conflict,
            (404, "BlobNotFound") => ErrorKind::NotFound,
            (404, "ContainerNotFound") | (409, "ContainerBeingDeleted" | "ContainerDisabled") => {
                ErrorKind::ContainerNotFound
            }
            (401 | 403, _) => ErrorKind::Unauthorized,
            (429, _) | (503, "ServerBusy") => ErrorKind::Throttled { retry_after: self.retry_after },
            (408 | 500.., _) if verb.changes_something() => ErrorKind::Unknown,
            (408 | 500.., _) => ErrorKind::Unavailable,
            _ => ErrorKind::Rejected,
        }
    }

    fn advice(self, kind: ErrorKind, credentials: CredentialKind) -> &'static str {
        match (kind, self.code.unwrap_or_default()) {
            (ErrorKind::Unauthorized, code) => unauthorized_advice(code, credentials),
            (ErrorKind::ContainerNotFound, "ContainerNotFound") => "; create the container or correct its name",
            (ErrorKind::ContainerNotFound, _) => "; the container is going away, wait and create it again",
            (ErrorKind::Rejected, code) if code.starts_with("Lease") => {
                "; somebody holds a lease on the blob, which this crate never takes: break it"
            }
            (ErrorKind::Rejected, "") => "; is this the address of a blob service?",
            _ => "",
        }
    }
}

fn unauthorized_advice(code: &str, credentials: CredentialKind) -> &'static str {
    use CredentialKind as Kind;
    match (code, credentials) {
        ("AuthenticationFailed", Kind::AccountKey) => {
            "; the account key is wrong or has been replaced, or it belongs to another account"
        }
        ("AuthenticationFailed", Kind::Sas) => {
            "; the SAS has expired, is not valid yet, was cut, or the key that signed it has been replaced"
        }
        ("AuthenticationFailed", Kind::Token) => "; the token was not accepted: it has expired or is of another tenant",
        ("AuthorizationPermissionMismatch", Kind::Token) => {
            "; the identity lacks the role Storage Blob Data Contributor on this container (a new role assignment takes \
             some minutes)"
        }
        (
            "AuthorizationPermissionMismatch"
            | "AuthorizationResourceTypeMismatch"
            | "AuthorizationServiceMismatch"
            | "UnauthorizedBlobOverwrite",
            Kind::Sas,
        ) => "; the SAS is too narrow: it needs rcwdl on the container, an account SAS also ss=b and srt=co",
        ("AuthorizationSourceIPMismatch" | "AuthorizationProtocolMismatch", _) => {
            "; the SAS does not allow this address or protocol"
        }
        ("AuthorizationFailure", _) => {
            "; a firewall or network rule of the account refuses this client (Azurite answers so to a wrong key or \
             signature)"
        }
        ("KeyBasedAuthenticationNotPermitted", _) => {
            "; the account allows no keys and no SAS signed with them: use a token credential"
        }
        _ => "; the credentials are not accepted",
    }
}

/// A request without an answer.
pub(super) fn no_answer(error: &azure_core::Error, operation: Operation<'_>, host: &str) -> Error {
    let (kind, what) = match error.kind() {
        AzureErrorKind::Connection => (
            ErrorKind::Unavailable,
            format!("cannot connect to {host}; check its name in DNS, firewalls, proxies and certificates"),
        ),
        AzureErrorKind::Credential if is_temporary(error) => {
            (ErrorKind::Unavailable, "cannot get a token now, for its issuer does not answer".to_owned())
        }
        AzureErrorKind::Credential => (ErrorKind::Unauthorized, "cannot get a token from the credential".to_owned()),
        _ => (ErrorKind::Unknown, format!("the connection to {host} failed before the answer was complete")),
    };
    Error::new(kind, format!("{operation}: {what}")).with_source(RedactedCause::of(error))
}

/// An answer that did not come in time.
pub(super) fn timed_out(operation: Operation<'_>, deadline: Duration, host: &str) -> Error {
    let message = format!("{operation}: no answer from {host} within the request deadline of {deadline:?}");
    Error::new(ErrorKind::Unknown, message)
}

/// A successful answer that lacks what has to be in it.
pub(super) fn unusable_answer(operation: Operation<'_>, what: &str) -> Error {
    Error::new(ErrorKind::Unknown, format!("{operation}: the answer cannot be used: {what}"))
}

/// Whether a credential failed for want of a network or of a healthy issuer.
fn is_temporary(error: &azure_core::Error) -> bool {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.filter_map(|cause| cause.downcast_ref::<azure_core::Error>()).any(|cause| match cause.kind() {
        AzureErrorKind::Connection | AzureErrorKind::Io => true,
        AzureErrorKind::HttpResponse { status, .. } => matches!(u16::from(*status), 408 | 429 | 500..),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn operation(verb: Verb) -> Operation<'static> {
        Operation { verb, name: "ns/1", container: "leases" }
    }

    fn error(verb: Verb, status: u16, code: &str, credentials: CredentialKind) -> Error {
        let code = Some(code).filter(|code| !code.is_empty());
        let retry_after = Some(Duration::from_secs(3));
        let server_time = Some(datetime!(2026-01-01 00:00:00 UTC));
        Refusal { status, code, retry_after, server_time }.into_error(operation(verb), credentials)
    }

    #[test]
    fn every_refusal_has_its_kind() {
        let throttled = ErrorKind::Throttled { retry_after: Some(Duration::from_secs(3)) };
        for (verb, status, code, kind) in [
            (Verb::Write, 409, "BlobAlreadyExists", ErrorKind::Conflict),
            (Verb::Write, 412, "ConditionNotMet", ErrorKind::Conflict),
            (Verb::Delete, 412, "", ErrorKind::Conflict),
            (Verb::Write, 412, "LeaseIdMissing", ErrorKind::Rejected),
            (Verb::Get, 404, "BlobNotFound", ErrorKind::NotFound),
            (Verb::Get, 404, "", ErrorKind::Rejected),
            (Verb::Get, 404, "ResourceNotFound", ErrorKind::Rejected),
            (Verb::List, 404, "ContainerNotFound", ErrorKind::ContainerNotFound),
            (Verb::CreateContainer, 409, "ContainerBeingDeleted", ErrorKind::ContainerNotFound),
            (Verb::Write, 409, "ContainerDisabled", ErrorKind::ContainerNotFound),
            (Verb::Delete, 409, "SnapshotsPresent", ErrorKind::Rejected),
            (Verb::Get, 401, "InvalidAuthenticationInfo", ErrorKind::Unauthorized),
            (Verb::Get, 403, "", ErrorKind::Unauthorized),
            (Verb::Write, 429, "", throttled),
            (Verb::List, 503, "ServerBusy", throttled),
            (Verb::List, 503, "", ErrorKind::Unavailable),
            (Verb::Get, 408, "", ErrorKind::Unavailable),
            (Verb::Write, 408, "", ErrorKind::Unknown),
            (Verb::Get, 500, "InternalError", ErrorKind::Unavailable),
            (Verb::Write, 500, "OperationTimedOut", ErrorKind::Unknown),
            (Verb::Delete, 503, "", ErrorKind::Unknown),
            (Verb::CreateContainer, 502, "", ErrorKind::Unknown),
            (Verb::Write, 400, "InvalidHeaderValue", ErrorKind::Rejected),
            (Verb::List, 302, "", ErrorKind::Rejected),
        ] {
            let error = error(verb, status, code, CredentialKind::AccountKey);
            assert_eq!(error.kind(), kind, "{verb:?} {status} {code}");
            assert!(error.to_string().contains(code) && error.to_string().contains(&status.to_string()), "{error}");
            assert_eq!(error.server_time(), Some(datetime!(2026-01-01 00:00:00 UTC)));
        }
    }

    #[test]
    fn a_message_names_operation_blob_container_and_code() {
        assert_eq!(
            error(Verb::Write, 412, "ConditionNotMet", CredentialKind::Sas).to_string(),
            "writing blob \"ns/1\" in container \"leases\": the service answered 412 (ConditionNotMet)"
        );
    }

    #[test]
    fn the_ways_of_being_unauthorized_are_told_apart() {
        use CredentialKind as Kind;
        for (code, credentials, expected) in [
            ("AuthenticationFailed", Kind::AccountKey, "account key is wrong"),
            ("AuthenticationFailed", Kind::Sas, "SAS has expired"),
            ("AuthenticationFailed", Kind::Token, "token was not accepted"),
            ("AuthorizationPermissionMismatch", Kind::Token, "Storage Blob Data Contributor"),
            ("AuthorizationPermissionMismatch", Kind::Sas, "too narrow"),
            ("AuthorizationResourceTypeMismatch", Kind::Sas, "too narrow"),
            ("AuthorizationSourceIPMismatch", Kind::Sas, "does not allow this address"),
            ("AuthorizationFailure", Kind::AccountKey, "firewall"),
            ("KeyBasedAuthenticationNotPermitted", Kind::AccountKey, "token credential"),
            ("SomethingNew", Kind::Token, "not accepted"),
        ] {
            let message = error(Verb::List, 403, code, credentials).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_request_that_never_left_is_told_apart_from_a_lost_answer() {
        let without_answer = |kind, source: AzureErrorKind| {
            let error = azure_core::Error::with_error(kind, source.into_error(), "context");
            no_answer(&error, operation(Verb::Write), "a.example")
        };
        let unreachable = without_answer(AzureErrorKind::Connection, AzureErrorKind::Other);
        assert_eq!(unreachable.kind(), ErrorKind::Unavailable);
        assert!(unreachable.to_string().contains("cannot connect to a.example; check its name in DNS, firewalls"));
        for kind in [AzureErrorKind::Io, AzureErrorKind::Other, AzureErrorKind::DataConversion] {
            assert_eq!(without_answer(kind, AzureErrorKind::Other).kind(), ErrorKind::Unknown);
        }
    }

    #[test]
    fn a_credential_without_network_is_temporary() {
        let failed = |source: AzureErrorKind| {
            let error = azure_core::Error::with_error(AzureErrorKind::Credential, source.into_error(), "no token");
            no_answer(&error, operation(Verb::List), "a.example").kind()
        };
        let status =
            |status: u16| AzureErrorKind::HttpResponse { status: status.into(), error_code: None, raw_response: None };
        for temporary in [AzureErrorKind::Connection, AzureErrorKind::Io, status(503), status(429)] {
            assert_eq!(failed(temporary), ErrorKind::Unavailable);
        }
        for lasting in [AzureErrorKind::Credential, AzureErrorKind::Other, status(400), status(401)] {
            assert_eq!(failed(lasting), ErrorKind::Unauthorized);
        }
    }
}
