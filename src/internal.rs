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

/// What holds of every plan.
pub mod postconditions {
    pub use crate::planner::fairness::*;
    pub use crate::planner::postconditions::*;
}

/// Requests without a store.
pub mod blob {
    use std::time::Duration;

    use crate::error::Result;

    /// Drops a request when its time is over, as a store does.
    ///
    /// # Errors
    ///
    /// [`Indeterminate`](crate::ErrorKind::Indeterminate) when the time is over, otherwise the error of the request.
    pub async fn limit_request<T>(limit: Duration, what: &str, request: impl Future<Output = Result<T>>) -> Result<T> {
        crate::blob::limit_request(limit, what, request).await
    }
}

/// Listings, connection strings and URLs of Azure.
#[cfg(feature = "azure")]
pub mod azure {
    pub use crate::blob::azure::internal::*;
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

    /// Creates an owner ID from a record.
    #[must_use]
    pub fn owner(id: &str) -> OwnerId {
        OwnerId::from_record(id)
    }

    /// Creates an incarnation from a record.
    #[must_use]
    pub fn incarnation(text: &str) -> Incarnation {
        Incarnation::from_record(text)
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
        crate::store::ownership_from_blob(partition, blob, received).0
    }
}

/// Who a record belongs to, compared with an identity.
pub mod relation {
    pub use crate::model::Relation;

    use crate::model::{Identity, OwnershipRecord};

    /// Compares the owner of a record with an identity.
    #[must_use]
    pub fn of_record(record: &OwnershipRecord, identity: &Identity) -> Relation {
        record.relation_to(identity)
    }
}

/// Locks.
pub mod lock {
    pub use crate::util::lock;
}

/// The rules of the store.
pub mod rules {
    pub use crate::store::rules::*;
}
