//! Protects the readers of the page: which requests are answered, and the headers of all responses.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::page;

const HEADERS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
];

/// What requests must fulfill.
#[derive(Clone)]
pub struct RequestGuard {
    /// Whether only names of this machine are accepted as the host.
    pub is_loopback: bool,
    pub policy: HeaderValue,
}

impl RequestGuard {
    pub fn new(is_loopback: bool) -> Self {
        let policy = HeaderValue::from_str(&page::content_security_policy());
        // A policy of hashes is always a valid header.
        Self { is_loopback, policy: policy.unwrap_or(HeaderValue::from_static("default-src 'none'")) }
    }
}

/// Adds the headers, and refuses hosts of other machines: a foreign page could otherwise read the groups after its name
/// was made to point to this machine.
pub async fn guard_request(State(guard): State<RequestGuard>, request: Request, next: Next) -> Response {
    let mut response = if guard.is_loopback && !is_this_machine(request.uri(), request.headers()) {
        (StatusCode::MISDIRECTED_REQUEST, "use http://localhost or http://127.0.0.1\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_SECURITY_POLICY, guard.policy);
    response
}

/// The port may be another one: of a tunnel.
fn is_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let given = uri.host().or_else(|| headers.get(HOST)?.to_str().ok());
    let Some(given) = given else { return false };
    let host = match given.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => given.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(host: &'static str) -> bool {
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
        is_this_machine(&Uri::from_static("/metrics"), &headers)
    }

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        for host in ["localhost", "LocalHost:8090", "127.0.0.1:8090", "127.0.0.2", "[::1]:80", "[::1]"] {
            assert!(accepts(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8090", "localhost.evil.example", "10.0.0.1", "127.0.0.1.nip.io"]
        {
            assert!(!accepts(host), "{host}");
        }
        assert!(!is_this_machine(&Uri::from_static("/"), &HeaderMap::new()));
        assert!(!is_this_machine(&Uri::from_static("http://evil.example/"), &HeaderMap::new()));
    }
}
