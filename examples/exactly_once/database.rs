//! The database of the application. Each method is one transaction.

use std::path::Path;
use std::time::Duration;

use eventhubs_checkpoint::processor::PositionTable;
use rusqlite::{Connection, TransactionBehavior, params};

pub type Result<T, E = crate::Failure> = std::result::Result<T, E>;

/// An event, as far as the totals need it.
#[derive(Clone, Debug)]
pub struct Order {
    pub customer: String,
    pub amount: i64,
}

impl Order {
    /// Derives an order from the position of its event, because the events of the publisher have no content of
    /// interest.
    pub fn of(partition: &str, sequence_number: i64) -> Self {
        Self { customer: format!("{partition}-{}", sequence_number % 3), amount: sequence_number + 1 }
    }
}

/// The total of one customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    pub customer: String,
    pub orders: i64,
    pub amount: i64,
}

/// Whether a commit was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    Yes,
    /// A later start has begun. Nothing was written.
    Fenced,
}

pub struct Database {
    connection: Connection,
    positions: PositionTable,
    is_fenced: bool,
}

impl Database {
    pub fn open(file: &Path, is_fenced: bool) -> Result<Self> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(20))?;
        let positions = PositionTable::for_sqlite("positions")?;
        connection.execute_batch("PRAGMA journal_mode = WAL")?;
        connection.execute_batch(positions.create_table())?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS totals (
                 customer TEXT PRIMARY KEY, orders INTEGER NOT NULL, amount INTEGER NOT NULL)",
        )?;
        Ok(Self { connection, positions, is_fenced })
    }

    /// Begins an epoch, and returns the position of the partition, if there is one. From now on all commits of earlier
    /// epochs are rejected, so the position cannot change anymore before this owner changes it.
    pub fn begin_epoch(&mut self, partition: &str, epoch: i64) -> Result<Option<i64>> {
        Ok(self.connection.query_row(self.positions.begin_epoch(), params![partition, epoch], |row| row.get(0))?)
    }

    /// Adds the orders to the totals and advances the position from before the first to the last event, both or
    /// neither. The epoch rejects late commits of previous owners; the position rejects late commits of an earlier
    /// start of the same owner.
    pub fn commit(&mut self, partition: &str, epoch: i64, events: (i64, i64), orders: &[Order]) -> Result<Committed> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Without the check, every commit is accepted.
        let epoch = if self.is_fenced { epoch } else { i64::MAX };
        let first = if self.is_fenced { events.0 } else { i64::MAX };
        let changed =
            transaction.execute(self.positions.advance_position(), params![partition, epoch, first, events.1])?;
        if changed == 0 {
            // Dropping the transaction rolls it back.
            return Ok(Committed::Fenced);
        }
        for order in orders {
            transaction.execute(
                "INSERT INTO totals (customer, orders, amount) VALUES (?1, 1, ?2)
                 ON CONFLICT (customer) DO UPDATE SET orders = orders + 1, amount = amount + ?2",
                params![order.customer, order.amount],
            )?;
        }
        transaction.commit()?;
        Ok(Committed::Yes)
    }

    /// Moves the position without any result, because the partition cannot be read from the stored one.
    pub fn move_to(&mut self, partition: &str, epoch: i64, position: i64) -> Result<()> {
        self.connection.execute(self.positions.follow_processor(), params![partition, epoch, position])?;
        Ok(())
    }

    pub fn totals(&self) -> Result<Vec<Total>> {
        let mut query = self.connection.prepare("SELECT customer, orders, amount FROM totals ORDER BY customer")?;
        let totals =
            query.query_map([], |row| Ok(Total { customer: row.get(0)?, orders: row.get(1)?, amount: row.get(2)? }))?;
        Ok(totals.collect::<rusqlite::Result<_>>()?)
    }

    /// Returns the position of each partition.
    pub fn positions(&self) -> Result<Vec<(String, i64)>> {
        let mut query = self.connection.prepare("SELECT partition_id, coalesce(position, -1) FROM positions")?;
        let positions = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(positions.collect::<rusqlite::Result<_>>()?)
    }
}
