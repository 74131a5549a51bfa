//! The groups that are watched.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde::Serialize;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::group::{ListedGroup, WatchedGroup};
use crate::args::LookIntervals;

/// A reader that is late by more messages starts again.
const MESSAGES: usize = 64;

/// A message to all pages.
#[derive(Clone, Debug)]
pub struct PageMessage {
    pub kind: &'static str,
    /// The group, if it is about one.
    pub group: Option<Arc<str>>,
    pub data: Arc<str>,
}

/// The groups that are watched.
pub struct WatchedGroups {
    pub intervals: LookIntervals,
    watched: RwLock<BTreeMap<Arc<str>, WatchTask>>,
    /// When the container was listed last, and why it was not. `None` if the groups are given.
    discovery: RwLock<Option<Discovery>>,
    messages: broadcast::Sender<PageMessage>,
}

/// A group, and the task that watches it.
struct WatchTask {
    group: Arc<WatchedGroup>,
    handle: AbortHandle,
}

/// How the search for groups goes.
#[derive(Clone, Debug)]
pub struct Discovery {
    pub succeeded: Option<Instant>,
    pub failure: Option<String>,
}

/// The JSON of `/api/groups`.
#[derive(Serialize)]
pub struct GroupList {
    schema: &'static str,
    interval_s: f64,
    refresh_s: f64,
    hub_interval_s: f64,
    groups: Vec<ListedGroup>,
    failure: Option<String>,
}

impl WatchedGroups {
    pub fn new(intervals: LookIntervals) -> Self {
        let (messages, _) = broadcast::channel(MESSAGES);
        Self { intervals, watched: RwLock::default(), discovery: RwLock::default(), messages }
    }

    pub fn all(&self) -> Vec<Arc<WatchedGroup>> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        watched.values().map(|task| task.group.clone()).collect()
    }

    pub fn names(&self) -> Vec<Arc<str>> {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Returns the group with this name, or the first one.
    pub fn find(&self, name: Option<&str>) -> Option<Arc<WatchedGroup>> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        match name {
            Some(name) => watched.get(name),
            None => watched.values().next(),
        }
        .map(|task| task.group.clone())
    }

    /// Adds a group, which a task watches.
    pub fn insert(&self, group: Arc<WatchedGroup>, handle: AbortHandle) {
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(replaced) = watched.insert(group.name.clone(), WatchTask { group, handle }) {
            replaced.handle.abort();
        }
        drop(watched);
        self.publish_list();
    }

    /// Stops to watch a group.
    pub fn remove(&self, name: &str) {
        let removed = self.watched.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some(task) = removed {
            task.handle.abort();
            self.publish_list();
        }
    }

    pub fn note_discovery(&self, failure: Option<String>) {
        let mut discovery = self.discovery.write().unwrap_or_else(PoisonError::into_inner);
        let before = discovery.take();
        let is_new = before.as_ref().is_none_or(|before| before.failure != failure);
        let succeeded =
            if failure.is_none() { Some(Instant::now()) } else { before.and_then(|before| before.succeeded) };
        *discovery = Some(Discovery { succeeded, failure });
        drop(discovery);
        if is_new {
            self.publish_list();
        }
    }

    pub fn discovery(&self) -> Option<Discovery> {
        self.discovery.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn list_groups(&self) -> GroupList {
        GroupList {
            schema: "ehcp.watched-groups/1",
            interval_s: self.intervals.interval.as_secs_f64(),
            refresh_s: self.intervals.refresh.as_secs_f64(),
            hub_interval_s: self.intervals.hub_interval.as_secs_f64(),
            groups: self.all().iter().map(|group| group.list_entry()).collect(),
            failure: self.discovery().and_then(|discovery| discovery.failure),
        }
    }

    /// Sends a message to all pages.
    pub fn publish(&self, kind: &'static str, group: Option<&Arc<str>>, data: Option<String>) {
        if let Some(data) = data {
            // Without a page nothing receives it.
            let _ = self.messages.send(PageMessage { kind, group: group.cloned(), data: data.into() });
        }
    }

    pub fn subscribe(&self) -> broadcast::Receiver<PageMessage> {
        self.messages.subscribe()
    }

    fn publish_list(&self) {
        self.publish("groups", None, serde_json::to_string(&self.list_groups()).ok());
    }
}
