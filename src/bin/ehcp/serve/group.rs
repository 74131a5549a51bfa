//! One group that is watched: its history, and how the watching goes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::describe::GroupState;
use eventhubs_checkpoint::source::Lag;
use eventhubs_checkpoint::store::{RequestCounts, StorageOperation, StorageOutcome};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::watching::{GroupHistory, GroupSnapshot, Look};

/// One group that is watched.
pub struct WatchedGroup {
    /// `namespace/event hub/group`.
    pub name: Arc<str>,
    pub group: ConsumerGroup,
    state: RwLock<WatchState>,
}

/// What is known about a group.
pub struct WatchState {
    pub history: GroupHistory,
    pub watching: Watching,
}

/// How the watching goes.
#[derive(Clone, Debug)]
pub struct Watching {
    pub started: Instant,
    /// When the last refresh succeeded.
    pub looked: Option<Instant>,
    /// How many looks succeeded.
    pub looks: u64,
    /// The requests to the storage until the last refresh that succeeded.
    pub requests: RequestCounts,
    /// Why the last refresh failed.
    pub storage_failure: Option<String>,
    /// Why the event hub was not read, until it is read again.
    pub hub_failure: Option<String>,
    /// How many looks failed.
    pub failures: u64,
    /// How many readings of the event hub failed.
    pub hub_failures: u64,
    /// Whether the event hub was not read for several intervals.
    pub is_hub_stale: bool,
    /// A random number, which differs between runs of the program.
    pub run: u64,
}

/// A group in `/api/group` and in the stream of events: as `ehcp.watch/1` describes it, and how the watching goes.
#[derive(Serialize)]
struct ShownGroup<'a> {
    name: &'a str,
    /// Missing until the first look.
    #[serde(flatten)]
    watched: Option<GroupSnapshot<'a>>,
    watching: ShownWatching<'a>,
}

#[derive(Serialize)]
struct ShownWatching<'a> {
    /// How many looks succeeded: they are in this order.
    looks: u64,
    /// How long ago the last refresh succeeded.
    looked_s_ago: Option<f64>,
    storage_requests: u64,
    storage_requests_per_hour: Option<f64>,
    storage_failure: Option<&'a str>,
    hub_failure: Option<&'a str>,
    failures: u64,
    /// Differs between runs of the program.
    run: String,
}

/// A group in the list of groups.
#[derive(Serialize)]
pub struct ListedGroup {
    name: String,
    state: Option<GroupState>,
    members: Option<usize>,
    partitions: Option<usize>,
    unowned: Option<usize>,
    paused: Option<usize>,
    parked: Option<usize>,
    lag: Option<Lag>,
    #[serde(with = "time::serde::rfc3339::option")]
    taken_at: Option<OffsetDateTime>,
    storage_failure: Option<String>,
    hub_failure: Option<String>,
}

impl WatchedGroup {
    pub fn new(group: ConsumerGroup) -> Self {
        let state = WatchState {
            history: GroupHistory::default(),
            watching: Watching {
                started: Instant::now(),
                looked: None,
                looks: 0,
                requests: RequestCounts::default(),
                storage_failure: None,
                hub_failure: None,
                failures: 0,
                hub_failures: 0,
                is_hub_stale: false,
                run: RandomState::new().build_hasher().finish(),
            },
        };
        Self { name: group.to_string().into(), group, state: RwLock::new(state) }
    }

    /// Adds a look. Returns what a reader needs who has everything up to the look before.
    pub fn add_look(&self, look: Look, requests: RequestCounts) -> Option<String> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let changes = state.history.add_look(look.group, look.is_hub_read).len();
        let watching = &mut state.watching;
        watching.looked = Some(Instant::now());
        watching.looks += 1;
        watching.requests = requests;
        watching.storage_failure = None;
        watching.hub_failure = look.hub_failure;
        watching.hub_failures = look.hub_failures;
        watching.is_hub_stale = look.is_hub_stale;
        self.to_json(state.history.latest_snapshot(changes), &state.watching)
    }

    /// Notes that a look failed. Returns what readers need to know.
    pub fn add_failure(&self, failure: String) -> Option<String> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.watching.storage_failure = Some(failure);
        state.watching.failures += 1;
        self.to_json(None, &state.watching)
    }

    /// Calls a function with all that is known.
    pub fn read_state<T>(&self, read: impl FnOnce(&WatchState) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns everything as JSON.
    pub fn everything_as_json(&self) -> Option<String> {
        self.read_state(|state| self.to_json(state.history.snapshot(), &state.watching))
    }

    pub fn list_entry(&self) -> ListedGroup {
        self.read_state(|WatchState { history, watching }| {
            let group = history.last_look();
            ListedGroup {
                name: self.name.to_string(),
                state: group.map(|group| group.group.state),
                members: group.map(|group| group.group.members),
                partitions: group.map(|group| group.partitions.len()),
                unowned: group.map(|group| group.group.unowned),
                paused: group.map(|group| group.group.paused),
                parked: group.map(|group| group.group.parked),
                lag: group.map(|group| group.group.lag),
                taken_at: group.map(|group| group.taken_at),
                storage_failure: watching.storage_failure.clone(),
                hub_failure: watching.hub_failure.clone(),
            }
        })
    }

    /// The values come from serializable types, so there is always a text.
    fn to_json(&self, watched: Option<GroupSnapshot<'_>>, watching: &Watching) -> Option<String> {
        serde_json::to_string(&ShownGroup { name: &self.name, watched, watching: watching.to_document() }).ok()
    }
}

impl Watching {
    /// Returns why the group is not watched completely.
    pub fn failure(&self) -> Option<String> {
        self.storage_failure.clone().or_else(|| self.hub_failure.clone())
    }

    fn to_document(&self) -> ShownWatching<'_> {
        ShownWatching {
            looks: self.looks,
            looked_s_ago: self.looked.map(|looked| looked.elapsed().as_secs_f64()),
            storage_requests: self.requests.sum(),
            storage_requests_per_hour: self
                .looked
                .and_then(|looked| per_hour(self.requests.sum(), looked.duration_since(self.started))),
            storage_failure: self.storage_failure.as_deref(),
            hub_failure: self.hub_failure.as_deref(),
            failures: self.failures + self.hub_failures,
            run: self.run.to_string(),
        }
    }

    /// Returns the requests to the storage, by operation and outcome.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        StorageOperation::ALL
            .iter()
            .flat_map(|operation| StorageOutcome::ALL.iter().map(move |outcome| (*operation, *outcome)))
            .map(|(operation, outcome)| (operation.as_str(), outcome.as_str(), self.requests.of(operation, outcome)))
            .filter(|(_, _, count)| *count > 0)
    }
}

/// Unknown until there was time for several looks.
#[expect(clippy::cast_precision_loss, reason = "a rate has three digits")]
fn per_hour(requests: u64, time: Duration) -> Option<f64> {
    const ENOUGH: Duration = Duration::from_secs(20);
    (time >= ENOUGH).then(|| (requests as f64 / time.as_secs_f64() * 3600.0).round())
}

/// Returns the JSON of an error.
pub fn error_as_json(message: &str) -> String {
    Value::from_iter([("error", message)]).to_string()
}
