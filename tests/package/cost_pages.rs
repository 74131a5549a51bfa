//! The requests and prices in the documentation are those that the library computes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::cost::{BilledRequests, GroupSize, RequestPrices, SteadyRequests};
use eventhubs_checkpoint::processor::{CheckpointPolicy, ProcessorConfig};
use eventhubs_checkpoint::store::StoreConfig;

const SMALL: GroupSize = GroupSize::new(32, 4);

/// Fails if a page does not have these lines one after another.
#[track_caller]
fn assert_has_lines(page: &str, lines: &[String]) {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let expected = lines.join("\n");
    assert!(text.contains(&expected), "{page} must have these lines:\n\n{expected}\n");
}

/// Returns a number with a comma for each thousand.
fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

fn estimate(size: GroupSize, processor: &ProcessorConfig, store: &StoreConfig) -> BilledRequests {
    SteadyRequests::estimate(size, processor, store).by_type()
}

fn row(name: &str, per_hour: BilledRequests) -> String {
    let usd = RequestPrices::sample().usd_per_month(per_hour);
    let BilledRequests { list, .. } = per_hour;
    format!("| {name} | {} | {} | {usd:.2} |", with_commas(per_hour.total()), with_commas(list))
}

fn by_instance() -> ProcessorConfig {
    ProcessorConfig::default().with_balancer(|balancer| balancer.with_lease_scope(LeaseScope::Instance))
}

#[test]
fn the_prices_of_load_balancing_are_computed() {
    let default = (ProcessorConfig::default(), StoreConfig::default());
    let instance = (by_instance(), StoreConfig::default());
    let fast = (ProcessorConfig::fast_failover(), StoreConfig::fast_failover());
    let rows = [
        ("32 partitions, 4 instances, default settings", SMALL, &default),
        ("the same, `LeaseScope::Instance`", SMALL, &instance),
        ("the same, `fast_failover`", SMALL, &fast),
        ("32 partitions, 8 instances, default settings", GroupSize::new(32, 8), &default),
        ("the same, `fast_failover`", GroupSize::new(32, 8), &fast),
        ("1024 partitions, 64 instances, default settings", GroupSize::new(1024, 64), &default),
        ("the same, `LeaseScope::Instance`", GroupSize::new(1024, 64), &instance),
        ("2048 partitions, 300 instances, default settings", GroupSize::new(2048, 300), &default),
        ("the same, `LeaseScope::Instance`", GroupSize::new(2048, 300), &instance),
    ];
    let rows = rows.map(|(name, size, (processor, store))| row(name, estimate(size, processor, store)));
    assert_has_lines("docs/sizing.md", &rows);
}

#[test]
fn the_prices_of_checkpoints_are_computed() {
    let rows = [("5 s (default)", 5), ("10 s", 10), ("30 s", 30), ("2 min", 120)].map(|(name, seconds)| {
        let policy = CheckpointPolicy::default().with_interval(Duration::from_secs(seconds));
        let processor = ProcessorConfig::default().with_checkpoint_policy(policy);
        let SteadyRequests { checkpoints, .. } =
            SteadyRequests::estimate(SMALL.with_busy_partitions(32), &processor, &StoreConfig::default());
        let usd = |other| RequestPrices::sample().usd_per_month(BilledRequests { other, ..BilledRequests::default() });
        let of_partition = with_commas(checkpoints / 32.0);
        format!("| {name} | {of_partition} | {:.2} | {:.2} |", usd(checkpoints / 32.0), usd(checkpoints))
    });
    assert_has_lines("docs/sizing.md", &rows);
}

#[test]
fn the_pace_of_each_lease_duration_is_computed() {
    let rows = [("30 s", 30, "5 s", 5, "35 s"), ("60 s (default)", 60, "10 s (default)", 10, "65 s")];
    let rows =
        rows.iter().chain([&("120 s", 120, "20 s", 20, "125 s")]).map(|(lease, duration, name, interval, crash)| {
            let store = StoreConfig::default().with_lease_duration(Duration::from_secs(*duration));
            let processor = ProcessorConfig::default()
                .with_balancer(|balancer| balancer.with_load_balancing_interval(Duration::from_secs(*interval)));
            let steady = SteadyRequests::estimate(GroupSize::new(1, 1), &processor, &store);
            format!("| {lease} | {name} | {crash} | {:.0} | {:.0} |", steady.renewals, steady.listings)
        });
    let fast = SteadyRequests::estimate(
        GroupSize::new(1, 1),
        &ProcessorConfig::fast_failover(),
        &StoreConfig::fast_failover(),
    );
    let first = format!("| 14 s, `fast_failover` | 4 s | 19 s |  | {:.0} |", fast.listings);
    assert_has_lines("docs/sizing.md", &[first].into_iter().chain(rows).collect::<Vec<_>>());
}

#[test]
fn the_price_of_watching_is_computed() {
    let paces = [
        ("`--interval 3s --refresh 60s`, the default", 3.0, 60.0),
        ("`--interval 15s`, changes 15 s late", 15.0, 60.0),
        ("`--refresh 10s`, the lag 10 s late", 3.0, 10.0),
    ];
    let rows = paces.map(|(name, interval, refresh)| {
        let list = 2.0 * 3600.0 / refresh;
        let per_hour = BilledRequests { list, write: 0.0, other: 3600.0 / interval };
        let usd = RequestPrices::sample().usd_per_month(per_hour);
        assert!(usd <= 1.0 || refresh < 60.0, "{name}: {usd}");
        format!("| {name} | {} | {} | {usd:.2} |", with_commas(list), with_commas(per_hour.other))
    });
    assert_has_lines("docs/ehcp.md", &rows);
}

#[test]
fn the_sample_prices_are_those_of_the_page() {
    let RequestPrices { list, write, other } = RequestPrices::sample();
    assert_has_lines(
        "docs/storage.md",
        &[
            format!("| list | List Blobs, Create Container | {list} |"),
            format!("| write | Put Blob: the creation of a record | {write} |"),
            format!(
                "| other | Set Blob Metadata, Get Blob Properties: all other writes, and reads of a record | {other} |"
            ),
            "| free | Delete Blob | 0 |".to_owned(),
        ],
    );
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/storage.md")).unwrap();
    assert!(page.contains(RequestPrices::SAMPLE_DATE));
}
