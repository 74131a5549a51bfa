//! The score.

use std::collections::BTreeMap;
use std::fmt;

use super::Verdict;
use super::areas::Area;
use super::listed::Mutant;

/// Mutants that change nothing that could be tested, each with the reason.
const UNCHANGED: &str = include_str!("unchanged.txt");

/// A table in Markdown, one row for each area, and the survivors.
pub struct Table<'a> {
    mutants: &'a [(&'static Area, Mutant)],
    verdicts: &'a BTreeMap<usize, Verdict>,
}

impl<'a> Table<'a> {
    pub fn new(mutants: &'a [(&'static Area, Mutant)], verdicts: &'a BTreeMap<usize, Verdict>) -> Self {
        Self { mutants, verdicts }
    }

    fn count(&self, area: Option<&Area>, verdict: Verdict) -> usize {
        let of_area = |number: &usize| area.is_none_or(|area| *self.mutants[*number].0 == *area);
        self.verdicts.iter().filter(|(number, is)| **is == verdict && of_area(number)).count()
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, area: Option<&Area>) -> fmt::Result {
        let count = |verdict| self.count(area, verdict);
        let [unviable, beside, elsewhere, survived] =
            [Verdict::Unviable, Verdict::Beside, Verdict::Elsewhere, Verdict::Survived].map(count);
        let viable = beside + elsewhere + survived;
        let score = 100.0 * (beside + elsewhere) as f64 / viable.max(1) as f64;
        writeln!(f, "| {name} | {viable} | {unviable} | {beside} | {elsewhere} | {survived} | {score:.1} % |")
    }

    /// Names the survivors. Equal changes in one file are numbered in their order.
    fn survivors(&self) -> impl Iterator<Item = String> {
        let mut seen = BTreeMap::new();
        self.mutants.iter().enumerate().filter_map(move |(number, (_, mutant))| {
            let change = mutant.change();
            let place = seen.entry(change.clone()).and_modify(|count| *count += 1).or_insert(1);
            (self.verdicts.get(&number) == Some(&Verdict::Survived)).then(|| format!("{change} ({place})"))
        })
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| part | viable mutants | do not compile | killed by the tests of the part | by other unit tests | survived | score |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        let mut areas: Vec<_> = self.mutants.iter().map(|(area, _)| *area).collect();
        areas.dedup();
        for area in areas {
            self.row(f, &format!("`{}`", area.name), Some(area))?;
        }
        self.row(f, "all", None)?;
        let (explained, open): (Vec<_>, Vec<_>) =
            self.survivors().partition(|survivor| UNCHANGED.lines().any(|line| line == survivor));
        writeln!(f, "\n{} survivors change nothing, by the list in unchanged.txt", explained.len())?;
        for survivor in open {
            writeln!(f, "survived: {survivor}")?;
        }
        Ok(())
    }
}
