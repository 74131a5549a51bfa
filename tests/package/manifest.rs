//! What the manifest and the lock file guarantee.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn lock_file() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock")).unwrap()
}

fn versions_of(package: &str) -> Vec<String> {
    let lock = lock_file();
    let entries = lock.split("[[package]]").filter(|entry| entry.contains(&format!("name = \"{package}\"\n")));
    entries.map(|entry| entry.split("version = \"").nth(1).unwrap().split('"').next().unwrap().to_owned()).collect()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a version as two numbers, for comparison.
fn minor(version: &str) -> (u64, u64) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_rust_version_is_enough_for_every_package() {
    let versions = run(Command::new("rustc").arg("-vV"));
    let host = versions.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Only the packages of this platform are certainly available.
    let metadata = run(Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let stated = minor(env!("CARGO_PKG_RUST_VERSION"));
    for package in metadata["packages"].as_array().unwrap() {
        let Some(needed) = package["rust_version"].as_str() else { continue };
        assert!(minor(needed) <= stated, "{} needs Rust {needed}", package["id"]);
    }
}

/// The upper bound on `tokio-util` exists because `fe2o3-amqp` 0.16.2, which the official client uses, does not compile
/// with 0.7.20. When the client moves to another `fe2o3-amqp`, remove the bound and this test.
#[test]
fn the_bound_on_tokio_util_is_still_needed() {
    let used = versions_of("fe2o3-amqp");
    assert!(
        used.iter().any(|version| version == "0.16.2"),
        "the official client no longer uses fe2o3-amqp 0.16.2 but {used:?}: the bound on tokio-util can go"
    );
    let held = versions_of("tokio-util");
    assert!(held.iter().all(|version| version.as_str() < "0.7.20"), "{held:?} does not compile with the client");
}

fn packaged() -> String {
    let package = concat!(env!("CARGO_PKG_NAME"), "@", env!("CARGO_PKG_VERSION"));
    run(Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR")))
}

/// The tests install it among their own files, where `include` would package it.
#[test]
fn nothing_that_the_tests_install_is_packaged() {
    let packaged = packaged();
    let is_installed = |file: &&str| file.split(['/', '\\']).any(|part| part == "venv" || part == "node_modules");
    assert_eq!(packaged.lines().find(is_installed), None);
    assert!(packaged.contains("package-lock.json") && packaged.contains("requirements.txt"), "{packaged}");
}

/// Their lock files and dependencies are of no use to users.
#[test]
fn nothing_of_other_packages_is_packaged() {
    let others = ["ehcp", "emulator", "fuzz", "lab", "rust_sdk_0_15"];
    let is_of_another = |file: &&str| file.split(['/', '\\']).any(|part| others.contains(&part));
    assert_eq!(packaged().lines().find(is_of_another), None);
}
