//! Looks at each group again and again, and finds groups.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::list_groups;
use tokio::time::sleep;

use super::group::WatchedGroup;
use super::groups::WatchedGroups;
use crate::args::Global;
use crate::connection::{GroupConnection, StorageConnection};
use crate::exit::Result;
use crate::output::print_note;
use crate::watching::{LookTimer, Watcher};

/// The time between two listings of all groups. With it and one group, a month costs less than a US dollar.
const DISCOVERY: Duration = Duration::from_secs(180);
/// The time until the next listing after one that failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);

/// A group to watch.
#[derive(Clone)]
pub enum WatchTarget {
    /// The group that the options name.
    Named(ConsumerGroup, Global),
    /// A group that was found in the container.
    Found(ConsumerGroup, Global),
}

impl WatchTarget {
    fn group(&self) -> &ConsumerGroup {
        let (Self::Named(group, _) | Self::Found(group, _)) = self;
        group
    }

    fn resolve_connection(&self) -> Result<GroupConnection> {
        match self {
            Self::Named(_, global) => GroupConnection::resolve(global),
            Self::Found(group, global) => GroupConnection::of_listed(global, group.clone()),
        }
    }
}

/// Watches a group from now on. Fails if its settings are wrong.
pub fn start_watching(groups: &Arc<WatchedGroups>, target: WatchTarget) -> Result<()> {
    target.resolve_connection()?;
    let group = Arc::new(WatchedGroup::new(target.group().clone()));
    let task = tokio::spawn(watch_group(groups.clone(), group.clone(), target));
    groups.insert(group, task.abort_handle());
    Ok(())
}

async fn watch_group(groups: Arc<WatchedGroups>, group: Arc<WatchedGroup>, target: WatchTarget) {
    let mut timer = LookTimer::new(groups.intervals, Arc::default());
    let mut watcher = None::<Watcher>;
    let mut reported = None;
    loop {
        timer.wait(watcher.as_ref().map(Watcher::reader)).await;
        let looked = look_at_group(&mut watcher, &groups, &target, &group).await;
        timer.on_look_ended(looked.is_ok());
        let message = match looked {
            Ok(message) => message,
            Err(failure) => group.add_failure(failure.to_string()),
        };
        let failure = group.read_state(|state| state.watching.failure());
        if failure != reported {
            print_note(format_args!("{}: {}", group.name, failure.as_deref().unwrap_or("works again")));
            reported = failure;
        }
        groups.publish("look", Some(&group.name), message);
    }
}

/// Connects if that has not succeeded yet, and looks.
async fn look_at_group(
    watcher: &mut Option<Watcher>,
    groups: &WatchedGroups,
    target: &WatchTarget,
    group: &WatchedGroup,
) -> Result<Option<String>> {
    let watcher = if let Some(watcher) = watcher {
        watcher
    } else {
        watcher.insert(Watcher::connect(target.resolve_connection()?, groups.intervals.hub_interval).await?)
    };
    Ok(group.add_look(watcher.look().await?, watcher.request_counts()))
}

/// Watches all groups in the container, also those that are added later.
pub async fn discover_groups(groups: Arc<WatchedGroups>, global: Global) {
    loop {
        let failure = match find_groups(&global).await {
            Ok(found) => update_groups(&groups, found, &global),
            Err(failure) => Some(failure.to_string()),
        };
        let pause = if failure.is_some() { DISCOVERY_RETRY } else { DISCOVERY };
        groups.note_discovery(failure);
        sleep(pause).await;
    }
}

async fn find_groups(global: &Global) -> Result<Vec<ConsumerGroup>> {
    let storage = StorageConnection::resolve(global)?;
    Ok(list_groups(&storage.open_container(&storage.container_name)?, "", global.listing_timeout()).await?)
}

/// Watches these groups and no others. Returns why one of them cannot be watched.
fn update_groups(groups: &Arc<WatchedGroups>, found: Vec<ConsumerGroup>, global: &Global) -> Option<String> {
    let wanted: BTreeSet<_> = found.iter().map(ToString::to_string).collect();
    let watched = groups.names();
    for gone in watched.iter().filter(|name| !wanted.contains(&***name)) {
        groups.remove(gone);
    }
    let mut failure = None;
    for group in found {
        if watched.iter().all(|name| **name != *group.to_string())
            && let Err(refused) = start_watching(groups, WatchTarget::Found(group, global.clone()))
        {
            failure = failure.or_else(|| Some(refused.to_string()));
        }
    }
    failure
}
