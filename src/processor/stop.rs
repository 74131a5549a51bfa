//! Why a partition stops, and the error type of handlers.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::error::Error;
use crate::model::OwnerId;

/// The error that a handler returns.
pub type HandlerError = Box<dyn StdError + Send + Sync>;

/// Why a partition stops. [`Handler::stopped`](super::Handler::stopped) receives it.
#[doc(alias = "CloseReason")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// Another instance owns the partition now, or none does. Checkpoints are no longer accepted.
    OwnershipLost {
        /// The new owner, if it is known.
        by: Option<OwnerId>,
    },
    /// A later incarnation of this owner is running. Checkpoints are no longer accepted.
    Replaced,
    /// The lease could not be renewed in time, and the processor is configured to stop then:
    /// [`OnLeaseExpiry::Stop`](crate::balancer::OnLeaseExpiry::Stop).
    LeaseExpired,
    /// This instance releases the partition: another instance requested it, this instance owns too many, the partition
    /// is not assigned to it, was removed from the event hub, or is stalled, or the application requested the release.
    /// Checkpoints are still accepted.
    Released,
    /// The processor is shutting down. Checkpoints are still accepted.
    Shutdown,
    /// The handler failed, and [`OnFailure`](super::OnFailure) determines what follows; or the event source failed so
    /// that reopening the receiver does not help, and the partition restarts from its checkpoint. Checkpoints are still
    /// accepted.
    Failed {
        /// The error with its sources.
        error: Arc<Error>,
    },
}
