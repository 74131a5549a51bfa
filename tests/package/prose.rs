//! Lengths of names and pages.

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
