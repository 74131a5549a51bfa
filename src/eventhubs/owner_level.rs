//! The owner level of a link, by which the broker decides between two readers of a partition.

use crate::error::{Error, Result};
use crate::processor::NO_EPOCH;

/// The owner level (in some SDKs *epoch*) at which the links of an [`EventHubSource`](super::EventHubSource) are opened.
///
/// Of the receivers that are attached to a partition in a consumer group, the broker compares the levels. A receiver
/// with a level displaces all receivers with an equal or lower level, and those without one. A receiver with a lower
/// level, or without one, is refused. A level has no effect once its receiver is detached. If a connection is lost
/// without a close, the service detects that [after about ten minutes][mixed].
///
/// To find out whether a consumer group exists, and where a partition starts that this instance may not own, a source
/// opens links without a level, which displace no other receiver.
///
/// [mixed]: https://learn.microsoft.com/azure/event-hubs/event-hubs-event-processor-host#mixed-mode
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnerLevel {
    /// Every link has this level, 0 or greater. The default is `Fixed(0)`, which the processors of all SDKs use: the
    /// reader that opens last reads.
    ///
    /// An owner that is displaced asks the storage who owns the partition before it opens another link. But if the link
    /// of an owner that is cut off from the storage breaks for another reason, that owner opens another link at once,
    /// or the official client attaches the link again, which takes the partition back from the new owner. The new owner
    /// then displaces the former owner again. Events that the former owner reads in between are processed twice; its
    /// checkpoints are refused.
    Fixed(i64),
    /// The level is the epoch of the ownership for which the partition is read. Each new owner has a greater epoch, so
    /// the broker refuses every earlier owner: one that is cut off from the storage, but not from the event hub, cannot
    /// take the partition back.
    ///
    /// **Only where every processor of the consumer group does it.** Readers at level 0 are refused while a link with a
    /// higher level is attached: the processors of other SDKs, the official `EventProcessor`, and instances of this
    /// crate with `Fixed(0)`. A partition that such a processor takes over stays unread until the link of the former
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
    /// Other SDKs accept no negative level either, and what the service does with one is not documented.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Fixed(level) if level < 0 => {
                Err(Error::config(format!("the owner level is {level}, but must be 0 or greater")))
            }
            _ => Ok(()),
        }
    }

    /// The level of a link that is opened for a tenure with this epoch; none for a look at a partition that this
    /// instance may not own.
    pub(super) fn of_link(self, epoch: i64) -> Result<Option<i64>> {
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
            assert_eq!(setting.of_link(epoch).unwrap(), level, "{setting:?}, epoch {epoch}");
        }
    }

    #[test]
    fn negative_levels_are_refused() {
        assert_eq!(OwnerLevel::Epoch.of_link(-1).unwrap_err().kind(), ErrorKind::Config);
        let refusal = OwnerLevel::Fixed(-1).check().unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Config);
        assert!(refusal.to_string().contains("-1"), "{refusal}");
        for allowed in [OwnerLevel::Fixed(0), OwnerLevel::Fixed(i64::MAX), OwnerLevel::Epoch] {
            assert!(allowed.check().is_ok(), "{allowed:?}");
        }
    }
}
