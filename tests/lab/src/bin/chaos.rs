//! `cargo chaos --help`.

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    eventhubs_checkpoint_lab::chaos::main()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("error: the faults are made with signals, which this system does not have");
    ExitCode::FAILURE
}
