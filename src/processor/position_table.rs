//! The SQL of a table in which an application keeps its own positions.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// The longest name that PostgreSQL does not shorten, in bytes.
const LONGEST_NAME: usize = 63;

/// The SQL of a table in which an application keeps its own positions, next to its results: what
/// [`Handler::start_position`](crate::processor::Handler::start_position) reads, and what the transaction that writes
/// the results of a batch advances. With it every event has its [effect exactly once](crate::guide::effects), also if a
/// process that was suspended continues after it lost the partition.
///
/// The statements are text with numbered parameters, for the driver of your application and in its transactions. They
/// are for SQLite from 3.35 and for PostgreSQL. For another database, take them as a pattern.
///
/// | statement | when | parameters | result |
/// |---|---|---|---|
/// | [`create_table`](Self::create_table) | once, before all instances start | | |
/// | [`begin_epoch`](Self::begin_epoch) | in [`start_position`](crate::processor::Handler::start_position) | partition ID, epoch | one row: the position, or `NULL` |
/// | [`advance_position`](Self::advance_position) | in the transaction that writes the results | partition ID, epoch, first and last sequence number of the batch | one changed row; none if the commit comes too late |
/// | [`follow_processor`](Self::follow_processor) | in [`started`](crate::processor::Handler::started), if [`started_elsewhere`](crate::PartitionContext::started_elsewhere) returns a position | partition ID, epoch, position | |
/// | [`reset_position`](Self::reset_position) | by an operator, to process events again or to skip some | partition ID, position or `NULL` | |
///
/// A partition ID is text. The other parameters and the position are 64-bit integers: the position is the sequence
/// number of the last event whose results are committed. A table is for one consumer group. All instances use the same
/// database, and the results are in it, too.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::sync::Mutex;
///
/// use eventhubs_checkpoint::processor::{Handler, HandlerError, OwnPosition, PartitionStart, PositionTable};
/// use eventhubs_checkpoint::source::Positioned;
/// use eventhubs_checkpoint::{PartitionContext, PartitionId};
/// use rusqlite::{Connection, params};
///
/// /// Counts events.
/// struct Counter {
///     database: Mutex<Connection>,
///     positions: PositionTable,
/// }
///
/// impl<E: Positioned + Send + Sync + 'static> Handler<E> for Counter {
///     async fn start_position(&self, start: PartitionStart) -> Result<OwnPosition, HandlerError> {
///         let parameters = params![start.partition_id().as_str(), start.epoch()];
///         let database = self.database.lock().unwrap();
///         let position = database.query_row(self.positions.begin_epoch(), parameters, |row| row.get(0))?;
///         Ok(OwnPosition::after(position))
///     }
///
///     async fn handle(&self, events: Vec<E>, context: PartitionContext) -> Result<(), HandlerError> {
///         let (Some(first), Some(last)) = (events.first(), events.last()) else { return Ok(()) };
///         let parameters = params![
///             context.partition_id().as_str(),
///             context.epoch(),
///             first.sequence_number(),
///             last.sequence_number()
///         ];
///         let mut database = self.database.lock().unwrap();
///         let transaction = database.transaction()?;
///         if transaction.execute(self.positions.advance_position(), parameters)? == 0 {
///             return Err("too late: a later start of the partition has begun".into());
///         }
///         transaction.execute("UPDATE totals SET events = events + ?1", [events.len() as i64])?;
///         transaction.commit()?;
///         context.checkpoint(last);
///         Ok(())
///     }
///
///     async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
///         if let Some(position) = context.started_elsewhere() {
///             let parameters = params![context.partition_id().as_str(), context.epoch(), position];
///             self.database.lock().unwrap().execute(self.positions.follow_processor(), parameters)?;
///         }
///         Ok(())
///     }
/// }
///
/// let database = Connection::open_in_memory()?;
/// let positions = PositionTable::for_sqlite("order_positions")?;
/// database.execute_batch(positions.create_table())?;
/// database.execute_batch("CREATE TABLE totals (events INTEGER); INSERT INTO totals VALUES (0)")?;
/// let counter = Counter { database: Mutex::new(database), positions };
/// # use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// # use eventhubs_checkpoint::source::EndPosition;
/// # use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
/// # use eventhubs_checkpoint::{ConsumerGroup, GroupStore, OwnerId, Processor, ProcessorConfig};
/// # let hub = MemoryHub::new("orders", 1);
/// # for body in ["a", "b", "c"] { hub.publish(0, body); }
/// # let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
/// # let store = GroupStore::connect(MemoryContainer::new(), group, OwnerId::new("worker-1")?).await?;
/// # let counter = std::sync::Arc::new(counter);
/// # let config = ProcessorConfig::default().with_end_position(EndPosition::Latest);
/// # let processor = Processor::builder(hub.source(), store, counter.clone()).with_config(config);
/// # processor.run(std::future::pending()).await?;
/// # let totals: (i64, i64) = counter.database.lock().unwrap().query_row(
/// #     "SELECT events, position FROM totals, order_positions", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
/// # assert_eq!(totals, (3, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PositionTable {
    name: String,
    create_table: String,
    begin_epoch: String,
    advance_position: String,
    follow_processor: String,
    reset_position: String,
}

