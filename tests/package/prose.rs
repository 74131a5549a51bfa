//! Comments and documentation are in plain technical English.

use std::fs;
use std::path::{Path, PathBuf};

/// The most words of the list per 1000 lines.
const LIMIT: f64 = 10.0;

/// Words of the style that this project does not use. Some have a proper use, such as a reader that is behind, so the
/// limit is not zero.
const WORDS: &[&str] = &[
    "whoever",
    "whatever",
    "nobody",
    "somebody",
    "anybody",
    "anew",
    "behind",
    "told",
    "tell",
    "tells",
    "patience",
    "mend",
    "mends",
    "robbed",
    "robs",
    "beside",
    "presence",
    "presences",
    "tenure",
    "tenures",
    "life",
    "lives",
];

const PHRASES: &[&str] = &[
    "in good order",
    "by name",
    "that one",
    "the one that",
    "as ever",
    "comes again",
    "come again",
    "put back",
    "given back",
];

fn files(below: &str, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(below)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["node_modules", "venv", "target"].contains(&name.as_str()) {
            files(&path.to_string_lossy(), extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// The text of the comments of a source file, without code.
fn comments(text: &str) -> Vec<String> {
    let comment =
        |line: &str| line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).to_owned());
    text.lines().filter_map(comment).collect()
}

fn count(line: &str) -> usize {
    let line = line.to_lowercase();
    let words = line.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|word| WORDS.contains(word)).count();
    words + PHRASES.iter().map(|phrase| line.matches(phrase).count()).sum::<usize>()
}

fn check(what: &str, lines: &[(PathBuf, String)]) {
    let hits: Vec<_> = lines.iter().filter(|(_, line)| count(line) > 0).collect();
    let words: usize = lines.iter().map(|(_, line)| count(line)).sum();
    #[expect(clippy::cast_precision_loss, reason = "counts of lines are small")]
    let density = 1000.0 * words as f64 / lines.len() as f64;
    println!("{what}: {words} words of the list in {} lines, {density:.1} per 1000", lines.len());
    assert!(density < LIMIT, "{what}: {density:.1} words of the list per 1000 lines: {hits:#?}");
}

fn lines_of(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for folder in folders {
        files(folder, "rs", &mut sources);
    }
    let lines = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        comments(&text).into_iter().map(move |line| (path.clone(), line))
    };
    sources.into_iter().flat_map(lines).collect()
}

#[test]
fn comments_of_the_library_use_plain_words() {
    check("src", &lines_of(&["src"]));
}

#[test]
fn comments_of_tests_and_examples_use_plain_words() {
    check("tests, examples, benches", &lines_of(&["tests", "examples", "benches"]));
}

#[test]
fn the_documentation_uses_plain_words() {
    let mut pages = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")];
    files("docs", "md", &mut pages);
    let lines = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        text.lines().map(|line| (path.clone(), line.to_owned())).collect::<Vec<_>>()
    };
    check("docs", &pages.into_iter().flat_map(lines).collect::<Vec<_>>());
}

/// A name that needs more is the name of two rules, or repeats its module.
#[test]
fn names_of_tests_have_at_most_50_characters() {
    let mut sources = Vec::new();
    for folder in ["src", "tests"] {
        files(folder, "rs", &mut sources);
    }
    let mut long = Vec::new();
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if is_test && line.contains("fn ") {
                let name = line.split("fn ").nth(1).unwrap().split(['(', '<']).next().unwrap();
                if name.len() > 50 {
                    long.push((path.clone(), name.to_owned()));
                }
                is_test = false;
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_readme_has_at_most_10_kilobytes() {
    let readme = fs::metadata(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.len() <= 10_000, "{} bytes", readme.len());
}
