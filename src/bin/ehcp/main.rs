//! `ehcp` shows and steers consumer groups whose processors keep their checkpoints in blobs, in the format of all
//! official SDKs.

mod args;
mod commands;
mod connection;
mod exit;
mod output;
mod pauses;
mod profile;
mod progress;
mod safety;
#[cfg(feature = "tui")]
mod screen;
mod serve;
mod text;
#[cfg_attr(not(feature = "tui"), allow(dead_code, unused_imports, reason = "only the screen uses everything"))]
mod watching;

use std::process::ExitCode;

use args::{Args, Global};
use exit::Exit;
use tracing_subscriber::EnvFilter;

/// The exit code of `check` for a wrong command line: 2 would be critical.
const NAGIOS_UNKNOWN: u8 = 3;

// On one thread: with several, a send of the official client can miss its response.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => {
            // Help goes to the standard output, which may be closed.
            let _ = error.print();
            return match error.use_stderr() {
                true if Args::is_check(std::env::args_os()) => NAGIOS_UNKNOWN.into(),
                true => Exit::Usage.into(),
                false => Exit::Done.into(),
            };
        }
    };
    log_to_stderr(&args.global);
    match commands::run(args).await {
        Ok(code) => code.into(),
        Err(failure) => {
            output::print_note(format_args!("error: {failure}"));
            failure.exit().into()
        }
    }
}

/// Errors are reported by the commands, so the log is off without `-v`.
fn log_to_stderr(global: &Global) {
    let filter = match global.verbose {
        0 => "off",
        1 => "eventhubs_checkpoint=info",
        2 => "eventhubs_checkpoint=debug",
        3 => "debug",
        _ => "trace",
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(output::has_colored_messages(global.color))
        .with_writer(std::io::stderr)
        .init();
}