impl PositionTable {
    /// Returns the statements for a table of this name in SQLite. Parameters are `?1`, `?2` and so on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the name is not a table, or a schema, a dot and a table: each at most 63
    /// lowercase letters, digits and underscores, and not a digit first. Choose another name.
    pub fn for_sqlite(name: &str) -> Result<Self> {
        Self::with_parameters(name, '?')
    }

    /// Returns the statements for a table of this name in PostgreSQL. Parameters are `$1`, `$2` and so on.
    ///
    /// # Errors
    ///
    /// As for [`for_sqlite`](Self::for_sqlite).
    pub fn for_postgres(name: &str) -> Result<Self> {
        Self::with_parameters(name, '$')
    }

    fn with_parameters(name: &str, mark: char) -> Result<Self> {
        let words: Vec<_> = name.split('.').collect();
        if words.len() > 2 || !words.iter().all(|word| is_plain(word)) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{name:?} is no name for a table of positions: use at most {LONGEST_NAME} lowercase letters, digits and \
                     underscores, no digit first, after a schema and a dot if needed"
                ),
            ));
        }
        // In quotes, because a name may be a keyword.
        let table = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(".");
        Ok(Self {
            name: name.to_owned(),
            create_table: format!(
                "CREATE TABLE IF NOT EXISTS {table} (partition_id TEXT PRIMARY KEY, epoch BIGINT NOT NULL, position BIGINT)"
            ),
            begin_epoch: format!(
                "INSERT INTO {table} AS kept (partition_id, epoch, position) VALUES ({mark}1, {mark}2, NULL) \
                 ON CONFLICT (partition_id) DO UPDATE SET epoch = CASE WHEN excluded.epoch > kept.epoch \
                 THEN excluded.epoch ELSE kept.epoch END RETURNING position"
            ),
            advance_position: format!(
                "UPDATE {table} SET position = {mark}4 WHERE partition_id = {mark}1 AND epoch <= {mark}2 \
                 AND (position IS NULL OR position < {mark}3)"
            ),
            follow_processor: format!(
                "UPDATE {table} SET position = {mark}3 WHERE partition_id = {mark}1 AND epoch <= {mark}2"
            ),
            reset_position: format!(
                "UPDATE {table} SET position = {mark}2, epoch = epoch + 1 WHERE partition_id = {mark}1"
            ),
        })
    }

    /// Returns the statement that creates the table, unless it exists. Two sessions of PostgreSQL that run it at the
    /// same moment can fail, so let one program do it, for example the migration of the database.
    #[must_use]
    pub fn create_table(&self) -> &str {
        &self.create_table
    }

    /// Returns the statement that begins an epoch, and returns the position of the partition. Once it is committed,
    /// [`advance_position`](Self::advance_position) rejects the commits of all previous owners.
    ///
    /// Parameters: partition ID, [epoch](crate::processor::PartitionStart::epoch). Returns one row with the position for
    /// [`OwnPosition::after`](crate::processor::OwnPosition::after): `NULL` if the partition has none yet.
    #[must_use]
    pub fn begin_epoch(&self) -> &str {
        &self.begin_epoch
    }

    /// Returns the statement that moves the position from before the first to the last event of a batch, in the
    /// transaction that writes the results.
    ///
    /// Parameters: partition ID, [epoch](crate::PartitionContext::epoch), sequence number of the first event, sequence
    /// number of the last one. If no row was changed, roll back and return an error from the handler: a later owner or a
    /// later start has begun, or the partition was reset. The epoch rejects late commits of previous owners. The
    /// position rejects late commits of an earlier start of the same owner, for example after a handler timeout.
    ///
    /// Make it the first statement of the transaction. In SQLite, a transaction that reads first and then writes fails
    /// at once if another one has written meanwhile; begin such a transaction with `IMMEDIATE`.
    #[must_use]
    pub fn advance_position(&self) -> &str {
        &self.advance_position
    }

    /// Returns the statement that follows the processor to a start position that it had to choose itself, because the
    /// partition cannot be read from the stored one.
    ///
    /// Parameters: partition ID, [epoch](crate::PartitionContext::epoch),
    /// [`started_elsewhere`](crate::PartitionContext::started_elsewhere). A later owner's position is not changed. Wait for
    /// the statement before [`started`](crate::processor::Handler::started) returns: nothing rejects it if it comes late,
    /// after batches of the same owner.
    #[must_use]
    pub fn follow_processor(&self) -> &str {
        &self.follow_processor
    }

    /// Returns the statement with which an operator moves the position, back to process events again or forward to skip
    /// some. `ehcp reset` refuses a group with positions of the application.
    ///
    /// Parameters: partition ID, sequence number of the last event that counts as processed; `NULL` to start after the
    /// checkpoint. It also raises the epoch, so a commit that is under way does not undo the change. Then
    /// [release](crate::processor::ProcessorHandle::release) the partition: its owner fails until then, and the next
    /// ownership has a greater epoch. If no row was changed, the application has not started the partition yet.
    #[must_use]
    pub fn reset_position(&self) -> &str {
        &self.reset_position
    }
}

