//! The receivers that are attached to a partition, and their precedence.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fe2o3_amqp_types::definitions::{Error, LinkError};
use tokio::sync::oneshot;

use super::message::error;
use crate::lock::lock;

/// The maximum number of receivers without an epoch that share a partition and group in the service.
const MAX_WITHOUT_EPOCH: usize = 5;

/// Why a receiver is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A receiver with the higher epoch `attached` is attached.
    Outranked { attached: i64, wanted: Option<i64> },
    /// There are already five receivers without an epoch.
    TooMany,
}

/// The texts are the service's, as quoted in issues and live tests of the SDKs (Azure/azure-sdk-for-java#26583 for a
/// lower epoch, Azure/azure-event-hubs-python#77 for none). `'nil'` is a receiver without a name.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outranked { attached, wanted: Some(wanted) } => write!(
                f,
                "Receiver 'nil' with a higher epoch '{attached}' already exists. Receiver 'nil' with epoch {wanted} \
                 cannot be created. Make sure you are creating receiver with increasing epoch value to ensure \
                 connectivity, or ensure all old epoch receivers are closed or disconnected."
            ),
            Self::Outranked { attached, wanted: None } => write!(
                f,
                "At least one receiver for the endpoint is created with epoch of '{attached}', and so non-epoch \
                 receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are \
                 closed or disconnected."
            ),
            Self::TooMany => write!(
                f,
                "Exceeded the maximum number of allowed receivers per partition in a consumer group which is \
                 {MAX_WITHOUT_EPOCH}."
            ),
        }
    }
}

/// Why an attached receiver is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A receiver with the epoch `by` takes over. The epoch of the closed receiver is `epoch`.
    Displaced { by: i64, epoch: Option<i64> },
    /// The test detaches it with this error.
    Detached(Error),
}

/// The text of a displacement is the service's (Azure/azure-sdk-for-python#31084). The service's text for a receiver
/// without an epoch is unknown.
impl From<Ending> for Error {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Displaced { by, epoch } => {
                let with_epoch = epoch.map(|epoch| format!("with epoch '{epoch}' ")).unwrap_or_default();
                let text = format!(
                    "New receiver 'nil' with higher epoch of '{by}' is created hence current receiver 'nil' \
                     {with_epoch}is getting disconnected. If you are recreating the receiver, make sure a higher epoch \
                     is used."
                );
                error(LinkError::Stolen, text)
            }
            Ending::Detached(reason) => reason,
        }
    }
}

/// Checks whether a receiver with this epoch may join the attached ones. If it has an epoch, the attached ones must be
/// closed.
fn admit(attached: &[Option<i64>], epoch: Option<i64>) -> Result<(), Refusal> {
    let highest = attached.iter().flatten().max();
    match (highest, epoch) {
        // `None` is less than any epoch.
        (Some(&attached), wanted) if wanted < Some(attached) => Err(Refusal::Outranked { attached, wanted }),
        (None, None) if attached.len() >= MAX_WITHOUT_EPOCH => Err(Refusal::TooMany),
        _ => Ok(()),
    }
}

/// The receivers of one partition, by consumer group.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    by_group: Mutex<HashMap<String, Vec<Attached>>>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct Attached {
    id: u64,
    epoch: Option<i64>,
    /// Receives the reason for which the receiver is closed.
    ending: oneshot::Sender<Ending>,
}

/// The registration of one attached receiver, removed when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    receivers: Arc<Receivers>,
    group: String,
    id: u64,
    /// Resolves when the receiver must be closed.
    pub(super) ending: oneshot::Receiver<Ending>,
}

