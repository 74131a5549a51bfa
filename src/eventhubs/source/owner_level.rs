//! The owner level of the links of a source: which of two readers of a partition the broker admits.

use crate::error::{Error, Result};
use crate::source::NO_EPOCH;

/// The owner level (in some SDKs *epoch*) of the links of an [`EventHubSource`](crate::EventHubSource).
///
/// The broker compares the levels of the receivers that are attached to a partition in a consumer group. A receiver
/// with a level displaces all receivers with an equal or lower level, and those without one. A receiver with a lower
/// level, or without one, is rejected. A level has no effect once its receiver is detached. If a connection is lost
/// without a close, the service detects that [after about ten minutes][mixed].
///
/// Version 0.15 of the official client attaches all links without a level, whatever is configured here.
///
/// To check whether a consumer group exists, and to determine where a partition starts that this instance may not own,
/// a source opens links without a level, which displace no other receiver.
///
/// [mixed]: https://learn.microsoft.com/azure/event-hubs/event-hubs-event-processor-host#mixed-mode
///
/// ```
/// use eventhubs_checkpoint::eventhubs::OwnerLevel;
/// use eventhubs_checkpoint::{ConsumerGroup, EventHubSource};
///
/// # fn builder(group: &ConsumerGroup, connection_string: String) {
/// let source = EventHubSource::from_connection_string(group, connection_string).with_owner_level(OwnerLevel::Epoch);
/// # let _ = source;
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnerLevel {
    /// Every link has this level, 0 or greater. The default is `Fixed(0)`, which the processors of all SDKs use: the
    /// receiver that was opened last reads.
    ///
    /// If the broker displaces the receiver of an owner, that owner reads the ownership record before it reopens the
    /// receiver. But if an owner has lost the storage and its link fails for another reason, it opens another link at
    /// once, or the official client re-attaches the link. This takes the partition back from the new owner, which then
    /// displaces the previous owner again. Events that the previous owner reads in between are processed twice; its
    /// checkpoints are rejected.
    Fixed(i64),
    /// The level is the epoch of the ownership for which the partition is read. Each new owner has a greater epoch, so
    /// the broker rejects every earlier owner: one that has lost the storage, but not the event hub, cannot take the
    /// partition back.
    ///
    /// **Only if every processor of the consumer group uses it.** Readers at level 0 are rejected while a link with a
    /// higher level is attached: the processors of other SDKs, the official `EventProcessor`, and instances of this
    /// crate with `Fixed(0)`. A partition that such a processor takes over stays unread until the link of the previous
    /// owner is gone. So this level is not for a mixed group, and not for a rolling update from or to `Fixed(0)`: stop
    /// all instances, then start them with the other level.
    Epoch,
}

impl Default for OwnerLevel {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl OwnerLevel {
    /// Rejects negative levels. Other SDKs reject them, too, and the behavior of the service is not documented.
    pub(super) fn check_level(self) -> Result<()> {
        match self {
            Self::Fixed(level) if level < 0 => {
                Err(Error::config(format!("`with_owner_level` is `Fixed({level})`, but must be at least `Fixed(0)`")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the level of a link that is opened for an ownership with this epoch; `None` if this instance may not own
    /// the partition.
    pub(super) fn level_of_link(self, epoch: i64) -> Result<Option<i64>> {
        match self {
            _ if epoch == NO_EPOCH => Ok(None),
            Self::Fixed(level) => Ok(Some(level)),
            Self::Epoch if epoch < 0 => Err(Error::config(format!(
                "the epoch is {epoch}, but must be greater than 0 to be the owner level of a link"
            ))),
            Self::Epoch => Ok(Some(epoch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_level_of_a_link_is_fixed_or_the_epoch() {
        for (setting, epoch, level) in [
            (OwnerLevel::default(), 7, Some(0)),
            (OwnerLevel::Fixed(3), i64::MIN, Some(3)),
            (OwnerLevel::Epoch, 7, Some(7)),
            (OwnerLevel::Epoch, i64::MAX, Some(i64::MAX)),
            (OwnerLevel::Fixed(3), 0, None),
            (OwnerLevel::Epoch, 0, None),
        ] {
            assert_eq!(setting.level_of_link(epoch).unwrap(), level, "{setting:?}, epoch {epoch}");
        }
    }

    #[test]
    fn negative_levels_are_rejected() {
        assert_eq!(OwnerLevel::Epoch.level_of_link(-1).unwrap_err().kind(), ErrorKind::Config);
        let rejection = OwnerLevel::Fixed(-1).check_level().unwrap_err();
        assert_eq!(rejection.kind(), ErrorKind::Config);
        assert!(rejection.to_string().contains("-1"), "{rejection}");
        for allowed in [OwnerLevel::Fixed(0), OwnerLevel::Fixed(i64::MAX), OwnerLevel::Epoch] {
            assert!(allowed.check_level().is_ok(), "{allowed:?}");
        }
    }
}
