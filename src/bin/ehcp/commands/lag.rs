//! `ehcp lag`.

use serde::Serialize;

use crate::args::{Global, LagArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, print_note, print_text};
use crate::text::{join_ranges, or_empty};

const COLUMNS: &[Column] = &[Column::number("TOTAL"), Column::number("MAX"), Column::text("PARTITION")];

#[derive(Serialize)]
struct LagTotals {
    schema: &'static str,
    total: u64,
    /// The lag of the partition that has the most.
    max: Option<u64>,
    partition: Option<String>,
}

pub async fn run(global: &Global, lag: &LagArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    if global.no_hub {
        return Err(Failure::usage("the lag needs the event hub: remove --no-hub"));
    }
    let mut group = connection.describe_group().await?;
    lag.selection.check_partitions(&group)?;
    group.partitions.retain(|partition| lag.selection.includes(&partition.id));
    let mut lags = group.partitions.iter().map(|partition| partition.lag.events);
    let Some(total) = lags.try_fold(0, |sum: u64, events| Some(sum.saturating_add(events?))) else {
        let unknown = group.partitions.iter().filter(|partition| partition.lag.events.is_none());
        return Err(Failure::failed(format!(
            "the lag of partition {} is unknown: see `ehcp describe -o wide`",
            join_ranges(unknown.map(|partition| &partition.id))
        )));
    };
    if lag.sum {
        print_text(&format!("{total}\n"))?;
    } else {
        // The first one of several.
        let most = group.partitions.iter().rev().max_by_key(|partition| partition.lag.events);
        let totals = LagTotals {
            schema: "ehcp.lag/1",
            total,
            max: most.and_then(|most| most.lag.events),
            partition: most.map(|most| most.id.to_string()),
        };
        let mut table = Table::new(COLUMNS);
        table.add_row([total.to_string(), or_empty(totals.max), or_empty(totals.partition.as_deref())]);
        Output::new(global).show_document(&totals, &[&totals], &table)?;
    }
    match lag.max {
        Some(max) if total > max => {
            print_note(format_args!("the lag is {total}, more than {max}"));
            Ok(Exit::Differences)
        }
        _ => Ok(Exit::Done),
    }
}
