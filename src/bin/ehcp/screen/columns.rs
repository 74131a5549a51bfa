//! The columns of the table, and which of them fit: pure.

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    Partition,
    Owner,
    Lease,
    Sequence,
    Last,
    Lag,
    Rate,
    Behind,
    Updated,
    State,
    Hour,
}

/// The space between two columns.
pub const SPACING: u16 = 2;

/// The columns, the most important first.
const PRIORITY: [Column; 11] = [
    Column::Partition,
    Column::State,
    Column::Lag,
    Column::Owner,
    Column::Behind,
    Column::Lease,
    Column::Rate,
    Column::Updated,
    Column::Sequence,
    Column::Last,
    Column::Hour,
];

impl Column {
    pub const ALL: [Self; 11] = [
        Self::Partition,
        Self::Owner,
        Self::Lease,
        Self::Sequence,
        Self::Last,
        Self::Lag,
        Self::Rate,
        Self::Behind,
        Self::Updated,
        Self::State,
        Self::Hour,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Partition => "PART",
            Self::Owner => "OWNER",
            Self::Lease => "LEASE",
            Self::Sequence => "SEQUENCE",
            Self::Last => "LAST",
            Self::Lag => "LAG",
            Self::Rate => "RATE/s",
            Self::Behind => "BEHIND",
            Self::Updated => "UPDATED",
            Self::State => "STATE",
            Self::Hour => "LAG, 1 HOUR",
        }
    }

    pub fn is_number(self) -> bool {
        !matches!(self, Self::Owner | Self::Lease | Self::State | Self::Hour)
    }
}

/// Returns the columns that fit into a width, in order: the most important ones. The first one is always there.
pub fn fitting(width_of: impl Fn(Column) -> u16, available: u16) -> Vec<Column> {
    let mut chosen = Vec::new();
    let mut used = 0;
    for column in PRIORITY {
        let needed = width_of(column).saturating_add(if chosen.is_empty() { 0 } else { SPACING });
        if !chosen.is_empty() && needed > available.saturating_sub(used) {
            break;
        }
        used += needed;
        chosen.push(column);
    }
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_screens_have_the_important_columns() {
        let of = |available| fitting(|_| 8, available);
        assert_eq!(of(0), [Column::Partition]);
        assert_eq!(of(8 + 10), [Column::Partition, Column::State]);
        assert_eq!(of(8 + 29), [Column::Partition, Column::Lag, Column::State]);
        assert_eq!(of(8 + 10 * 10), Column::ALL);
    }
}
