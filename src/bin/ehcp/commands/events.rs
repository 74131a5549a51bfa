//! Reads events without owning their partition, and shortens their text for tables.

use eventhubs_checkpoint::admin::describe::PartitionDescription;
use eventhubs_checkpoint::azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::source::{EventReceiver, EventSource, StartPosition};
use eventhubs_checkpoint::{EventHubSource, PartitionId};

use crate::args::Format;
use crate::connection::GroupConnection;
use crate::exit::Result;

/// The epoch of a reader that owns nothing.
const NO_EPOCH: i64 = 0;

/// How much of a text the default table shows.
const SHOWN_CHARACTERS: usize = 60;

/// Returns where a processor would continue.
pub fn start_after_checkpoint(partition: Option<&PartitionDescription>) -> StartPosition {
    let checkpoint = partition.and_then(|partition| partition.checkpoint.as_ref());
    let position = checkpoint.map(|checkpoint| checkpoint.position.clone()).unwrap_or_default();
    match (position.sequence_number, position.offset) {
        _ if checkpoint.is_some_and(|checkpoint| checkpoint.of_former_hub) => StartPosition::Earliest,
        (Some(number), _) => StartPosition::AfterSequenceNumber(number),
        (None, Some(offset)) => StartPosition::AfterOffset(offset),
        (None, None) => StartPosition::Earliest,
    }
}

/// Opens a receiver without an owner level, so that no processor is displaced.
pub async fn open_receiver(
    connection: &GroupConnection,
    hub: &EventHubSource,
    partition: &PartitionId,
    start: StartPosition,
    count: usize,
) -> Result<EventReceiver<ReceivedEventData>> {
    Ok(connection.within_timeout(hub.open_receiver(partition, start, count.max(1), NO_EPOCH)).await??)
}

/// Returns a text, in the default table only its beginning.
pub fn shorten(text: &str, format: Format) -> String {
    if format == Format::Table && text.chars().count() > SHOWN_CHARACTERS {
        return text.chars().take(SHOWN_CHARACTERS - 3).chain("...".chars()).collect();
    }
    text.to_owned()
}
