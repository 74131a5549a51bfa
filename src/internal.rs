//! What only the tests of this crate use. It may change at any time.

/// Planning.
pub mod balance {
    pub use crate::balance::*;
}

/// Time.
pub mod clock {
    pub use crate::clock::*;
}

/// The wire format.
pub mod codec {
    pub use crate::codec::*;
}

/// Names that another SDK recorded by its own rules.
pub mod recorded {
    use crate::model::{Incarnation, OwnerId};

    /// As it stands in a record.
    #[must_use]
    pub fn owner(id: &str) -> OwnerId {
        OwnerId::recorded(id)
    }

    /// As it stands in a record.
    #[must_use]
    pub fn incarnation(text: &str) -> Incarnation {
        Incarnation::recorded(text)
    }
}

/// Records as listings show them.
pub mod listed {
    use crate::blob::Blob;
    use crate::model::PartitionId;
    use crate::store::Ownership;

    /// The ownership in this blob.
    #[must_use]
    pub fn ownership(partition: PartitionId, blob: &Blob) -> Ownership {
        crate::store::ownership_listed(partition, blob).0
    }
}

/// Locks.
pub mod lock {
    pub use crate::lock::*;
}

/// The rules of the store.
pub mod rules {
    pub use crate::store::rules::*;
}
