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

use super::group;
use super::groups::{Groups, Message};
use super::guard::{Guard, guard};
use super::health;
use super::metrics;
use super::page::PAGE;

/// The text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the routes need.
#[derive(Clone)]
struct Site {
    groups: Arc<Groups>,
    /// True when the program ends.
    stopped: watch::Receiver<bool>,
}

/// The group that is asked for.
#[derive(Deserialize)]
struct Which {
    name: Option<String>,
}

/// Returns all routes. They only read.
pub fn routes(groups: Arc<Groups>, is_loopback: bool, stopped: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/api/events", get(events))
        .route("/api/group", get(group))
        .route("/api/groups", get(async |State(site): State<Site>| Json(site.groups.list())))
        .route("/healthz", get(healthz))
        .route("/metrics", get(prometheus))
        .with_state(Site { groups, stopped })
        .layer(from_fn_with_state(Guard::new(is_loopback), guard))
}

async fn group(State(site): State<Site>, Query(which): Query<Which>) -> Response {
    let json = site.groups.get(which.name.as_deref()).and_then(|group| group.everything());
    match json {
        Some(json) => json_text(StatusCode::OK, json),
        None => json_text(StatusCode::NOT_FOUND, group::error("this group is not watched: see /api/groups")),
    }
}

fn json_text(status: StatusCode, json: String) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json).into_response()
}

/// Streams one message per look: of one group, or of all.
async fn events(State(site): State<Site>, Query(which): Query<Which>) -> impl IntoResponse {
    let mut stopped = site.stopped.clone();
    let ended = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
    let list = serde_json::to_string(&site.groups.list()).unwrap_or_default();
    let first = stream::iter([Ok(Event::default().event("groups").data(list))]);
    let messages = messages(site.groups.subscribe(), which.name);
    Sse::new(first.chain(messages).take_until(Box::pin(ended))).keep_alive(KeepAlive::default())
}

fn messages(receiver: Receiver<Message>, name: Option<String>) -> impl Stream<Item = Result<Event, Infallible>> {
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
async fn healthz(State(site): State<Site>) -> Response {
    let now = Instant::now();
    let interval = site.groups.interval;
    let discovery = site.groups.discovery().and_then(|discovery| health::discovery_problem(&discovery, now));
    let groups = site.groups.all();
    let looks =
        groups.iter().filter_map(|group| group.with(|state| health::problem(&group.name, state, now, interval)));
    let problems: Vec<_> = discovery.into_iter().chain(looks).collect();
    if problems.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response()
}

async fn prometheus(State(site): State<Site>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], metrics::text(&site.groups.all())).into_response()
}
