//! `ehcp redrive`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eventhubs_checkpoint::admin::describe::{GroupDescription, PartitionDescription};
use eventhubs_checkpoint::admin::{Operator, ResetOptions, ResetOutcome};
use eventhubs_checkpoint::azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::eventhubs::{DeadLetterOrigin, EventHubRedriver};
use eventhubs_checkpoint::source::{EventReceiver, EventSource, Positioned, StartPosition};
use eventhubs_checkpoint::{EventHubSource, PartitionId, Position};
use serde::Serialize;

use crate::args::{Format, Global, RedriveArgs};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result, with_causes};
use crate::output::{Column, Output, Table, Tone, print_note};
use crate::progress::Progress;
use crate::safety::wait_for_interrupt;
use crate::text::{format_count, or_empty};

const COLUMNS: &[Column] = &[
    Column::text("PARTITION"),
    Column::text("EVENT HUB"),
    Column::text("GROUP"),
    Column::number("LETTERS"),
    Column::text("EFFECT"),
    Column::text("LAST ERROR"),
];

/// How many letters are read, and sent, before the checkpoint is written: so many may be sent again after a crash.
const LETTERS_PER_CHECKPOINT: usize = 100;

/// The epoch of a reader that owns nothing.
const NO_EPOCH: i64 = 0;

/// How much of an error the default table shows.
const SHOWN_CHARACTERS: usize = 60;

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
    fn of(origin: Option<&DeadLetterOrigin>, event_hub: &str) -> Self {
        match origin {
            None => Self::SkipNoLetter,
            Some(origin) if origin.event_hub.eq_ignore_ascii_case(event_hub) => Self::SkipSameHub,
            Some(origin) if !origin.has_content() => Self::SkipNoContent,
            Some(_) => Self::SendBack,
        }
    }

    fn as_text(self) -> &'static str {
        match self {
            Self::SendBack => "send back",
            Self::SkipNoLetter => "skip: no dead letter",
            Self::SkipNoContent => "skip: it has no content, because the event could not be decoded",
            Self::SkipSameHub => "skip: it came from this event hub",
        }
    }
}

/// The letters of a partition that came from one consumer group.
#[derive(Serialize)]
struct LetterRow {
    partition: PartitionId,
    event_hub: Option<String>,
    consumer_group: Option<String>,
    letters: usize,
    effect: Effect,
    last_error: Option<String>,
}

#[derive(Serialize)]
struct RedriveDocument<'a> {
    schema: &'static str,
    dry_run: bool,
    letters: &'a [&'a LetterRow],
}

pub async fn run(global: &Global, args: &RedriveArgs) -> Result<Exit> {
    let connection = GroupConnection::resolve(global)?;
    let redriver = connection.redriver(args.send_connection_string.as_deref())?;
    let hub = connection.require_hub().await?;
    let operator = connection.connect_operator().await?;
    let ranges = connection.read_ranges(&hub).await?;
    let group = operator.read().await?.describe(Some(&ranges));
    args.selection.check_partitions(&group)?;
    check_unread(&group)?;
    let mut redrive = Redrive {
        connection: &connection,
        hub: &hub,
        operator: &operator,
        redriver: args.execute.then_some(&redriver),
        is_interrupted: Arc::default(),
        left: args.max.map_or(usize::MAX, Into::into),
        found: BTreeMap::new(),
    };
    if args.execute {
        let is_interrupted = Arc::clone(&redrive.is_interrupted);
        tokio::spawn(async move {
            wait_for_interrupt().await;
            is_interrupted.store(true, Ordering::Relaxed);
        });
    }
    let ended = redrive.redrive_group(&group, args).await;
    redrive.show(global, args.execute)?;
    ended?;
    if redrive.is_interrupted.load(Ordering::Relaxed) {
        return Err(Failure::failed("interrupted: the other letters stay for the next run"));
    }
    if redrive.found.is_empty() {
        print_note(if args.execute { "nothing to do" } else { "dry run: nothing to do" });
        return Ok(Exit::Done);
    }
    let sent = redrive.count_of(|effect| effect == Effect::SendBack);
    let skipped = redrive.count_of(|effect| effect != Effect::SendBack);
    let letters = format_count(sent, "letter");
    if args.execute {
        print_note(format_args!("sent {letters} back, skipped {skipped}"));
        return Ok(Exit::Done);
    }
    print_note(format_args!("dry run: would send {letters} back and skip {skipped}; add --execute to do it"));
    Ok(Exit::Differences)
}

