//! `ehcp cost`.

use eventhubs_checkpoint::admin::describe::{GroupDescription, Sdk};
use eventhubs_checkpoint::cost::{BilledRequests, GroupSize, RequestPrices, SteadyRequests};
use eventhubs_checkpoint::store::BillingType;
use serde::Serialize;

use crate::args::{CostArgs, Global};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, print_note, print_text};
use crate::text::format_count;

const COLUMNS: &[Column] =
    &[Column::text("REQUESTS"), Column::text("TYPE"), Column::number("PER-HOUR"), Column::number("USD-PER-MONTH")];

/// Requests of one purpose, or of all.
#[derive(Clone, Copy, Debug, Serialize)]
struct CostRow {
    requests: &'static str,
    /// As which they are billed; `None` for the sum.
    #[serde(rename = "type")]
    billing: Option<&'static str>,
    per_hour: f64,
    usd_per_month: f64,
}

impl CostRow {
    fn of(requests: &'static str, billing: BillingType, per_hour: f64, prices: RequestPrices) -> Self {
        let billed = match billing {
            BillingType::List => BilledRequests { list: per_hour, ..BilledRequests::default() },
            _ => BilledRequests { other: per_hour, ..BilledRequests::default() },
        };
        Self { requests, billing: Some(billing.as_str()), per_hour, usd_per_month: prices.usd_per_month(billed) }
    }
}

#[derive(Serialize)]
struct CostDocument<'a> {
    schema: &'static str,
    partitions: u32,
    instances: u32,
    busy_partitions: u32,
    /// Per 10,000 requests.
    prices: ShownPrices,
    /// By purpose, and the sum at the end.
    requests: &'a [CostRow],
}

#[derive(Serialize)]
struct ShownPrices {
    list: f64,
    other: f64,
    /// The date of the sample, if any price is one of it.
    sample_date: Option<&'static str>,
}

pub async fn run(global: &Global, cost: &CostArgs) -> Result<Exit> {
    let (processor, store) = cost.settings.to_config()?;
    let sized = match (cost.partitions, cost.instances) {
        (Some(partitions), Some(instances)) => SizedGroup::given(partitions, instances),
        _ => SizedGroup::read(global).await?,
    };
    let size = sized.size_for(cost);
    let steady = SteadyRequests::estimate(size, &processor, &store);
    show_cost(global, cost, &sized.name, size, &steady)?;
    if sized.foreign > 0 {
        print_note(format_args!(
            "note: {} of another SDK: the estimate is for a group of the crate eventhubs-checkpoint only",
            format_count(sized.foreign, "member")
        ));
    }
    if size.instances == 0 {
        print_note("note: the group has no live member: --instances says how many it will have");
    }
    Ok(Exit::Done)
}

fn show_cost(global: &Global, cost: &CostArgs, name: &str, size: GroupSize, steady: &SteadyRequests) -> Result<()> {
    let prices = cost.prices.to_prices();
    let per_hour = steady.by_type();
    let rows = [
        CostRow::of("listings", BillingType::List, steady.listings, prices),
        CostRow::of("renewals", BillingType::Other, steady.renewals, prices),
        CostRow::of("polls", BillingType::Other, steady.polls, prices),
        CostRow::of("heartbeats", BillingType::Other, steady.heartbeats, prices),
        CostRow::of("checkpoints", BillingType::Other, steady.checkpoints, prices),
        CostRow {
            requests: "all",
            billing: None,
            per_hour: per_hour.total(),
            usd_per_month: prices.usd_per_month(per_hour),
        },
    ];
    let mut table = Table::new(COLUMNS);
    for row in &rows {
        let CostRow { requests, billing, per_hour, usd_per_month } = row;
        let billing = billing.unwrap_or_default().to_owned();
        table.add_row([(*requests).to_owned(), billing, format!("{per_hour:.0}"), format!("{usd_per_month:.2}")]);
    }
    let sample_date = cost.prices.has_sample().then_some(RequestPrices::SAMPLE_DATE);
    let output = Output::new(global);
    if output.is_for_people() {
        print_text(&format!("{}\n\n", format_headline(name, size, prices, sample_date)))?;
    }
    let RequestPrices { list, other, .. } = prices;
    let document = CostDocument {
        schema: "ehcp.cost/1",
        partitions: size.partitions,
        instances: size.instances,
        busy_partitions: size.busy_partitions,
        prices: ShownPrices { list, other, sample_date },
        requests: &rows,
    };
    output.show_document(&document, &rows, &table)
}

fn format_headline(name: &str, size: GroupSize, prices: RequestPrices, sample_date: Option<&str>) -> String {
    let GroupSize { partitions, instances, busy_partitions, .. } = size;
    let RequestPrices { list, other, .. } = prices;
    let sample = sample_date.map(|date| format!(", sample of {date}")).unwrap_or_default();
    format!(
        "{name}{}, {}, {busy_partitions} busy, {list} USD per 10,000 listings and {other} for others{sample}",
        format_count(partitions as usize, "partition"),
        format_count(instances as usize, "instance"),
    )
}

/// A group, and what is known about its size.
struct SizedGroup {
    /// For the headline.
    name: String,
    partitions: u32,
    instances: u32,
    /// The partitions that have events, by what is known.
    busy_partitions: u32,
    capitals: bool,
    /// The live members of other SDKs.
    foreign: usize,
}

impl SizedGroup {
    fn given(partitions: u32, instances: u32) -> Self {
        Self { name: String::new(), partitions, instances, busy_partitions: partitions, capitals: false, foreign: 0 }
    }

    /// Reads the records of a group.
    async fn read(global: &Global) -> Result<Self> {
        let connection = GroupConnection::resolve(global)?;
        let described = connection.describe_records().await?;
        let GroupDescription { partitions, members, .. } = &described;
        let count = |number: usize| u32::try_from(number).map_err(|_| Failure::failed("the group is too large"));
        let names = [connection.group.namespace(), connection.group.event_hub(), connection.group.name()];
        Ok(Self {
            name: format!("{}  ", connection.group),
            partitions: count(partitions.len())?,
            instances: count(members.len())?,
            busy_partitions: count(partitions.iter().filter(|partition| partition.checkpoint.is_some()).count())?,
            capitals: names.iter().any(|name| *name != name.to_lowercase()),
            foreign: members.iter().filter(|member| member.sdk != Sdk::ThisCrate).count(),
        })
    }

    fn size_for(&self, cost: &CostArgs) -> GroupSize {
        let busy_partitions = cost.busy.unwrap_or(self.busy_partitions).min(self.partitions);
        GroupSize::new(self.partitions, cost.instances.unwrap_or(self.instances))
            .with_busy_partitions(busy_partitions)
            .with_capitals(self.capitals)
    }
}