impl fmt::Debug for PositionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PositionTable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns whether a word means the same with and without quotes, unless it is a keyword.
fn is_plain(word: &str) -> bool {
    (1..=LONGEST_NAME).contains(&word.len())
        && !word.starts_with(|first: char| first.is_ascii_digit())
        && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use rusqlite::{Connection, params};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin { epoch: i64 },
        Advance { epoch: i64, first: i64, last: i64 },
        Follow { epoch: i64, position: i64 },
        Reset { position: Option<i64> },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6_i64).prop_map(|epoch| Step::Begin { epoch }),
            (0..6_i64, 0..20_i64, 0..3_i64).prop_map(|(epoch, first, more)| Step::Advance {
                epoch,
                first,
                last: first + more
            }),
            (0..6_i64, -1..20_i64).prop_map(|(epoch, position)| Step::Follow { epoch, position }),
            prop::option::of(-1..20_i64).prop_map(|position| Step::Reset { position }),
        ]
    }

    /// The rules, without SQL. Returns what the statement does: the position, or the number of changed rows.
    #[derive(Default)]
    struct Model(HashMap<&'static str, (i64, Option<i64>)>);

    impl Model {
        fn run(&mut self, partition: &'static str, step: Step) -> Option<i64> {
            let row = self.0.get_mut(partition);
            match step {
                Step::Begin { epoch } => {
                    let row = self.0.entry(partition).or_insert((epoch, None));
                    row.0 = row.0.max(epoch);
                    row.1
                }
                Step::Advance { epoch, first, last } => {
                    let accepted = row.filter(|row| row.0 <= epoch && row.1.is_none_or(|position| position < first));
                    Some(accepted.map_or(0, |row| {
                        row.1 = Some(last);
                        1
                    }))
                }
                Step::Follow { epoch, position } => Some(row.filter(|row| row.0 <= epoch).map_or(0, |row| {
                    row.1 = Some(position);
                    1
                })),
                Step::Reset { position } => Some(row.map_or(0, |row| {
                    *row = (row.0 + 1, position);
                    1
                })),
            }
        }
    }

    fn run(database: &Connection, table: &PositionTable, partition: &str, step: Step) -> Option<i64> {
        let changed = match step {
            Step::Begin { epoch } => {
                return database.query_row(table.begin_epoch(), params![partition, epoch], |row| row.get(0)).unwrap();
            }
            Step::Advance { epoch, first, last } => {
                database.execute(table.advance_position(), params![partition, epoch, first, last])
            }
            Step::Follow { epoch, position } => {
                database.execute(table.follow_processor(), params![partition, epoch, position])
            }
            Step::Reset { position } => database.execute(table.reset_position(), params![partition, position]),
        };
        Some(i64::try_from(changed.unwrap()).unwrap())
    }

    proptest! {
        #[test]
        fn sqlite_keeps_the_rules(steps in prop::collection::vec((prop::sample::select(vec!["0", "1"]), any_step()), 0..40)) {
            let table = PositionTable::for_sqlite("main.order").unwrap();
            let database = Connection::open_in_memory().unwrap();
            database.execute_batch(table.create_table()).unwrap();
            let mut model = Model::default();
            for (partition, step) in steps {
                prop_assert_eq!(run(&database, &table, partition, step), model.run(partition, step), "{:?}", step);
            }
        }
    }

    #[test]
    fn names_that_need_quotes_are_rejected() {
        for name in ["positions", "select", "app_1.positions", "_p", &"p".repeat(LONGEST_NAME)] {
            assert!(PositionTable::for_postgres(name).is_ok(), "{name}");
        }
        for name in ["", ".", "a.b.c", "Positions", "1p", "p-q", "p\"; DROP TABLE x; --", &"p".repeat(LONGEST_NAME + 1)]
        {
            let error = PositionTable::for_sqlite(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        }
    }
}
