//! Installs the packages of lock files, completely and once.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

const OLDEST_NODE: u32 = 20;

/// Installs the packages in the lock file of `folder` into its `node_modules`, unless that has been done.
pub(crate) fn npm_ci(folder: &Path) -> Result<(), String> {
    let lock_file = folder.join("package-lock.json");
    let wanted = fs::read(&lock_file).map_err(|error| format!("cannot read {}: {error}", lock_file.display()))?;
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    once(&folder.join("node_modules"), &wanted, || run(Command::new(npm).arg("ci").current_dir(folder)))
        .map_err(|error| format!("{error}; {}", remedy()))
}

/// Installs `wanted` into `target` by calling `install`, unless that has been done. Concurrent processes wait for each
/// other.
pub(crate) fn once(target: &Path, wanted: &[u8], install: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let shown = target.display();
    let stamp = target.join(".installed");
    let lock = File::create(target.with_extension("lock")).and_then(|file| file.lock().map(|()| file));
    let _lock = lock.map_err(|error| format!("cannot wait for other installations of {shown}: {error}"))?;
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install()?;
    fs::write(&stamp, wanted).map_err(|error| format!("cannot mark {shown} as installed: {error}"))
}

/// Runs a command until it ends.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {shown}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{shown} failed: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Checks that Node.js is installed and new enough.
pub(crate) fn check_node() -> Result<(), String> {
    let output = Command::new("node")
        .arg("--version")
        .output()
        .map_err(|error| format!("cannot run node ({error}): {}", remedy()))?;
    // A version like `v20.1.2`.
    let version = String::from_utf8_lossy(&output.stdout);
    let major = version.trim().strip_prefix('v').and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= OLDEST_NODE) {
        return Ok(());
    }
    Err(format!("node {} is too old: {}", version.trim(), remedy()))
}

fn remedy() -> String {
    format!("install Node.js {OLDEST_NODE} or newer with npm")
}
