//! Builds the tests of the library with all mutants, and finds out which of them cannot be built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::planted::{self, Planted};
use crate::ruler::Failure;
use crate::ruler::tree::folder;

/// A message of cargo.
#[derive(Deserialize)]
#[serde(tag = "reason")]
enum Message {
    #[serde(rename = "compiler-message")]
    Compiler { message: Diagnostic },
    #[serde(rename = "compiler-artifact")]
    Artifact { executable: Option<PathBuf> },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    code: Option<Code>,
    rendered: Option<String>,
    spans: Vec<Lines>,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

#[derive(Deserialize)]
struct Lines {
    file_name: String,
    line_start: usize,
    line_end: usize,
    is_primary: bool,
}

/// The result of a build.
pub enum Built {
    /// The program with the unit tests.
    Tests(PathBuf),
    /// Mutants that cannot be built, each with the code of the error.
    Errors(BTreeMap<usize, String>),
}

/// Builds the unit tests of the library with these planted files.
pub fn build(root: &Path, files: &BTreeMap<String, Planted>) -> Result<Built, Failure> {
    let diagnostics = match cargo_test(root)? {
        Ok(tests) => return Ok(Built::Tests(tests)),
        Err(diagnostics) => diagnostics,
    };
    let mut errors = BTreeMap::new();
    for error in &diagnostics {
        attribute(error, files, &mut errors)?;
    }
    Ok(Built::Errors(errors))
}

/// Returns the program, or the errors of the compiler.
fn cargo_test(root: &Path) -> Result<Result<PathBuf, Vec<Diagnostic>>, Failure> {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--locked", "--package", "eventhubs-checkpoint", "--lib", "--all-features"])
        .args(["--message-format", "json"])
        .env("CARGO_TARGET_DIR", folder().join("score/build"))
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .current_dir(root)
        .output()?;
    let messages = output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut tests = None;
    let mut errors = Vec::new();
    for message in messages {
        match message {
            Message::Compiler { message } if message.level == "error" => errors.push(message),
            Message::Artifact { executable: Some(executable) } => tests = Some(executable),
            _ => {}
        }
    }
    match tests.filter(|_| output.status.success()) {
        Some(tests) => Ok(Ok(tests)),
        None if !errors.is_empty() => Ok(Err(errors)),
        None => Err(format!("the copy cannot be built: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// An arm of a `match` is missing.
const NOT_EXHAUSTIVE: &str = "E0004";

/// Finds the mutants to which an error belongs: the innermost one at its lines, or all arms of the file.
fn attribute(
    error: &Diagnostic,
    files: &BTreeMap<String, Planted>,
    errors: &mut BTreeMap<usize, String>,
) -> Result<(), Failure> {
    let primary = error.spans.iter().filter(|span| span.is_primary);
    let other = error.spans.iter().filter(|span| !span.is_primary);
    let mut places = primary.chain(other).filter_map(|span| Some((span, files.get(&span.file_name)?)));
    let code = error.code.as_ref().map_or("", |code| &code.code);
    let mutants = if code == NOT_EXHAUSTIVE {
        places.next().map(|(_, file)| file.arms.clone())
    } else {
        places.find_map(|(span, file)| {
            Some(vec![planted::at_lines(&file.text, span.line_start..span.line_end + 1).pop()?])
        })
    };
    match mutants {
        Some(mutants) => errors.extend(mutants.into_iter().map(|number| (number, code.to_owned()))),
        // The summary.
        None if error.spans.is_empty() => {}
        None => return Err(format!("an error without a mutant:\n{}", error.rendered.as_deref().unwrap_or("")).into()),
    }
    Ok(())
}

/// Builds the unit tests with one mutant. Returns `None` if it does not compile.
pub fn build_alone(root: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(cargo_test(root)?.ok())
}
