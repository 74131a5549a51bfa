//! Running instances of either kind.

use super::Failure;
use super::{official, processor};

pub(super) enum Instance {
    Ours(Box<processor::Instance>),
    Official(official::Instance),
}

impl Instance {
    /// Returns how many partitions others have handed over to this instance since the last call.
    pub(super) fn handed_over(&mut self) -> usize {
        match self {
            Self::Ours(instance) => instance.handed_over(),
            Self::Official(_) => 0,
        }
    }

    /// Fails if the processor has ended by itself.
    pub(super) async fn shut_down(self) -> Result<(), Failure> {
        match self {
            Self::Ours(instance) => instance.shut_down().await,
            Self::Official(instance) => instance.shut_down().await,
        }
    }
}
