//! `ehcp lag`.

use serde::Serialize;

use crate::args::{Global, Lag};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, note, print};
use crate::text::{or_empty, ranges};

const COLUMNS: &[Column] = &[Column::number("TOTAL"), Column::number("MAX"), Column::text("PARTITION")];

#[derive(Serialize)]
struct Totals {
    schema: &'static str,
    total: u64,
    /// The lag of the partition that has the most.
    max: Option<u64>,
    partition: Option<String>,
}

pub async fn run(global: &Global, lag: &Lag) -> Result<Exit> {
    let connection = Connection::resolve(global)?;
    if global.no_hub {
        return Err(Failure::usage("the lag needs the event hub: remove --no-hub"));
    }
    let group = connection.describe().await?;
    let Some(total) = group.group.lag.events else {
        let unknown = group.partitions.iter().filter(|partition| partition.lag.events.is_none());
        let unknown = ranges(unknown.map(|partition| &partition.id));
        return Err(Failure::failed(format!("the lag of partition {unknown} is unknown: see `ehcp describe -o wide`")));
    };
    if lag.sum {
        print(&format!("{total}\n"))?;
    } else {
        // The first one of several.
        let most = group.partitions.iter().rev().max_by_key(|partition| partition.lag.events);
        let totals = Totals {
            schema: "ehcp.lag/1",
            total,
            max: most.and_then(|most| most.lag.events),
            partition: most.map(|most| most.id.to_string()),
        };
        let mut table = Table::new(COLUMNS);
        table.add_row([total.to_string(), or_empty(totals.max), or_empty(totals.partition.as_deref())]);
        Output::new(global).show(&totals, &[&totals], &table)?;
    }
    match lag.max {
        Some(max) if total > max => {
            note(format_args!("the lag is {total}, more than {max}"));
            Ok(Exit::Differences)
        }
        _ => Ok(Exit::Done),
    }
}
