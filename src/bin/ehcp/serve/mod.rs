//! `ehcp serve`: watches groups, and shows them as metrics, as JSON and as a page.

mod group;
mod groups;
mod guard;
mod health;
mod http;
mod metrics;
mod page;
mod poller;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use self::groups::WatchedGroups;
use self::poller::{WatchTarget, discover_groups, start_watching};
use crate::args::{Global, ServeArgs};
use crate::connection::{GroupConnection, StorageConnection};
use crate::exit::{Exit, Failure, Result};
use crate::output::print_note;
use crate::safety::wait_for_stop_signal;

/// How long responses may take that were being sent when a signal came.
const LAST_RESPONSES: Duration = Duration::from_secs(2);

/// Serves until a signal ends it.
pub async fn run(global: &Global, serve: &ServeArgs) -> Result<Exit> {
    let groups = Arc::new(WatchedGroups::new(serve.looks));
    if serve.all {
        // Fails at once if a setting is missing.
        StorageConnection::resolve(global)?;
        groups.note_discovery(Some("there was no listing yet".to_owned()));
        tokio::spawn(discover_groups(groups.clone(), global.clone()));
    } else {
        for target in list_targets(global, serve)? {
            start_watching(&groups, target)?;
        }
    }
    let listener = TcpListener::bind(serve.listen).await.map_err(|error| {
        Failure::failed(format!("cannot listen on {}: {error}: choose another address with --listen", serve.listen))
    })?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        print_note("warning: there is no authentication: anyone who reaches this address sees the groups");
    }
    print_note(format_args!("listening on http://{address}"));
    let (stop, stopped) = watch::channel(false);
    let routes = http::routes(groups, address.ip().is_loopback(), stopped.clone());
    tokio::spawn(async move {
        wait_for_stop_signal().await;
        // Streams of events end, too.
        stop.send_replace(true);
    });
    let served = axum::serve(listener, routes).with_graceful_shutdown(is_over(stopped.clone()));
    tokio::select! {
        served = served.into_future() => served?,
        // A reader that does not read must not hold up the end.
        () = async { is_over(stopped).await; sleep(LAST_RESPONSES).await } => {}
    }
    Ok(Exit::Done)
}

/// Returns the groups that the command line names, or the group of the connection options.
fn list_targets(global: &Global, serve: &ServeArgs) -> Result<Vec<WatchTarget>> {
    let mut named = vec![global.clone(); serve.group.len()];
    for (global, name) in named.iter_mut().zip(&serve.group) {
        global.settings.consumer_group = Some(name.clone());
    }
    // Blob names ignore case, so both would be one group.
    named.sort_by_key(|global| global.settings.consumer_group.as_deref().map(str::to_lowercase));
    named.dedup_by_key(|global| global.settings.consumer_group.as_deref().map(str::to_lowercase));
    if named.is_empty() {
        named.push(global.clone());
    }
    named.into_iter().map(|global| Ok(WatchTarget::Named(GroupConnection::resolve(&global)?.group, global))).collect()
}

async fn is_over(mut stopped: watch::Receiver<bool>) {
    // An error means that nothing can stop it anymore, and then it is over, too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
