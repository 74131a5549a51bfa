//! Go and Java, and the programs of tests that are compiled with them.
//!
//! Go and Maven download a package only if it is not in their cache. `go.sum` pins every Go package. `pom.xml` pins
//! every Java package, because each of them names exact versions of its dependencies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::install::{once, run};

/// Required by the newest packages.
const OLDEST_GO: (u32, u32) = (1, 26);
const OLDEST_JAVA: u32 = 17;

/// Checks that Go is installed and new enough.
pub fn check_go() -> Result<(), String> {
    let (major, minor) = OLDEST_GO;
    let remedy = format!("install Go {major}.{minor} or newer");
    // For example `go1.26.8`.
    let version = output(Command::new("go").args(["env", "GOVERSION"])).map_err(|why| format!("{why}: {remedy}"))?;
    if numbers(&version) >= vec![major, minor] {
        return Ok(());
    }
    Err(format!("{version} is too old: {remedy}"))
}

/// Checks that Maven and the compiler of Java are installed and new enough.
pub fn check_java() -> Result<(), String> {
    let remedy = format!("install Maven and a JDK of Java {OLDEST_JAVA} or newer");
    // For example `javac 17.0.15`.
    let version = output(Command::new("javac").arg("-version")).map_err(|why| format!("{why}: {remedy}"))?;
    if numbers(&version) < vec![OLDEST_JAVA] {
        return Err(format!("{version} is too old: {remedy}"));
    }
    output(maven().arg("--version")).map(drop).map_err(|why| format!("{why}: {remedy}"))
}

/// Returns a program of the Go module in `folder`. Blocks while Go compiles all of them.
pub fn go_program(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let programs = folder.join("bin");
    once(&programs, &contents(folder, &["go", "mod", "sum"])?, || {
        run(Command::new("go")
            .args(["build", "-mod=readonly", "-o", "bin/", "./..."])
            // Go would load the toolchain that a module asks for.
            .env("GOTOOLCHAIN", "local")
            .current_dir(folder))
    })?;
    Ok(programs.join(name).with_extension(std::env::consts::EXE_EXTENSION))
}

/// Returns the command that runs a class of the Maven project in `folder`. Blocks while Maven compiles all of them.
pub fn java_program(folder: &Path, class: &str) -> Result<Command, String> {
    let target = folder.join("target");
    once(&target, &contents(folder, &["java", "xml"])?, || {
        run(maven().args(["--batch-mode", "--quiet", "process-classes"]).current_dir(folder))
    })?;
    let class_path = std::env::join_paths([target.join("classes"), target.join("packages/*")]);
    let mut command = Command::new("java");
    command.arg("-cp").arg(class_path.map_err(|error| error.to_string())?).arg(class);
    Ok(command)
}

fn maven() -> Command {
    Command::new(if cfg!(windows) { "mvn.cmd" } else { "mvn" })
}

/// Returns what a command prints.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program} cannot be run ({error})"))?;
    if !output.status.success() {
        return Err(format!("{program} fails ({})", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the numbers in the text of a version, the most significant one first.
fn numbers(version: &str) -> Vec<u32> {
    version.split(|symbol: char| !symbol.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Returns the contents of all files with these extensions, without what is installed or built.
fn contents(folder: &Path, extensions: &[&str]) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot read {}: {error}", folder.display());
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("bin") {
            all.extend(contents(&path, extensions)?);
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted)) {
            all.extend(fs::read(&path).map_err(unreadable)?);
        }
    }
    Ok(all)
}

#[test]
fn versions_are_compared_by_number() {
    assert_eq!(numbers("go1.26.8"), [1, 26, 8]);
    assert_eq!(numbers("javac 17.0.15"), [17, 0, 15]);
    assert!(numbers("go1.9") < numbers("go1.26") && numbers("go2.0") > numbers("go1.26"));
}
