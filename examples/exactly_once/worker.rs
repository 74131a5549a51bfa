//! One worker process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::StoreConfig;
use eventhubs_checkpoint::{AzureContainer, ConsumerGroup, EventHubSource, GroupStore, LOG_FILTER, OwnerId, Processor};

use crate::Failure;
use crate::database::Database;
use crate::totals::Totals;
use crate::workspace::Workspace;

/// Short, so that the example ends in seconds. The default is 60 s.
const LEASE_DURATION: Duration = Duration::from_secs(4);
const LOAD_BALANCING_INTERVAL: Duration = Duration::from_secs(1);

/// Processes until SIGTERM.
pub async fn run(owner: &str, is_fenced: bool) -> Result<(), Failure> {
    tracing_subscriber::fmt().with_env_filter(LOG_FILTER).with_ansi(false).with_writer(std::io::stderr).init();

    let workspace = Workspace::from_environment()?;
    let group = ConsumerGroup::from_connection_string(&workspace.hub, "$Default")?;
    let container = AzureContainer::from_connection_string(&workspace.storage, &workspace.container)?;
    let store = GroupStore::builder(Arc::new(container), group.clone(), OwnerId::new(owner)?)
        .with_config(StoreConfig::default().with_lease_duration(LEASE_DURATION))
        .connect()
        .await?;
    let source = EventHubSource::from_connection_string(&group, workspace.hub.clone()).connect().await?;
    let handler = Totals {
        owner: owner.to_owned(),
        database: Arc::new(Mutex::new(Database::open(&workspace.database(), is_fenced)?)),
        delivered: workspace.journal("delivered")?,
        rejected: Arc::new(workspace.journal("rejected")?),
        workspace,
    };
    let config = ProcessorConfig::default()
        .with_balancer(|balancer| balancer.with_load_balancing_interval(LOAD_BALANCING_INTERVAL));
    Processor::builder(source, store, handler).with_config(config).build()?.run_until_signal().await?;
    Ok(())
}
