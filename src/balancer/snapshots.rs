//! The latest snapshot of a running loop.

use std::sync::Arc;

use tokio::sync::watch;

use super::handle::Snapshot;

/// The latest [`Snapshot`], and a way to wait for the next.
///
/// Used as a [`watch::Receiver`], but each snapshot is shared instead of lent: it can be kept for as long as needed, also in
/// a section that blocks, without holding up the balancing loop.
#[derive(Clone, Debug)]
pub struct Snapshots(watch::Receiver<Arc<Snapshot>>);

impl Snapshots {
    pub(super) fn new(latest: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self(latest)
    }

    /// The latest snapshot. It stays as it is; later ones are others.
    #[must_use]
    pub fn borrow(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow())
    }

    /// The same, after which [`changed`](Self::changed) waits for a later one.
    pub fn borrow_and_update(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits for a snapshot that was not seen yet. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended: there will be no other.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }

    /// Waits until a snapshot, the latest one included, meets the condition, and returns it. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the loop has ended before.
    pub async fn wait_for(
        &mut self,
        mut condition: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, watch::error::RecvError> {
        loop {
            let latest = self.borrow_and_update();
            if condition(&latest) {
                return Ok(latest);
            }
            self.changed().await?;
        }
    }
}
