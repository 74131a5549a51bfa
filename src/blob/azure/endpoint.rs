//! The URLs of a container and of its blobs.

use azure_core::http::Url;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::{Error, Result};

/// All characters except the unreserved ones of RFC 3986. If `/` is encoded, a blob name is one path segment, so a name
/// that ends with a slash or contains `..` arrives unchanged. A space in a query is `%20`, because the service does not
/// decode `+` as a space.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The account of every emulator of Azure Storage. Microsoft publishes it and its key; they protect nothing:
/// <https://learn.microsoft.com/azure/storage/common/storage-use-azurite#well-known-storage-account-and-key>.
pub(super) const EMULATOR_ACCOUNT: &str = "devstoreaccount1";

/// The URL of a container. It never has a query, and so never a signature.
#[derive(Clone, Debug)]
pub(super) struct ContainerUrl {
    url: Url,
    container: String,
}

impl ContainerUrl {
    /// Parses the URL of a container.
    pub(super) fn from_container_url(url: Url) -> Result<Self> {
        let url = without_query(url);
        let container = match *path_segments(&url).as_slice() {
            [container] if !has_account_in_path(&url) && container != EMULATOR_ACCOUNT => container.to_owned(),
            [account, container] if may_have_account_in_path(&url, account) => container.to_owned(),
            _ => {
                return Err(Error::config(format!(
                    "the URL {url} does not name a container; it should look like \
                     https://account.blob.core.windows.net/container or \
                     http://127.0.0.1:10000/devstoreaccount1/container"
                )));
            }
        };
        check_container_name(&container)?;
        Ok(Self { url: without_trailing_slash(url), container })
    }

    /// Combines the URL of the blob service of an account and the name of a container.
    pub(super) fn in_account(account_url: Url, container: &str) -> Result<Self> {
        check_container_name(container)?;
        let mut url = without_trailing_slash(without_query(account_url));
        match *path_segments(&url).as_slice() {
            [] => {}
            [account] if may_have_account_in_path(&url, account) => {}
            _ => {
                return Err(Error::config(format!(
                    "the account URL {url} has a path, which only the URL of an emulator has; it should look like \
                     https://account.blob.core.windows.net, without the container"
                )));
            }
        }
        url.set_path(&format!("{}/{container}", url.path().trim_end_matches('/')));
        Ok(Self { url, container: container.to_owned() })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn blob_url(&self, name: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}/{}", self.url.path(), utf8_percent_encode(name, ENCODED)));
        url
    }

    /// Returns the URL of the container with a query.
    pub(super) fn with_query(&self, pairs: &[(&str, &str)]) -> Url {
        let encoded: Vec<String> =
            pairs.iter().map(|(key, value)| format!("{key}={}", utf8_percent_encode(value, ENCODED))).collect();
        let mut url = self.url.clone();
        url.set_query(Some(&encoded.join("&")));
        url
    }

    pub(super) fn container_name(&self) -> &str {
        &self.container
    }

    pub(super) fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    pub(super) fn host(&self) -> String {
        host_of(&self.url)
    }

    /// Rejects plain http, except to this machine and to the well-known account of emulators, whose key is public.
    pub(super) fn check_encrypted(&self) -> Result<()> {
        let account = self.url.path_segments().and_then(|mut segments| segments.next());
        if self.is_https() || is_loopback(&self.url) || account == Some(EMULATOR_ACCOUNT) {
            return Ok(());
        }
        Err(Error::config(format!(
            "the URL {} is not encrypted: others on the network path to {} can read a SAS and replay a signed request; \
             use https://, or the account of an emulator, like http://azurite:10000/{EMULATOR_ACCOUNT}, or \
             `with_allow_http(true)`",
            self.url,
            self.host()
        )))
    }
}

/// Returns whether requests to this URL stay on this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Returns the host, and the port if it is not the default one.
pub(in crate::blob) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Parses a URL. `what` names the URL in the error. The text itself may contain secrets and is not shown.
pub(super) fn parse_url(what: &str, text: &str) -> Result<Url> {
    let url = Url::parse(text.trim()).map_err(|error| {
        Error::config(format!(
            "{what} is not a URL ({error}); it should look like https://account.blob.core.windows.net"
        ))
    })?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(Error::config(format!("{what} must start with https:// or http://")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::config(format!("{what} must not contain a user name or a password")));
    }
    Ok(url)
}

fn without_query(mut url: Url) -> Url {
    url.set_query(None);
    url.set_fragment(None);
    url
}

fn without_trailing_slash(mut url: Url) -> Url {
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url
}

fn path_segments(url: &Url) -> Vec<&str> {
    url.path().split('/').filter(|segment| !segment.is_empty()).collect()
}

/// Returns whether this first segment of the path can be an account: only emulators have one. In Docker and Kubernetes
/// the name of their host has no dot, or the account is the well-known one.
fn may_have_account_in_path(url: &Url, account: &str) -> bool {
    let host = url.host_str().unwrap_or_default();
    has_account_in_path(url) || !host.contains('.') || host.ends_with(".localhost") || account == EMULATOR_ACCOUNT
}

