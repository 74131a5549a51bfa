//! See `cargo day --help`.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    eventhubs_checkpoint_lab::day::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: the wall clock is faked by libfaketime, which is used on Linux only");
    ExitCode::FAILURE
}
