//! The programs that still can run here: the last releases of EventProcessorHost for Node.js and Python.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Map, Value, json};
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{OWNER, Offset};
use crate::fleet::{Fleet, TIMEOUT};
use crate::python::{check_python, python_with_packages};
use crate::support::install::{check_node, npm_ci};
use crate::support::repository;

/// Runs the host of Node.js on the emulators, until it has written the checkpoints and has shut down. The error says
/// why it cannot be installed.
pub async fn node(
    fleet: &Fleet,
    storage: &str,
    container: &str,
    positions: &[(&str, Option<Offset>)],
) -> Result<(), String> {
    spawn_blocking(|| check_node().and_then(|()| npm_ci(&folder()))).await.unwrap()?;
    let numbers = positions.iter().filter_map(|(partition, position)| Some((partition, position.as_ref()?.0)));
    let checkpoints: Map<String, Value> = numbers.map(|(id, number)| ((*id).to_owned(), json!(number))).collect();
    let settings = json!({
        "owner": OWNER,
        "storage": with_protocol(storage),
        "container": container,
        "event_hub": fleet.hub.connection_string(),
        "port": fleet.hub.port(),
        "consumer_group": "$Default",
        "checkpoints": checkpoints,
    });
    run("node".into(), "eph.mjs", &settings).await;
    Ok(())
}

/// Runs the checkpoint manager of Python's host. The error says why it cannot be installed.
pub async fn python(storage: &str, container: &str, positions: &[(&str, Option<Offset>)]) -> Result<(), String> {
    let install = || check_python().and_then(|()| python_with_packages(&folder()));
    let interpreter = spawn_blocking(install).await.unwrap()?;
    let written = positions.iter().map(|(partition, position)| {
        let position = position.as_ref().map(|(number, offset)| json!([offset, number]));
        ((*partition).to_owned(), position.unwrap_or(Value::Null))
    });
    let settings = json!({
        "owner": OWNER,
        "storage": with_protocol(storage),
        "container": container,
        "consumer_group": "$Default",
        "positions": written.collect::<Map<String, Value>>(),
    });
    run(interpreter, "eph.py", &settings).await;
    Ok(())
}

/// These SDKs assume https without it.
fn with_protocol(storage: &str) -> String {
    format!("DefaultEndpointsProtocol=http;{storage}")
}

async fn run(interpreter: PathBuf, script: &str, settings: &Value) {
    let mut command = Command::new(interpreter);
    command.arg(script).arg(settings.to_string()).current_dir(folder()).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(TIMEOUT, command.output()).await.unwrap_or_else(|_| panic!("{script} does not end")).unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn folder() -> PathBuf {
    repository::root().join("tests/ehcp/legacy")
}
