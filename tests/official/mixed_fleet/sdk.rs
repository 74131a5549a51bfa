//! The other SDKs: whether they can run here, their installation, and the process in which each of them runs.
//!
//! To update the JavaScript SDK: change `package.json`, then `npm install --package-lock-only`. The Python SDK: see
//! `requirements.txt`. The Go SDK: `go get -u ./... && go mod tidy`. The Java SDK: change `pom.xml`. The Rust SDK is
//! the newest for which there is an official blob checkpoint store.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use eventhubs_checkpoint::store::NameCase;
use serde_json::{Value, json};

use crate::bench::group;
use crate::compiled::{check_go, check_java, go_program, java_program};
use crate::python::{check_python, python_with_packages};
use crate::support::install::{check_node, npm_ci};
use crate::support::repository;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    JavaScript,
    Python,
    Java,
    Go,
    Rust,
}

/// Runs one SDK for all tests of this process, and ends with it.
pub struct Process {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _child: Child,
}

impl Sdk {
    /// Returns the casing of the blob names of its processor.
    pub fn name_case(self) -> NameCase {
        match self {
            Self::JavaScript | Self::Python | Self::Java => NameCase::Lower,
            Self::Go | Self::Rust => NameCase::Verbatim,
        }
    }

    /// Returns whether the SDK can run here. If not, it prints the reason once, although tests are silent when they
    /// pass.
    pub fn is_here(self) -> bool {
        static HERE: [OnceLock<bool>; 5] = [const { OnceLock::new() }; 5];
        *HERE[self as usize].get_or_init(|| {
            let checked = match self {
                Self::JavaScript => check_node(),
                Self::Python => check_python(),
                Self::Java => check_java(),
                Self::Go => check_go(),
                Self::Rust => check_rust_sdk(),
            };
            let usable = checked.as_ref().map_err(|why| writeln!(std::io::stderr(), "{self:?} is skipped: {why}"));
            usable.is_ok()
        })
    }

    /// Installed and started by the first test that needs it. The Rust SDK has no such script. With names in this casing,
    /// if the store uses them as they are given.
    pub fn process(self, connection_string: &str, case: NameCase) -> &'static Mutex<Process> {
        static PROCESSES: [[OnceLock<Mutex<Process>>; 2]; 5] = [const { [const { OnceLock::new() }; 2] }; 5];
        PROCESSES[self as usize][usize::from(case == NameCase::Verbatim)].get_or_init(|| {
            let mut process = Process::start(self.installed("peer").unwrap(), &self.names(case), connection_string);
            println!("met {}", process.ask(&json!({ "do": "versions", "container": "any" })).as_str().unwrap());
            Mutex::new(process)
        })
    }

    /// Returns the namespace, event hub and consumer group for a store whose blobs have names in this casing. The stores
    /// of JavaScript and Python get capital letters, to show that they convert them to lower case. In Java, only the
    /// processor converts them, so its store gets lower case.
    fn names(self, case: NameCase) -> [String; 3] {
        let group = group();
        let names = [group.namespace(), group.event_hub(), group.name()];
        match (self, case) {
            (Self::JavaScript | Self::Python, NameCase::Lower) => names.map(str::to_uppercase),
            (_, NameCase::Lower) => names.map(str::to_lowercase),
            (_, NameCase::Verbatim) => names.map(str::to_owned),
        }
    }

    /// Returns the command that runs its script of this name. Blocks while it installs the SDK.
    pub fn installed(self, script: &str) -> Result<Command, String> {
        let folder = folder();
        let mut command = match self {
            Self::JavaScript => {
                npm_ci(&folder)?;
                let mut command = Command::new("node");
                command.arg(format!("{script}.mjs"));
                command
            }
            Self::Python => {
                let mut command = Command::new(python_with_packages(&folder)?);
                command.arg(format!("{script}.py"));
                command
            }
            Self::Java => java_program(&folder.join("../java"), &format!("peers.{}", capitalized(script)))?,
            Self::Go => Command::new(go_program(&folder.join("../go"), script)?),
            Self::Rust => Command::new(rust_program(script)?),
        };
        command.current_dir(folder);
        Ok(command)
    }
}

impl Process {
    fn start(mut command: Command, names: &[String; 3], connection_string: &str) -> Self {
        let mut child = command
            .args(names)
            // Without the protocol the JavaScript SDK assumes a shared access signature.
            .env("CONNECTION_STRING", format!("DefaultEndpointsProtocol=http;{connection_string}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { input, output, _child: child }
    }

    /// Executes a command. Blocks, so the test needs a runtime with another thread: Azurite closes connections that are
    /// idle for 5 s, and a request on one whose end was not noticed fails.
    pub fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut response: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command}: no response: {line:?}"));
        assert!(response.get("ok").is_some(), "{command}: {response}");
        response["ok"].take()
    }
}

fn rust_sdk() -> PathBuf {
    repository::root().join("tests/official/rust_sdk_0_15")
}

/// Checks that the program is there, and what it is linked with.
fn check_rust_sdk() -> Result<(), String> {
    if !rust_sdk().is_dir() {
        return Err("the published package does not contain its program".into());
    }
    let has_openssl = || {
        let found = Command::new("pkg-config").args(["--exists", "openssl"]).status();
        found.is_ok_and(|status| status.success()) || std::env::var_os("OPENSSL_DIR").is_some()
    };
    if cfg!(target_os = "linux") && !has_openssl() {
        return Err("install pkg-config and the development files of OpenSSL".into());
    }
    Ok(())
}

/// Returns the program of the Rust SDK. Built once per process: Cargo locks the folder, and looks at all files.
fn rust_program(name: &str) -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| build_rust_program(name)).clone()
}

/// Builds a program of the Rust SDK, and returns its path.
fn build_rust_program(name: &str) -> Result<PathBuf, String> {
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("there is no target folder")?.join("rust_sdk_0_15");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--message-format", "json", "--bin", name, "--target-dir"])
        .arg(target)
        .current_dir(rust_sdk())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cannot build the program: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let built = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    built.ok_or_else(|| "cargo built no program".into())
}

fn capitalized(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_uppercase() + rest
}

fn folder() -> PathBuf {
    repository::root().join("tests/official/mixed_fleet")
}
