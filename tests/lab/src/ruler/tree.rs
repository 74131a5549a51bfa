//! A copy of the repository with all mutants.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Failure;
use super::mutants::{Mutant, SWITCH};

/// The environment variable with the number of the mutant that is on.
pub const VARIABLE: &str = "EVENTHUBS_CHECKPOINT_MUTANT";

/// What turns mutants on. It is cheap, because the exploration asks millions of times.
const SWITCHES: &str = r#"//! Switches of the planted faults.

use std::sync::LazyLock;

static ACTIVE: LazyLock<Option<usize>> =
    LazyLock::new(|| std::env::var("VARIABLE").ok()?.parse().ok());

/// Returns whether this fault is turned on.
pub(crate) fn is_active(number: usize) -> bool {
    *ACTIVE == Some(number)
}
"#;

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder for the copy, its build, and the verdicts.
pub fn folder() -> PathBuf {
    repository().join("target/ruler")
}

/// Copies the files that git knows, and plants all mutants. Returns the folder of the copy.
pub fn plant(mutants: &[&Mutant]) -> Result<PathBuf, Failure> {
    let root = folder().join("tree");
    copy(&root, |path, content| planted(path, content, mutants))?;
    add_switches(&root)?;
    Ok(root)
}

/// Copies the files that git knows, each as `change` returns it.
pub fn copy(root: &Path, change: impl Fn(&str, Vec<u8>) -> Result<Vec<u8>, Failure>) -> Result<(), Failure> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository())
        .output()?;
    if !listed.status.success() {
        return Err("git cannot list the files of the repository".into());
    }
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let source = repository().join(path);
        if source.is_file() {
            write_if_changed(&root.join(path), &change(path, fs::read(source)?)?)?;
        }
    }
    Ok(())
}

/// Adds the module that turns mutants on.
pub fn add_switches(root: &Path) -> Result<(), Failure> {
    let library = fs::read(repository().join("src/lib.rs"))?;
    write_if_changed(&root.join("src/lib.rs"), &[library, b"\nmod planted;\n".to_vec()].concat())?;
    write_if_changed(&root.join("src/planted.rs"), SWITCHES.replace("VARIABLE", VARIABLE).as_bytes())?;
    Ok(())
}

/// Returns the content of a file with its mutants.
fn planted(path: &str, content: Vec<u8>, mutants: &[&Mutant]) -> Result<Vec<u8>, Failure> {
    let mut mutants = mutants.iter().enumerate().filter(|(_, mutant)| mutant.file == path).peekable();
    if mutants.peek().is_none() {
        return Ok(content);
    }
    let mut text = String::from_utf8(content)?;
    for (number, mutant) in mutants {
        if text.matches(mutant.find).count() != 1 {
            return Err(format!("{}: {path} does not contain exactly once:\n{}", mutant.name, mutant.find).into());
        }
        let switch = format!("crate::planted::is_active({number})");
        text = text.replace(mutant.find, &mutant.replace.replace(SWITCH, &switch));
    }
    Ok(text.into_bytes())
}

/// Leaves the time of an unchanged file, so that cargo does not compile it again.
pub fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruler::mutants;

    #[test]
    fn every_mutant_has_its_place() {
        let mutants = mutants::all();
        for mutant in &mutants {
            let content = fs::read(repository().join(mutant.file)).unwrap();
            assert!(mutant.replace.contains(SWITCH), "{}", mutant.name);
            planted(mutant.file, content, &mutants).unwrap();
        }
    }

    #[test]
    fn a_mutant_is_planted_behind_its_switch() {
        let mutant = |find, replace| Mutant { name: "m", fault: "it lies", file: "a.rs", find, replace };
        let (first, second) = (mutant("1 < 2", "MUTANT || 1 < 2"), mutant("2 < 3", "2 < 3 && !MUTANT"));
        let text = planted("a.rs", b"if 1 < 2 && 2 < 3 {}".to_vec(), &[&first, &second]).unwrap();
        let expected = "if crate::planted::is_active(0) || 1 < 2 && 2 < 3 && !crate::planted::is_active(1) {}";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(planted("b.rs", b"1 < 2".to_vec(), &[&first]).unwrap(), b"1 < 2");
        planted("a.rs", b"1 < 2 or 1 < 2".to_vec(), &[&first]).unwrap_err();
        planted("a.rs", b"else".to_vec(), &[&first]).unwrap_err();
    }
}
