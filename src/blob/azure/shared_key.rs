//! Signs requests with the key of a storage account ("Shared Key").
//!
//! Rules: <https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>.

use std::cmp::Ordering;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering as AtomicOrdering};

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use azure_core::http::headers::{AUTHORIZATION, ERROR_CODE, HeaderName, Headers, MS_DATE};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Method, Request, Url};
use azure_core::time::to_rfc7231;
use time::{Duration, OffsetDateTime};

use super::credentials::{Credentials, call_credentials};
use super::endpoint::is_loopback;
use super::headers::{find_header, server_time_of_error};
use crate::clock::WallClock;
use crate::telemetry;

/// The minimum difference between the date of a rejected request and the server's time at which the clock is the likely
/// cause. The service allows 15 minutes; a smaller difference is delay, not skew.
const LIKELY_SKEW: Duration = Duration::seconds(60);

/// Headers whose values are signed without their names, in this order. The date is not among them, because `x-ms-date`
/// replaces it.
const HEADERS_BEFORE_DATE: [HeaderName; 5] = [
    HeaderName::from_static("content-encoding"),
    HeaderName::from_static("content-language"),
    HeaderName::from_static("content-length"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-type"),
];
const HEADERS_AFTER_DATE: [HeaderName; 5] = [
    HeaderName::from_static("if-modified-since"),
    HeaderName::from_static("if-match"),
    HeaderName::from_static("if-none-match"),
    HeaderName::from_static("if-unmodified-since"),
    HeaderName::from_static("range"),
];

/// Signs each attempt of a request with a new date.
///
/// If the local clock is so wrong that the service rejects the signature, the policy signs with the server's time and
/// sends the request once more. That is safe for conditional writes too, because a rejected request was not applied.
///
/// A signature is valid for 15 minutes around its date. An attacker who chooses the date could collect signatures for
/// another time. Therefore the server's time is trusted only over https and from this machine, and is kept only after
/// the service has accepted a request that was signed with it.
#[derive(Debug)]
pub(super) struct SharedKeyPolicy {
    clock: Arc<dyn WallClock>,
    /// The difference from the local clock to the server's clock, in seconds.
    clock_offset: AtomicI64,
}

impl SharedKeyPolicy {
    pub(super) fn new(clock: Arc<dyn WallClock>) -> Self {
        Self { clock, clock_offset: AtomicI64::new(0) }
    }

    /// Signs the request with the local time plus `offset` seconds. Returns the date of the signature.
    fn sign_request(
        &self,
        request: &mut Request,
        account: &str,
        key: &Secret,
        offset: i64,
    ) -> azure_core::Result<OffsetDateTime> {
        let date = self.clock.now().saturating_add(Duration::seconds(offset));
        request.insert_header(MS_DATE, to_rfc7231(&date));
        let signature = hmac_sha256(&string_to_sign(request.method(), request.url(), request.headers(), account), key)?;
        request.insert_header(AUTHORIZATION, format!("SharedKey {account}:{signature}"));
        Ok(date)
    }

    fn keep_offset(&self, offset: i64) {
        self.clock_offset.store(offset, AtomicOrdering::Relaxed);
        if offset.abs() <= LIKELY_SKEW.whole_seconds() {
            telemetry::clock_agrees();
        } else {
            telemetry::clock_differs(offset);
        }
    }
}

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait]
impl Policy for SharedKeyPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let Credentials::AccountKey { account, key } = call_credentials(ctx)? else {
            return next[0].send(ctx, request, &next[1..]).await;
        };
        let signed_at = self.sign_request(request, account, key, self.clock_offset.load(AtomicOrdering::Relaxed))?;
        let response = next[0].send(ctx, request, &next[1..]).await?;
        let is_genuine = request.url().scheme() == "https" || is_loopback(request.url());
        let is_refused = u16::from(response.status()) == 403
            && find_header(response.headers(), &ERROR_CODE).is_some_and(|code| code == "AuthenticationFailed");
        if !is_genuine || !is_refused {
            return Ok(response);
        }
        let Some(server_time) = server_time_of_error(response.headers())
            .filter(|server_time| likely_skew(signed_at, *server_time).is_some())
        else {
            return Ok(response);
        };
        let offset = (server_time - self.clock.now()).whole_seconds();
        self.sign_request(request, account, key, offset)?;
        let response = next[0].send(ctx, request, &next[1..]).await?;
        // The service checks the signature before the request itself.
        if response.status().is_success() || matches!(u16::from(response.status()), 404 | 409 | 412) {
            self.keep_offset(offset);
        }
        Ok(response)
    }
}