/// Returns whether the path contains the account. Emulators have the account in the path instead of the host. All
/// clients of Azure recognize emulators by the host. An emulator with a host name, as in Docker, is recognized only by
/// its account.
fn has_account_in_path(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host.parse::<std::net::Ipv4Addr>().is_ok() || host.starts_with('[') || host == "localhost"
}

/// Azure's rule:
/// <https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata>.
fn check_container_name(name: &str) -> Result<()> {
    if (3..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
    {
        return Ok(());
    }
    Err(Error::config(format!(
        "the container name {name:?} must have 3 to 63 lowercase letters, digits and single hyphens, and must start \
         and end with a letter or digit"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(url: &str) -> Result<ContainerUrl> {
        ContainerUrl::from_container_url(Url::parse(url).unwrap())
    }

    #[test]
    fn last_path_segment_is_the_container() {
        for (url, host) in [
            ("https://a.blob.core.windows.net/leases", "a.blob.core.windows.net"),
            ("https://a.blob.core.windows.net/leases/?sv=1&sig=x#f", "a.blob.core.windows.net"),
            ("http://127.0.0.1:10000/devstoreaccount1/leases", "127.0.0.1:10000"),
            ("http://[::1]:10000/devstoreaccount1/leases", "[::1]:10000"),
            ("http://azurite:10000/devstoreaccount1/leases", "azurite:10000"),
            ("http://azurite.dev.svc:10000/devstoreaccount1/leases", "azurite.dev.svc:10000"),
            ("http://azurite:10000/acct/leases", "azurite:10000"),
            ("http://acct.localhost:10000/acct/leases", "acct.localhost:10000"),
        ] {
            let url = container(url).unwrap();
            assert_eq!((url.container_name(), url.host().as_str()), ("leases", host));
            assert!(url.url().as_str().ends_with("/leases"), "{url:?}");
        }
    }

    #[test]
    fn url_without_a_container_is_rejected() {
        for url in [
            "https://a.blob.core.windows.net",
            "https://a.blob.core.windows.net/",
            "http://127.0.0.1:10000/devstoreaccount1",
            "http://localhost/devstoreaccount1?sig=secret",
            "https://a.blob.core.windows.net/leases/a/b",
            "https://a.blob.core.windows.net/leases/orders",
        ] {
            let message = container(url).unwrap_err().to_string();
            assert!(message.contains("does not name a container"), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn container_is_appended_to_the_account_url() {
        for account in ["http://127.0.0.1:1/acct", "http://127.0.0.1:1/acct/"] {
            let url = ContainerUrl::in_account(Url::parse(account).unwrap(), "leases").unwrap();
            assert_eq!(url.url().as_str(), "http://127.0.0.1:1/acct/leases");
        }
        let url = ContainerUrl::in_account(Url::parse("https://a.example/?x=1").unwrap(), "leases").unwrap();
        assert_eq!(url.url().as_str(), "https://a.example/leases");
    }

    #[test]
    fn account_url_with_a_container_is_rejected() {
        for url in [
            "https://a.blob.core.windows.net/leases",
            "https://a.blob.core.windows.net/leases/?sig=secret",
            "http://127.0.0.1:10000/devstoreaccount1/leases",
        ] {
            let message = ContainerUrl::in_account(Url::parse(url).unwrap(), "leases").unwrap_err().to_string();
            assert!(message.contains("without the container") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn blob_name_is_one_path_segment() {
        let url = container("https://a.example/leases").unwrap();
        assert_eq!(
            url.blob_url("ns/hub/$Default/../ä b%2F?#'+/").as_str(),
            "https://a.example/leases/ns%2Fhub%2F%24Default%2F..%2F%C3%A4%20b%252F%3F%23%27%2B%2F"
        );
    }

    #[test]
    fn space_in_a_query_is_percent_encoded() {
        let url = container("https://a.example/leases").unwrap();
        let url = url.with_query(&[("comp", "list"), ("prefix", "ns/$Default/a b+c&d=\u{e4}")]);
        assert_eq!(url.as_str(), "https://a.example/leases?comp=list&prefix=ns%2F%24Default%2Fa%20b%2Bc%26d%3D%C3%A4");
    }

    #[test]
    fn container_names_follow_the_rule_of_azure() {
        for name in ["abc", "a-b-c", "0a0", &"x".repeat(63)] {
            assert!(check_container_name(name).is_ok(), "{name}");
        }
        for name in
            ["", "ab", "-abc", "abc-", "a--b", "Abc", "a_b", "a.b", "größe", "$root", "$web", "$logs", &"x".repeat(64)]
        {
            let message = check_container_name(name).unwrap_err().to_string();
            assert!(message.contains(&format!("{name:?}")) && message.contains("3 to 63"), "{message}");
        }
    }

    #[test]
    fn errors_do_not_show_an_invalid_url() {
        for text in ["", "sv=2021&sig=secret", "ftp://secret.example", "https://user:secret@a.example", "secret:x"] {
            let message = parse_url("the SAS URL", text).unwrap_err().to_string();
            assert!(message.starts_with("the SAS URL") && !message.contains("secret"), "{message}");
        }
    }
}
