//! `ehcp redrive`: a processor on the event hub of the dead letters sends each one back, up to the last one that is there
//! when the command begins.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eventhubs_checkpoint::admin::describe::{GroupDescription, OwnershipState, PartitionDescription};
use eventhubs_checkpoint::azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::balancer::{Assignment, LoadBalancingStrategy};
use eventhubs_checkpoint::eventhubs::{DeadLetterOrigin, EventHubRedriver};
use eventhubs_checkpoint::processor::{CheckpointPolicy, HealthIssue, ProcessorHandle};
use eventhubs_checkpoint::source::EndPosition;
use eventhubs_checkpoint::{
    Error, ErrorKind, EventHubSource, Handler, HandlerError, PartitionContext, PartitionId, Processor, ProcessorConfig,
    StopReason,
};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, interval, timeout};

use super::events::{open_receiver, shorten, start_after_checkpoint};
use crate::args::{Global, RedriveArgs};
use crate::connection::{GroupConnection, SendConnection};
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::progress::Progress;
use crate::safety::{note_dry_run, wait_for_interrupt};
use crate::text::{format_count, format_duration, or_empty};

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("EVENT HUB"),
    Column::text("GROUP"),
    Column::number("LETTERS"),
    Column::text("EFFECT"),
    Column::text("ERROR"),
];

/// How long a dry run waits for the first letter of a partition.
const PREVIEW_LIMIT: Duration = Duration::from_secs(5);

/// Longer than a letter takes at most, with a new connection, so that no send is interrupted.
const SEND_LIMIT: Duration = Duration::from_secs(45);

/// How long the run may be in trouble until it ends, for example without the storage, or at an event that cannot be
/// decoded.
const TROUBLE_LIMIT: Duration = Duration::from_secs(60);

/// What becomes of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Effect {
    SendBack,
    /// It has no origin.
    SkipNoLetter,
    /// The client could not decode the event.
    SkipNoContent,
    /// It came from the event hub of the letters, so it would come back here.
    SkipSameHub,
}

impl Effect {
    fn of(origin: Option<&DeadLetterOrigin>, letters_hub: Option<&str>) -> Self {
        match origin {
            None => Self::SkipNoLetter,
            Some(origin) if letters_hub.is_some_and(|hub| origin.event_hub.eq_ignore_ascii_case(hub)) => {
                Self::SkipSameHub
            }
            Some(origin) if !origin.has_content => Self::SkipNoContent,
            Some(_) => Self::SendBack,
        }
    }

    fn as_text(self) -> &'static str {
        match self {
            Self::SendBack => "send back",
            Self::SkipNoLetter => "skip: no dead letter",
            Self::SkipNoContent => "skip: no content, because the event could not be decoded",
            Self::SkipSameHub => "skip: it came from this event hub",
        }
    }
}

/// The letters of a partition that came from one consumer group. In a dry run, all that wait, with the origin of the
/// first one.
#[derive(Serialize)]
struct LetterRow {
    partition: PartitionId,
    event_hub: Option<String>,
    consumer_group: Option<String>,
    /// Missing if the checkpoint does not say how many wait.
    letters: Option<u64>,
    effect: Option<Effect>,
    /// Of the first letter in a dry run, otherwise of the last one.
    error: Option<String>,
}

impl LetterRow {
    fn new(
        partition: &PartitionId,
        letters: Option<u64>,
        effect: Option<Effect>,
        origin: Option<DeadLetterOrigin>,
    ) -> Self {
        let row =
            Self { partition: partition.clone(), event_hub: None, consumer_group: None, letters, effect, error: None };
        match origin {
            None => row,
            Some(DeadLetterOrigin { event_hub, consumer_group, error, .. }) => {
                Self { event_hub: Some(event_hub), consumer_group: Some(consumer_group), error: Some(error), ..row }
            }
        }
    }
}

#[derive(Serialize)]
struct RedriveDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    letters: &'a [LetterRow],
}