/// Returns how far a clock is ahead of the server's, if the difference is more than delay.
pub(super) fn likely_skew(clock: OffsetDateTime, server_time: OffsetDateTime) -> Option<Duration> {
    Some(clock - server_time).filter(|skew| skew.abs() > LIKELY_SKEW)
}

fn string_to_sign(method: Method, url: &Url, headers: &Headers, account: &str) -> String {
    let mut text = format!("{}\n", method.as_str());
    push_values(&mut text, headers, &HEADERS_BEFORE_DATE);
    text.push('\n');
    push_values(&mut text, headers, &HEADERS_AFTER_DATE);
    push_service_headers(&mut text, headers);
    push_resource(&mut text, url, account);
    text
}

fn push_values(text: &mut String, headers: &Headers, names: &[HeaderName]) {
    for name in names {
        // The length of an empty body is signed as an empty string.
        let value = find_header(headers, name).filter(|value| !(*value == "0" && name.as_str() == "content-length"));
        text.push_str(value.unwrap_or_default());
        text.push('\n');
    }
}

fn push_service_headers(text: &mut String, headers: &Headers) {
    let mut service_headers: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().trim()))
        .filter(|(name, _)| name.starts_with("x-ms-"))
        .collect();
    service_headers.sort_by(|(left, _), (right, _)| compare_header_names(left, right));
    for (name, value) in service_headers {
        text.push_str(name);
        text.push(':');
        text.push_str(value);
        text.push('\n');
    }
}

/// Compares names as the service does, by the rules of a language instead of bytes: signs, then digits, then letters.
pub(in crate::blob) fn compare_header_names(left: &str, right: &str) -> Ordering {
    left.bytes().map(sort_weight).cmp(right.bytes().map(sort_weight))
}

fn sort_weight(byte: u8) -> (u8, u8) {
    match byte {
        b'_' => (0, byte),
        b'-' => (1, byte),
        b'0'..=b'9' => (2, byte),
        _ => (3, byte),
    }
}

