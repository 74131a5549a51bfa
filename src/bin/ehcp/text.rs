//! Text of the command line and of tables.

use std::collections::BTreeSet;
use std::time::Duration;

use eventhubs_checkpoint::PartitionId;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The most partitions of a range: more than any event hub has.
const MAX_RANGE: u32 = 4096;

/// Partitions, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionList(pub BTreeSet<PartitionId>);

/// Reads `0,3-5`.
pub fn parse_partitions(text: &str) -> Result<PartitionList, String> {
    let mut partitions = BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once('-').map(|(first, last)| (first.parse::<u32>(), last.parse::<u32>())) {
            Some((Ok(first), Ok(last))) if first <= last && last - first < MAX_RANGE => {
                partitions.extend((first..=last).map(PartitionId::from));
            }
            Some((Ok(first), Ok(last))) => return Err(format!("{first}-{last} is not a range of partitions")),
            _ => drop(partitions.insert(PartitionId::new(part).map_err(|error| error.to_string())?)),
        }
    }
    Ok(PartitionList(partitions))
}

/// Reads the time between two requests.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(100) {
        return Err("it must be at least 100ms".to_owned());
    }
    Ok(interval)
}

/// Reads a time of RFC 3339.
pub fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| "write it as 2026-11-23T10:00:00Z".to_owned())
}

/// Returns a time as in RFC 3339, in UTC and whole seconds.
pub fn format_time(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC);
    time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default()
}

/// Returns how long ago something was, in its largest unit: `12s`, `5min`, `3h`, `2d`.
pub fn format_ago(now: OffsetDateTime, then: OffsetDateTime) -> String {
    format_duration((now - then).try_into().unwrap_or_default())
}

/// Returns a duration in its largest unit.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}min", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a number of seconds in its largest unit; with one decimal if there are few.
pub fn format_seconds(seconds: f64) -> String {
    if (0.05..9.95).contains(&seconds) {
        return format!("{seconds:.1}s");
    }
    format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Returns a list with ranges: `0-3,7`.
pub fn join_ranges<'a>(partitions: impl IntoIterator<Item = &'a PartitionId>) -> String {
    let mut parts = Vec::<(String, Option<(u64, u64)>)>::new();
    for partition in partitions {
        let number = partition.as_str().parse::<u64>().ok();
        if let (Some(number), Some((text, Some((first, last))))) = (number, parts.last_mut())
            && *last + 1 == number
        {
            *last = number;
            *text = format!("{first}-{last}");
            continue;
        }
        parts.push((partition.to_string(), number.map(|number| (number, number))));
    }
    parts.into_iter().map(|(text, _)| text).collect::<Vec<_>>().join(",")
}

/// Returns the text of an optional value.
pub fn or_empty(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns text as one word of a shell.
pub fn quote_word(text: &str) -> String {
    let mut letters = text.chars();
    if !text.is_empty() && letters.all(|letter| letter.is_ascii_alphanumeric() || "-_./:@,=+%".contains(letter)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns whether text has a key or a signature of a connection string or URL.
pub fn has_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["accountkey=", "sharedaccesskey=", "sharedaccesssignature", "sig="].iter().any(|mark| text.contains(mark))
}

/// Returns a count with its noun.
pub fn format_count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn partitions_are_numbers_and_ranges() {
        let read = |text| parse_partitions(text).map(|PartitionList(found)| join_ranges(&found));
        assert_eq!(read("0,3-5,7").unwrap(), "0,3-5,7");
        assert_eq!(read("2, 1,0").unwrap(), "0-2");
        assert_eq!(read("east-1").unwrap(), "east-1");
        for wrong in ["5-3", "0-99999", "", "1,,2", "a/b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_shown_in_their_largest_unit() {
        for (seconds, expected) in
            [(0, "0s"), (119, "119s"), (120, "2min"), (7199, "119min"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(format_duration(Duration::from_secs(seconds)), expected);
        }
        for (value, expected) in [(0.04, "0s"), (0.21, "0.2s"), (10.0, "10s"), (1080.0, "18min"), (-3.0, "0s")] {
            assert_eq!(format_seconds(value), expected);
        }
        let now = datetime!(2026-11-23 10:00 UTC);
        assert_eq!(format_ago(now, now + time::Duration::SECOND), "0s", "clocks differ");
        assert_eq!(format_time(now + time::Duration::milliseconds(5)), "2026-11-23T10:00:00Z");
    }

    #[test]
    fn words_of_a_shell_are_quoted() {
        for (text, expected) in [("a-1", "a-1"), ("$Default", "'$Default'"), ("it's", r"'it'\''s'"), ("", "''")] {
            assert_eq!(quote_word(text), expected);
        }
    }

    #[test]
    fn an_interval_has_a_lower_limit() {
        assert_eq!(parse_interval("100ms"), Ok(Duration::from_millis(100)));
        for wrong in ["99ms", "0s", "soon"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_need_an_offset() {
        assert_eq!(parse_time("2026-11-23T11:00:00+01:00").map(format_time).unwrap(), "2026-11-23T10:00:00Z");
        assert!(parse_time("2026-11-23 10:00").is_err());
    }

    proptest! {
        #[test]
        fn any_list_of_partitions_is_bounded(text in "[0-9,\\- ]{0,40}|\\PC{0,40}") {
            if let Ok(PartitionList(read)) = parse_partitions(&text) {
                prop_assert!(read.len() <= 20 * usize::try_from(MAX_RANGE).unwrap());
            }
        }

        #[test]
        fn any_text_is_one_word_of_a_shell(text in "[ -~]{0,40}") {
            prop_assert_eq!(shlex(&quote_word(&text)), text);
        }
    }

    /// Reads one word as a POSIX shell does.
    fn shlex(word: &str) -> String {
        let mut text = String::new();
        let mut is_quoted = false;
        let mut letters = word.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                '\\' if !is_quoted => text.extend(letters.next()),
                _ => text.push(letter),
            }
        }
        assert!(!is_quoted, "{word}");
        text
    }
}
