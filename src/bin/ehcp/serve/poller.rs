//! Looks at each group again and again, and finds groups.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::list_groups;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::group::WatchedGroup;
use super::groups::Groups;
use crate::args::Global;
use crate::connection::{Connection, StorageConnection};
use crate::exit::Result;
use crate::output::note;
use crate::watching::{Pace, Watcher};

/// The time between two listings of all groups.
const DISCOVERY: Duration = Duration::from_secs(60);
/// The time until the next listing after one that failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);

/// A group to watch.
#[derive(Clone)]
pub enum Target {
    /// The group that the options name.
    Named(ConsumerGroup, Global),
    /// A group that was found in the container.
    Found(ConsumerGroup, Global),
}

impl Target {
    fn group(&self) -> &ConsumerGroup {
        let (Self::Named(group, _) | Self::Found(group, _)) = self;
        group
    }

    fn connection(&self) -> Result<Connection> {
        match self {
            Self::Named(_, global) => Connection::resolve(global),
            Self::Found(group, global) => Connection::of_listed(global, group.clone()),
        }
    }
}

/// Watches a group from now on. Fails if its settings are wrong.
pub fn start(groups: &Arc<Groups>, target: Target) -> Result<()> {
    target.connection()?;
    let group = Arc::new(WatchedGroup::new(target.group().clone()));
    let task = tokio::spawn(watch(groups.clone(), group.clone(), target));
    groups.insert(group, task.abort_handle());
    Ok(())
}

async fn watch(groups: Arc<Groups>, group: Arc<WatchedGroup>, target: Target) {
    let mut ticks = interval(groups.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watcher = None;
    let mut reported = None;
    loop {
        ticks.tick().await;
        let message = match look(&mut watcher, &groups, &target, &group).await {
            Ok(message) => message,
            Err(failure) => group.add_failure(failure.to_string()),
        };
        let failure = group.with(|state| state.watching.failure());
        if failure != reported {
            note(format_args!("{}: {}", group.name, failure.as_deref().unwrap_or("works again")));
            reported = failure;
        }
        groups.publish("look", Some(&group.name), message);
    }
}

/// Connects if that has not succeeded yet, and looks.
async fn look(
    watcher: &mut Option<Watcher>,
    groups: &Groups,
    target: &Target,
    group: &WatchedGroup,
) -> Result<Option<String>> {
    let watcher = if let Some(watcher) = watcher {
        watcher
    } else {
        watcher.insert(Watcher::connect(target.connection()?, Pace { hub: groups.hub_interval }).await?)
    };
    let look = watcher.look().await?;
    Ok(group.add_look(look, watcher.request_counts()))
}

/// Watches all groups in the container, also those that are added later.
pub async fn discover(groups: Arc<Groups>, global: Global) {
    loop {
        let failure = match find(&global).await {
            Ok(found) => update(&groups, found, &global),
            Err(failure) => Some(failure.to_string()),
        };
        let pause = if failure.is_some() { DISCOVERY_RETRY } else { DISCOVERY };
        groups.note_discovery(failure);
        sleep(pause).await;
    }
}

async fn find(global: &Global) -> Result<Vec<ConsumerGroup>> {
    let storage = StorageConnection::resolve(global)?;
    let container = storage.container(&storage.container_name)?;
    Ok(list_groups(&container, "", global.listing_timeout()).await?)
}

/// Watches these groups and no others. Returns why one of them cannot be watched.
fn update(groups: &Arc<Groups>, found: Vec<ConsumerGroup>, global: &Global) -> Option<String> {
    let mut failure = None;
    let wanted: BTreeSet<_> = found.iter().map(ToString::to_string).collect();
    let watched = groups.names();
    for gone in watched.iter().filter(|name| !wanted.contains(&***name)) {
        groups.remove(gone);
    }
    for group in found {
        if !watched.iter().any(|name| **name == *group.to_string()) {
            let started = start(groups, Target::Found(group, global.clone()));
            failure = failure.or(started.err().map(|failure| failure.to_string()));
        }
    }
    failure
}
