//! Copies of events.

/// An event that can be copied: the handler gets a copy, and the original remains for the sink.
///
/// The events of the official client implement it, although they do not implement [`Clone`].
pub trait CloneEvent {
    /// Returns a copy with the same content and position.
    #[must_use]
    fn clone_event(&self) -> Self;
}
