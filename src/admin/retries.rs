//! Retries of what has failed.

use tokio::time::sleep;

use crate::error::{Error, ErrorKind};
use crate::store::{BackOff, GroupStore};

/// A bounded number of attempts.
pub(super) struct Retries {
    store: GroupStore,
    back_off: BackOff,
    /// How many attempts are left after the current one.
    left: u32,
}

impl Retries {
    pub(super) fn new(store: &GroupStore, attempts: u32) -> Self {
        let back_off = BackOff::new(store.request_timeout() / 16, store.lease_durations().own / 6);
        Self { store: store.clone(), back_off, left: attempts - 1 }
    }

    /// Returns whether there is another attempt.
    pub(super) fn again(&mut self) -> bool {
        let goes_on = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_on
    }

    /// Waits until the next attempt, at least as long as the storage asks for. Returns false if there is none, or if
    /// the same request would fail again.
    pub(super) async fn again_after(&mut self, error: &Error) -> bool {
        let may_pass = error.may_pass() || error.kind() == ErrorKind::Conflict;
        let goes_on = may_pass && self.again();
        if goes_on {
            sleep(self.store.pause_after(error, &mut self.back_off)).await;
        }
        goes_on
    }
}
