//! The mutants that `cargo-mutants` generates.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::areas::Area;
use crate::ruler::Failure;

/// One change to the library.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// File, place and change.
    pub name: String,
    pub file: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Span,
    /// The function that it changes.
    pub function: Option<Function>,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Genre {
    /// The body of a function returns the replacement at once.
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Span {
    pub start: Place,
    pub end: Place,
}

/// Line and column in characters, each from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Function {
    pub return_type: String,
}

impl Mutant {
    /// Returns the name without the place, which changes with every edit above it.
    pub fn change(&self) -> String {
        let (_, change) = self.name.rsplit_once(": ").unwrap_or_default();
        format!("{}: {change}", self.file)
    }
}

impl Mutant {
    /// Returns whether its function returns `impl Trait`.
    pub fn returns_opaque_type(&self) -> bool {
        self.function.as_ref().is_some_and(|function| function.return_type.contains("impl "))
    }
}

/// Lists the mutants of an area.
pub fn list(root: &Path, area: &Area) -> Result<Vec<Mutant>, Failure> {
    let files = area.files.iter().flat_map(|file| ["--file", file]);
    let output =
        Command::new(env!("CARGO")).args(["mutants", "--list", "--json"]).args(files).current_dir(root).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo-mutants is needed: cargo install --locked cargo-mutants@27.1.0\n{error}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_known_without_its_place() {
        let place = Place { line: 1, column: 1 };
        let mutant = Mutant {
            name: "src/a.rs:67:96: replace && with || in A::b".to_owned(),
            file: "src/a.rs".to_owned(),
            genre: Genre::BinaryOperator,
            replacement: "||".to_owned(),
            span: Span { start: place, end: place },
            function: None,
        };
        assert_eq!(mutant.change(), "src/a.rs: replace && with || in A::b");
    }
}
