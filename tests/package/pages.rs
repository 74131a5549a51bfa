//! Links between pages, and the lists of all pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::files::files_below;

/// Returns the lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// Returns the targets of the links in a page, also of those that are wrapped.
fn link_targets(text: &str) -> Vec<String> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let without_code = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let targets = without_code.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.trim().to_owned()).collect()
}

/// Returns the anchor of a heading, as GitHub and mdBook form it.
fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Returns a path without `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn links_lead_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = BTreeMap::new();
    for folder in ["docs", "examples", "azurite", "src", "tests"] {
        pages.extend(files_below(folder, "md").into_iter().map(|page| (page.path, page.text)));
    }
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        pages.insert(page.into(), fs::read_to_string(root.join(page)).unwrap());
    }
    let headings = |text: &str| prose(text).filter(|line| line.starts_with('#')).map(anchor).collect::<BTreeSet<_>>();
    let anchors: BTreeMap<_, _> = pages.iter().map(|(path, text)| (path, headings(text))).collect();
    let mut checked = 0;
    let mut broken = Vec::new();
    for (path, text) in &pages {
        for link in link_targets(text).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { normalized(&path.with_file_name(file)) };
            let has_heading = anchors.get(&target).is_none_or(|known| heading.is_empty() || known.contains(heading));
            if !has_heading || !root.join(target).exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
            checked += 1;
        }
    }
    assert!(checked > 400 && broken.is_empty(), "of {checked} links: {broken:#?}");
}

/// The book, and the guide on docs.rs.
#[test]
fn every_page_is_in_the_book_and_in_the_guide() {
    let guide = include_str!("../../src/lib.rs");
    let summary = include_str!("../../docs/SUMMARY.md");
    for page in files_below("docs", "md").iter().map(|page| page.path.file_name().unwrap().to_str().unwrap()) {
        let is_listed = summary.contains(&format!("]({page})")) && guide.contains(&format!("../docs/{page}"));
        assert!(is_listed || page == "SUMMARY.md", "{page}");
    }
}
