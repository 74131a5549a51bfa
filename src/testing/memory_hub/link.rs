//! A reader's link to a partition, with a task that follows the changes of the link.

use std::sync::Arc;

use tokio::sync::watch;

use super::event::MemoryEvent;
use super::partition::{Control, Partition};
use crate::error::{Error, ErrorKind, Result};
use crate::source::EventSender;
use crate::source::StartPosition;

pub(super) struct Link {
    partition: Arc<Partition>,
    from: StartPosition,
    next: i64,
    /// The changes up to the opening of the link, and those followed since. The reader is always this one.
    known: Control,
}

impl Link {
    /// Displaces the previous reader. The receiver reports later changes of the link.
    pub(super) fn attach(
        partition: Arc<Partition>,
        from: StartPosition,
        next: i64,
    ) -> (Self, watch::Receiver<Control>) {
        let changes = partition.control.subscribe();
        let mut known = Control::default();
        partition.control.send_modify(|control| {
            control.reader += 1;
            known = control.clone();
        });
        (Self { partition, from, next, known }, changes)
    }

    /// Delivers events until the receiver is dropped or the link fails.
    pub(super) async fn forward<E: From<MemoryEvent>>(
        mut self,
        mut changes: watch::Receiver<Control>,
        sender: EventSender<E>,
    ) {
        let failure = loop {
            let capacity = tokio::select! {
                biased;
                () = sender.closed() => return,
                _ = changes.changed() => {
                    let now = changes.borrow_and_update().clone();
                    match self.follow(now) {
                        Ok(()) => continue,
                        Err(failure) => break failure,
                    }
                }
                capacity = self.something_to_send(&sender), if !self.is_stalled() => capacity,
            };
            let events = match self.take(capacity) {
                Ok(events) => events.into_iter().map(E::from).collect(),
                Err(failure) => break failure,
            };
            if !sender.send_all(events).await {
                return;
            }
        };
        sender.send(Err(failure)).await;
    }

    /// Waits for an event and for capacity. Returns the capacity.
    async fn something_to_send<E>(&self, sender: &EventSender<E>) -> usize {
        let mut end = self.partition.end.subscribe();
        // This cannot fail, because the sender is in the partition, which exists.
        let _ = end.wait_for(|end| *end > self.next).await;
        sender.ready_capacity().await
    }

    /// Returns the next events, or none if the link was changed: changes are followed first.
    fn take(&mut self, limit: usize) -> Result<Vec<MemoryEvent>> {
        let control = self.partition.control.borrow();
        if *control != self.known {
            return Ok(Vec::new());
        }
        let (events, next) = self.partition.log().read(self.next, limit)?;
        self.next = next;
        Ok(events)
    }

    fn is_stalled(&self) -> bool {
        self.known.stalled == Some(self.known.reader)
    }

    fn follow(&mut self, now: Control) -> Result<()> {
        if now.reader != self.known.reader {
            return Err(Error::new(ErrorKind::Fenced, "another reader took the partition"));
        }
        if now.breaks != self.known.breaks {
            return Err(Error::new(ErrorKind::EventSource, "the link broke"));
        }
        if now.reattached != self.known.reattached {
            (self.next, _) = self.partition.log().start(&self.from)?;
        }
        self.known = now;
        Ok(())
    }
}
