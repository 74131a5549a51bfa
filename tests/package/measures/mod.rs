//! Measures of the code: how much a reader has to jump, and how plain its idiom is. `CONTRIBUTING.md` has the reasons.
//!
//! The measures of the library may only get better. To see all of them, also for the tool and the lab:
//! `cargo test --all-features --test package measures -- --nocapture`.

mod code;

use std::path::Path;

use code::Code;

/// Functions of traits of other crates, which must have these names.
const FOREIGN_NAMES: &[&str] = &[
    "new",
    "default",
    "fmt",
    "from",
    "drop",
    "clone",
    "eq",
    "cmp",
    "partial_cmp",
    "hash",
    "source",
    "next",
    "poll",
    "deref",
    "main",
];

/// A measure of the library, and what it may be at most.
struct Measure {
    name: &'static str,
    at_most: f64,
    of: fn(&Code) -> f64,
}

const MEASURES: &[Measure] = &[
    Measure { name: "files", at_most: 210.0, of: |code| ratio(code.files, 1) },
    Measure { name: "functions with more than 60 lines", at_most: 0.0, of: |code| ratio(longer_than(code, 60), 1) },
    Measure {
        name: "functions per 100 lines",
        at_most: 8.6,
        of: |code| 100.0 * ratio(code.functions.len(), code.lines),
    },
    Measure {
        name: "helpers of 5 lines called once, per 1000 lines",
        at_most: 7.4,
        of: |code| per_1000(code, code.once_helpers().count()),
    },
    Measure { name: "functions named with one word, %", at_most: 15.9, of: one_word },
    Measure { name: "functions named with a participle, %", at_most: 1.9, of: participles },
    Measure { name: "let (a, b) = (x, y), per 1000 lines", at_most: 0.1, of: |code| per_1000(code, code.tuple_lets) },
    Measure {
        name: "(a, b) = (x, y), per 1000 lines",
        at_most: 0.0,
        of: |code| per_1000(code, code.tuple_assignments),
    },
    Measure { name: "named closures, per 1000 lines", at_most: 0.1, of: |code| per_1000(code, code.named_closures) },
    Measure {
        name: "bindings used once, per 1000 lines",
        at_most: 25.8,
        of: |code| per_1000(code, code.single_use_bindings),
    },
    Measure { name: "type names defined twice or more", at_most: 3.0, of: |code| ratio(shared_types(code), 1) },
    Measure { name: "Result<Result>, Option<Option>", at_most: 0.0, of: |code| ratio(code.nested_results, 1) },
];

/// A number that says nothing by itself.
struct Size {
    name: &'static str,
    of: fn(&Code) -> usize,
}

const SIZES: &[Size] = &[
    Size { name: "lines of code", of: |code| code.lines },
    Size { name: "lines of imports", of: |code| code.import_lines },
    Size { name: "lines per file", of: |code| code.lines / code.files },
    Size { name: "median length of a function", of: |code| quantile(code, 0.5) },
    Size { name: "95th percentile of the lengths", of: |code| quantile(code, 0.95) },
];

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn ratio(count: usize, of: usize) -> f64 {
    count as f64 / of as f64
}

fn per_1000(code: &Code, count: usize) -> f64 {
    1000.0 * ratio(count, code.lines)
}

fn longer_than(code: &Code, lines: usize) -> usize {
    code.functions.iter().filter(|function| function.lines > lines).count()
}

/// Returns the names that the project chose.
fn chosen_names(code: &Code) -> Vec<&str> {
    let names = code.functions.iter().map(|function| function.name.as_str());
    names.filter(|name| !FOREIGN_NAMES.contains(name)).collect()
}

fn one_word(code: &Code) -> f64 {
    let names = chosen_names(code);
    100.0 * ratio(names.iter().filter(|name| !name.contains('_')).count(), names.len())
}

/// `owned`, `judged`: what it returns, as a state, instead of what it does or is.
fn participles(code: &Code) -> f64 {
    const IRREGULAR: &[&str] = &["found", "seen", "known", "written", "read", "sent", "lost", "held", "begun", "taken"];
    let names = chosen_names(code);
    let is_participle = |name: &&&str| {
        let first = name.split('_').next().unwrap_or_default();
        first.len() > 4 && first.ends_with("ed") && first != "need" || IRREGULAR.contains(&first) && first != "read"
    };
    100.0 * ratio(names.iter().filter(is_participle).count(), names.len())
}

fn shared_types(code: &Code) -> usize {
    code.types.values().filter(|definitions| **definitions > 1).count()
}

fn library() -> Code {
    Code::below(&["src"], &["src/bin", "src/testing"])
}

fn table(columns: &[(&str, Code)]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let row = |name: &str, cells: Vec<String>| format!("| {name:48} | {} |", cells.join(" | "));
    lines.push(row("measure", columns.iter().map(|(title, _)| format!("{title:>8}")).collect()));
    for size in SIZES {
        lines.push(row(size.name, columns.iter().map(|(_, code)| format!("{:>8}", (size.of)(code))).collect()));
    }
    for measure in MEASURES {
        let cells = columns.iter().map(|(_, code)| format!("{:>8.1}", (measure.of)(code)));
        lines.push(row(measure.name, cells.collect()));
    }
    lines.join("\n")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
fn quantile(code: &Code, part: f64) -> usize {
    let mut lengths: Vec<_> = code.functions.iter().map(|function| function.lines).collect();
    lengths.sort_unstable();
    lengths[(ratio(lengths.len() - 1, 1) * part) as usize]
}

#[test]
fn the_measures_of_the_library_do_not_get_worse() {
    let library = library();
    let worse: Vec<_> = MEASURES
        .iter()
        .filter(|measure| (measure.of)(&library) > measure.at_most + 0.05)
        .map(|measure| format!("{}: {:.1}, at most {:.1}", measure.name, (measure.of)(&library), measure.at_most))
        .collect();
    let tool = Code::below(&["src/bin/ehcp"], &[]);
    let lab = Code::below(&["tests/lab/src"], &[]);
    println!("{}", table(&[("library", library), ("ehcp", tool), ("lab", lab)]));
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn every_measure_finds_its_example() {
    let mut code = Code::default();
    code.add(
        Path::new("example.rs"),
        "\
/// A comment is no code.
struct Twice;
mod other {
    struct Twice;
    fn twice() -> Result<Result<u8, u8>, u8> { helper() }
    fn helper() -> Result<Result<u8, u8>, u8> {
        let (a, b) = (1, 2);
        let once = a + b;
        let shown = once;
        let double = |x: u8| 2 * x;
        format!(\"{shown}\");
        (self.a, self.b) = (double(1), double(2));
        Ok(Ok(3))
    }
    fn owned_by() {}
}
#[cfg(test)]
mod tests {
    fn not_counted() {}
}
",
    );
    assert_eq!((code.files, code.lines, code.functions.len()), (1, 15, 3));
    assert_eq!((code.tuple_lets, code.tuple_assignments, code.named_closures), (1, 1, 1));
    assert_eq!((code.single_use_bindings, shared_types(&code), code.nested_results), (2, 1, 2));
    assert_eq!(code.once_helpers().count(), 0, "it has more than five lines");
    assert!((one_word(&code) - 66.7).abs() < 0.1 && (participles(&code) - 33.3).abs() < 0.1);
}
