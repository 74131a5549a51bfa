//! Reads the headers of a response, and the dates in them.

use std::ops::RangeInclusive;
use std::time::Duration;

use azure_core::http::headers::{ETAG, HeaderName, Headers, LAST_MODIFIED, RETRY_AFTER, X_MS_RETRY_AFTER_MS};
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

use crate::blob::{ETag, Metadata};

pub(super) const METADATA_PREFIX: &str = "x-ms-meta-";
const DATE: HeaderName = HeaderName::from_static("date");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");

/// Starts with the year in which the service went into production.
const PLAUSIBLE_YEARS: RangeInclusive<i32> = 2010..=2199;

const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the value of a header. Iterates instead of calling the accessors of [`Headers`], which format an error text
/// for every header that exists, and create an error with a backtrace for every header that does not.
pub(super) fn find_header<'a>(headers: &'a Headers, name: &HeaderName) -> Option<&'a str> {
    headers.iter().find(|(other, _)| other.as_str() == name.as_str()).map(|(_, value)| value.as_str())
}

/// Returns the `Date` of a success. Ignores a date that no clock of the service can have, because values computed from
/// it would be wrong or out of range.
pub(in crate::blob) fn server_time(headers: &Headers) -> Option<OffsetDateTime> {
    parse_http_date(find_header(headers, &DATE)?).filter(|date| PLAUSIBLE_YEARS.contains(&date.year()))
}

/// Returns the `Date` of an error response of the service. The service gives each response a request id; without one it
/// is the response of a proxy or gateway, whose clock must not count.
pub(in crate::blob) fn server_time_of_error(headers: &Headers) -> Option<OffsetDateTime> {
    find_header(headers, &REQUEST_ID)?;
    server_time(headers)
}

/// Returns the version of a blob.
pub(super) fn etag_header(headers: &Headers) -> Option<ETag> {
    find_header(headers, &ETAG).map(ETag::new)
}

/// Returns the time of the last write of a blob.
pub(super) fn last_modified_header(headers: &Headers) -> Option<OffsetDateTime> {
    parse_http_date(find_header(headers, &LAST_MODIFIED)?)
}

/// Returns the metadata of a blob, with lowercase keys. Values with non-ASCII characters are missing: the HTTP client
/// of `azure_core` drops such headers, with a warning (`to_headers` in `typespec_client_core`). Listings contain them.
pub(super) fn metadata_headers(headers: &Headers) -> Metadata {
    headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix(METADATA_PREFIX)?, value.as_str())))
        .map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()))
        .collect()
}

/// Returns how long the server asks to wait, limited to a day.
pub(in crate::blob) fn retry_after(headers: &Headers) -> Option<Duration> {
    wait_in_headers(headers).map(|wait| wait.min(LONGEST_WAIT))
}

fn wait_in_headers(headers: &Headers) -> Option<Duration> {
    if let Some(milliseconds) = find_header(headers, &X_MS_RETRY_AFTER_MS).and_then(|value| value.trim().parse().ok()) {
        return Some(Duration::from_millis(milliseconds));
    }
    let value = find_header(headers, &RETRY_AFTER)?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    (parse_http_date(value)? - server_time(headers)?).try_into().ok()
}

/// Parses a date like `Fri, 20 Nov 2026 12:00:00 GMT`. Does not check the day of the week.
///
/// Format: RFC 9110, section 5.6.7. The parser of `azure_core` formats an error text for every date, even a valid one,
/// and a listing has hundreds.
pub(super) fn parse_http_date(text: &str) -> Option<OffsetDateTime> {
    #[rustfmt::skip]
    let &[_, _, _, b',', b' ', d1, d2, b' ', m1, m2, m3, b' ', y1, y2, y3, y4, b' ',
        h1, h2, b':', i1, i2, b':', s1, s2, b' ', b'G', b'M', b'T'] = text.as_bytes() else {
        return None;
    };
    let year = parse_digits(&[y1, y2, y3, y4])?;
    let date = Date::from_calendar_date(year, parse_month([m1, m2, m3])?, parse_digits(&[d1, d2])?).ok()?;
    let time = Time::from_hms(parse_digits(&[h1, h2])?, parse_digits(&[i1, i2])?, parse_digits(&[s1, s2])?).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc())
}

fn parse_digits<T: TryFrom<i32>>(digits: &[u8]) -> Option<T> {
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i32::from(digit - b'0')))?
        .try_into()
        .ok()
}

fn parse_month(name: [u8; 3]) -> Option<Month> {
    Some(match &name {
        b"Jan" => Month::January,
        b"Feb" => Month::February,
        b"Mar" => Month::March,
        b"Apr" => Month::April,
        b"May" => Month::May,
        b"Jun" => Month::June,
        b"Jul" => Month::July,
        b"Aug" => Month::August,
        b"Sep" => Month::September,
        b"Oct" => Month::October,
        b"Nov" => Month::November,
        b"Dec" => Month::December,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use azure_core::time::to_rfc7231;
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;
    use crate::tests::hostile::hostile_text;

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
        assert_eq!(metadata_headers(&headers), Metadata::from(expected));
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
        let written = |time| last_modified_header(&with(&[("last-modified", time)]));
        assert!(written("Fri, 26 Jun 2015 23:39:12 GMT").is_some());
        assert!(written("yesterday").is_none());
        assert!(last_modified_header(&with(&[])).is_none());
    }

    #[test]
    fn parses_a_date_of_azure() {
        assert_eq!(parse_http_date("Fri, 26 Jun 2015 23:39:12 GMT"), Some(datetime!(2015-06-26 23:39:12 UTC)));
    }

    #[test]
    fn rejects_other_texts() {
        for text in [
            "",
            "yesterday",
            "2015-06-26T23:39:12Z",
            "Fri, 26 Jun 2015 23:39:12 CET",
            "Fri, 26 Jun 2015 23:39:12 GMT ",
            "Fri, 6 Jun 2015 23:39:12 GMT",
            "Fri, 31 Jun 2015 23:39:12 GMT",
            "Fri, 26 JUN 2015 23:39:12 GMT",
            "Fri, 26 Jun 2015 24:39:12 GMT",
            "Fri, 26 Jun 2015 23:39:60 GMT",
            "Fri, 26 Jun 2015 23:39:+1 GMT",
            "Fri, 26 Jun 2015 23:39:1\u{663} MT",
        ] {
            assert_eq!(parse_http_date(text), None, "{text}");
        }
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
        fn formatted_dates_are_parsed_back(seconds in 0..253_402_300_800_i64) {
            let date = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
            prop_assert_eq!(parse_http_date(&to_rfc7231(&date)), Some(date));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = parse_http_date(&text);
        }

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
