//! The report, in Markdown.

use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::cost::{BilledRequests, RequestPrices};
use eventhubs_checkpoint::store::BillingType;
use eventhubs_checkpoint::time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::connection::StorageArgs;
use crate::counted::Counts;
use crate::rules::CheckedRules;
use crate::steps::Step;
use crate::tally::Tally;

pub struct Report {
    /// By the clock of the storage.
    pub date: OffsetDateTime,
    pub took: Duration,
    pub storage: String,
    pub event_hub: String,
    pub partitions: usize,
    pub rules: CheckedRules,
    pub steps: Vec<Step>,
    pub tally: Tally,
    /// The requests of all processes to the storage.
    pub requests: Counts,
}

impl Report {
    pub fn holds(&self) -> bool {
        self.rules.violated.is_empty()
            && self.steps.iter().all(|step| step.outcome.is_ok())
            && self.tally.lost() == 0
            && self.tally.after_stop == 0
    }

    fn write_rules(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CheckedRules { checked, took, left_out, violated } = &self.rules;
        writeln!(f, "\n## Rules of the storage\n")?;
        let held = checked - violated.len();
        writeln!(f, "{held} of {checked} rules hold, checked in {:.0} s.", took.as_secs_f64())?;
        writeln!(f, "{left_out} others need a container that does not exist, and are left out.")?;
        if !violated.is_empty() {
            writeln!(f)?;
        }
        for (rule, reason) in violated {
            writeln!(f, "- **violated**: `{rule}`: {}", reason.replace('\n', " "))?;
        }
        Ok(())
    }

    fn write_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Worker processes\n")?;
        writeln!(f, "| step | result | time | |\n|---|---|--:|---|")?;
        for Step { name, outcome, took } in &self.steps {
            let result = if outcome.is_ok() { "ok" } else { "**failed**" };
            let detail = outcome.as_ref().unwrap_or_else(|reason| reason);
            writeln!(f, "| {name} | {result} | {:.1} s | {detail} |", took.as_secs_f64())?;
        }
        if self.steps.iter().any(|step| step.outcome.is_err()) {
            writeln!(f, "\nNo other step follows a failed one.")?;
        }
        Ok(())
    }

    fn write_events(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Events\n\n| | number |\n|---|--:|")?;
        writeln!(f, "| published | {} |", self.tally.published)?;
        writeln!(f, "| handled | {} |", self.tally.handled)?;
        writeln!(f, "| lost | {} |", self.tally.lost())?;
        writeln!(f, "| handled twice, after the freeze and the kill | {} |", self.tally.twice)?;
        writeln!(f, "| handled by a worker that had stopped the partition | {} |", self.tally.after_stop)
    }

    fn write_requests(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prices = RequestPrices::sample();
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let [list, write, other, _] = self.requests.map(|count| count as f64);
        let usd = prices.usd_for(BilledRequests { list, write, other });
        writeln!(f, "\n## Requests to the storage\n\n| billed as | requests |\n|---|--:|")?;
        for (billing, count) in BillingType::ALL.iter().zip(self.requests) {
            writeln!(f, "| {} | {count} |", billing.as_str())?;
        }
        writeln!(f, "\nThey cost about {usd:.4} USD, by the sample prices of {}.", RequestPrices::SAMPLE_DATE)?;
        writeln!(f, "The namespace of the event hub is billed by the hour, and is not included.")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = self.date.format(&Rfc3339).map_err(|_| fmt::Error)?;
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "# Check of eventhubs-checkpoint {version}\n")?;
        writeln!(f, "**{}**", if self.holds() { "Everything holds." } else { "Not everything holds." })?;
        writeln!(f, "\n- Date, by the clock of the storage: {date}")?;
        writeln!(f, "- Storage: {}", self.storage)?;
        writeln!(f, "- Event hub: {}, {} partitions", self.event_hub, self.partitions)?;
        writeln!(f, "- Time: {:.0} s", self.took.as_secs_f64())?;
        self.write_rules(f)?;
        self.write_steps(f)?;
        self.write_events(f)?;
        self.write_requests(f)
    }
}

/// Returns the host of the storage, without any secret.
pub fn storage_host(storage: &StorageArgs) -> String {
    let text = storage.storage_url.as_deref().or(storage.storage.as_deref()).unwrap_or_default();
    let field = |name: &str| {
        let fields = text.split(';').filter_map(|field| field.split_once('='));
        fields.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    };
    let url = if text.starts_with("http") { Some(text) } else { field("BlobEndpoint") };
    if let Some(url) = url {
        let (_, rest) = url.split_once("//").unwrap_or_default();
        return rest.split(['/', '?']).next().unwrap_or_default().to_owned();
    }
    match field("AccountName") {
        Some(account) => format!("{account}.blob.{}", field("EndpointSuffix").unwrap_or("core.windows.net")),
        None => "emulator".to_owned(),
    }
}
