//! The first lines of the screen: pure.

use eventhubs_checkpoint::admin::describe::GroupDescription;
use time::OffsetDateTime;

use super::figures::{format_clock, format_rate, group_digits};
use crate::pauses::count_pauses;
use crate::text::{format_ago, format_count, format_seconds};
use crate::watching::GroupHistory;

/// A look that is not older is as good as the present.
const NEW: time::Duration = time::Duration::seconds(5);
const BETWEEN: &str = "   ";

/// Returns what the headline says, part by part.
pub fn headline_parts(group: &GroupDescription, history: &GroupHistory, now: OffsetDateTime) -> Vec<String> {
    let summary = &group.group;
    let partitions = group.partitions.len();
    let mut parts = vec![
        format!("{} / {}", summary.event_hub, summary.consumer_group),
        summary.namespace.clone(),
        summary.blob_name_case.to_string(),
        summary.state.to_string(),
        format_count(summary.members, "owner"),
        format!("{}/{partitions} owned", partitions.saturating_sub(summary.unowned)),
    ];
    parts.extend(count_pauses(&group.partitions));
    parts.extend([format_lag(group, history), format_clock(now)]);
    let age = now - group.taken_at;
    parts.extend((age > NEW).then(|| format!("looked {} ago", format_ago(now, group.taken_at))));
    parts
}

fn format_lag(group: &GroupDescription, history: &GroupHistory) -> String {
    let Some(events) = group.group.lag.events else { return "lag unknown".to_owned() };
    let rates = group.partitions.iter().map(|partition| history.rates(partition));
    let trend = rates.map(|rates| Some(rates.enqueued? - rates.processed?)).sum::<Option<f64>>();
    format!("lag {}{}", group_digits(events), trend.map(|trend| format_trend(events, trend)).unwrap_or_default())
}

/// Returns how fast the lag changes, and when it would be gone.
#[expect(clippy::cast_precision_loss, reason = "an estimate has two digits")]
fn format_trend(events: u64, trend: f64) -> String {
    match format_rate(trend) {
        _ if events == 0 => String::new(),
        steady if steady == "0" => " (steady)".to_owned(),
        shrinks if trend < 0.0 => format!(" ({shrinks}/s, ~{})", format_seconds((events as f64 / -trend).round())),
        grows => format!(" (+{grows}/s)"),
    }
}

/// Breaks parts into lines, between parts.
pub fn break_lines(parts: &[String], width: usize) -> Vec<String> {
    let mut lines = Vec::<String>::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + BETWEEN.len() + part.chars().count() <= width => {
                line.push_str(BETWEEN);
                line.push_str(part);
            }
            _ => lines.push(part.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trend_has_an_estimate_if_the_lag_shrinks() {
        for (events, trend, expected) in [
            (12_480, -310.0, " (-310/s, ~40s)"),
            (12_480, 310.0, " (+310/s)"),
            (12_480, 0.0, " (steady)"),
            (0, -3.0, ""),
        ] {
            assert_eq!(format_trend(events, trend), expected);
        }
    }

    #[test]
    fn lines_are_broken_between_parts() {
        let parts = ["orders / group", "namespace", "stable"].map(str::to_owned);
        assert_eq!(break_lines(&parts, 80), ["orders / group   namespace   stable"]);
        assert_eq!(break_lines(&parts, 26), ["orders / group   namespace", "stable"]);
        assert_eq!(break_lines(&parts, 5), parts);
    }
}
