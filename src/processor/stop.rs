//! Why a partition stops, and what a handler fails with.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::error::Error;
use crate::model::OwnerId;

/// What a handler fails with.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// Why the processing of a partition stops.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// The partition belongs to somebody else now, or to nobody.
    OwnershipLost {
        /// The new owner, where it is known.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is at work. Checkpoints are not accepted any more.
    Replaced,
    /// The lease could not be renewed in time, and the policy is to stop then:
    /// [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop).
    LeaseExpired,
    /// This instance gives the partition back: it is above its limit, not assigned to it, gone from the hub, or
    /// stalled; or the application asked for it. Checkpoints are still accepted.
    Released,
    /// The processor shuts down. Checkpoints are still accepted.
    Shutdown,
    /// The handler failed: what follows, [`OnFailure`](super::OnFailure) says. Or the event source did, beyond
    /// reopening the link: the partition is started again from its checkpoint. Checkpoints are still accepted.
    Failed {
        /// What went wrong, with its causes.
        error: Arc<Error>,
    },
}