/// Fails if a processor of the group handles the letters.
fn check_unread(group: &GroupDescription) -> Result<()> {
    let live = group.partitions.iter().find(|partition| partition.state.is_live());
    match live.and_then(|partition| Some((&partition.id, partition.owner.as_ref()?))) {
        None => Ok(()),
        Some((partition, owner)) => Err(Failure::refused(format!(
            "{} is processing partition {partition} of the dead letters: stop it, or pass another --consumer-group, whose \
             checkpoints then say which letters were sent",
            owner.id
        ))),
    }
}

/// A run, and what it has found.
struct Redrive<'a> {
    connection: &'a GroupConnection,
    hub: &'a EventHubSource,
    operator: &'a Operator,
    /// Missing in a dry run.
    redriver: Option<&'a EventHubRedriver>,
    is_interrupted: Arc<AtomicBool>,
    /// How many more letters to take.
    left: usize,
    found: BTreeMap<(PartitionId, Effect, Option<String>, Option<String>), LetterRow>,
}

impl Redrive<'_> {
    async fn redrive_group(&mut self, group: &GroupDescription, args: &RedriveArgs) -> Result<()> {
        let selected: Vec<_> =
            group.partitions.iter().filter(|partition| args.selection.includes(&partition.id)).collect();
        let progress = Progress::of(if args.execute { "sending letters" } else { "reading letters" }, selected.len());
        for partition in selected {
            self.redrive_partition(partition)
                .await
                .map_err(|failure| failure.context(format_args!("partition {}", partition.id)))?;
            progress.advance();
        }
        Ok(())
    }

    /// Takes the letters after the checkpoint, up to the last one that was there when the command began: letters that
    /// fail again meanwhile are not for this run.
    async fn redrive_partition(&mut self, partition: &PartitionDescription) -> Result<()> {
        let Some(last) = partition.hub.as_ref().and_then(|range| range.last) else { return Ok(()) };
        let checkpoint = partition.checkpoint.as_ref().map(|checkpoint| checkpoint.position.clone());
        let mut done = checkpoint.as_ref().and_then(|position| position.sequence_number);
        let start = match (done, checkpoint.and_then(|position| position.offset)) {
            (Some(number), _) => StartPosition::AfterSequenceNumber(number),
            (None, Some(offset)) => StartPosition::AfterOffset(offset),
            (None, None) => StartPosition::Earliest,
        };
        if done.is_some_and(|done| done >= last) || self.left == 0 {
            return Ok(());
        }
        let opening = self.hub.open_receiver(&partition.id, start, LETTERS_PER_CHECKPOINT, NO_EPOCH);
        let mut receiver = self.connection.within_timeout(opening).await??;
        while self.left > 0 && done.is_none_or(|done| done < last) && !self.is_interrupted.load(Ordering::Relaxed) {
            let letters = self.read_letters(&mut receiver, last).await?;
            let Some(end) = letters.last().and_then(Positioned::sequence_number) else { return Ok(()) };
            self.check_checkpoint(&partition.id, done).await?;
            let (sent, failed) = self.take_letters(&partition.id, &letters).await;
            if let Some(sent) = sent {
                self.write_checkpoint(&partition.id, sent).await?;
            }
            failed?;
            done = Some(end);
        }
        Ok(())
    }

    async fn read_letters(
        &self,
        receiver: &mut EventReceiver<ReceivedEventData>,
        last: i64,
    ) -> Result<Vec<ReceivedEventData>> {
        let most = self.left.min(LETTERS_PER_CHECKPOINT);
        let mut letters = self.connection.within_timeout(receiver.next_batch(most)).await??;
        letters.retain(|letter| Positioned::sequence_number(letter).is_some_and(|number| number <= last));
        Ok(letters)
    }

    /// Sends these letters back, unless this is a dry run. Returns the position of the last one that is done, and why
    /// the others are not.
    async fn take_letters(
        &mut self,
        partition: &PartitionId,
        letters: &[ReceivedEventData],
    ) -> (Option<Position>, Result<()>) {
        let mut done = None;
        for letter in letters {
            if self.is_interrupted.load(Ordering::Relaxed) {
                break;
            }
            let origin = DeadLetterOrigin::of(letter);
            let effect = Effect::of(origin.as_ref(), self.connection.group.event_hub());
            if let Some(redriver) = self.redriver.filter(|_| effect == Effect::SendBack)
                && let Err(error) = redriver.send_back(letter).await
            {
                let number = Positioned::sequence_number(letter).unwrap_or_default();
                let what = format!(
                    "letter {number} was not sent (skip it with `ehcp reset -p {partition} --to-sequence {number}`)"
                );
                return (done, Err(Failure::from(error).context(what)));
            }
            self.count(partition, origin, effect);
            self.left -= 1;
            done = letter.position();
        }
        (done, Ok(()))
    }

    fn count(&mut self, partition: &PartitionId, origin: Option<DeadLetterOrigin>, effect: Effect) {
        let event_hub = origin.as_ref().map(|origin| origin.event_hub.clone());
        let consumer_group = origin.as_ref().map(|origin| origin.consumer_group.clone());
        let row = self
            .found
            .entry((partition.clone(), effect, event_hub.clone(), consumer_group.clone()))
            .or_insert_with(|| LetterRow {
                partition: partition.clone(),
                event_hub,
                consumer_group,
                letters: 0,
                effect,
                last_error: None,
            });
        row.letters += 1;
        row.last_error = origin.map(|origin| origin.error);
    }

    /// Fails if the checkpoint is not where this run has left it: another run sends the same letters.
    async fn check_checkpoint(&self, partition: &PartitionId, expected: Option<i64>) -> Result<()> {
        if self.redriver.is_none() {
            return Ok(());
        }
        let group = self.operator.read().await?.describe(None);
        check_unread(&group)?;
        let checkpoint = group.partition(partition).and_then(|partition| partition.checkpoint.as_ref());
        let found = checkpoint.and_then(|checkpoint| checkpoint.position.sequence_number);
        if found == expected {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the checkpoint moved from {} to {} in the meantime, so another command redrives or resets it",
            or_empty(expected),
            or_empty(found)
        )))
    }

    async fn write_checkpoint(&self, partition: &PartitionId, position: Position) -> Result<()> {
        if self.redriver.is_none() {
            return Ok(());
        }
        let number = position.sequence_number;
        let options = ResetOptions::default().with_allow_live(false);
        let outcomes = self.operator.reset(vec![(partition.clone(), position)], &options).await?;
        let why = match outcomes.into_iter().next() {
            Some((_, ResetOutcome::Done | ResetOutcome::Indeterminate { written: true, .. })) => return Ok(()),
            Some((_, ResetOutcome::NotDone(reason))) => reason.to_string(),
            Some((_, ResetOutcome::Indeterminate { error: Some(error), .. })) => with_causes(&error),
            _ => "the outcome is unknown".to_owned(),
        };
        Err(Failure::failed(format!(
            "the letters up to {number} were sent, but the checkpoint was not written, so the next run sends them again: \
             {why}; see `ehcp reset --to-sequence {number}`"
        )))
    }

    fn count_of(&self, is_counted: impl Fn(Effect) -> bool) -> usize {
        self.found.values().filter(|row| is_counted(row.effect)).map(|row| row.letters).sum()
    }

    fn show(&self, global: &Global, executed: bool) -> Result<()> {
        let mut table = Table::new(COLUMNS);
        for row in self.found.values() {
            table.add_row_in_tone(
                [
                    row.partition.to_string(),
                    or_empty(row.event_hub.as_deref()),
                    or_empty(row.consumer_group.as_deref()),
                    row.letters.to_string(),
                    row.effect.as_text().to_owned(),
                    shorten_error(or_empty(row.last_error.as_deref()), global.output),
                ],
                if row.effect == Effect::SendBack { Tone::Plain } else { Tone::Warning },
            );
        }
        let rows: Vec<_> = self.found.values().collect();
        let document = RedriveDocument { schema: "ehcp.redrive/1", dry_run: !executed, letters: &rows };
        Output::new(global).show_document(&document, &rows, &table)
    }
}

/// Returns an error, in the default table only its beginning.
fn shorten_error(error: String, format: Format) -> String {
    if format != Format::Table || error.chars().count() <= SHOWN_CHARACTERS {
        return error;
    }
    error.chars().take(SHOWN_CHARACTERS - 3).chain("...".chars()).collect()
}
