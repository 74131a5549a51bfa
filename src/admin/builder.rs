//! Describes an operator or a reader of a group, and connects it.

use std::sync::Arc;

use rand::Rng;

use super::operator::Operator;
use super::reader::Reader;
use crate::blob::BlobContainer;
#[cfg(feature = "testing")]
use crate::clock::LeaseClock;
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

    /// Returns a builder for an operator, or a reader, with other settings.
    pub fn builder(container: impl BlobContainer + 'static, group: ConsumerGroup) -> OperatorBuilder {
        OperatorBuilder {
            container: Arc::new(container),
            group,
            config: StoreConfig::default(),
            #[cfg(feature = "testing")]
            lease_clock: None,
            seed: None,
        }
    }
}

impl Reader {
    /// Connects a reader with the default settings. For other settings, use [`Operator::builder`] and
    /// [`OperatorBuilder::connect_reader`].
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
    #[cfg(feature = "testing")]
    lease_clock: Option<Arc<dyn LeaseClock>>,
    seed: Option<u64>,
}

impl OperatorBuilder {
    /// Sets how the records are read and written. Default: [`StoreConfig::default`]. A second call replaces all
    /// settings. The lease duration is the operator's own: it reads the lease duration of each instance from its
    /// records. [`StoreConfig::with_verify_storage`] has no effect: neither an operator nor a reader verifies the
    /// storage.
    pub fn with_config(mut self, config: StoreConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the clock that measures lease ages, for tests. Default
    /// [`SystemLeaseClock`](crate::testing::SystemLeaseClock).
    #[cfg(feature = "testing")]
    pub fn with_lease_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.lease_clock = Some(clock);
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
    /// The errors of [`GroupStoreBuilder::connect`].
    pub async fn connect(self) -> Result<Operator> {
        Ok(Operator { store: self.into_store_builder()?.connect().await? })
    }

    /// Connects a reader.
    ///
    /// # Errors
    ///
    /// The errors of [`GroupStoreBuilder::connect`]. Live owners are an error only with
    /// [`BlobNameCase::Auto`](crate::store::BlobNameCase::Auto), and only if both blob-name casings have one.
    pub async fn connect_reader(self) -> Result<Reader> {
        Ok(Reader { store: self.into_store_builder()?.read_only().connect().await? })
    }

    fn into_store_builder(self) -> Result<GroupStoreBuilder> {
        let id = OwnerId::new(format!("operator-{:016x}", rng_from_seed(self.seed)?.next_u64()))?;
        let builder = GroupStore::builder(self.container, self.group, id).with_config(self.config);
        #[cfg(feature = "testing")]
        let builder = match self.lease_clock {
            Some(clock) => builder.with_lease_clock(clock),
            None => builder,
        };
        Ok(builder.for_operator(self.seed))
    }
}
