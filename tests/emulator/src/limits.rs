//! The limits of a namespace.

use std::time::Duration;

/// The limits of a namespace, and its checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) checks_management_tokens: bool,
    /// The number of requests for properties per second.
    pub(super) management_quota: u32,
    /// How long a link may be idle.
    pub(super) idle: Duration,
    /// The number of sessions per connection, at least 1.
    pub(super) max_sessions: u16,
}

/// The limits of the service.
impl Default for Limits {
    fn default() -> Self {
        Self {
            checks_management_tokens: true,
            management_quota: 50,
            idle: Duration::from_secs(30 * 60),
            max_sessions: 5000,
        }
    }
}