pub async fn run(global: &Global, args: &RedriveArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let sending = connection.send_connection(args.send_connection_string.as_deref())?;
    let hub = connection.require_hub().await?;
    let records = connection.connect_operator().await?.read().await?;
    let group = records.describe(Some(&connection.read_ranges(&hub).await?));
    args.selection.check_partitions(&group)?;
    let mut waiting = group.partitions.clone();
    waiting.retain(|partition| args.selection.includes(&partition.id) && partition.lag.events != Some(0));
    let permitted = check_group(&group, &waiting);
    // The event hub of the letters, if that is where they are sent.
    let letters_hub = sending.is_same_namespace.then_some(connection.group.event_hub());
    if !args.execute {
        let rows = preview(&connection, &hub, &waiting, letters_hub, permitted.is_ok()).await?;
        show(global, &rows, true)?;
        note_dry_run(
            waiting.len(),
            &format!("send back the letters of {}", format_count(waiting.len(), "partition")),
            permitted,
        );
        return Ok(if waiting.is_empty() { Exit::Done } else { Exit::Differences });
    }
    permitted?;
    if waiting.is_empty() {
        show(global, &[], false)?;
        print_note("nothing to do");
        return Ok(Exit::Done);
    }
    let courier = Arc::new(Courier::new(sending, letters_hub, args.max.map(Into::into)));
    let ended = process(&connection, &waiting, &courier).await;
    let Run { left, rows, failure } = std::mem::take(&mut *courier.lock_run());
    let rows: Vec<_> = rows.into_values().collect();
    show(global, &rows, false)?;
    let letters: u64 = rows.iter().filter_map(|row| row.letters).sum();
    let sent: u64 = rows.iter().filter(|row| row.effect == Some(Effect::SendBack)).filter_map(|row| row.letters).sum();
    print_note(format_args!("sent back {sent}, skipped {}", letters - sent));
    ended?;
    if let Some(failure) = failure {
        return Err(Failure::failed(failure));
    }
    if left > 0 {
        check_nothing_is_left(&connection, &waiting).await?;
    }
    Ok(Exit::Done)
}

/// Fails if a partition must not be processed: it has a live owner, is paused, or the application keeps its position.
fn check_group(group: &GroupDescription, waiting: &[PartitionDescription]) -> Result<()> {
    if let Some(partition) = group.partitions.iter().find(|partition| partition.state.is_live()) {
        let id = &partition.id;
        return Err(Failure::refused(match &partition.owner {
            Some(owner) if partition.state != OwnershipState::Operator => {
                let expires = format_duration(owner.expires_in);
                format!(
                    "{} is processing partition {id} of the dead letters: stop it, or if it has crashed, wait for {expires}",
                    owner.id
                )
            }
            _ => format!("another command works on partition {id}: wait until it has ended, or its lease has expired"),
        }));
    }
    for partition in waiting {
        let id = &partition.id;
        if partition.active_pause().is_some() {
            return Err(Failure::refused(format!("partition {id} of the dead letters is paused: see `ehcp resume`")));
        }
        if partition.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.own_position) {
            return Err(Failure::refused(format!(
                "an application keeps its own position of partition {id} of the dead letters, so the checkpoint does not \
                 say which ones were processed: pass a --consumer-group for this command alone"
            )));
        }
    }
    Ok(())
}

/// Returns how many letters wait in each partition, and where the first one came from, if it may be read.
async fn preview(
    connection: &GroupConnection,
    hub: &EventHubSource,
    waiting: &[PartitionDescription],
    letters_hub: Option<&str>,
    is_read: bool,
) -> Result<Vec<LetterRow>> {
    let progress = Progress::of("reading letters", waiting.len());
    let mut rows = Vec::new();
    for partition in waiting {
        let letter = if is_read { read_first(connection, hub, partition).await? } else { None };
        let origin = letter.as_ref().and_then(DeadLetterOrigin::of);
        let effect = letter.map(|_| Effect::of(origin.as_ref(), letters_hub));
        rows.push(LetterRow::new(&partition.id, partition.lag.events, effect, origin));
        progress.advance();
    }
    Ok(rows)
}

async fn read_first(
    connection: &GroupConnection,
    hub: &EventHubSource,
    partition: &PartitionDescription,
) -> Result<Option<ReceivedEventData>> {
    let start = start_after_checkpoint(Some(partition));
    let mut receiver = open_receiver(connection, hub, &partition.id, start, 1).await?;
    match timeout(PREVIEW_LIMIT, receiver.next_batch(1)).await {
        Ok(batch) => Ok(batch?.into_iter().next()),
        Err(_) => Ok(None),
    }
}

