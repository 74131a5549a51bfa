//! `ehcp watch`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;

use eventhubs_checkpoint::PartitionId;
use futures::StreamExt;
use serde::Serialize;

use crate::args::{Format, Global, WatchArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{json_text, print_note, print_to_reader};
use crate::watching::{DescribedGroup, GroupChange, GroupHistory, GroupSnapshot, Look, Rates, WaitingTime, Watcher};

/// One look as a line of `ehcp.watch/1`. Lines have no history: their reader has seen it.
#[derive(Serialize)]
struct WatchLine<'a> {
    schema: &'static str,
    #[serde(flatten)]
    group: DescribedGroup<'a>,
    rates: BTreeMap<&'a PartitionId, Rates>,
    /// How long the event after each checkpoint has waited.
    behind: BTreeMap<&'a PartitionId, WaitingTime>,
    /// Those since the line before.
    changes: &'a [GroupChange],
    /// Why the event hub could not be read.
    hub_failure: Option<&'a str>,
}

pub async fn run(global: &Global, watch: &WatchArgs) -> Result<Exit> {
    if global.output == Format::Csv {
        return Err(Failure::usage("`watch` has no CSV format: use -o ndjson"));
    }
    let connection = GroupConnection::resolve(global)?;
    if matches!(global.output, Format::Table | Format::Wide) && io::stdout().is_terminal() {
        #[cfg(feature = "tui")]
        return crate::screen::run(connection, watch).await;
        #[cfg(not(feature = "tui"))]
        print_note("note: this build has no screen (feature `tui`), so it writes lines of JSON");
    }
    print_looks(connection, watch).await
}

async fn print_looks(connection: GroupConnection, watch: &WatchArgs) -> Result<Exit> {
    let watcher = Watcher::connect(connection, watch.looks.hub_interval).await?;
    let count = watch.count.map_or(usize::MAX, NonZeroUsize::get);
    let mut looks = pin!(watcher.looks(watch.looks, Arc::default()).take(count));
    let mut history = GroupHistory::default();
    let mut exit = Exit::Done;
    while let Some(seen) = looks.next().await {
        match seen.look {
            Ok(look) => {
                exit = Exit::Done;
                if !print_to_reader(&format_look(&mut history, look)?)? {
                    break;
                }
            }
            Err(failure) => {
                exit = failure.exit();
                print_note(format_args!("error: {failure}"));
            }
        }
    }
    Ok(exit)
}

fn format_look(history: &mut GroupHistory, look: Look) -> Result<String> {
    let changes = history.add_look(look.group, look.is_hub_read);
    let Some(GroupSnapshot { schema, group, rates, behind, .. }) = history.snapshot() else { return Ok(String::new()) };
    json_text(serde_json::to_string(&WatchLine {
        schema,
        group,
        rates,
        behind,
        changes: &changes,
        hub_failure: look.hub_failure.as_deref(),
    }))
}
