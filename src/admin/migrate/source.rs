//! Where other programs keep their records, and how they are read.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use super::checkpoint::{Layout, LegacyCheckpoint, MalformedLegacyRecord, parse_record};
use crate::blob::{BlobContent, BlobContents, limit_request};
use crate::error::{ErrorKind, Result};
use crate::model::{ConsumerGroup, PartitionId};

/// The size of the largest content that is read. Records have less than 1 KiB; Python's may contain a text of the
/// application.
const MAX_SIZE: u32 = 1024 * 1024;

/// How many blobs are read at the same time.
const CONCURRENT_READS: usize = 16;

/// A program that keeps its checkpoints in the contents of blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LegacyProgram {
    /// `EventProcessorHost` of .NET, Java, Node.js or Python. Its blobs are `{prefix}{consumer group}/{partition}`; the
    /// Python host names its blobs `{partition}`, whatever the prefix.
    EventProcessorHost,
    /// Azure Functions with the Event Hubs extension 4 or older: `{namespace}/{event hub}/{consumer group}/{partition}`
    /// in the container `azure-webjobs-eventhub`. Later versions have the format of this crate.
    Functions,
    /// `EventProcessorHost` of Go, also in Filebeat with `processor_version: v1`: `{prefix}{partition}`.
    GoEventProcessorHost,
    /// Dapr 1.9 or older: `dapr-{event hub}-{consumer group}-{partition}`.
    Dapr,
}

/// The records of another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LegacyListing {
    /// What the names of their blobs begin with.
    pub prefix: String,
    /// The checkpoints, in order of their partitions.
    pub checkpoints: Vec<LegacyCheckpoint>,
    /// The records that cannot be read.
    pub malformed: Vec<MalformedLegacyRecord>,
    /// Whether the container also has checkpoints of the group in the format of this crate. They may be newer: Azure
    /// Functions and Filebeat change the format when they are updated, and leave the old records.
    pub has_current_checkpoints: bool,
}

impl LegacyProgram {
    /// Returns what the names of the blobs of a group may begin with, the most likely first. `prefix` is the one that
    /// the program was configured with.
    #[must_use]
    pub fn prefixes(self, group: &ConsumerGroup, prefix: Option<&str>) -> Vec<String> {
        let lower = group.name().to_lowercase();
        let names = [group.name(), lower.as_str()];
        let given = prefix.unwrap_or_default();
        let mut prefixes: Vec<String> = match (self, prefix) {
            // Python ignores the prefix and the consumer group.
            (Self::EventProcessorHost, _) => names
                .map(|name| format!("{given}{name}/"))
                .into_iter()
                .chain([given.to_owned(), String::new()])
                .collect(),
            (Self::GoEventProcessorHost, _) | (_, Some(_)) => vec![given.to_owned()],
            (Self::Functions, None) => {
                let hubs = [
                    format!("{}/{}", escape_name(group.namespace()), escape_name(group.event_hub())),
                    format!("{}/{}", group.namespace(), group.event_hub()),
                ];
                hubs.iter().flat_map(|hub| names.map(|name| format!("{hub}/{name}/"))).collect()
            }
            (Self::Dapr, None) => names.map(|name| format!("dapr-{}-{name}-", group.event_hub())).into(),
        };
        let mut known = BTreeSet::new();
        prefixes.retain(|prefix| known.insert(prefix.clone()));
        prefixes
    }
}

impl LegacyListing {
    /// Creates a listing of checkpoints that are not in blobs.
    pub fn of(checkpoints: impl IntoIterator<Item = LegacyCheckpoint>) -> Self {
        Self { checkpoints: checkpoints.into_iter().collect(), ..Self::default() }
    }

    /// Adds a record that cannot be read, and is not in a blob.
    pub fn add_malformed(&mut self, partition: PartitionId, problem: impl Into<String>) {
        self.malformed.push(MalformedLegacyRecord { partition, live: None, problem: problem.into() });
    }

    /// Keeps the records of these partitions.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&PartitionId) -> bool) {
        self.checkpoints.retain(|found| is_kept(&found.partition));
        self.malformed.retain(|found| is_kept(&found.partition));
    }

    /// Returns whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checkpoints.is_empty() && self.malformed.is_empty()
    }
}

