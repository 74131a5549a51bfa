//! What a request does, and the table of Azure's error responses and their meaning.
//!
//! Codes: <https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes> and
//! <https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes>, limited to the codes of the seven
//! calls that this crate makes.

use std::fmt;

/// A request to the service. `Display` writes the beginning of its errors.
#[derive(Clone, Copy, Debug)]
pub(in crate::blob) struct Operation<'a> {
    pub(in crate::blob) verb: Verb,
    /// The blob, or the prefix of a listing.
    pub(in crate::blob) name: &'a str,
    pub(in crate::blob) container: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blob) enum Verb {
    List,
    Get,
    Write,
    Delete,
    CreateContainer,
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

/// The kind of credentials. The advice in errors depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blob) enum CredentialKind {
    AccountKey,
    Sas,
    Token,
}

/// The meaning of an error response for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Another writer was first.
    Conflict,
    NotFound,
    ContainerNotFound,
    Unauthorized,
    /// Not applied, because there are too many requests.
    Throttled,
    /// Not applied, but may succeed later.
    NotNow,
    /// The server failed: a write may have been applied.
    Failed,
    Rejected,
}

/// A row of the table. The first matching row applies.
struct Row {
    status: u16,
    code: &'static str,
    /// The kind of credentials, if the meaning depends on it.
    credentials: Option<CredentialKind>,
    class: Class,
    /// What to do, if anything. Appended to the message as it is.
    advice: &'static str,
}

/// Returns the meaning of an error response to a request, and the advice. `credentials` is the kind that was used, if
/// it is known.
pub(super) fn meaning_of_response(
    verb: Verb,
    status: u16,
    code: &str,
    credentials: Option<CredentialKind>,
) -> (Class, &'static str) {
    let row = TABLE.iter().find(|row| {
        row.status == status && row.code == code && (row.credentials.is_none() || row.credentials == credentials)
    });
    row.map_or_else(|| meaning_of_status(verb, status, code), |row| (row.class, row.advice))
}

/// Returns the meaning of a status with an unlisted code. For a blob, 404 and 409 say what a read would show, which
/// follows after a write.
fn meaning_of_status(verb: Verb, status: u16, code: &str) -> (Class, &'static str) {
    match status {
        404 if matches!(verb, Verb::Get | Verb::Write | Verb::Delete) => (Class::NotFound, ""),
        409 if matches!(verb, Verb::Write | Verb::Delete) => (Class::Conflict, ""),
        412 => (Class::Conflict, ""),
        401 | 403 => (Class::Unauthorized, "; the credentials are not accepted: check the key, the SAS or the role"),
        429 => (Class::Throttled, ""),
        408 | 500.. => (Class::Failed, ""),
        _ if code.is_empty() => (Class::Rejected, "; is this the address of a blob service?"),
        _ => (Class::Rejected, ""),
    }
}

const fn row(status: u16, code: &'static str, class: Class, advice: &'static str) -> Row {
    Row { status, code, credentials: None, class, advice }
}

const fn row_with(credentials: CredentialKind, status: u16, code: &'static str, advice: &'static str) -> Row {
    Row { status, code, credentials: Some(credentials), class: Class::Unauthorized, advice }
}

const WRONG_KEY: &str = "; the account key is wrong, was replaced, or belongs to another account";
const BAD_SAS: &str = "; the SAS has expired, is not valid yet, was truncated, or the key that signed it was replaced";
const BAD_TOKEN: &str = "; the token was not accepted: it has expired or is of another tenant";
const NO_ROLE: &str = "; the identity lacks the role Storage Blob Data Contributor on this container (a new role \
                       assignment takes some minutes)";
const NARROW_SAS: &str =
    "; the SAS lacks permissions: it needs rcwdl on the container, an account SAS also ss=b and srt=co";
const ELSEWHERE_SAS: &str = "; the SAS does not allow this address or protocol";
const FIREWALL: &str = "; a firewall or network rule of the account rejects this client (Azurite responds the same to \
                        a wrong key or signature)";
const NO_KEYS: &str = "; the account allows neither keys nor a SAS that is signed with a key: use a token credential";
const DISABLED: &str = "; the storage account is disabled: check its state and the subscription";
const READ_ONLY: &str = "; the account is currently read-only, as after a failover or with a read-only endpoint";
const VAULT: &str = "; the customer-managed encryption key of the account is not available: check its key vault";
const LEASED: &str = "; another client holds a lease on the blob, and this crate never takes one: break the lease";
const IMMUTABLE: &str = "; an immutability policy or legal hold forbids changes: use a container without one";
const GOING_AWAY: &str = "; the container is being deleted: wait and create it again";
const OLD_SERVICE: &str = "; if the header is x-ms-version, set an older version with `with_api_version`";
const ARCHIVED: &str = "; the blob is archived: delete it or move it to an online tier";

