//! See `cargo ruler --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    eventhubs_checkpoint_lab::ruler::main()
}