/// Reads the records of another program of a group, below the first of its [prefixes](LegacyProgram::prefixes) that has
/// any. Writes nothing: the program can continue where it stopped. Each listing and each read of a blob may take as
/// long as the timeout.
///
/// # Errors
///
/// The error of the storage. A record that cannot be read is no error: see [`LegacyListing::malformed`].
pub async fn read(
    container: &dyn BlobContents,
    program: LegacyProgram,
    group: &ConsumerGroup,
    prefix: Option<&str>,
    timeout: Duration,
) -> Result<LegacyListing> {
    let container = &LimitedContainer { container, timeout };
    let layout = match program {
        LegacyProgram::EventProcessorHost | LegacyProgram::Functions => Layout::Flat,
        LegacyProgram::GoEventProcessorHost | LegacyProgram::Dapr => Layout::Nested,
    };
    let mut listing = LegacyListing::default();
    for prefix in program.prefixes(group, prefix) {
        let blobs = list_blobs_of_partitions(container, &prefix).await?;
        if !blobs.is_empty() {
            listing = read_all(container, layout, blobs).await?;
            listing.prefix = prefix;
            break;
        }
    }
    let verbatim = format!("{group}/checkpoint/");
    let lower = verbatim.to_lowercase();
    listing.has_current_checkpoints = !list_blobs_of_partitions(container, &lower).await?.is_empty()
        || (lower != verbatim && !list_blobs_of_partitions(container, &verbatim).await?.is_empty());
    Ok(listing)
}

/// A container, and how long each request to it may take.
struct LimitedContainer<'a> {
    container: &'a dyn BlobContents,
    timeout: Duration,
}

/// Lists the blobs that are named by a partition. The ids of partitions are numbers.
async fn list_blobs_of_partitions(
    from: &LimitedContainer<'_>,
    prefix: &str,
) -> Result<Vec<(PartitionId, BlobContent)>> {
    Ok(limit_request(from.timeout, "list", from.container.list_contents(prefix))
        .await?
        .into_iter()
        .filter_map(|blob| Some((parse_partition(blob.name.strip_prefix(prefix)?)?, blob)))
        .collect())
}

fn parse_partition(name: &str) -> Option<PartitionId> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then(|| number.into())
}

async fn read_all(
    container: &LimitedContainer<'_>,
    layout: Layout,
    blobs: Vec<(PartitionId, BlobContent)>,
) -> Result<LegacyListing> {
    let mut read: Vec<_> = stream::iter(blobs)
        .map(|(partition, blob)| read_one(container, layout, partition, blob))
        .buffer_unordered(CONCURRENT_READS)
        .try_collect()
        .await?;
    read.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut listing = LegacyListing::default();
    for (_, record) in read {
        match record {
            Ok(checkpoint) => listing.checkpoints.push(checkpoint),
            Err(malformed) => listing.malformed.push(malformed),
        }
    }
    Ok(listing)
}

type LegacyRecord = Result<LegacyCheckpoint, MalformedLegacyRecord>;

async fn read_one(
    from: &LimitedContainer<'_>,
    layout: Layout,
    partition: PartitionId,
    blob: BlobContent,
) -> Result<(PartitionId, LegacyRecord)> {
    let content = match blob.size {
        0 => Err("it is empty".to_owned()),
        size if size > MAX_SIZE.into() => Err(format!("it has {size} bytes, which no record has")),
        _ => match limit_request(from.timeout, "read", from.container.read_content(&blob.name, MAX_SIZE)).await {
            Ok(content) => Ok(content),
            Err(error) if error.kind() == ErrorKind::NotFound => Err("it was deleted".to_owned()),
            Err(error) => return Err(error),
        },
    };
    let record = match content.and_then(|content| parse_record(&content, layout, &partition)) {
        Ok(body) => Ok(LegacyCheckpoint::new(partition.clone(), blob.is_leased, body)),
        Err(problem) => Err(MalformedLegacyRecord {
            partition: partition.clone(),
            live: Some(blob.is_leased),
            problem: format!("{}: {problem}", blob.name),
        }),
    };
    Ok((partition, record))
}

