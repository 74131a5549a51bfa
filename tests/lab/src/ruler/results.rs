//! The verdicts so far, and the table of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::Failure;
use super::engines::{Engine, Verdict};
use super::mutants::{self, Mutant};
use super::tree::folder;

/// By the name of the mutant.
#[derive(Default)]
pub struct Results(BTreeMap<String, BTreeMap<Engine, Verdict>>);

fn file() -> PathBuf {
    folder().join("verdicts.json")
}

impl Results {
    pub fn load(again: bool) -> Result<Self, Failure> {
        match fs::read(file()) {
            Ok(text) if !again => Ok(Self(serde_json::from_slice(&text)?)),
            _ => Ok(Self::default()),
        }
    }

    pub fn has(&self, mutant: &Mutant, engine: Engine) -> bool {
        self.0.get(mutant.name).is_some_and(|verdicts| verdicts.contains_key(&engine))
    }

    /// Returns whether any engine has found the mutant.
    pub fn is_found(&self, mutant: &Mutant) -> bool {
        self.0.get(mutant.name).is_some_and(|verdicts| verdicts.values().any(Verdict::is_found))
    }

    pub fn record(&mut self, mutant: &Mutant, engine: Engine, verdict: Verdict) -> Result<(), Failure> {
        self.0.entry(mutant.name.to_owned()).or_default().insert(engine, verdict);
        fs::write(file(), serde_json::to_vec_pretty(&self.0)?)?;
        Ok(())
    }
}

/// A table in Markdown: the mutants in their order, and what each engine needed.
impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines: BTreeSet<_> = self.0.values().flat_map(BTreeMap::keys).copied().collect();
        let titles = engines.iter().map(|engine| format!("{engine:?}").to_lowercase());
        writeln!(f, "| planted fault | {} |", titles.collect::<Vec<_>>().join(" | "))?;
        writeln!(f, "|---|{}", "--:|".repeat(engines.len()))?;
        for mutant in mutants::all() {
            let Some(verdicts) = self.0.get(mutant.name) else { continue };
            let cells = engines.iter().map(|engine| verdicts.get(engine).map_or(String::new(), ToString::to_string));
            writeln!(f, "| {} | {} |", mutant.fault, cells.collect::<Vec<_>>().join(" | "))?;
        }
        let survivors = self.0.iter().filter(|(_, verdicts)| !verdicts.values().any(Verdict::is_found));
        for (name, _) in survivors {
            writeln!(f, "\nno engine found {name}")?;
        }
        Ok(())
    }
}
