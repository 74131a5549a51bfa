//! The routes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::get;
use futures::stream::{self, Stream, StreamExt};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::group::error_as_json;
use super::groups::{PageMessage, WatchedGroups};
use super::guard::{RequestGuard, guard_request};
use super::health;
use super::metrics;
use super::page::PAGE;

/// The text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the routes need.
#[derive(Clone)]
struct Site {
    groups: Arc<WatchedGroups>,
    /// True when the program ends.
    stopped: watch::Receiver<bool>,
}

/// The group that is asked for.
#[derive(Deserialize)]
struct GroupQuery {
    name: Option<String>,
}

/// Returns all routes. They only read.
pub fn routes(groups: Arc<WatchedGroups>, is_loopback: bool, stopped: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/api/events", get(stream_events))
        .route("/api/group", get(show_group))
        .route("/api/groups", get(async |State(site): State<Site>| Json(site.groups.list_groups())))
        .route("/healthz", get(show_health))
        .route("/metrics", get(show_metrics))
        .with_state(Site { groups, stopped })
        .layer(from_fn_with_state(RequestGuard::new(is_loopback), guard_request))
}

async fn show_group(State(site): State<Site>, Query(query): Query<GroupQuery>) -> impl IntoResponse {
    let group = site.groups.find(query.name.as_deref());
    let (status, json) = match group.and_then(|group| group.everything_as_json()) {
        Some(json) => (StatusCode::OK, json),
        None => (StatusCode::NOT_FOUND, error_as_json("this group is not watched: see /api/groups")),
    };
    (status, [(CONTENT_TYPE, "application/json")], json)
}

/// Streams one message per refresh: of one group, or of all.
async fn stream_events(State(site): State<Site>, Query(query): Query<GroupQuery>) -> impl IntoResponse {
    let mut stopped = site.stopped.clone();
    let ended = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
    let list = serde_json::to_string(&site.groups.list_groups()).unwrap_or_default();
    let first = stream::iter([Ok(Event::default().event("groups").data(list))]);
    let events = first.chain(stream_messages(site.groups.subscribe(), query.name));
    Sse::new(events.take_until(Box::pin(ended))).keep_alive(KeepAlive::default())
}

fn stream_messages(
    receiver: Receiver<PageMessage>,
    name: Option<String>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((receiver, name), async |(mut receiver, name)| {
        loop {
            let event = match receiver.recv().await {
                Ok(message)
                    if message.group.as_deref().zip(name.as_deref()).is_none_or(|(one, other)| one == other) =>
                {
                    Event::default().event(message.kind).data(&*message.data)
                }
                // It is about another group.
                Ok(_) => continue,
                // The page loads everything again.
                Err(RecvError::Lagged(_)) => Event::default().event("missed").data("{}"),
                Err(RecvError::Closed) => return None,
            };
            return Some((Ok(event), (receiver, name)));
        }
    })
}

/// Responds with 200 if each group was looked at recently.
async fn show_health(State(site): State<Site>) -> Response {
    let now = Instant::now();
    let intervals = site.groups.intervals;
    let discovery = site.groups.discovery();
    let mut problems: Vec<_> =
        discovery.iter().filter_map(|discovery| health::discovery_problem(discovery, now)).collect();
    for group in site.groups.all() {
        problems.extend(group.read_state(|state| health::look_problem(&group.name, state, now, intervals)));
    }
    if problems.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response()
}

async fn show_metrics(State(site): State<Site>) -> impl IntoResponse {
    ([(CONTENT_TYPE, PROMETHEUS)], metrics::render_metrics(&site.groups.all()))
}
