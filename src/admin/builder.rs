//! Describes an operator or a reader of a group, and connects it.

use std::sync::Arc;

use rand::Rng;

use super::operator::Operator;
use super::reader::Reader;
use crate::blob::BlobContainer;
use crate::error::Result;
use crate::model::{ConsumerGroup, OwnerId};
use crate::store::{GroupStore, GroupStoreBuilder, StoreConfig};
use crate::util::rng_from_seed;

impl Operator {
    /// Connects an operator with the default settings.
    ///
    /// # Errors
    ///
    /// The errors of [`OperatorBuilder::connect`].
    pub async fn connect(container: impl BlobContainer + 'static, group: ConsumerGroup) -> Result<Self> {
        Self::builder(container, group).connect().await
    }

    /// Returns a builder for an operator with other settings.
    pub fn builder(container: impl BlobContainer + 'static, group: ConsumerGroup) -> OperatorBuilder {
        OperatorBuilder { container: Arc::new(container), group, config: StoreConfig::default(), seed: None }
    }
}

impl Reader {
    /// Connects a reader with the default settings. For others, see [`OperatorBuilder`].
    ///
    /// # Errors
    ///
    /// The errors of [`OperatorBuilder::connect_reader`].
    pub async fn connect(container: impl BlobContainer + 'static, group: ConsumerGroup) -> Result<Self> {
        Operator::builder(container, group).connect_reader().await
    }
}

/// Describes an [`Operator`] or a [`Reader`] of a group. Setters cannot fail; connecting can.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::admin::Operator;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::{ConsumerGroup, Result, StoreConfig};
///
/// async fn connect(group: ConsumerGroup) -> Result<Operator> {
///     let config = StoreConfig::default().with_foreign_lease_duration(Duration::from_secs(120));
///     Operator::builder(MemoryContainer::new(), group).with_config(config).connect().await
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `connect` or `connect_reader` is called"]
pub struct OperatorBuilder {
    container: Arc<dyn BlobContainer>,
    group: ConsumerGroup,
    config: StoreConfig,
    seed: Option<u64>,
}

impl OperatorBuilder {
    /// Sets how the records are read and written. Default: [`StoreConfig::default`]. A second call replaces all
    /// settings. The lease duration is the operator's own: it reads the lease duration of each instance from its
    /// records.
    pub fn with_config(mut self, config: StoreConfig) -> Self {
        self.config = config;
        self
    }

    /// Seeds the id and the random part of the incarnation, for repeatable tests. Default: a seed of the operating
    /// system.
    #[cfg(feature = "testing")]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Connects an operator, which gets a unique id that begins with `operator-`.
    ///
    /// # Errors
    ///
    /// The errors of [`GroupStoreBuilder::connect`]. An operator does not verify the storage.
    pub async fn connect(self) -> Result<Operator> {
        Ok(Operator { store: self.into_store_builder()?.connect().await? })
    }

    /// Connects a reader.
    ///
    /// # Errors
    ///
    /// The errors of [`GroupStoreBuilder::connect`]. A live owner in the other blob-name casing is an error only with
    /// [`BlobNameCase::Auto`](crate::store::BlobNameCase::Auto), if there is one in this casing as well.
    pub async fn connect_reader(self) -> Result<Reader> {
        Ok(Reader { store: self.into_store_builder()?.read_only().connect().await? })
    }

    fn into_store_builder(self) -> Result<GroupStoreBuilder> {
        let id = OwnerId::new(format!("operator-{:016x}", rng_from_seed(self.seed)?.next_u64()))?;
        let mut builder = GroupStore::builder(self.container, self.group, id).with_config(self.config);
        builder.seed = self.seed;
        Ok(builder.for_operator())
    }
}
