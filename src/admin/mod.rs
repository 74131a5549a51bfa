//! Administration of a consumer group from outside, for processors of any SDK.
//!
//! An [`Operator`] is not a member of the group: it processes nothing, and the members do not count it. A [`Reader`]
//! only looks at the group.
//!
//! | call | does |
//! |---|---|
//! | [`list_groups`] | lists the groups in a container |
//! | [`read`](Reader::read), [`describe`](GroupRecords::describe) | shows owners, checkpoints and lag |
//! | [`plan`](Operator::plan), [`Plan::execute`] | resets checkpoints, after a look at what would change |
//! | [`Plan::init`] | writes initial checkpoints, where there are none |
//! | [`release`](Operator::release) | frees a partition of an owner that is stuck |
//! | [`plan_deletion`](Reader::plan_deletion), [`delete`](Reader::delete) | deletes records |
//! | [`Export`] | keeps checkpoints in a file, and brings them back or to another group |
//! | `migrate` | reads checkpoints of legacy SDKs, Azure Functions, Dapr and Kafka |
//! | [`keda`](GroupRecords::keda) | shows what KEDA's scaler counts, and why |
//! | [`diagnose`](GroupRecords::diagnose) | finds what is wrong with a group, and the remedies |
//!
//! To [reset](Operator::reset) a checkpoint, the operator takes the partition over like any owner, writes another
//! position, and returns the partition to its previous owner, which continues at the new position. For the steps, see
//! [protocol](crate::guide::protocol). The tool `ehcp`, a package of its own, does all of this from the command line.
//!
#![cfg_attr(
    feature = "testing",
    doc = r#"
Go back by ten events, on an event hub and a container in memory:

```
# tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
use std::future::pending;

use eventhubs_checkpoint::admin::{HubRanges, Operator, Reset, ResetOptions, ResetOutcome, ResetTarget};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::source::StartPosition;
use eventhubs_checkpoint::testing::memory_hub::MemoryHub;
use eventhubs_checkpoint::ConsumerGroup;
use futures::StreamExt;

let hub = MemoryHub::new("orders", 1);
hub.publish_many(0, 100, "an order");
let source = hub.source();
let group = ConsumerGroup::new("example.servicebus.windows.net", "orders", "$Default")?;
let operator = Operator::connect(MemoryContainer::new(), group).await?;

let latest = operator.plan(&source, &Reset::to(ResetTarget::Start(StartPosition::Latest))).await?;
latest.init(&operator).await;

let plan = operator.plan(&source, &Reset::to(ResetTarget::ShiftBy(-10))).await?;
assert_eq!(plan.changes[0].to.as_ref().map(|to| to.sequence_number), Some(89));
let options = ResetOptions::default();
let outcomes: Vec<_> = plan.execute(&operator, &options, pending()).await?.collect().await;
assert!(matches!(outcomes[0].1, ResetOutcome::Done));

let records = operator.read().await?;
let described = records.describe(Some(&HubRanges::read(&source).await?));
assert_eq!(described.group.lag.events, Some(10));
# Ok::<(), Box<dyn std::error::Error>>(())
# })?;
# Ok::<(), Box<dyn std::error::Error>>(())
```
"#
)]

mod builder;
mod doctor;
mod export;
mod group_description;
pub mod keda;
#[cfg(feature = "azure")]
pub mod migrate;
mod new_position;
mod operator;
mod partition_description;
mod plan;
mod planned_reset;
mod reader;
mod records;
mod reset;
#[allow(missing_docs, clippy::must_use_candidate, reason = "private, but for tests")]
mod reset_steps;
mod session;
mod takeover;

/// What a group and its partitions look like from outside: the result of [`GroupRecords::describe`].
pub mod describe {
    pub use super::group_description::{GroupDescription, GroupState, GroupSummary, Member};
    pub use super::partition_description::{
        CheckpointDescription, OwnerDescription, OwnershipState, PartitionDescription, PartitionRange,
        RecordedPosition, Sdk,
    };
}

/// How an operator takes a partition over, and what it does with it.
#[cfg(feature = "testing")]
pub(crate) mod internal {
    pub use super::reset_steps::{Purpose, ResetProgress, ResetReport, ResetStep, StepEnd};
    pub use super::takeover::{Allowed, Takeover, takeover};
}

#[doc(inline)]
pub use crate::store::RecordName;
pub use builder::OperatorBuilder;
pub use doctor::{Check, Finding, Severity};
pub use export::{Export, ExportedPartition};
pub use operator::Operator;
pub use plan::{Plan, PlannedChange, PlannedEffect};
pub use reader::{DeletableRecord, Deletion, Reader, list_groups};
pub use records::{GroupRecords, HubRanges};
pub use reset::{Reset, ResetError, ResetOptions, ResetOutcome, ResetTarget};