impl Receivers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Attached>>> {
        lock(&self.by_group)
    }

    pub(super) fn count(&self, group: &str) -> usize {
        self.lock().get(group).map_or(0, Vec::len)
    }

    /// Returns the epoch of each attached receiver, in the order in which they attached.
    pub(super) fn epochs(&self, group: &str) -> Vec<Option<i64>> {
        self.lock().get(group).into_iter().flatten().map(|receiver| receiver.epoch).collect()
    }

    /// Registers the receiver, and closes those that it displaces.
    pub(super) fn register(self: &Arc<Self>, group: &str, epoch: Option<i64>) -> Result<Registration, Refusal> {
        let mut by_group = self.lock();
        let attached = by_group.entry(group.to_owned()).or_default();
        let epochs: Vec<_> = attached.iter().map(|receiver| receiver.epoch).collect();
        admit(&epochs, epoch)?;

        if let Some(by) = epoch {
            end_all(attached, |receiver| Ending::Displaced { by, epoch: receiver.epoch });
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, ending) = oneshot::channel();
        attached.push(Attached { id, epoch, ending: sender });
        Ok(Registration { receivers: self.clone(), group: group.to_owned(), id, ending })
    }

    /// Closes all receivers of the group, and returns their number.
    pub(super) fn detach(&self, group: &str, reason: &Error) -> usize {
        let mut by_group = self.lock();
        let Some(attached) = by_group.get_mut(group) else { return 0 };
        let count = attached.len();
        end_all(attached, |_| Ending::Detached(reason.clone()));
        count
    }

    /// Closes all receivers.
    pub(super) fn detach_all(&self, reason: &Error) {
        for attached in self.lock().values_mut() {
            end_all(attached, |_| Ending::Detached(reason.clone()));
        }
    }
}

fn end_all(attached: &mut Vec<Attached>, ending: impl Fn(&Attached) -> Ending) {
    for receiver in attached.drain(..) {
        let ending = ending(&receiver);
        // The task of the receiver may be ending on its own.
        let _ = receiver.ending.send(ending);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(attached) = self.receivers.lock().get_mut(&self.group) {
            attached.retain(|receiver| receiver.id != self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_epoch_wins_then_the_newest() {
        let outranked = |attached, wanted| Err(Refusal::Outranked { attached, wanted });
        for (attached, epoch, expected) in [
            (&[][..], None, Ok(())),
            (&[], Some(0), Ok(())),
            (&[None], Some(0), Ok(())),
            (&[Some(1)], Some(1), Ok(())),
            (&[Some(1)], Some(2), Ok(())),
            (&[Some(1)], Some(0), outranked(1, Some(0))),
            (&[Some(1)], None, outranked(1, None)),
            (&[Some(0)], None, outranked(0, None)),
            (&[Some(i64::MAX)], Some(i64::MAX - 1), outranked(i64::MAX, Some(i64::MAX - 1))),
            (&[None; 4], None, Ok(())),
            (&[None; 5], None, Err(Refusal::TooMany)),
            (&[None; 5], Some(0), Ok(())),
        ] {
            assert_eq!(admit(attached, epoch), expected, "{epoch:?} joins {attached:?}");
        }
    }

    #[test]
    fn epoch_displaces_only_receivers_of_its_group() {
        let receivers = Arc::new(Receivers::default());
        let mut without: Vec<_> = (0..2).map(|_| receivers.register("a", None).expect("free")).collect();
        let mut other_group = receivers.register("b", None).expect("free");

        let with = receivers.register("a", Some(7)).expect("displaces the others");

        assert_eq!((receivers.count("a"), receivers.count("b")), (1, 1));
        for registration in &mut without {
            assert_eq!(registration.ending.try_recv(), Ok(Ending::Displaced { by: 7, epoch: None }));
        }
        assert!(other_group.ending.try_recv().is_err());

        drop(without);
        assert_eq!(receivers.count("a"), 1, "a displaced receiver does not remove the new one");
        drop(with);
        assert_eq!(receivers.count("a"), 0);
    }

    #[test]
    fn detach_closes_only_receivers_of_its_group() {
        let receivers = Arc::new(Receivers::default());
        let mut detached: Vec<_> = (0..2).map(|_| receivers.register("a", None).expect("free")).collect();
        let mut other_group = receivers.register("b", None).expect("free");

        let reason = error(LinkError::DetachForced, "why");
        assert_eq!((receivers.detach("a", &reason), receivers.detach("c", &reason)), (2, 0));

        for registration in &mut detached {
            assert_eq!(registration.ending.try_recv(), Ok(Ending::Detached(reason.clone())));
        }
        assert!(other_group.ending.try_recv().is_err());
        assert_eq!((receivers.count("a"), receivers.count("b")), (0, 1));
    }
}
