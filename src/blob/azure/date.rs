//! Parses the dates in responses.

use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

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
    let day = u8::try_from(number(&[d1, d2])?).ok()?;
    let date = Date::from_calendar_date(number(&[y1, y2, y3, y4])?, month([m1, m2, m3])?, day).ok()?;
    let two_digits = |digits| u8::try_from(number(digits)?).ok();
    let time = Time::from_hms(two_digits(&[h1, h2])?, two_digits(&[i1, i2])?, two_digits(&[s1, s2])?).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc())
}

fn number(digits: &[u8]) -> Option<i32> {
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i32::from(digit - b'0')))
}

fn month(name: [u8; 3]) -> Option<Month> {
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
    }
}