/// Runs a processor on the partitions up to their last letters. It owns them, so that no other command sends the same
/// letters, and its checkpoints follow what was sent.
async fn process(connection: &GroupConnection, waiting: &[PartitionDescription], courier: &Arc<Courier>) -> Result<()> {
    let owner = format!("ehcp-redrive-{:016x}", RandomState::new().hash_one(()));
    let store = connection.connect_store(&owner).await?;
    let source = connection.connect_source(&connection.group).await?;
    let ids = waiting.iter().map(|partition| partition.id.clone());
    let strategy = LoadBalancingStrategy::Static(Assignment::partitions(ids));
    let mut config = ProcessorConfig::default()
        .with_checkpoint_policy(CheckpointPolicy::default().with_interval(Duration::from_secs(1)))
        .with_drain_timeout(SEND_LIMIT)
        .with_balancer(|balancer| {
            balancer.with_load_balancing_strategy(strategy).with_load_balancing_interval(Duration::from_secs(1))
        });
    for partition in waiting {
        let last = partition.hub.as_ref().and_then(|range| range.last).unwrap_or(-1);
        config = config.with_end_position_of(partition.id.clone(), EndPosition::SequenceNumber(last));
    }
    let processor = Processor::builder(source, store, Arc::clone(courier)).with_config(config).build()?;
    let handle = processor.handle();
    let _progress = Progress::spinner("sending letters back");
    let interrupted = async {
        wait_for_interrupt().await;
        courier.end("interrupted: the letters that are left stay for the next run".to_owned());
        pending::<Infallible>().await
    };
    tokio::select! {
        report = processor.run(courier.stop.notified()) => {
            let report = report?;
            if report.forced || !report.aborted.is_empty() || !report.uncheckpointed.is_empty() {
                courier.end("the last checkpoints were not written, so the next run may send letters again".to_owned());
            }
            Ok(())
        }
        never = courier.watch_health(&handle) => match never {},
        never = interrupted => match never {},
    }
}

/// Fails if a partition has letters left, for example because another instance took it.
async fn check_nothing_is_left(connection: &GroupConnection, waiting: &[PartitionDescription]) -> Result<()> {
    let group = connection.connect_operator().await?.read().await?.describe(None);
    for PartitionDescription { id, hub, .. } in waiting {
        let last = hub.as_ref().and_then(|range| range.last);
        let checkpoint = group.partition(id).and_then(|partition| partition.checkpoint.as_ref());
        if checkpoint.and_then(|checkpoint| checkpoint.position.sequence_number) < last {
            return Err(Failure::failed(format!("partition {id} has letters left: run the command again")));
        }
    }
    Ok(())
}

/// The handler: it sends letters back until it fails, or has handled as many as wanted.
struct Courier {
    redriver: EventHubRedriver,
    /// The event hub of the letters, if they are sent to its namespace.
    letters_hub: Option<String>,
    run: Mutex<Run>,
    /// Ends the processor. A second shutdown through its handle would end it before the last checkpoints are written.
    stop: Notify,
}

#[derive(Default)]
struct Run {
    /// How many more letters to take.
    left: u64,
    rows: BTreeMap<(PartitionId, Effect, Option<String>, Option<String>), LetterRow>,
    /// Why the run ends early.
    failure: Option<String>,
}

impl Courier {
    fn new(sending: SendConnection, letters_hub: Option<&str>, max: Option<u64>) -> Self {
        Self {
            redriver: sending.redriver,
            letters_hub: letters_hub.map(str::to_owned),
            run: Mutex::new(Run { left: max.unwrap_or(u64::MAX), rows: BTreeMap::new(), failure: None }),
            stop: Notify::new(),
        }
    }

    fn lock_run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one letter of those that are left, unless the run ends.
    fn take_one(&self) -> bool {
        let mut run = self.lock_run();
        if run.failure.is_some() || run.left == 0 {
            self.stop.notify_one();
            return false;
        }
        run.left -= 1;
        true
    }

    /// Ends the run with a failure, if it is the first one.
    fn end(&self, failure: String) {
        self.lock_run().failure.get_or_insert(failure);
        self.stop.notify_one();
    }

    fn count(&self, partition: &PartitionId, origin: Option<DeadLetterOrigin>, effect: Effect) {
        let row = LetterRow::new(partition, Some(1), Some(effect), origin);
        let key = (partition.clone(), effect, row.event_hub.clone(), row.consumer_group.clone());
        match self.lock_run().rows.entry(key) {
            Entry::Vacant(first) => {
                first.insert(row);
            }
            Entry::Occupied(mut counted) => {
                let counted = counted.get_mut();
                counted.letters = counted.letters.map(|letters| letters + 1);
                counted.error = row.error;
            }
        }
    }

    /// Ends the run if a partition cannot continue, or if the processor is in trouble for too long.
    async fn watch_health(&self, handle: &ProcessorHandle) -> Infallible {
        let mut ticks = interval(Duration::from_millis(500));
        let mut since = None;
        loop {
            ticks.tick().await;
            let issues = handle.health().issues;
            if let Some(obstacle) = issues.iter().find(|issue| is_lasting(issue)) {
                self.end(describe_issue(obstacle));
            }
            let trouble = match issues.first() {
                Some(issue) => describe_issue(issue),
                None if handle.partitions().is_empty() => "no partition of the dead letters can be claimed".to_owned(),
                None => {
                    since = None;
                    continue;
                }
            };
            if since.get_or_insert_with(Instant::now).elapsed() > TROUBLE_LIMIT {
                self.end(format!("no progress for {TROUBLE_LIMIT:?}: {trouble}"));
            }
        }
    }
}

