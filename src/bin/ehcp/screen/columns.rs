//! The columns of the table, and which of them fit: pure.

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScreenColumn {
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
const PRIORITY: [ScreenColumn; 11] = [
    ScreenColumn::Partition,
    ScreenColumn::State,
    ScreenColumn::Lag,
    ScreenColumn::Owner,
    ScreenColumn::Behind,
    ScreenColumn::Lease,
    ScreenColumn::Rate,
    ScreenColumn::Updated,
    ScreenColumn::Sequence,
    ScreenColumn::Last,
    ScreenColumn::Hour,
];

impl ScreenColumn {
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
pub fn choose_columns(width_of: impl Fn(ScreenColumn) -> u16, available: u16) -> Vec<ScreenColumn> {
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
        let of = |available| choose_columns(|_| 8, available);
        assert_eq!(of(0), [ScreenColumn::Partition]);
        assert_eq!(of(8 + 10), [ScreenColumn::Partition, ScreenColumn::State]);
        assert_eq!(of(8 + 29), [ScreenColumn::Partition, ScreenColumn::Lag, ScreenColumn::State]);
        assert_eq!(of(8 + 10 * 10), ScreenColumn::ALL);
    }
}
