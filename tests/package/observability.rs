//! The dashboard and the alerts use metrics and labels that exist. Each alert is explained.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use eventhubs_checkpoint::metrics::{ALL, MetricKind};
use serde_json::Value;

const ALERTS: &str = "docs/observability/prometheus-rule.yaml";
const DASHBOARD: &str = "docs/observability/grafana-dashboard.json";

/// The labels of all series, and those that Prometheus adds.
const COMMON_LABELS: &[&str] = &["namespace", "event_hub", "consumer_group", "instance", "le"];

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Returns the names of all series, without those that a histogram has in addition.
fn series(text: &str) -> BTreeSet<&str> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_name(letter)).filter(|word| word.starts_with("eventhubs_checkpoint_"));
    words.collect()
}

/// Returns whether `ehcp serve` has this metric, by the page that lists them.
fn is_metric_of_groups(name: &str) -> bool {
    let page = read("docs/metrics.md");
    let (_, section) = page.split_once("\n## Metrics of whole groups\n").unwrap();
    section.split_once("\n## ").unwrap().0.contains(&format!("| `{name}` |"))
}

fn is_metric(name: &str) -> bool {
    is_metric_of_groups(name)
        || ALL.iter().any(|metric| {
            let rest = name.strip_prefix(metric.name);
            let is_part = |rest: &str| ["_bucket", "_sum", "_count"].contains(&rest);
            rest.is_some_and(|rest| rest.is_empty() || (metric.kind == MetricKind::Histogram && is_part(rest)))
        })
}

/// Returns the labels that an expression selects or groups by.
fn labels(expression: &str) -> BTreeSet<&str> {
    let matchers = expression.split(['{', ',']).filter_map(|part| part.split_once(['=', '!'])).map(|(label, _)| label);
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = groups.flat_map(|(list, _)| list.split(','));
    let is_label = |label: &&str| !label.is_empty() && label.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
    matchers.chain(grouped).map(str::trim).filter(is_label).collect()
}

#[test]
fn every_metric_of_the_alerts_exists() {
    let text = read(ALERTS);
    let names = series(&text);
    assert!(names.len() > 9, "{names:?}");
    let unknown: Vec<_> = names.into_iter().filter(|name| !is_metric(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_alert_has_a_section() {
    let page = read("docs/metrics.md");
    let alerts = read(ALERTS);
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 9, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("\n### {name}\n")), "docs/metrics.md has no section {name}");
    }
}

#[test]
fn every_metric_and_label_of_the_dashboard_exists() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() > 20);
    let known: BTreeSet<_> = ALL.iter().flat_map(|metric| metric.labels).chain(COMMON_LABELS).copied().collect();
    for expression in expressions {
        let unknown: Vec<_> = series(expression).into_iter().filter(|name| !is_metric(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let unknown: Vec<_> = labels(expression).difference(&known).copied().collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!((ids.len(), dashboard["uid"].as_str()), (panels.len(), Some("eventhubs-checkpoint")));
}

/// Prometheus itself checks the alerts and carries out their tests.
#[test]
fn prometheus_loads_the_alerts() {
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("skipped: promtool is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let alerts = read(ALERTS);
    let (_, rules) = alerts.split_once("\nspec:\n").unwrap();
    let rules: String = rules.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect();
    fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    fs::write(folder.path().join("test.yaml"), read("tests/package/observability/alerts_test.yaml")).unwrap();
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(folder.path()).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {shown}");
    }
}

mod tests {
    use super::*;

    #[test]
    fn labels_of_matchers_and_groups_are_found() {
        let found = labels(r#"sum by (a, b) (rate(x_total{c="1",d!~"e|f=g"}[5m])) > 0"#);
        assert_eq!(found, BTreeSet::from(["a", "b", "c", "d"]));
        assert!(is_metric("eventhubs_checkpoint_handler_duration_seconds_bucket"));
        assert!(!is_metric("eventhubs_checkpoint_lag_events_bucket") && !is_metric("eventhubs_checkpoint_lag"));
    }
}
