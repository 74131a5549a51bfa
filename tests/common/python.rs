//! Python, and the packages that tests use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::install::{once, run};

/// Required by the packages in the files `requirements.txt`.
const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// Checks that Python is installed and new enough.
pub fn check_python() -> Result<(), String> {
    let (major, minor) = OLDEST_PYTHON;
    let missing = |why: &str| format!("{why}: install Python {major}.{minor} or newer with venv");
    let question = format!("import sys, venv, ensurepip; assert sys.version_info >= ({major}, {minor})");
    let output = Command::new(python()).args(["-c", &question]).output();
    let output = output.map_err(|error| missing(&format!("{} cannot be run ({error})", python())))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(missing(&format!("{} is too old or lacks something ({})", python(), errors.lines().last().unwrap_or_default())))
}

/// Returns the interpreter of an environment in `folder`, with the packages of its `requirements.txt`. Blocks while it
/// installs them.
pub fn python_with_packages(folder: &Path) -> Result<PathBuf, String> {
    let environment = folder.join("venv");
    let interpreter = environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let wanted = fs::read(folder.join("requirements.txt")).map_err(|error| format!("no requirements: {error}"))?;
    once(&environment, &wanted, || {
        run(Command::new(python()).args(["-m", "venv", "--clear"]).arg(&environment))?;
        run(Command::new(&interpreter)
            .args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
            // Nothing is built, so no code of the packages runs before it is used.
            .args(["--only-binary", ":all:", "-r", "requirements.txt"])
            .current_dir(folder))
    })?;
    Ok(interpreter)
}

fn python() -> &'static str {
    if cfg!(windows) { "python" } else { "python3" }
}
