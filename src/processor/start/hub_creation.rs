//! When the event hub was created, by which a recreated one is recognized.

use time::OffsetDateTime;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use crate::error::{Error, ErrorKind};
use crate::source::whole_seconds;
use crate::telemetry;

/// The creation of the event hub, as this instance last read it. `None` if the source does not report it.
#[derive(Debug, Default)]
pub(crate) struct HubCreation {
    known: watch::Sender<Option<OffsetDateTime>>,
    reading: Mutex<()>,
    doubt: Notify,
}

impl HubCreation {
    /// Waits until no other task reads the properties of the event hub. Otherwise the older of two responses could come
    /// last.
    pub(crate) async fn reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().await
    }

    /// Records what the source reports. A report without a time changes nothing.
    pub(crate) fn reported(&self, created_at: Option<OffsetDateTime>) {
        let Some(now) = created_at.map(whole_seconds) else { return };
        let before = self.known.send_replace(Some(now));
        if let Some(before) = before.filter(|before| *before != now) {
            telemetry::hub_recreated(before, now);
        }
    }

    /// Records that the event hub may have been recreated since its properties were read: a receiver ended, as all do
    /// then, or a checkpoint was taken over, which may be one of another event hub.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Waits for a [doubt](Self::doubt) since the last call.
    pub(crate) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    pub(crate) fn known(&self) -> Option<OffsetDateTime> {
        *self.known.borrow()
    }

    /// Returns whether positions from an event hub that was created at `read_in` are no longer valid.
    pub(crate) fn is_other_than(&self, read_in: Option<OffsetDateTime>) -> bool {
        is_another(read_in, self.known())
    }

    /// Waits until it is known that the event hub of `read_in` was recreated.
    pub(crate) async fn recreated(&self, read_in: Option<OffsetDateTime>) -> Error {
        let mut known = self.known.subscribe();
        // The sender belongs to `self`, so it is not dropped.
        let _ = known.wait_for(|known| is_another(read_in, *known)).await;
        recreated()
    }
}

fn is_another(one: Option<OffsetDateTime>, other: Option<OffsetDateTime>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

/// The error because of which a partition determines its start again.
pub(crate) fn recreated() -> Error {
    Error::new(ErrorKind::InvalidPosition, "the event hub was recreated")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_another_known_time_shows_a_recreated_hub() {
        let (first, second) = (OffsetDateTime::UNIX_EPOCH, OffsetDateTime::UNIX_EPOCH + time::Duration::SECOND);
        let creation = HubCreation::default();
        assert!(!creation.is_other_than(Some(first)), "the source does not report it");
        creation.reported(Some(first));
        creation.reported(None);
        assert_eq!(creation.known(), Some(first));
        assert!(!creation.is_other_than(None) && !creation.is_other_than(Some(first)));
        assert!(creation.recreated(Some(first)).now_or_never().is_none());
        creation.reported(Some(second));
        assert!(creation.is_other_than(Some(first)) && !creation.is_other_than(None));
        assert!(creation.recreated(Some(first)).now_or_never().is_some());
    }
}
