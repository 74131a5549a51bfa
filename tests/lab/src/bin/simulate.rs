//! See `cargo simulate --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    eventhubs_checkpoint_lab::simulate::main()
}
