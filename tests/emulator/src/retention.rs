//! How long a partition keeps its events.

/// The treatment of old events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    /// The number of events kept, at least 1.
    pub(super) count: usize,
    /// Whether a receiver that starts at an expired event is rejected. Otherwise it starts at the oldest event.
    pub(super) reject_expired: bool,
}