const TABLE: &[Row] = &[
    row(409, "BlobAlreadyExists", Class::Conflict, ""),
    row(412, "ConditionNotMet", Class::Conflict, ""),
    row(404, "BlobNotFound", Class::NotFound, ""),
    row(404, "ContainerNotFound", Class::ContainerNotFound, "; create the container or correct its name"),
    row(409, "ContainerBeingDeleted", Class::ContainerNotFound, GOING_AWAY),
    row(409, "ContainerDisabled", Class::ContainerNotFound, "; an administrator has disabled the container"),
    row(409, "AccountBeingCreated", Class::NotNow, "; the storage account is being created: wait"),
    row(503, "ServerBusy", Class::Throttled, ""),
    row(500, "InternalError", Class::Failed, ""),
    row(500, "OperationTimedOut", Class::Failed, ""),
    row_with(CredentialKind::AccountKey, 403, "AuthenticationFailed", WRONG_KEY),
    row_with(CredentialKind::Sas, 403, "AuthenticationFailed", BAD_SAS),
    row_with(CredentialKind::Token, 403, "AuthenticationFailed", BAD_TOKEN),
    row_with(CredentialKind::Token, 401, "InvalidAuthenticationInfo", BAD_TOKEN),
    row_with(CredentialKind::Token, 403, "AuthorizationPermissionMismatch", NO_ROLE),
    row_with(CredentialKind::Sas, 403, "AuthorizationPermissionMismatch", NARROW_SAS),
    row_with(CredentialKind::Sas, 403, "AuthorizationResourceTypeMismatch", NARROW_SAS),
    row_with(CredentialKind::Sas, 403, "AuthorizationServiceMismatch", NARROW_SAS),
    row_with(CredentialKind::Sas, 403, "UnauthorizedBlobOverwrite", NARROW_SAS),
    row(403, "AuthorizationSourceIPMismatch", Class::Unauthorized, ELSEWHERE_SAS),
    row(403, "AuthorizationProtocolMismatch", Class::Unauthorized, ELSEWHERE_SAS),
    row(403, "AuthorizationFailure", Class::Unauthorized, FIREWALL),
    row(403, "KeyBasedAuthenticationNotPermitted", Class::Unauthorized, NO_KEYS),
    row(403, "InsufficientAccountPermissions", Class::Unauthorized, READ_ONLY),
    row(403, "AccountIsDisabled", Class::Unauthorized, DISABLED),
    row(403, "KeyVaultEncryptionKeyNotFound", Class::Unauthorized, VAULT),
    row(403, "KeyVaultAccessTokenCannotBeAcquired", Class::Unauthorized, VAULT),
    row(403, "KeyVaultVaultNotFound", Class::Unauthorized, VAULT),
    row(
        401,
        "NoAuthenticationInformation",
        Class::Unauthorized,
        "; the request arrived without credentials: does a proxy remove them?",
    ),
    row(
        400,
        "InvalidAuthenticationInfo",
        Class::Unauthorized,
        "; the service cannot read the credentials: does a proxy change them?",
    ),
    row(
        409,
        "PublicAccessNotPermitted",
        Class::Unauthorized,
        "; the request arrived without credentials: does a proxy remove them?",
    ),
    row(400, "AccountRequiresHttps", Class::Rejected, "; the account accepts https only: use an https address"),
    row(412, "LeaseIdMissing", Class::Rejected, LEASED),
    row(412, "LeaseIdMismatchWithBlobOperation", Class::Rejected, LEASED),
    row(412, "LeaseLost", Class::Rejected, LEASED),
    row(409, "BlobImmutableDueToPolicy", Class::Rejected, IMMUTABLE),
    row(409, "BlobImmutableDueToLegalHold", Class::Rejected, IMMUTABLE),
    row(409, "BlobArchived", Class::Rejected, ARCHIVED),
    row(409, "BlobBeingRehydrated", Class::Rejected, ARCHIVED),
    row(
        409,
        "BlobUsesCustomerSpecifiedEncryption",
        Class::Rejected,
        "; another client wrote the blob with its own encryption key: delete the blob",
    ),
    row(409, "SnapshotsPresent", Class::Rejected, "; the blob has snapshots: delete them first"),
    row(409, "InvalidBlobType", Class::Rejected, "; there is a blob of another type with this name: delete it"),
    row(
        409,
        "FeatureVersionMismatch",
        Class::Rejected,
        "; the blob needs a newer version: set it with `with_api_version`",
    ),
    row(400, "InvalidHeaderValue", Class::Rejected, OLD_SERVICE),
    row(400, "InvalidMetadata", Class::Rejected, ""),
    row(400, "EmptyMetadataKey", Class::Rejected, ""),
    row(400, "MetadataTooLarge", Class::Rejected, ""),
    row(400, "InvalidResourceName", Class::Rejected, "; the service does not accept the name of the container or blob"),
    row(400, "OutOfRangeQueryParameterValue", Class::Rejected, ""),
    row(400, "InvalidQueryParameterValue", Class::Rejected, ""),
    row(400, "InvalidUri", Class::Rejected, ""),
    row(400, "UnsupportedHeader", Class::Rejected, OLD_SERVICE),
    row(404, "ResourceNotFound", Class::Rejected, "; is this the address of a blob service?"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_row_hides_another_row() {
        let mut seen = BTreeSet::new();
        for row in TABLE {
            let key = (row.status, row.code, row.credentials.map(|kind| format!("{kind:?}")));
            assert!(seen.insert(key.clone()), "{key:?} occurs twice");
            let general = (row.status, row.code, None);
            assert!(row.credentials.is_none() || !seen.contains(&general), "{key:?} is unreachable");
        }
    }

    #[test]
    fn every_row_has_a_case() {
        let cases: String = include_str!("errors.rs").split_whitespace().collect();
        for row in TABLE {
            let kind = row.credentials.map(|kind| format!("{kind:?},")).unwrap_or_default();
            let case = format!("{kind}{},\"{}\",", row.status, row.code);
            assert!(cases.contains(&case), "{case}");
        }
    }

    #[test]
    fn advice_follows_a_message() {
        for row in TABLE {
            assert!(row.advice.is_empty() || row.advice.starts_with("; "), "{}", row.code);
            assert!(!row.advice.ends_with('.') && !row.advice.contains("  "), "{}", row.advice);
        }
    }
}
