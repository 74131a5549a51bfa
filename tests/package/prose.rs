//! Lengths of names and pages, and the files that pages name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::files::rust_files;

/// A name that needs more is the name of two rules, or repeats its module.
#[test]
fn names_of_tests_have_at_most_50_characters() {
    let mut long = Vec::new();
    for file in ["src", "tests"].into_iter().flat_map(rust_files) {
        let mut is_test = false;
        for line in file.text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if is_test && line.contains("fn ") {
                let name = line.split("fn ").nth(1).unwrap().split(['(', '<']).next().unwrap();
                if name.len() > 50 {
                    long.push((file.path.clone(), name.to_owned()));
                }
                is_test = false;
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_readme_has_at_most_10_kilobytes() {
    let readme = include_str!("../../README.md");
    assert!(readme.len() <= 10_000, "{} bytes", readme.len());
}

/// A page that leads through the source is wrong when a file has moved.
#[test]
fn files_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for page in ["docs/life-of-a-partition.md", "docs/verification.md", "docs/protocol.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let words = text.split(|letter: char| letter.is_whitespace() || "`(),;:".contains(letter));
        let paths = words.filter(|word| word.starts_with("src/") || word.starts_with("tests/"));
        named.extend(paths.map(|path| (page, path.trim_end_matches('.').to_owned())));
    }
    let missing: Vec<_> = named.iter().filter(|(_, path)| !root.join(path).exists()).collect();
    assert!(named.len() > 20 && missing.is_empty(), "{missing:?}");
}
