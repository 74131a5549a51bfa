//! Selects how a partition reports that all of its events have expired.

/// The sequence number that a partition reports as its first one after all of its events have expired. In both cases
/// the partition also reports that it is empty.
///
/// Both behaviors have been observed. A consumer that compares the numbers without checking for emptiness counts one
/// event too many with [`BeginIsLast`](Self::BeginIsLast).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmptiedReport {
    /// The number of the last event, as if it still existed: `255..=255`. The default. In the tests of KEDA's scaler an
    /// empty partition reports this (kedacore/keda `pkg/scalers/azure_eventhub_scaler_test.go`).
    #[default]
    BeginIsLast,
    /// The number of the next event: `256..=255`.
    BeginAfterLast,
}

impl EmptiedReport {
    /// Returns the first number that a partition reports whose last event had this number.
    pub(crate) fn beginning(self, last: i64) -> i64 {
        match self {
            Self::BeginIsLast => last,
            Self::BeginAfterLast => last.saturating_add(1),
        }
    }
}
