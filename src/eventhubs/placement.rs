//! Which connection serves which partition.

use std::collections::HashMap;

use crate::model::PartitionId;

/// The most partitions of one connection. The official client opens a session for each partition and keeps it after the
/// link is closed; its connections have 256 sessions, and requests and logins need some.
const MOST_PARTITIONS: usize = 200;

/// The connections of a source, by their index. A partition stays with its connection, also after its links are closed,
/// because its session does.
#[derive(Debug, Default)]
pub(super) struct Placement {
    connection_of: HashMap<PartitionId, usize>,
    /// The number of partitions of each connection.
    partitions: Vec<usize>,
}

impl Placement {
    pub(super) fn add_connection(&mut self) {
        self.partitions.push(0);
    }

    /// Returns the connection for a partition, or `None` if all connections are full.
    pub(super) fn place(&mut self, partition: &PartitionId) -> Option<usize> {
        if let Some(connection) = self.connection_of.get(partition) {
            return Some(*connection);
        }
        let connection = self.partitions.iter().position(|partitions| *partitions < MOST_PARTITIONS)?;
        self.partitions[connection] += 1;
        self.connection_of.insert(partition.clone(), connection);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_serves_at_most_200_partitions() {
        let mut placement = Placement::default();
        assert_eq!(placement.place(&PartitionId::from(0)), None);
        placement.add_connection();
        for partition in 0..200 {
            assert_eq!(placement.place(&PartitionId::from(partition)), Some(0), "partition {partition}");
        }
        assert_eq!(placement.place(&PartitionId::from(200)), None);
        placement.add_connection();
        for (partition, connection) in [(200, 1), (201, 1), (7, 0), (200, 1), (199, 0)] {
            assert_eq!(placement.place(&PartitionId::from(partition)), Some(connection), "partition {partition}");
        }
    }
}
