//! The consumers that are compared.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::compiled::{check_go, check_java, go_program, java_program};
use crate::python::{check_python, python_with_packages};
use crate::support::install::{check_node, npm_ci};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// This crate; each batch waits for its checkpoint.
    OursDurable,
    /// This crate as its documentation says: checkpoints are written in the background.
    Ours,
    /// The official `EventProcessor` for Rust, with the checkpoint store of this crate.
    Official,
    Go,
    Java,
    JavaScript,
    Python,
}

pub(crate) const ALL: [Client; 7] =
    [Client::OursDurable, Client::Ours, Client::Official, Client::Go, Client::Java, Client::JavaScript, Client::Python];

impl Client {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OursDurable => "this crate, checkpoint_now",
            Self::Ours => "this crate, checkpoint",
            Self::Official => "official Rust on our store",
            Self::Go => "Go SDK",
            Self::Java => "Java SDK",
            Self::JavaScript => "JavaScript SDK",
            Self::Python => "Python SDK",
        }
    }

    /// Returns why the client cannot run here.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::OursDurable | Self::Ours | Self::Official => None,
            Self::Go => check_go().err(),
            Self::Java => check_java().err(),
            Self::JavaScript => check_node().err(),
            Self::Python => check_python().err(),
        }
    }

    /// Returns the command that runs the client, without its settings. Blocks while it installs the SDK.
    pub(crate) fn command(self) -> Result<Command> {
        let mut command = match self {
            Self::OursDurable | Self::Ours => this_program("ours")?,
            Self::Official => this_program("official")?,
            Self::Go => Command::new(go_program(&folder().join("../go"), "consumer")?),
            Self::Java => java_program(&folder().join("../java"), "peers.Consumer")?,
            Self::JavaScript => {
                npm_ci(&folder())?;
                let mut command = Command::new("node");
                command.arg("consumer.mjs").current_dir(folder());
                command
            }
            Self::Python => {
                let mut command = Command::new(python_with_packages(&folder())?);
                command.arg("consumer.py").current_dir(folder());
                command
            }
        };
        // The official client captures a backtrace for every error, if it may.
        command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
        Ok(command)
    }
}

pub(crate) fn this_program(role: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role);
    Ok(command)
}

/// The SDKs are installed where the tests of mixed groups install them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../official/mixed_fleet")
}
