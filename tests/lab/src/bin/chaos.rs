//! See `cargo chaos --help`.

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    eventhubs_checkpoint_lab::chaos::main()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("error: faults are injected with signals, which this system does not support");
    ExitCode::FAILURE
}
