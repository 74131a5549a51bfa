//! Files with the offsets of Kafka consumer groups.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csv::StringRecord;
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::migrate::{LegacyCheckpoint, LegacyListing};

use super::positions::BYTE_ORDER_MARK;
use crate::exit::{Failure, Result};
use crate::output::printable_text;

const HEADERS: &[&[&str]] = &[&["topic", "partition", "offset"], &["group", "topic", "partition", "offset"]];

/// Reads the offsets of a topic, which is an event hub, from a file that `kafka-consumer-groups --export` wrote: lines
/// of `topic,partition,offset`, or of `group,topic,partition,offset` if several groups were exported. `group` chooses
/// one of them.
pub fn read_offsets(file: &Path, topic: &str, group: Option<&str>) -> Result<LegacyListing> {
    fs::read_to_string(file)
        .map_err(|error| error.to_string())
        .and_then(|text| parse_offsets(&text, topic, group))
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}

fn parse_offsets(text: &str, topic: &str, group: Option<&str>) -> Result<LegacyListing, String> {
    let lines = select_topic(parse_lines(text)?, topic)?;
    let groups: BTreeSet<_> = lines.iter().filter_map(|line| line.group.as_deref()).collect();
    let group = match (group, groups.len()) {
        (Some(group), 1..) if groups.contains(group) => Some(group),
        (Some(group), 1..) => return Err(format!("it has no group {group:?}, only {}", join_names(&groups))),
        (None, 2..) => {
            return Err(format!("it has the groups {}: choose one with --source-group", join_names(&groups)));
        }
        _ => groups.first().copied(),
    };
    let mut listing = LegacyListing::default();
    let mut known = BTreeSet::new();
    for line in lines.iter().filter(|line| line.group.as_deref() == group) {
        if !known.insert(&line.partition) {
            return Err(format!("partition {} is in it twice", line.partition));
        }
        match line.offset.parse() {
            Ok(offset @ 0..) => listing.checkpoints.push(LegacyCheckpoint::from_kafka(line.partition.clone(), offset)),
            _ => listing.add_malformed(line.partition.clone(), format!("{:?} is no offset", line.offset)),
        }
    }
    Ok(listing)
}

struct OffsetLine {
    group: Option<String>,
    topic: String,
    partition: PartitionId,
    offset: String,
}

fn parse_lines(text: &str) -> Result<Vec<OffsetLine>, String> {
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).trim(csv::Trim::All);
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let mut lines = Vec::new();
    for (number, record) in reader.from_reader(text.as_bytes()).records().enumerate() {
        let record = record.map_err(|error| error.to_string())?;
        let is_header = HEADERS.iter().any(|header| {
            header.len() == record.len()
                && header.iter().zip(&record).all(|(name, cell)| cell.eq_ignore_ascii_case(name))
        });
        if number > 0 || !is_header {
            lines.push(parse_line(&record).map_err(|problem| format!("line {}: {problem}", number + 1))?);
        }
    }
    Ok(lines)
}

fn parse_line(record: &StringRecord) -> Result<OffsetLine, String> {
    let cells: Vec<_> = record.iter().collect();
    let (group, rest) = match cells.as_slice() {
        [group, rest @ ..] if rest.len() == 3 => (Some((*group).to_owned()), rest),
        rest => (None, rest),
    };
    let [topic, partition, offset] = rest else {
        return Err("it must be topic,partition,offset or group,topic,partition,offset".to_owned());
    };
    let number: u32 = partition.parse().map_err(|_| format!("{partition:?} is no partition"))?;
    Ok(OffsetLine { group, topic: (*topic).to_owned(), partition: number.into(), offset: (*offset).to_owned() })
}

