//! Parses the storage requests of the instances.

use eventhubs_checkpoint::blob::Metadata;
use hyper::Method;
use hyper::header::{ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

use crate::chaos::clock::Moment;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::writes::{Kind, Write};

const HTTP_DATE: &[BorrowedFormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// Returns what a request would write, if it writes an ownership or a checkpoint.
pub fn written(by: IncarnationId, head: &Parts, sent: Moment) -> Option<Write> {
    let (kind, partition) = record(head.uri.path()).filter(|_| head.method == Method::PUT)?;
    let metadata = metadata(&head.headers);
    let replaces = text(&head.headers, IF_MATCH.as_str()).map(|etag| unquoted(&etag));
    Some(Write {
        by,
        kind,
        partition,
        sent,
        responded: None,
        status: 0,
        is_conditional: replaces.is_some() || head.headers.contains_key(IF_NONE_MATCH),
        replaces,
        etag: None,
        owner: metadata.get("ownerid").unwrap_or_default().to_owned(),
        position: metadata.get("sequencenumber").and_then(|number| number.parse().ok()).unwrap_or(-1),
        metadata,
    })
}

fn metadata(headers: &HeaderMap) -> Metadata {
    let of_record = |(name, value): (&HeaderName, &HeaderValue)| {
        let key = name.as_str().strip_prefix("x-ms-meta-")?;
        Some((key.to_owned(), value.to_str().ok()?.to_owned()))
    };
    headers.iter().filter_map(of_record).collect()
}

/// Parses `.../{group}/ownership/{partition}` and the like, with encoded slashes or not.
pub fn record(path: &str) -> Option<(Kind, String)> {
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let mut segments = path.rsplit('/');
    let partition = segments.next()?.to_owned();
    match segments.next()? {
        "ownership" => Some((Kind::Ownership, partition)),
        "checkpoint" => Some((Kind::Checkpoint, partition)),
        _ => None,
    }
}

pub fn etag(headers: &HeaderMap) -> Option<String> {
    text(headers, ETAG.as_str()).map(|etag| unquoted(&etag))
}

/// Returns whether the date of a signature is too far from the server's.
pub fn is_skewed(head: &Parts, now: OffsetDateTime, tolerated: Duration) -> bool {
    let date = text(&head.headers, "x-ms-date").and_then(|date| PrimitiveDateTime::parse(&date, HTTP_DATE).ok());
    date.is_some_and(|date| (date.assume_utc() - now).abs() > tolerated)
}

pub fn http_date(now: OffsetDateTime) -> Option<HeaderValue> {
    HeaderValue::from_str(&now.format(HTTP_DATE).ok()?).ok()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use time::macros::datetime;

    fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_checkpoint_is_read_from_its_request() {
        let headers = [("if-match", "\"0x8D\""), ("x-ms-meta-ownerid", "i2"), ("x-ms-meta-sequencenumber", "41")];
        let head = head("PUT", "/devstoreaccount1/c/ns%2Fhub%2F%24default%2Fcheckpoint%2F7?comp=metadata", &headers);
        let write = written(IncarnationId { instance: 1, number: 3 }, &head, Moment::ZERO).unwrap();
        assert_eq!((write.kind, write.partition.as_str(), write.position), (Kind::Checkpoint, "7", 41));
        assert_eq!((write.owner.as_str(), write.replaces.as_deref()), ("i2", Some("0x8D")));
        assert!(write.is_open());
    }

    #[test]
    fn reads_and_other_blobs_are_no_record_writes() {
        let incarnation = IncarnationId { instance: 0, number: 1 };
        let of = |method, path| written(incarnation, &head(method, path, &[]), Moment::ZERO);
        assert_eq!(of("GET", "/a/c/ns/hub/g/ownership/1"), None);
        assert_eq!(of("PUT", "/a/c/ns/hub/g/heartbeat/i1"), None);
        assert_eq!(of("PUT", "/a/c?restype=container"), None);
    }

    #[test]
    fn a_date_may_be_wrong_by_minutes_but_not_by_an_hour() {
        let now = datetime!(2026-03-04 12:00 UTC);
        let dated = |date: &str| head("PUT", "/", &[("x-ms-date", date)]);
        let tolerated = Duration::minutes(15);
        assert!(!is_skewed(&dated("Wed, 04 Mar 2026 12:14:00 GMT"), now, tolerated));
        assert!(is_skewed(&dated("Wed, 04 Mar 2026 13:00:00 GMT"), now, tolerated));
        assert!(is_skewed(&dated("Wed, 04 Mar 2026 11:00:00 GMT"), now, tolerated));
        assert!(!is_skewed(&head("PUT", "/", &[]), now, tolerated));
        assert_eq!(http_date(now).unwrap(), "Wed, 04 Mar 2026 12:00:00 GMT");
    }
}
