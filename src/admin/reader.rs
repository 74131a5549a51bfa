//! A program that looks at a consumer group, and claims nothing in it.

use super::survey::GroupRecords;
use crate::error::Result;
use crate::store::{GroupStore, GroupStoreBuilder, RequestCounts};

/// A program that looks at one consumer group. It claims nothing and writes no position, but it can delete records.
///
/// Other than an [`Operator`](super::Operator), it can connect to a group that has live owners under both name cases, if
/// the settings say which one to look at. So it can delete what is left in a case that is not used anymore.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(super) store: GroupStore,
}

impl Reader {
    /// Connects with the settings of a store. The owner id has no meaning.
    ///
    /// # Errors
    ///
    /// Those of [`GroupStoreBuilder::connect`]. A live owner in the other name case is an error only with
    /// [`BlobNameCase::Auto`](crate::store::BlobNameCase::Auto), if this case has one, too.
    pub async fn connect(settings: GroupStoreBuilder) -> Result<Self> {
        Ok(Self { store: settings.for_operator()?.read_only().connect().await? })
    }

    pub(super) fn of(store: GroupStore) -> Self {
        Self { store }
    }

    /// Reads all records of the group.
    ///
    /// # Errors
    ///
    /// The error of the storage.
    pub async fn read(&self) -> Result<GroupRecords> {
        GroupRecords::read(&self.store).await
    }

    /// Returns how many requests to the storage were made.
    #[must_use]
    pub fn request_counts(&self) -> RequestCounts {
        self.store.request_counts()
    }
}