/// Returns the lines of a topic. The names of event hubs have no case.
fn select_topic(lines: Vec<OffsetLine>, topic: &str) -> Result<Vec<OffsetLine>, String> {
    let topics: BTreeSet<_> = lines.iter().map(|line| line.topic.clone()).collect();
    let found: Vec<_> = lines.into_iter().filter(|line| line.topic.eq_ignore_ascii_case(topic)).collect();
    if found.is_empty() {
        let topics = topics.iter().map(String::as_str).collect();
        return Err(format!("it has no offsets of the topic {topic:?}, only of: {}", join_names(&topics)));
    }
    Ok(found)
}

fn join_names(names: &BTreeSet<&str>) -> String {
    printable_text(&names.iter().copied().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(text: &str, group: Option<&str>) -> Result<Vec<(String, i64)>, String> {
        let listing = parse_offsets(text, "orders", group)?;
        let number = |found: &LegacyCheckpoint| (found.partition.to_string(), found.sequence_number.unwrap());
        Ok(listing.checkpoints.iter().map(number).collect())
    }

    fn at(numbers: &[(&str, i64)]) -> Vec<(String, i64)> {
        numbers.iter().map(|(partition, number)| ((*partition).to_owned(), *number)).collect()
    }

    #[test]
    fn the_next_event_to_read_is_after_the_checkpoint() {
        assert_eq!(numbers("orders,0,42\norders,1,0\n", None), Ok(at(&[("0", 41), ("1", -1)])));
    }

    /// As the tool writes them: without a header, and with quotes if a name has a special character.
    #[test]
    fn both_forms_are_read() {
        let one = "\u{feff}orders,1,7\r\nother,1,9\r\norders,0,5\r\n";
        assert_eq!(numbers(one, None), Ok(at(&[("1", 6), ("0", 4)])));
        assert_eq!(numbers(one, Some("any")), Ok(at(&[("1", 6), ("0", 4)])), "such a file is of one group");
        let several = "\"$Default\",Orders,0,15\nbilling,orders,0,3\n\"$Default\",other,1,2\n";
        assert_eq!(numbers(several, Some("billing")), Ok(at(&[("0", 2)])));
        assert_eq!(numbers(several, Some("$Default")), Ok(at(&[("0", 14)])));
        assert_eq!(numbers("Group,Topic,Partition,Offset\ng, orders, 0, 3", None), Ok(at(&[("0", 2)])));
    }

    #[test]
    fn ambiguous_files_are_rejected() {
        let several = "a,orders,0,15\nb,orders,0,3\n";
        for (text, group, part) in [
            (several, None, "the groups a, b: choose one with --source-group"),
            (several, Some("A"), "no group \"A\", only a, b"),
            ("orders,0,1\norders,0,2", None, "partition 0 is in it twice"),
            ("other,0,1", None, "no offsets of the topic \"orders\", only of: other"),
            ("", None, "no offsets of the topic"),
            ("orders,0", None, "line 1: it must be topic,partition,offset"),
            ("orders,0,1\norders,x,2", None, "line 2: \"x\" is no partition"),
            ("orders,-1,1", None, "\"-1\" is no partition"),
        ] {
            let error = numbers(text, group).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_wrong_offset_does_not_hide_the_others() {
        let listing =
            parse_offsets("orders,0,-1\norders,1,9223372036854775808\norders,2,7\norders,3,", "orders", None).unwrap();
        assert_eq!(listing.checkpoints.len(), 1);
        let problems: Vec<_> = listing.malformed.iter().map(|found| found.problem.as_str()).collect();
        assert_eq!(problems, ["\"-1\" is no offset", "\"9223372036854775808\" is no offset", "\"\" is no offset"]);
        assert_eq!(numbers("orders,0,9223372036854775807", None), Ok(at(&[("0", i64::MAX - 1)])));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(content: Vec<u8>, rest in "[a-z0-9,\"\\n -]{0,80}") {
            for text in [String::from_utf8_lossy(&content).into_owned(), format!("orders,0,1\n{rest}")] {
                let _ = parse_offsets(&text, "orders", None);
                let _ = parse_offsets(&text, "orders", Some("a"));
            }
        }
    }
}
