//! Words, lengths of names and pages, and the files that pages name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::files::{File, files_below, rust_files};

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

const PAGES_WITH_FILES: &[&str] = &[
    "docs/legacy-records.md",
    "docs/life-of-a-partition.md",
    "docs/moving-a-group.md",
    "docs/protocol.md",
    "docs/verification.md",
    "CONTRIBUTING.md",
];

/// A page that leads through the source is wrong when a file has moved.
#[test]
fn files_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for page in PAGES_WITH_FILES {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let words = text.split(|letter: char| letter.is_whitespace() || "`(),;:".contains(letter));
        let paths = words.filter(|word| word.starts_with("src/") || word.starts_with("tests/"));
        named.extend(paths.map(|path| (page, path.trim_end_matches('.').to_owned())));
    }
    let missing: Vec<_> = named.iter().filter(|(_, path)| !root.join(path).exists()).collect();
    assert!(named.len() > 20 && missing.is_empty(), "{missing:?}");
}

/// Words that are translated, private to this project, or two words for one thing; and what to write instead.
const AVOIDED: &[(&str, &str)] = &[
    ("processor time", "CPU time"),
    ("effects once", "exactly-once effects"),
    ("created again", "recreated"),
    ("acknowledgement", "acknowledgment"),
    ("backwards", "backward"),
    (" any more ", "anymore"),
    ("seldom", "rarely"),
    ("in turns", "take turns"),
    ("one after the other", "one after another"),
    ("of them listings", "of which listings"),
    ("all the same ", "nevertheless, still"),
    ("belongs into", "belongs in"),
    ("permits to", "allows .. to, lets"),
    ("come again", "are redelivered"),
    ("comes again", "is redelivered"),
    ("process on", "continue to process"),
    ("in good order", "say what is in order"),
    ("last look", "last refresh"),
    ("per look", "per refresh"),
    ("letter case", "blob-name casing"),
    ("name case", "blob-name casing"),
    ("case of the blob names", "casing of the blob names"),
    ("those of ", "repeat the noun"),
    ("that of ", "repeat the noun"),
    ("goes on", "continues"),
    ("told apart", "distinguished"),
    ("checkpoint unusable", "invalid checkpoint"),
    ("unusable checkpoint", "invalid checkpoint"),
    ("a storage that", "a backend that, a blob service that"),
    ("a storage in", "in-memory blob storage"),
    ("the one whose", "the .. with"),
];

/// Pages, documentation of the library, help, and texts of errors and logs.
#[test]
fn texts_use_the_usual_terms() {
    let folders =
        [("docs", "md"), ("examples", "md"), ("src", "rs"), ("src", "md"), ("src", "html"), ("examples", "rs")];
    let mut files: Vec<_> =
        folders.into_iter().flat_map(|(folder, extension)| files_below(folder, extension)).collect();
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        files.push(File { path: page.into(), text });
    }
    let mut found = Vec::new();
    for File { path, text } in files {
        let without_markers = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!']).trim());
        let text = without_markers.collect::<Vec<_>>().join(" ").to_lowercase();
        found.extend(AVOIDED.iter().filter(|(avoided, _)| text.contains(avoided)).map(|word| (path.clone(), word)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Compared without the first comment of the file.
#[test]
fn the_readme_shows_the_example_hello() {
    let (_, program) = include_str!("../../examples/hello.rs").split_once("\n\n").unwrap();
    assert!(include_str!("../../README.md").contains(program.trim()), "copy examples/hello.rs into README.md");
}