/// Returns a name as Azure Functions writes it: in lower case, and with the codes of unusual characters.
fn escape_name(name: &str) -> String {
    name.encode_utf16()
        .map(|unit| match char::from_u32(unit.into()) {
            Some(letter) if letter.is_ascii_alphanumeric() || "-_.".contains(letter) => {
                letter.to_ascii_lowercase().to_string()
            }
            _ if unit < 0x100 => format!(":{unit:02X}"),
            _ => format!("::{unit:04X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;
    use LegacyProgram::{Dapr, EventProcessorHost, Functions, GoEventProcessorHost};

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// Blobs by their names: the content, whether it is leased, and the size, which may be pretended.
    #[derive(Debug, Default)]
    struct Contents {
        blobs: BTreeMap<String, (String, bool, Option<u64>)>,
        failure: Option<ErrorKind>,
    }

    impl Contents {
        fn with(mut self, name: &str, content: &str) -> Self {
            self.blobs.insert(name.to_owned(), (content.to_owned(), false, None));
            self
        }

        fn leased(mut self, name: &str, content: &str) -> Self {
            self.blobs.insert(name.to_owned(), (content.to_owned(), true, None));
            self
        }
    }

    #[async_trait]
    impl BlobContents for Contents {
        async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>> {
            let at_level =
                self.blobs.iter().filter(|(name, _)| name.strip_prefix(prefix).is_some_and(|rest| !rest.contains('/')));
            let described = at_level.map(|(name, (content, leased, size))| {
                BlobContent::new(name, size.unwrap_or(content.len() as u64), *leased)
            });
            Ok(described.collect())
        }

        async fn read_content(&self, name: &str, limit: u32) -> Result<Vec<u8>> {
            if let Some(kind) = self.failure {
                return Err(Error::new(kind, format!("reading {name}")));
            }
            let (content, ..) = &self.blobs[name];
            Ok(content.bytes().take(limit as usize).collect())
        }
    }

    fn group() -> ConsumerGroup {
        ConsumerGroup::new("Ns.servicebus.windows.net", "My_Orders", "$Default").unwrap()
    }

    fn flat(number: i64) -> String {
        format!(r#"{{"Offset":"{number}00","SequenceNumber":{number},"Owner":"host-1"}}"#)
    }

    fn nested(number: i64) -> String {
        format!(r#"{{"owner":"go","checkpoint":{{"offset":"{number}00","sequenceNumber":{number}}}}}"#)
    }

    async fn found(contents: &Contents, program: LegacyProgram, prefix: Option<&str>) -> LegacyListing {
        read(contents, program, &group(), prefix, TIMEOUT).await.unwrap()
    }

    fn numbers(listing: &LegacyListing) -> Vec<(String, Option<i64>)> {
        let number = |found: &LegacyCheckpoint| (found.partition.to_string(), found.sequence_number);
        listing.checkpoints.iter().map(number).collect()
    }

    #[test]
    fn functions_escape_names() {
        assert_eq!(escape_name("My-Hub_1.x"), "my-hub_1.x");
        assert_eq!(escape_name("a b:ü€"), "a:20b:3A:FC::20AC");
    }

    #[test]
    fn prefixes_are_those_of_the_programs() {
        let prefixes = |program: LegacyProgram, prefix| program.prefixes(&group(), prefix);
        assert_eq!(prefixes(EventProcessorHost, None), ["$Default/", "$default/", ""]);
        assert_eq!(prefixes(EventProcessorHost, Some("p/")), ["p/$Default/", "p/$default/", "p/", ""]);
        let (escaped, verbatim) = ("ns.servicebus.windows.net/my_orders", "Ns.servicebus.windows.net/My_Orders");
        let hubs = [escaped, escaped, verbatim, verbatim].into_iter();
        let names = ["$Default", "$default", "$Default", "$default"];
        let expected: Vec<_> = hubs.zip(names).map(|(hub, name)| format!("{hub}/{name}/")).collect();
        assert_eq!(prefixes(Functions, None), expected);
        assert_eq!(prefixes(Functions, Some("x/")), ["x/"]);
        assert_eq!(prefixes(GoEventProcessorHost, None), [""]);
        assert_eq!(prefixes(GoEventProcessorHost, Some("beats-")), ["beats-"]);
        assert_eq!(prefixes(Dapr, None), ["dapr-My_Orders-$Default-", "dapr-My_Orders-$default-"]);
    }

    #[tokio::test]
    async fn partitions_are_read_in_order_of_their_ids() {
        let contents = Contents::default().with("$Default/10", &flat(10)).leased("$Default/9", &flat(9));
        let listing = found(&contents, EventProcessorHost, None).await;
        assert_eq!(listing.prefix, "$Default/");
        assert_eq!(numbers(&listing), [("9".to_owned(), Some(9)), ("10".to_owned(), Some(10))]);
        assert_eq!(listing.checkpoints[0].live, Some(true));
        assert_eq!(listing.checkpoints[1].live, Some(false));
        assert_eq!(listing.checkpoints[0].owner.as_deref(), Some("host-1"));
        assert!(!listing.has_current_checkpoints && listing.malformed.is_empty());
    }

    #[tokio::test]
    async fn the_first_prefix_with_records_counts() {
        let contents = Contents::default().with("0", &flat(1)).with("p/$default/0", &flat(2)).with("p/0", &flat(3));
        for (prefix, expected) in [(None, 1), (Some("p/"), 2), (Some("other/"), 1)] {
            let listing = found(&contents, EventProcessorHost, prefix).await;
            assert_eq!(numbers(&listing), [("0".to_owned(), Some(expected))], "{prefix:?}");
        }
        let contents = Contents::default().with("dapr-My_Orders-$default-3", &nested(7)).with("3", &nested(8));
        assert_eq!(numbers(&found(&contents, Dapr, None).await), [("3".to_owned(), Some(7))]);
        assert_eq!(numbers(&found(&contents, GoEventProcessorHost, None).await), [("3".to_owned(), Some(8))]);
    }

    #[tokio::test]
    async fn other_blobs_are_no_records() {
        let names = ["", "x", "00", "-1", "+1", "1.json", "1/2", "4294967296", "checkpoint/0", "ownership/0"];
        let contents = names.iter().fold(Contents::default(), |contents, name| contents.with(name, "no JSON"));
        assert!(found(&contents, GoEventProcessorHost, None).await.is_empty());
        assert!(found(&Contents::default(), Functions, None).await.is_empty());
    }

    #[tokio::test]
    async fn malformed_records_do_not_hide_others() {
        let mut contents = Contents::default().with("0", "no JSON").with("1", &nested(1)).with("2", "");
        contents.blobs.insert("3".to_owned(), (nested(3), true, Some(5 * 1024 * 1024 * 1024)));
        let contents = contents.with("4", &flat(4)).with("5", &nested(5));
        let listing = found(&contents, GoEventProcessorHost, None).await;
        assert_eq!(numbers(&listing), [("1".to_owned(), Some(1)), ("5".to_owned(), Some(5))]);
        let problems: Vec<_> = listing.malformed.iter().map(|found| found.problem.as_str()).collect();
        let parts =
            ["0: its content is not JSON", "2: it is empty", "3: it has 5368709120 bytes", "4: it has no `chec"];
        assert!(problems.iter().zip(parts).all(|(problem, part)| problem.starts_with(part)), "{problems:?}");
        assert_eq!(listing.malformed[2].live, Some(true));
    }

    #[tokio::test]
    async fn failures_of_the_storage_are_errors() {
        let mut contents = Contents::default().with("0", &nested(1));
        for kind in [ErrorKind::Unauthorized, ErrorKind::Unavailable] {
            contents.failure = Some(kind);
            let failed = read(&contents, GoEventProcessorHost, &group(), None, TIMEOUT).await;
            assert_eq!(failed.unwrap_err().kind(), kind);
        }
        contents.failure = Some(ErrorKind::NotFound);
        let listing = found(&contents, GoEventProcessorHost, None).await;
        assert_eq!(listing.malformed[0].problem, "0: it was deleted");
    }

    #[tokio::test]
    async fn checkpoints_in_the_new_format_are_noticed() {
        for name in ["ns.servicebus.windows.net/my_orders/$default", "Ns.servicebus.windows.net/My_Orders/$Default"] {
            let contents = Contents::default().with("0", &nested(1)).with(&format!("{name}/checkpoint/0"), "");
            assert!(found(&contents, GoEventProcessorHost, None).await.has_current_checkpoints, "{name}");
        }
        let contents = Contents::default().with("ns.servicebus.windows.net/my_orders/other/checkpoint/0", "");
        assert!(!found(&contents, GoEventProcessorHost, None).await.has_current_checkpoints);
    }

    proptest! {
        #[test]
        fn any_name_is_a_partition_or_none(name: String) {
            if let Some(partition) = parse_partition(&name) {
                prop_assert_eq!(partition.as_str(), name);
            }
        }
    }
}
