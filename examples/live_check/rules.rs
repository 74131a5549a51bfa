//! The rules of the storage, one after another on the one container, which is empty before and after each.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::testing::conformance::{Container, RULES, Rule, RuleStart};
use eventhubs_checkpoint::time::OffsetDateTime;
use eventhubs_checkpoint::{Error, ErrorKind};
use tokio::time::{Instant, timeout};

use crate::Failure;

/// The requests of a container have no time limit of their own.
const LIMIT: Duration = Duration::from_secs(60);

/// What became of the rules.
#[derive(Default)]
pub struct CheckedRules {
    pub checked: usize,
    pub took: Duration,
    /// Those that need a missing container.
    pub left_out: usize,
    /// The names of the violated rules, each with the reason.
    pub violated: Vec<(&'static str, String)>,
}

/// Makes sure that the container exists and is empty. Returns the time, by the clock of the storage.
pub async fn prepare(container: &dyn BlobContainer, name: &str) -> Result<OffsetDateTime, Failure> {
    let list = async || timeout(LIMIT, container.list("")).await.map_err(|_| no_response());
    let listed = match list().await? {
        Err(error) if error.kind() == ErrorKind::ContainerNotFound => {
            timeout(LIMIT, container.create_container()).await.map_err(|_| no_response())??;
            list().await??
        }
        listed => listed?,
    };
    if let Some(blob) = listed.blobs.first() {
        let count = listed.blobs.len();
        return Err(format!(
            "the container {name:?} has {count} blobs, such as {:?}, but must be empty: name another one with \
             --container, or delete its blobs if they are from an interrupted check",
            blob.name
        )
        .into());
    }
    Ok(listed.response.server_time)
}

fn no_response() -> Failure {
    format!("the storage did not respond within {LIMIT:?}").into()
}

pub async fn check_all(container: &Container) -> Result<CheckedRules, Failure> {
    let began = Instant::now();
    let mut rules = CheckedRules::default();
    for rule in RULES {
        if rule.start() == RuleStart::MissingContainer {
            rules.left_out += 1;
            continue;
        }
        rules.checked += 1;
        if let Err(reason) = check(*rule, container).await {
            eprintln!("violated: {}: {reason}", rule.name());
            rules.violated.push((rule.name(), reason));
        }
        remove_blobs(&**container).await?;
    }
    rules.took = began.elapsed();
    Ok(rules)
}

/// Checks one rule. The error is the reason why it does not hold.
async fn check(rule: Rule, container: &Container) -> Result<(), String> {
    // A violated rule panics.
    let checking = tokio::spawn(rule.check(Arc::clone(container)));
    let abort = checking.abort_handle();
    let Ok(checked) = timeout(LIMIT, checking).await else {
        abort.abort();
        return Err(format!("not checked within {LIMIT:?}"));
    };
    match checked {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(error) => {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("it panicked without a message").to_owned())
        }
    }
}

/// Removes all blobs.
pub async fn remove_blobs(container: &dyn BlobContainer) -> Result<(), Failure> {
    let removing = async {
        let mut blobs = container.list("").await?.blobs;
        // Blobs before their directories, which accounts with a hierarchical namespace list.
        blobs.reverse();
        for blob in blobs {
            match container.delete(&blob.name, &blob.etag).await {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok::<_, Error>(())
    };
    let removed = timeout(LIMIT, removing).await.map_err(|_| no_response())?;
    Ok(removed.map_err(|error| format!("the blobs cannot be removed: {error}"))?)
}
