//! What only the tests of this crate use. It may change at any time.

/// The decisions of the load-balancing loop.
pub mod balancer {
    pub use crate::balancer::internal::*;
}

/// The decisions of operators.
pub mod admin {
    pub use crate::admin::internal::*;
}

/// Planning.
pub mod planner {
    pub use crate::planner::*;
}

/// Requests without a store.
pub mod blob {
    pub use crate::blob::deadline::within;
}

/// Time.
pub mod clock {
    pub use crate::clock::*;
}

/// The wire format.
pub mod codec {
    pub use crate::codec::*;
    pub use crate::model::NameCase;
}

/// Names as other SDKs record them, by their own rules.
pub mod recorded {
    use crate::model::{Incarnation, OwnerId};

    /// Creates an owner id from a record.
    #[must_use]
    pub fn owner(id: &str) -> OwnerId {
        OwnerId::recorded(id)
    }

    /// Creates an incarnation from a record.
    #[must_use]
    pub fn incarnation(text: &str) -> Incarnation {
        Incarnation::recorded(text)
    }
}

/// Records as listings show them.
pub mod listed {
    use crate::blob::Blob;
    use crate::model::{Moment, PartitionId};
    use crate::store::Ownership;

    /// Returns the ownership in this blob, from a response that arrived at this moment.
    #[must_use]
    pub fn ownership(partition: PartitionId, blob: &Blob, received: Moment) -> Ownership {
        crate::store::ownership_listed(partition, blob, received).0
    }
}

/// Who a record belongs to, compared with an identity.
pub mod relation {
    pub use crate::model::Relation;

    use crate::model::{Identity, OwnershipRecord};

    /// Compares the owner of a record with an identity.
    #[must_use]
    pub fn of(record: &OwnershipRecord, identity: &Identity) -> Relation {
        record.relation_to(identity)
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
