//! Brings a consumer group along from another program: reads the checkpoints of legacy SDKs and of Kafka, and plans
//! them as those of a group.
//!
//! | step | call |
//! |---|---|
//! | read the records, below the prefix that the program uses | [`read`] |
//! | or name the positions of a Kafka consumer group | [`LegacyCheckpoint::from_kafka`], [`LegacyListing::of`] |
//! | find their events, compare them with the group | [`Operator::plan_migration`](super::Operator::plan_migration) |
//! | write them | [`Plan::execute`](super::Plan::execute) |
//!
//! The source is never written, so the other program can continue where it stopped. Stop it first: a record whose blob
//! has an active lease ([`LegacyCheckpoint::live`]) may advance, and events after it would be processed twice.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use eventhubs_checkpoint::admin::{Operator, ResetOptions};
//! use eventhubs_checkpoint::admin::migrate::{LegacyProgram, read};
//! use eventhubs_checkpoint::blob::azure::AzureContainer;
//! # use eventhubs_checkpoint::source::EventSource;
//! # use eventhubs_checkpoint::{ConsumerGroup, Result};
//! use futures::StreamExt;
//!
//! # async fn migrate(operator: &Operator, hub: &impl EventSource, group: &ConsumerGroup) -> Result<()> {
//! let source = AzureContainer::from_connection_string("UseDevelopmentStorage=true", "eph-leases")?;
//! let timeout = Duration::from_secs(30);
//! let listing = read(&source, LegacyProgram::EventProcessorHost, group, None, timeout).await?;
//! let plan = operator.plan_migration(hub, &listing, false).await?;
//! let options = ResetOptions::default();
//! let outcomes: Vec<_> = plan.execute(operator, &options, std::future::pending()).await?.collect().await;
//! # Ok(())
//! # }
//! ```

mod body;
mod checkpoint;
mod planning;
mod source;

pub use self::checkpoint::{LegacyCheckpoint, MalformedLegacyRecord};
pub use self::source::{LegacyListing, LegacyProgram, read};
pub use crate::blob::{BlobContent, BlobContents};
