//! A reader's link to a partition: its own task, which follows what is done to the link.

use std::sync::Arc;

use tokio::sync::watch;

use super::event::MemoryEvent;
use super::partition::{Control, Partition};
use crate::error::{Error, ErrorKind, Result};
use crate::processor::{EventSender, StartPosition};

pub(super) struct Link {
    partition: Arc<Partition>,
    from: StartPosition,
    next: i64,
    /// What was done up to the opening, or was followed since; the reader is always this one.
    known: Control,
}

impl Link {
    /// Displaces the reader before. What is done to the link comes out of the receiver.
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

    /// Delivers until nobody wants any more, or the link fails.
    pub(super) async fn forward(mut self, mut changes: watch::Receiver<Control>, sender: EventSender<MemoryEvent>) {
        let failure = loop {
            let room = tokio::select! {
                biased;
                () = sender.closed() => return,
                _ = changes.changed() => {
                    let now = changes.borrow_and_update().clone();
                    match self.follow(now) {
                        Ok(()) => continue,
                        Err(failure) => break failure,
                    }
                }
                room = self.something_to_send(&sender), if !self.is_silent() => room,
            };
            if !sender.send_all(self.take(room)).await {
                return;
            }
        };
        sender.send(Err(failure)).await;
    }

    /// Waits for an event, and for room for some.
    async fn something_to_send(&self, sender: &EventSender<MemoryEvent>) -> usize {
        let mut end = self.partition.end.subscribe();
        // An error cannot be: the partition is here.
        let _ = end.wait_for(|end| *end > self.next).await;
        sender.ready_capacity().await
    }

    /// Nothing, if anything was done to the link: that is followed first.
    fn take(&mut self, limit: usize) -> Vec<MemoryEvent> {
        let control = self.partition.control.borrow();
        if *control != self.known {
            return Vec::new();
        }
        let (events, next) = self.partition.log().read(self.next, limit);
        self.next = next;
        events
    }

    fn is_silent(&self) -> bool {
        self.known.silenced == Some(self.known.reader)
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
