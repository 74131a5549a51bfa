//! `ehcp watch`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::pin::pin;

use eventhubs_checkpoint::PartitionId;
use futures::StreamExt;
use serde::Serialize;

use crate::args::{Format, Global, Watch};
use crate::connection::Connection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{json, note, print_to_reader};
use crate::watching::{Change, Described, History, Look, Pace, Rates, Watched, Watcher};

/// One look as a line of `ehcp.watch/1`. Lines have no history: their reader has seen it.
#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    #[serde(flatten)]
    group: Described<'a>,
    rates: BTreeMap<&'a PartitionId, Rates>,
    /// Those since the line before.
    changes: &'a [Change],
    /// Why the event hub could not be read.
    hub_failure: Option<&'a str>,
}

pub async fn run(global: &Global, watch: &Watch) -> Result<Exit> {
    if global.output == Format::Csv {
        return Err(Failure::usage("looks have no CSV format: use -o ndjson"));
    }
    let connection = Connection::resolve(global)?;
    let is_for_people = matches!(global.output, Format::Table | Format::Wide);
    if is_for_people && io::stdout().is_terminal() {
        #[cfg(feature = "tui")]
        return crate::screen::run(connection, watch).await;
        #[cfg(not(feature = "tui"))]
        note("note: this build has no screen (feature `tui`), so it writes lines of JSON");
    }
    lines(connection, watch).await
}

async fn lines(connection: Connection, watch: &Watch) -> Result<Exit> {
    let watcher = Watcher::connect(connection, Pace { hub: watch.looks.hub_interval }).await?;
    let mut looks = pin!(watcher.looks(watch.looks.interval).take(watch.count.map_or(usize::MAX, NonZeroUsize::get)));
    let mut history = History::default();
    let mut exit = Exit::Done;
    while let Some(seen) = looks.next().await {
        match seen.look {
            Ok(look) => {
                exit = Exit::Done;
                if !print_to_reader(&line(&mut history, look)?)? {
                    break;
                }
            }
            Err(failure) => {
                exit = failure.exit();
                note(format_args!("error: {failure}"));
            }
        }
    }
    Ok(exit)
}

fn line(history: &mut History, look: Look) -> Result<String> {
    let changes = history.add(look.group, look.is_hub_read);
    let Some(Watched { schema, group, rates, .. }) = history.everything() else { return Ok(String::new()) };
    let hub_failure = look.hub_failure.as_deref();
    json(serde_json::to_string(&Line { schema, group, rates, changes: &changes, hub_failure }))
}