fn push_resource(text: &mut String, url: &Url, account: &str) {
    // Writing to a String cannot fail.
    let _ = write!(text, "/{account}{}", url.path());
    let mut query: Vec<(String, String)> =
        url.query_pairs().map(|(name, value)| (name.to_lowercase(), value.into_owned())).collect();
    query.sort();
    for (name, value) in query {
        let _ = write!(text, "\n{name}:{value}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;

    use azure_core::http::{AsyncRawResponse, StatusCode};
    use time::macros::datetime;

    use super::*;

    const KEY: &str = "c2VjcmV0";

    #[test]
    fn string_to_sign_of_the_documentation() {
        let mut headers = Headers::new();
        headers.insert("x-ms-version", "2015-02-21");
        headers.insert("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT");
        headers.insert("content-length", "0");
        let url = Url::parse(
            "https://myaccount.blob.core.windows.net/mycontainer?restype=container&comp=metadata&timeout=20",
        )
        .unwrap();
        assert_eq!(
            string_to_sign(Method::Get, &url, &headers, "myaccount"),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
        );
    }

    #[test]
    fn string_to_sign_has_conditions_type_and_path() {
        let mut headers = Headers::new();
        headers.insert("if-none-match", "*");
        headers.insert("if-match", "\"1\"");
        headers.insert("content-type", "text/plain");
        headers.insert("x-ms-meta-a", " x ");
        headers.insert("user-agent", "unsigned");
        let url = Url::parse("http://127.0.0.1:1/acct/c/a%2Fb").unwrap();
        assert_eq!(
            string_to_sign(Method::Put, &url, &headers, "acct"),
            "PUT\n\n\n\n\ntext/plain\n\n\n\"1\"\n*\n\n\nx-ms-meta-a:x\n/acct/acct/c/a%2Fb"
        );
    }

    #[test]
    fn header_names_are_sorted_as_by_the_service() {
        let mut names = ["x-ms-meta-a1", "x-ms-version", "x-ms-meta-ab", "x-ms-meta-a", "x-ms-date", "x-ms-meta-a_1"];
        names.sort_by(|left, right| compare_header_names(left, right));
        assert_eq!(
            names,
            ["x-ms-date", "x-ms-meta-a", "x-ms-meta-a_1", "x-ms-meta-a1", "x-ms-meta-ab", "x-ms-version"]
        );
    }

    #[derive(Debug)]
    struct FixedClock(OffsetDateTime);

    impl WallClock for FixedClock {
        fn now(&self) -> OffsetDateTime {
            self.0
        }
    }

    /// A service that rejects dates more than 15 minutes from its own.
    #[derive(Debug)]
    struct Service {
        now: OffsetDateTime,
        dates: Mutex<Vec<String>>,
        requests: AtomicU32,
        accepts_key: bool,
    }

    impl Service {
        fn new(now: OffsetDateTime, accepts_key: bool) -> Arc<Self> {
            Arc::new(Self { now, dates: Mutex::default(), requests: AtomicU32::new(0), accepts_key })
        }

        fn requests(&self) -> u32 {
            self.requests.load(AtomicOrdering::Relaxed)
        }
    }

    #[async_trait]
    #[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
    impl Policy for Service {
        async fn send(&self, _: &Context, request: &mut Request, _: &[Arc<dyn Policy>]) -> PolicyResult {
            self.requests.fetch_add(1, AtomicOrdering::Relaxed);
            let date = find_header(request.headers(), &MS_DATE).unwrap().to_owned();
            let signed_at = azure_core::time::parse_rfc7231(&date).unwrap();
            self.dates.lock().unwrap().push(date);
            let mut headers = Headers::new();
            headers.insert("date", to_rfc7231(&self.now));
            headers.insert("x-ms-request-id", "1");
            if self.accepts_key && (signed_at - self.now).abs() < Duration::minutes(15) {
                return Ok(AsyncRawResponse::from_bytes(StatusCode::Ok, headers, ""));
            }
            headers.insert("x-ms-error-code", "AuthenticationFailed");
            Ok(AsyncRawResponse::from_bytes(StatusCode::Forbidden, headers, ""))
        }
    }

    async fn send(policy: &SharedKeyPolicy, service: &Arc<Service>) -> u16 {
        let mut request = Request::new(Url::parse("https://a.example/c").unwrap(), Method::Put);
        let next: Vec<Arc<dyn Policy>> = vec![service.clone()];
        let credentials = Credentials::AccountKey { account: "a".to_owned(), key: Secret::new(KEY) };
        let context = Context::new().with_value(Arc::new(credentials));
        policy.send(&context, &mut request, &next).await.unwrap().status().into()
    }

    fn policy(now: OffsetDateTime) -> SharedKeyPolicy {
        SharedKeyPolicy::new(Arc::new(FixedClock(now)))
    }

    const NOON: OffsetDateTime = datetime!(2026-03-01 12:00:00 UTC);

    #[tokio::test]
    async fn wrong_clock_is_corrected_once() {
        for local in [NOON - Duration::hours(2), NOON + Duration::days(3)] {
            let policy = policy(local);
            let service = Service::new(NOON, true);
            assert_eq!(send(&policy, &service).await, 200);
            assert_eq!(service.requests(), 2);
            assert_eq!(send(&policy, &service).await, 200);
            assert_eq!(service.requests(), 3);
            assert_eq!(service.dates.lock().unwrap()[1..], [to_rfc7231(&NOON), to_rfc7231(&NOON)]);
        }
    }

    #[derive(Debug)]
    struct AdjustedClock(Mutex<OffsetDateTime>);

    impl WallClock for AdjustedClock {
        fn now(&self) -> OffsetDateTime {
            *self.0.lock().unwrap()
        }
    }

    #[tokio::test]
    async fn corrected_clock_is_logged() {
        let clock = Arc::new(AdjustedClock(Mutex::new(NOON - Duration::hours(2))));
        let log = tempfile::NamedTempFile::new().unwrap();
        // If there is only one dispatcher in the process, the thread that first reaches a callsite decides whether it
        // is enabled, and that may be the thread of another test without a dispatcher.
        let _another = tracing::Dispatch::new(tracing_subscriber::fmt().finish());
        let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(log.reopen().unwrap())).with_ansi(false);
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let policy = SharedKeyPolicy::new(clock.clone());
        let service = Service::new(NOON, true);
        assert_eq!(send(&policy, &service).await, 200);
        *clock.0.lock().unwrap() = NOON;
        assert_eq!(send(&policy, &service).await, 200);
        assert_eq!(service.requests(), 4);
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.contains("skew=\"7200s\"") && text.contains("local clock is in sync again"), "{text}");
        assert!(!text.contains("skew=\"0s\""), "{text}");
    }

    #[tokio::test]
    async fn wrong_key_is_rejected_after_one_request() {
        let policy = policy(NOON + Duration::seconds(30));
        let service = Service::new(NOON, false);
        assert_eq!(send(&policy, &service).await, 403);
        assert_eq!(service.requests(), 1);
    }

    #[tokio::test]
    async fn wrong_key_and_clock_end_after_two_requests() {
        let policy = policy(NOON + Duration::hours(1));
        let service = Service::new(NOON, false);
        assert_eq!(send(&policy, &service).await, 403);
        assert_eq!(service.requests(), 2);
    }
}
