//! How a partition reports that all of its events have expired.

/// Which number of its first event a partition reports after all of its events have expired. In both cases it also
/// reports that it is empty.
///
/// Both have been seen. A consumer that compares numbers without asking for emptiness counts one event too many with
/// [`BeginIsLast`](Self::BeginIsLast).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmptiedReport {
    /// The number of the last event, as if this were still there: `255..=255`. The default. In the tests of KEDA's
    /// scaler an empty partition reports this (kedacore/keda `pkg/scalers/azure_eventhub_scaler_test.go`).
    #[default]
    BeginIsLast,
    /// The number of the next event: `256..=255`.
    BeginAfterLast,
}

impl EmptiedReport {
    /// The number of the first event in the report of a partition whose last event had this number.
    pub(super) fn beginning(self, last: i64) -> i64 {
        match self {
            Self::BeginIsLast => last,
            Self::BeginAfterLast => last.saturating_add(1),
        }
    }
}
