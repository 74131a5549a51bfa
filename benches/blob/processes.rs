//! Starts this program again, as a stub or for a measurement.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Result;
use crate::measure::Cost;
use crate::placement::Placement;
use crate::work::{Client, Work};

/// A stub in a separate process, which ends when this is dropped.
pub(crate) struct Stub {
    process: Child,
    pub(crate) address: String,
}

impl Stub {
    pub(crate) fn start(delay: Duration) -> Result<Self> {
        let (core, delay) = (Placement::of_stub()?.to_string(), delay.as_millis().to_string());
        let process = this_program()?.args(["stub", &core, &delay]).stdout(Stdio::piped()).spawn()?;
        let mut stub = Self { process, address: String::new() };
        let output = stub.process.stdout.take().ok_or("the stub has no output")?;
        BufReader::new(output).read_line(&mut stub.address)?;
        stub.address.truncate(stub.address.trim_end().len());
        Ok(stub)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs one measurement.
pub(crate) fn measure(client: Client, work: Work, placement: Placement, stub: &Stub) -> Result<Cost> {
    let core = placement.of_client()?.to_string();
    let output = this_program()?
        .args(["measure", &core, &client.to_string(), &work.to_string(), &stub.address])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("measuring {client}, {work} failed").into());
    }
    String::from_utf8(output.stdout)?.parse()
}

/// Returns a command without backtraces: errors of azure_core capture one, even those that only report a missing
/// header.
fn this_program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
    Ok(command)
}
