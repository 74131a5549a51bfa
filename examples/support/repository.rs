//! Where the files of the repository are.

use std::path::{Path, PathBuf};

/// Returns the folder of the repository. The package that is compiled may be in a folder below.
pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("azurite").is_dir()).unwrap_or(package).to_owned()
}
