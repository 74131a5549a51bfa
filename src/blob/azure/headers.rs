//! Reads the headers of a response.

use std::ops::RangeInclusive;

use azure_core::http::headers::{ETAG, HeaderName, Headers, LAST_MODIFIED, RETRY_AFTER, X_MS_RETRY_AFTER_MS};
use time::OffsetDateTime;

use super::date::parse_http_date;
use crate::blob::{ETag, Metadata};

pub(super) const METADATA_PREFIX: &str = "x-ms-meta-";
const DATE: HeaderName = HeaderName::from_static("date");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");

/// Starts with the year in which the service went into production.
const PLAUSIBLE_YEARS: RangeInclusive<i32> = 2010..=2199;

const LONGEST_WAIT: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// Returns the value of a header. Iterates instead of calling the accessors of [`Headers`], which format an error text
/// for every header that exists, and create an error with a backtrace for every header that does not.
pub(super) fn header<'a>(headers: &'a Headers, name: &HeaderName) -> Option<&'a str> {
    headers.iter().find(|(other, _)| other.as_str() == name.as_str()).map(|(_, value)| value.as_str())
}

/// Returns the `Date` of a success. Ignores a date that no clock of the service can have, because values computed from it
/// would be wrong or out of range.
pub(in crate::blob) fn server_time(headers: &Headers) -> Option<OffsetDateTime> {
    parse_http_date(header(headers, &DATE)?).filter(|date| PLAUSIBLE_YEARS.contains(&date.year()))
}

/// Returns the `Date` of an error response of the service. The service gives each response a request id; without one it is
/// the response of a proxy or gateway, whose clock must not count.
pub(in crate::blob) fn server_time_of_error(headers: &Headers) -> Option<OffsetDateTime> {
    header(headers, &REQUEST_ID)?;
    server_time(headers)
}

/// Returns the version of a blob.
pub(super) fn etag(headers: &Headers) -> Option<ETag> {
    header(headers, &ETAG).map(ETag::new)
}

/// Returns the time of the last write of a blob.
pub(super) fn last_modified(headers: &Headers) -> Option<OffsetDateTime> {
    parse_http_date(header(headers, &LAST_MODIFIED)?)
}

/// Returns the metadata of a blob, with lowercase keys. Values with non-ASCII characters are missing: the HTTP client
/// of `azure_core` drops such headers, with a warning (`to_headers` in `typespec_client_core`). Listings contain them.
pub(super) fn metadata(headers: &Headers) -> Metadata {
    let pairs = headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(METADATA_PREFIX)?, value)));
    pairs.map(|(key, value)| (key.to_ascii_lowercase(), value.as_str().to_owned())).collect()
}

/// Returns how long the server asks to wait, limited to a day.
pub(in crate::blob) fn retry_after(headers: &Headers) -> Option<std::time::Duration> {
    requested_wait(headers).map(|wait| wait.min(LONGEST_WAIT))
}

fn requested_wait(headers: &Headers) -> Option<std::time::Duration> {
    if let Some(milliseconds) = header(headers, &X_MS_RETRY_AFTER_MS).and_then(|value| value.trim().parse().ok()) {
        return Some(std::time::Duration::from_millis(milliseconds));
    }
    let value = header(headers, &RETRY_AFTER)?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(std::time::Duration::from_secs(seconds));
    }
    let until = parse_http_date(value)?;
    (until - server_time(headers)?).try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::hostile::hostile_text;

    fn with(pairs: &[(&'static str, &'static str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        headers
    }

    #[test]
    fn metadata_is_read_from_the_prefixed_headers() {
        let headers =
            with(&[("x-ms-meta-ownerid", "me"), ("x-ms-meta-empty", ""), ("x-ms-version", "1"), ("etag", "2")]);
        let expected = [("empty", ""), ("ownerid", "me")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(metadata(&headers), Metadata::from(expected));
    }

    #[test]
    fn wait_is_in_seconds_milliseconds_or_a_date() {
        assert_eq!(retry_after(&with(&[("retry-after", "7")])), Some(Duration::from_secs(7)));
        let both = with(&[("retry-after", "7"), ("x-ms-retry-after-ms", "250")]);
        assert_eq!(retry_after(&both), Some(Duration::from_millis(250)));
        let date = with(&[("retry-after", "Fri, 26 Jun 2015 23:39:42 GMT"), ("date", "Fri, 26 Jun 2015 23:39:12 GMT")]);
        assert_eq!(retry_after(&date), Some(Duration::from_secs(30)));
        for headers in [with(&[]), with(&[("retry-after", "soon")]), with(&[("retry-after", "-1")])] {
            assert_eq!(retry_after(&headers), None);
        }
    }

    #[test]
    fn the_date_of_a_proxy_is_no_time_of_the_server() {
        let date = ("date", "Fri, 20 Nov 2026 12:00:00 GMT");
        let parsed = Some(datetime!(2026-11-20 12:00:00 UTC));
        assert_eq!(server_time_of_error(&with(&[date])), None);
        assert_eq!(server_time_of_error(&with(&[date, ("x-ms-request-id", "1")])), parsed);
        assert_eq!(server_time(&with(&[date])), parsed, "a gateway may drop the id of a success");
    }

    #[test]
    fn an_unreadable_time_of_the_last_write_is_none() {
        let written = |time| last_modified(&with(&[("last-modified", time)]));
        assert!(written("Fri, 26 Jun 2015 23:39:12 GMT").is_some());
        assert!(written("yesterday").is_none());
        assert!(last_modified(&with(&[])).is_none());
    }

    mod defects {
        use super::*;

        #[test]
        fn implausible_date_is_ignored() {
            let at = |date| server_time(&with(&[("date", date), ("x-ms-request-id", "1")]));
            for absurd in
                ["Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"]
            {
                assert_eq!(at(absurd), None, "{absurd}");
            }
            for usual in ["Fri, 20 Nov 2026 12:00:00 GMT", "Thu, 31 Dec 2099 23:59:59 GMT"] {
                assert!(at(usual).is_some(), "{usual}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_wait_is_limited(
            wait in hostile_text(&["7", "250", "Fri, 26 Jun 2015 23:39:42 GMT"]),
            date in hostile_text(&["Fri, 26 Jun 2015 23:39:12 GMT"]),
        ) {
            for name in ["retry-after", "x-ms-retry-after-ms"] {
                let mut headers = Headers::new();
                headers.insert(name, wait.clone());
                headers.insert("date", date.clone());
                prop_assert!(retry_after(&headers).is_none_or(|wait| wait <= LONGEST_WAIT));
            }
        }
    }
}
