//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

pub struct File {
    /// Below the repository.
    pub path: PathBuf,
    pub text: String,
}

/// Returns the Rust files below a folder of the repository, without what the tests install or build.
pub fn rust_files(folder: &str) -> Vec<File> {
    files_below(folder, "rs")
}

/// Returns the files with this extension below a folder of the repository, without what the tests install or build.
pub fn files_below(folder: &str, extension: &str) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if !["node_modules", "venv", "target"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|its| its == extension) {
                let text = fs::read_to_string(&path).unwrap();
                found.push(File { path: path.strip_prefix(root).unwrap().to_owned(), text });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}