/// Returns whether an issue does not end by itself.
fn is_lasting(issue: &HealthIssue) -> bool {
    match issue {
        HealthIssue::Paused { .. } => true,
        HealthIssue::Failing { error: Some(error), .. } => error.kind == ErrorKind::Undecodable,
        _ => false,
    }
}

fn describe_issue(issue: &HealthIssue) -> String {
    match issue {
        HealthIssue::Paused { partition, .. } => format!("partition {partition} of the dead letters was paused"),
        HealthIssue::Failing { partition, error: Some(error) }
        | HealthIssue::ClaimFailing { partition, error }
        | HealthIssue::CheckpointFailing { partition, error } => {
            format!("partition {partition} of the dead letters: {}", error.message)
        }
        // As in the logs of an application.
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

impl Handler<ReceivedEventData> for Courier {
    async fn handle(&self, letters: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        for letter in &letters {
            // What is not checkpointed stays for the next run.
            if context.is_stopping() || !self.take_one() {
                return Ok(());
            }
            let origin = DeadLetterOrigin::of(letter);
            let effect = Effect::of(origin.as_ref(), self.letters_hub.as_deref());
            if effect == Effect::SendBack
                && let Err(error) = self.redriver.send_back(letter).await
            {
                self.end(describe_failure(&error, context.partition_id(), letter.sequence_number()));
                return Ok(());
            }
            self.count(context.partition_id(), origin, effect);
            context.checkpoint(letter);
        }
        // Without the storage, no further letter is sent: the next run would send it again.
        if let Err(error) = context.flush().await {
            self.end(format!(
                "the checkpoint of partition {} is not written, so the next run may send letters again: {}",
                context.partition_id(),
                with_causes(&error)
            ));
        }
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, reason: StopReason) {
        if let StopReason::OwnershipLost { .. } | StopReason::LeaseExpired | StopReason::Released { .. } = reason {
            let id = context.partition_id();
            self.end(format!("partition {id} was lost to another instance, which may handle or send its letters"));
        }
    }
}

/// Returns why a letter was not sent, and what to do.
fn describe_failure(error: &Error, partition: &PartitionId, number: Option<i64>) -> String {
    let number = number.unwrap_or_default();
    let letter = format!("letter {number} of partition {partition}");
    let error_text = with_causes(error);
    match error.kind() {
        ErrorKind::Unauthorized => format!("{letter} was not sent: {error_text}"),
        ErrorKind::Indeterminate => {
            format!("{letter} may have been sent, and the next run sends it again: {error_text}")
        }
        _ => format!(
            "{letter} was not sent, or the response was lost: {error_text}; if it can never be sent, skip it with `ehcp reset \
             -p {partition} --to-sequence {number}` and the same connection"
        ),
    }
}

fn show(global: &Global, rows: &[LetterRow], dry_run: bool) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        table.add_row_in_tone(
            [
                row.partition.to_string(),
                or_empty(row.event_hub.as_deref()),
                or_empty(row.consumer_group.as_deref()),
                or_empty(row.letters),
                or_empty(row.effect.map(Effect::as_text)),
                shorten(&or_empty(row.error.as_deref()), global.output),
            ],
            if row.effect.is_none_or(|effect| effect == Effect::SendBack) { Tone::Plain } else { Tone::Warning },
        );
    }
    let document = RedriveDocument { schema: "ehcp.redrive/1", dry_run, letters: rows };
    Output::new(global).show_document(&document, rows, &table)
}

#[cfg(test)]
mod tests {
    use eventhubs_checkpoint::Pause;
    use time::OffsetDateTime;

    use super::*;
    use crate::watching::tests::look;

    #[tokio::test(start_paused = true)]
    async fn what_a_checkpoint_does_not_govern_is_refused() {
        let mut group = look().await;
        for partition in &mut group.partitions {
            partition.state = OwnershipState::Released;
        }
        let refusal = |group: &GroupDescription| check_group(group, &group.partitions).map_err(|why| why.to_string());
        assert_eq!(refusal(&group), Ok(()));
        let checkpoint = |group: &mut GroupDescription| group.partitions[0].checkpoint.clone().expect("a checkpoint");
        let mut paused = checkpoint(&mut group);
        paused.paused = Some(Pause::new(OffsetDateTime::UNIX_EPOCH, None, None));
        let mut own = checkpoint(&mut group);
        own.own_position = true;
        for (refused, why) in [(paused, "is paused"), (own, "keeps its own position")] {
            group.partitions[0].checkpoint = Some(refused);
            assert!(refusal(&group).unwrap_err().contains(why), "{why}");
        }
    }
}
